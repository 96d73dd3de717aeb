"""What every `MetricSink` promises, on the adapters and on the fake: read back from the files that the tools read."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from art_core.protocols import MetricSink, SinkRun
from art_core.registry import open_sink
from art_core.testing import RecordingSink

Logged = list[tuple[int, dict[str, float]]]


@dataclass
class Case:
    """A kind of sink: how to open it for a run, and what was logged in the run's folder so far."""

    open: Callable[[], MetricSink]
    logged: Callable[[], Logged]
    folder: Path


@pytest.fixture(params=["recording", "tensorboard", pytest.param("wandb", marks=pytest.mark.slow)])
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    name: str = request.param
    run = SinkRun(tmp_path / name, "shop", "clerk", {"base_model": "tiny", "lora": {"rank": 4}})
    if name == "recording":
        opened: list[RecordingSink] = []

        def record() -> MetricSink:
            opened.append(RecordingSink())
            return opened[-1]

        yield Case(record, lambda: [line for sink in opened for line in sink.logged], tmp_path)
        return
    if name == "wandb":
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
        monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    read = {"tensorboard": tensorboard_events, "wandb": wandb_history}[name]
    yield Case(lambda: open_sink(name, run), lambda: read(run.folder), tmp_path)
    if name == "wandb":
        import wandb

        wandb.teardown()


def tensorboard_events(folder: Path) -> Logged:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    found: dict[tuple[float, int], dict[str, float]] = {}
    for tag in accumulator.Tags()["scalars"]:
        for event in accumulator.Scalars(tag):
            found.setdefault((event.wall_time, event.step), {})[tag] = event.value
    return [(step, metrics) for (_, step), metrics in sorted(found.items())]


def wandb_records(folder: Path) -> list[Any]:
    """The records of the offline runs in `folder`, oldest run first."""
    records: list[Any] = []
    for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        deadline = time.monotonic() + 30
        while True:  # the library's own process writes it, also after the run was finished
            of_run = wandb_file(path.read_bytes())
            if of_run and of_run[-1].WhichOneof("record_type") == "exit":
                break
            assert time.monotonic() < deadline, f"{path} has no end"
            time.sleep(0.02)
        records += of_run
    return records


def wandb_file(data: bytes) -> list[Any]:
    """The whole records of a file of W&B: seven bytes, then blocks of LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    protocol: Any = wandb_internal_pb2
    records: list[Any] = []
    position, parts = 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4) and position <= len(data):  # whole, or the last part
            record = protocol.Record()
            record.ParseFromString(parts)
            records.append(record)
            parts = b""
    assert not records or data[:4] == b":W&B"
    return records


def wandb_history(folder: Path) -> Logged:
    lines: Logged = []
    for record in wandb_records(folder):
        if record.WhichOneof("record_type") == "history":
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
            }
            metrics = {name: value for name, value in values.items() if not name.startswith("_")}
            lines.append((metrics.pop("step"), metrics))
    return lines


def test_it_is_a_sink(case: Case) -> None:
    sink = case.open()
    assert isinstance(sink, MetricSink)
    sink.close()


def test_what_is_logged_arrives_once_with_its_step_under_its_name(case: Case) -> None:
    sink = case.open()
    sink.log(1, {"train/loss": 0.5, "reward/mean": 0.25})
    sink.log(2, {"train/loss": -0.125})
    sink.log(0, {"val/reward": 1.0})
    sink.close()
    assert case.logged() == [
        (1, {"train/loss": 0.5, "reward/mean": 0.25}),
        (2, {"train/loss": -0.125}),
        (0, {"val/reward": 1.0}),
    ]


def test_opened_again_it_goes_on(case: Case) -> None:
    for step in (1, 2):
        sink = case.open()
        sink.log(step, {"train/loss": step / 4})
        sink.close()
    assert case.logged() == [(1, {"train/loss": 0.25}), (2, {"train/loss": 0.5})]


def test_it_can_be_closed_twice_and_then_takes_nothing(case: Case) -> None:
    sink = case.open()
    sink.close()
    sink.close()
    with pytest.raises(ValueError, match="closed"):
        sink.log(1, {"train/loss": 1.0})
    assert case.logged() == []


def test_it_works_in_a_thread(case: Case) -> None:
    def work() -> None:
        sink = case.open()
        sink.log(1, {"train/loss": 1.0})
        sink.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert case.logged() == [(1, {"train/loss": 1.0})]


def test_no_secret_of_the_environment_or_the_command_line_is_written(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_API_KEY", "sk-environment")
    monkeypatch.setattr("sys.argv", ["art", "serve", "--api-key", "sk-argument"])
    sink = case.open()
    print("sk-console")
    sink.log(1, {"train/loss": 1.0})
    sink.close()
    written = b"".join(path.read_bytes() for path in case.folder.rglob("*") if path.is_file())
    for secret in (b"sk-environment", b"sk-argument", b"sk-console", b"a" * 40):
        assert secret not in written


@pytest.mark.slow
def test_wandb_is_one_run_with_its_details_however_often_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    details = {"base_model": "tiny", "lora": {"rank": 4}}
    for step in (1, 2):
        sink = open_sink("wandb", SinkRun(tmp_path, "shop", "clerk", details))
        sink.log(step, {"train/loss": 1.0})
        sink.close()
    runs = [record.run for record in wandb_records(tmp_path) if record.WhichOneof("record_type") == "run"]
    assert {(run.project, run.display_name, run.run_id) for run in runs} == {
        ("shop", "clerk", (tmp_path / "run_id").read_text())
    }
    config = {item.key: json.loads(item.value_json) for run in runs for item in run.config.update}
    assert {key: value for key, value in config.items() if key != "_wandb"} == details


@pytest.mark.slow
def test_wandb_without_a_key_says_what_it_wants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    from art_core.errors import ConfigError

    wandb.teardown()
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    with pytest.raises(ConfigError, match="set WANDB_API_KEY, or WANDB_MODE=offline"):
        open_sink("wandb", SinkRun(tmp_path / "wandb", "shop", "clerk"))
    wandb.teardown()
