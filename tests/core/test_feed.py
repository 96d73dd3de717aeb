"""What reaches sinks, and what sinks may do to a run: nothing."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from art_core.errors import ConfigError, MissingExtraError
from art_core.protocols import MetricSink
from art_core.registry import check_sinks
from art_core.sinks.feed import Feed
from art_core.testing import RecordingSink


def write(folder: Path, kind: str, *records: Any) -> None:
    with (folder / f"{kind}.jsonl").open("a") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")


def step(number: int) -> dict[str, Any]:
    return {"step": number, "metrics": {"train/loss": number / 2}}


def parse(record: dict[str, Any]) -> tuple[int, dict[str, float]]:
    return record["step"], record["metrics"]


def feed(
    folder: Path, *openers: Callable[[], MetricSink], retry_after_s: float = 60.0, logs: tuple[str, ...] = ("steps",)
) -> Feed:
    named = {f"sink{number}": opener for number, opener in enumerate(openers)}
    return Feed(folder, dict.fromkeys(logs, parse), named, retry_after_s=retry_after_s)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def test_what_is_in_the_logs_and_what_comes_reaches_every_sink_once(tmp_path: Path) -> None:
    sinks = [RecordingSink(), RecordingSink()]
    write(tmp_path, "steps", step(1), step(2))
    fed = feed(tmp_path, lambda: sinks[0], lambda: sinks[1])
    fed.wake()
    until(lambda: all(len(sink.logged) == 2 for sink in sinks))
    write(tmp_path, "steps", step(3))
    fed.wake()
    fed.close()
    for sink in sinks:
        assert sink.logged == [(1, {"train/loss": 0.5}), (2, {"train/loss": 1.0}), (3, {"train/loss": 1.5})]
        assert sink.closed
    assert fed.num_failures == 0
    assert fed.metrics() == {"sinks/failures": 0.0}


def test_another_process_goes_on_where_the_last_one_was_and_gives_what_it_missed(tmp_path: Path) -> None:
    opened: list[RecordingSink] = []

    def opener() -> MetricSink:
        opened.append(RecordingSink())
        return opened[-1]

    write(tmp_path, "steps", step(1))
    first = feed(tmp_path, opener)
    first.wake()
    first.close()
    write(tmp_path, "steps", step(2))  # while no sink is there
    second = feed(tmp_path, opener)
    second.wake()
    second.close()
    third = feed(tmp_path, opener)
    third.wake()
    third.close()
    assert [[number for number, _ in sink.logged] for sink in opened] == [[1], [2]]


def test_a_record_that_is_being_written_is_left_for_later_and_a_damaged_one_left_out(tmp_path: Path) -> None:
    sink = RecordingSink()
    log = tmp_path / "steps.jsonl"
    log.write_text(json.dumps(step(1)) + '\n{"step": \n[1]\n{"other": 1}\n' + json.dumps(step(2))[:-1])
    fed = feed(tmp_path, lambda: sink)
    fed.wake()
    until(lambda: len(sink.logged) == 1)
    with log.open("a") as file:
        file.write("}\n")
    fed.close()
    assert [number for number, _ in sink.logged] == [1, 2]
    assert fed.num_failures == 0


def test_each_log_has_its_place(tmp_path: Path) -> None:
    sink = RecordingSink()
    write(tmp_path, "steps", step(1))
    write(tmp_path, "metrics", {"step": 1, "metrics": {"val/reward": 1.0}}, {"step": 1, "metrics": {}})
    fed = feed(tmp_path, lambda: sink, logs=("steps", "metrics"))
    fed.wake()
    fed.close()
    assert sink.logged == [(1, {"train/loss": 0.5}), (1, {"val/reward": 1.0})]


def test_a_sink_that_fails_is_told_once_counted_and_opened_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken, mended = RecordingSink(), RecordingSink()
    broken.error = OSError("no space left on device")
    sinks = [broken, mended]
    write(tmp_path, "steps", step(1), step(2))
    with caplog.at_level(logging.WARNING):
        fed = feed(tmp_path, lambda: sinks.pop(0), retry_after_s=0.01)
        fed.wake()
        until(lambda: len(mended.logged) == 1)
        fed.close()
    assert broken.closed
    assert mended.logged == [(2, {"train/loss": 1.0})], "what it failed at may have been written: it is not repeated"
    assert fed.num_failures == 1
    (record,) = caplog.records
    assert "'sink0' fails (OSError: no space left on device); training goes on" in record.getMessage()


def test_a_sink_that_never_opens_is_told_once_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def failing() -> MetricSink:
        raise ConfigError("W&B knows no API key")

    write(tmp_path, "steps", step(1))
    fed = feed(tmp_path, failing, retry_after_s=0.001)
    fed.wake()
    until(lambda: fed.num_failures > 2)
    fed.close()
    assert len(caplog.records) == 1
    sink = RecordingSink()
    later = feed(tmp_path, lambda: sink)
    later.wake()
    later.close()
    assert sink.logged == [(1, {"train/loss": 0.5})]


def test_a_sink_that_hangs_holds_nobody_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    release, other = threading.Event(), RecordingSink()

    class Hanging(RecordingSink):
        def log(self, step: int, metrics: Any) -> None:
            release.wait(60)

    write(tmp_path, "steps", step(1))
    fed = feed(tmp_path, Hanging, lambda: other)
    fed.wake()
    until(lambda: len(other.logged) == 1)
    fed.close(timeout_s=0.01)
    assert "'sink0' does not end and is given up" in caplog.text
    release.set()


def test_a_sink_that_hangs_is_told_once_while_training_goes_on_and_gets_what_it_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    class Hanging(RecordingSink):
        def log(self, step: int, metrics: Any) -> None:
            release.wait(60)
            super().log(step, metrics)

    sink = Hanging()
    write(tmp_path, "steps", step(1))
    fed = Feed(tmp_path, {"steps": parse}, {"slow": lambda: sink}, hangs_after_s=0.02)
    fed.wake()
    for number in range(2, 6):
        time.sleep(0.03)
        write(tmp_path, "steps", step(number))
        fed.wake()
    assert fed.metrics() == {"sinks/failures": 1.0}
    assert caplog.text.count("the sink 'slow' has not come back for") == 1
    release.set()
    fed.close()
    assert [number for number, _ in sink.logged] == [1, 2, 3, 4, 5]


def test_a_sink_whose_library_ends_the_program_ends_only_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Exiting(RecordingSink):
        def log(self, step: int, metrics: Any) -> None:
            raise SystemExit(3)

    sinks: list[MetricSink] = [Exiting(), other := RecordingSink()]
    write(tmp_path, "steps", step(1), step(2))
    fed = feed(tmp_path, lambda: sinks.pop(0), retry_after_s=0.01)
    fed.wake()
    until(lambda: len(other.logged) == 1)
    fed.close()
    assert (fed.num_failures, "fails (SystemExit: 3)" in caplog.text) == (1, True)


def test_without_sinks_there_is_no_thread_and_no_metric(tmp_path: Path) -> None:
    before = threading.active_count()
    fed = feed(tmp_path)
    fed.wake()
    assert (threading.active_count(), fed.metrics()) == (before, {})
    fed.close()
    assert not (tmp_path / "sinks").exists()


def test_a_damaged_cursor_is_told_and_the_sink_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = RecordingSink()
    write(tmp_path, "steps", step(1))
    (tmp_path / "sinks").mkdir()
    (tmp_path / "sinks" / "sink0.json").write_text("{")
    fed = feed(tmp_path, lambda: sink)
    fed.wake()
    fed.close()
    assert [number for number, _ in sink.logged] == [1]
    assert "begins anew" in caplog.text


def test_an_unknown_sink_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"sink 'mlflow' is unknown; wanted one of \['tensorboard', 'wandb'\]"):
        check_sinks(["mlflow"])


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_library_is_named_with_what_to_install(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda library: None)
    with pytest.raises(MissingExtraError, match=rf"sink '{name}' needs '{name}'.*pip install 'art-core\[{name}\]'"):
        check_sinks([name])


def test_a_log_that_was_made_shorter_or_cannot_be_read_ends_no_sink(tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"
    log.write_text('{"n": 1}\n{"n": 2}\n')
    sink = RecordingSink()
    feed = Feed(tmp_path, {"steps": lambda record: (record["n"], {"a": 1.0})}, {"s": lambda: sink}, retry_after_s=0.01)
    feed.wake()
    until(lambda: len(sink.logged) == 2)
    log.write_text('{"n": 1}\n')  # a line was removed by hand
    feed.wake()
    time.sleep(0.1)
    with log.open("a") as file:
        file.write('{"n": 3}\n')
    feed.wake()
    until(lambda: sink.logged[-1][0] == 3)
    feed.close()
    assert [number for number, _ in sink.logged] == [1, 2, 3]
