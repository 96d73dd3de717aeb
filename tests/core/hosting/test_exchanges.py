"""The log of a model's recorded calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_core.errors import DataError
from art_core.hosting.exchanges import ExchangeLog, open_trajectory_ids
from art_core.types import Exchange, Sampling

Opener = Callable[..., ExchangeLog]


@pytest.fixture
def open_log() -> Iterator[Opener]:
    with contextlib.ExitStack() as stack:
        yield lambda folder, **bounds: stack.enter_context(contextlib.closing(ExchangeLog(folder, **bounds)))


def exchange(id: str, trajectory_id: str = "", content: str = "u") -> Exchange:
    return Exchange(
        id=id,
        trajectory_id=trajectory_id,
        messages=({"role": "user", "content": content},),
        response={"role": "assistant", "content": "a"},
        prompt_ids=(1, 2),
        completion_ids=(3,),
        logprobs=(-0.5,),
        finish_reason="stop",
        sampling=Sampling(max_tokens=1),
        policy_version=0,
        started_at=1.0,
        ended_at=2.0,
    )


def test_calls_are_found_in_the_order_asked_for_also_after_a_restart(tmp_path: Path, open_log: Opener) -> None:
    log = open_log(tmp_path)
    records = [exchange(f"e{index}", content='é"\n') for index in range(4)]
    for record in records:
        log.record(record)
    assert log.find(["e3", "e1"]) == [records[3], records[1]]
    log.close()
    assert open_log(tmp_path).find(["e0", "e2"]) == [records[0], records[2]]


def test_trajectories_that_were_open_are_open_again_with_their_calls(tmp_path: Path, open_log: Opener) -> None:
    log = open_log(tmp_path)
    for trajectory_id in ("a", "b", 'c"/ü'):
        log.opened(trajectory_id)
    for index, trajectory_id in enumerate(("a", "b", "", 'c"/ü', "b")):
        log.record(exchange(str(index), trajectory_id))
    log.closed("a")
    assert open_trajectory_ids(tmp_path) == {"b", 'c"/ü'}
    found = open_log(tmp_path).open_trajectories()
    assert {key: [e.id for e in value] for key, value in found.items()} == {"b": ["1", "4"], 'c"/ü': ["3"]}


def test_a_record_that_a_killed_process_left_unfinished_is_dropped(tmp_path: Path, open_log: Opener) -> None:
    log = open_log(tmp_path)
    log.record(exchange("whole"))
    log.close()
    path = tmp_path / "exchanges" / "00000001.jsonl"
    with path.open("ab") as file:
        file.write(b'{"id":"torn","traj')
    assert open_trajectory_ids(tmp_path) == set()
    log = open_log(tmp_path)
    log.record(exchange("next"))
    log.close()
    assert [e.id for e in open_log(tmp_path).find(["whole", "next"])] == ["whole", "next"]
    assert path.read_text().count("\n") == 2


def test_a_line_that_is_none_is_refused_with_its_place(tmp_path: Path, open_log: Opener) -> None:
    open_log(tmp_path).record(exchange("e"))
    path = tmp_path / "exchanges" / "00000001.jsonl"
    path.write_text(path.read_text() + "nonsense\n")
    with pytest.raises(DataError, match=r"00000001.jsonl:2: not a line"):
        open_log(tmp_path)


def test_more_calls_than_the_bound_drop_the_oldest_which_are_counted(tmp_path: Path, open_log: Opener) -> None:
    log = open_log(tmp_path, max_records=3)
    for index in range(5):
        log.record(exchange(str(index)))
    assert [e.id for e in log.find(["2", "3", "4"])] == ["2", "3", "4"]
    assert log.num_dropped == 2
    with pytest.raises(DataError, match=r"1 of 2 exchange ids .*\(1\).* 2 old calls were dropped"):
        log.find(["1", "4"])


def test_disk_is_bounded_by_whole_segments(tmp_path: Path, open_log: Opener) -> None:
    size_bytes = len(exchange("000").model_dump_json()) + 1
    log = open_log(tmp_path, max_bytes=8 * 2 * size_bytes)  # two calls in each of eight segments
    for index in range(40):
        log.record(exchange(f"{index:03}"))
    files = sorted((tmp_path / "exchanges").iterdir())
    assert len(files) == 8
    assert sum(path.stat().st_size for path in files) == 16 * size_bytes
    assert log.num_dropped == 24
    assert [e.id for e in log.find([f"{index:03}" for index in range(24, 40)])][::15] == ["024", "039"]
    log.close()
    assert open_log(tmp_path).find(["030"])[0].id == "030"


@given(events=st.lists(st.tuples(st.sampled_from("ocr"), st.sampled_from(["t", "v", 'w"'])), max_size=30))
def test_a_restart_changes_nothing(events: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = ExchangeLog(folder, max_bytes=40_000)
    for number, (kind, trajectory_id) in enumerate(events):
        if kind == "r":
            log.record(exchange(str(number), trajectory_id))
        else:
            (log.opened if kind == "o" else log.closed)(trajectory_id)
    log.close()
    again = ExchangeLog(folder, max_bytes=40_000)
    again.close()
    assert again.open_trajectories() == log.open_trajectories()
    assert set(again.open_trajectories()) == open_trajectory_ids(folder)
