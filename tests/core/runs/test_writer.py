from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any, cast

import pytest

from art_core.errors import ConfigError, DataError, StorageError
from art_core.runs import Run, run
from art_core.types import RolloutError, StepReport
from tests.core.runs.building import exchange, group, open_run, trajectory


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_layout_of_a_run_folder(tmp_path: Path) -> None:
    with open_run(tmp_path, "shop", "clerk") as one:
        one.log_groups("val", 7, [group(trajectory("a", 1.0), trajectory("b", 0.5))], {"win_rate": 0.25})
        one.log_step(StepReport(8, {"loss/policy": -0.5}))
    folder = tmp_path / "shop" / "clerk"
    first, second = lines(folder / "trajectories" / "val" / "step-0007.jsonl")
    assert list(first)[:8] == ["split", "step", "group", "id", "scenario_id", "reward", "error", "metrics"]
    assert (first["id"], first["reward"], first["exchanges"][0]["logprobs"]) == ("a", 1.0, [-0.1 - 0.2, -9999.0])
    assert first["group"] == second["group"]
    assert lines(folder / "metrics.jsonl") == [
        {
            "split": "val",
            "step": 7,
            "metrics": {"win_rate": 0.25},
            "counts": {
                "groups": 1,
                "trajectories": 2,
                "exchanges": 2,
                "prompt_tokens": 6,
                "completion_tokens": 4,
            },
            "averages": {"reward": [0.75, 2], "exception_rate": [0.0, 2], "reward_std_dev": [0.25, 1]},
            "bytes": [0, (folder / "trajectories" / "val" / "step-0007.jsonl").stat().st_size],
        }
    ]
    assert lines(folder / "steps.jsonl") == [{"step": 8, "metrics": {"loss/policy": -0.5}}]


def test_what_is_counted(tmp_path: Path) -> None:
    forked = exchange(prompt=(9,), forked=True)
    with open_run(tmp_path, "p", "m") as one:
        one.log_groups(
            "train",
            0,
            [
                group(
                    trajectory("a", 1.0, metrics={"turns": 2.0}),
                    trajectory("b", 0.0, metrics={"turns": 4.0, "won": 1.0}, exchanges=[exchange(), forked]),
                    trajectory("c", 9.0, metrics={"turns": 99.0}, error=RolloutError(kind="E", message="gone")),
                    metrics={"spread": 3.0},
                ),
                group(trajectory("d", 0.5), trajectory("e", 0.5)),
                group(trajectory("f", None), trajectory("g", 1.0)),
            ],
        )
        (summary,) = one.summaries()
    assert vars(summary.counts) == {
        "groups": 3,
        "trajectories": 7,
        "failed": 1,
        "unscored": 1,
        "without_signal": 2,
        "exchanges": 8,
        "forks": 1,
        "prompt_tokens": 7 * 3 + 1,
        "completion_tokens": 16,
    }
    assert summary.counts.excluded == 2
    assert summary.reward == pytest.approx(3.0 / 5)
    assert summary.metrics == pytest.approx(
        {
            "turns": 3.0,
            "won": 1.0,
            "reward": 0.6,
            "group_spread": 3.0,
            "exception_rate": 1 / 7,
            "reward_std_dev": 0.25,  # of one group 0.5, of another 0; the third has one reward
        }
    )


def test_logging_a_step_again_adds_to_it(tmp_path: Path) -> None:
    with open_run(tmp_path, "p", "m") as one:
        one.log_groups("val", 3, [group(trajectory("a", 1.0), trajectory("b", 1.0))], {"x": 1.0, "y": 1.0})
        one.log_groups("val", 3, [group(trajectory("c", 0.0))], {"x": 2.0})
        one.log_groups("val", 3, [], {"z": 3.0})
        (summary,) = one.summaries()
    assert summary.counts.trajectories == 3
    assert summary.metrics == pytest.approx(
        {"reward": 2 / 3, "exception_rate": 0.0, "reward_std_dev": 0.0, "x": 2.0, "y": 1.0, "z": 3.0}
    )
    assert [t.id for t in Run(one.folder).trajectories("val", 3)] == ["a", "b", "c"]


def test_a_metric_given_by_name_stands_for_the_average_of_that_name(tmp_path: Path) -> None:
    with open_run(tmp_path, "p", "m") as one:
        one.log_groups("val", 0, [group(trajectory("a", 1.0))], {"reward": 0.5})
        assert one.summaries()[0].reward == 0.5


def test_metrics_alone_make_no_file_of_trajectories(tmp_path: Path) -> None:
    with open_run(tmp_path, "p", "m") as one:
        one.log_groups("val", 2, [], {"accuracy": 0.5})
        assert one.splits == []
        assert [(s.split, s.step, dict(s.metrics)) for s in one.summaries()] == [("val", 2, {"accuracy": 0.5})]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "high", None])
def test_a_metric_that_is_no_finite_number_is_refused_and_nothing_is_written(tmp_path: Path, value: Any) -> None:
    with open_run(tmp_path, "p", "m") as one:
        with pytest.raises(DataError, match="metric 'reward' is"):
            one.log_groups("val", 0, [group(trajectory("a"))], {"reward": value})
        with pytest.raises(DataError, match="step 1: metric 'loss' is"):
            one.log_step(StepReport(1, {"loss": value}))
        assert sorted(path.name for path in one.folder.iterdir()) == [".lock", "checkpoints", "model.json"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/etc", "../x", "a\0b", ".hidden", "küche", "\udcff", "a" * 101]
)
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with open_run(tmp_path, "p", "m") as one, pytest.raises(ConfigError, match="split"):
        one.log_groups(name, 0, [group(trajectory("a"))])
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


@pytest.mark.parametrize(
    "id", ["../../escape", "/etc/passwd", "a\0b", "\udcff", "x" * 5000, "", "step-0001.jsonl", "\n"]
)
def test_ids_are_data_and_never_part_of_a_path(tmp_path: Path, id: str) -> None:
    with open_run(tmp_path, "p", "m") as one:
        one.log_groups("val", 0, [group(trajectory(id, 1.0, scenario_id=id), scenario_id=id)])
    files = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(files) == [
        "p/m/.lock",
        "p/m/metrics.jsonl",
        "p/m/model.json",
        "p/m/trajectories/val/step-0000.jsonl",
    ]
    found = run(tmp_path, "p/m").find(id)
    assert (found.trajectory.id, found.trajectory.scenario_id, found.group.scenario_id) == (id, id, id)


class Unwritable:
    def __repr__(self) -> str:
        return "Unwritable()"


@pytest.mark.parametrize("value", [ValueError("gone"), Unwritable(), float("nan"), b"\xff"])
def test_one_trajectory_that_cannot_be_written_is_named_and_the_others_are_kept(tmp_path: Path, value: object) -> None:
    bad = trajectory("bad")
    nested: dict[str, Any] = {}
    bad.metadata["x"] = nested
    cast("dict[str, Any]", bad.metadata["x"])["y"] = value  # what is set inside a value is not checked when it is set
    blamed = "1 of 3 trajectories were not kept: trajectory 'bad': metadata"
    with open_run(tmp_path, "p", "m") as one:
        with pytest.raises(DataError, match=blamed):
            one.log_groups("val", 0, [group(trajectory("a"), bad, trajectory("b"))])
        assert [t.id for t in one.trajectories()] == ["a", "b"]
        assert one.summaries()[0].counts.trajectories == 2


def test_half_a_surrogate_pair_in_a_key_of_a_message_is_refused_by_the_field(tmp_path: Path) -> None:
    bad = trajectory("bad", messages_and_choices=[{"role": "user", "\ud800": 1}])
    with open_run(tmp_path, "p", "m") as one:
        with pytest.raises(DataError, match="messages_and_choices cannot be written"):
            one.log_groups("val", 0, [group(bad, trajectory("a"))])
        assert [t.id for t in one.trajectories()] == ["a"]


def test_a_group_that_cannot_be_written_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    bad = group(trajectory("a"), trajectory("b"), scenario_id="s9")
    bad.metadata["x"] = {}
    cast("dict[str, Any]", bad.metadata["x"])["y"] = Unwritable()
    with open_run(tmp_path, "p", "m") as one:
        with pytest.raises(DataError, match="2 of 3 trajectories were not kept: group 's9'"):
            one.log_groups("val", 0, [bad, group(trajectory("c"))])
        assert [t.id for t in one.trajectories()] == ["c"]


def _log_for_ever(path: Path) -> None:
    with open_run(path, "p", "m") as one:
        number = 0
        while True:
            members = [trajectory(str(number + place), logs=["x" * 20_000]) for place in range(4)]
            one.log_groups("train", 0, [group(*members)])
            number += 4


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.2, 0.31, 0.43])
def test_killed_while_writing_whole_records_survive_and_are_counted(tmp_path: Path, delay_s: float) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_log_for_ever, args=(tmp_path,))
    process.start()
    file = tmp_path / "p" / "m" / "trajectories" / "train" / "step-0000.jsonl"
    while not file.exists():
        time.sleep(0.01)
    time.sleep(delay_s)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    process.close()
    read = Run(tmp_path / "p" / "m")
    ids = [int(t.id) for t in read.trajectories()]
    assert ids == list(range(len(ids)))
    assert read.summaries()[0].counts.trajectories == len(ids)
    with open_run(tmp_path, "p", "m") as again:
        again.log_groups("train", 0, [group(trajectory("after"))])
        assert [t.id for t in again.trajectories()] == [*map(str, ids), "after"]
        assert again.summaries()[0].counts.trajectories == len(ids) + 1


def test_a_torn_tail_is_not_read_and_is_cut_by_the_next_writer(tmp_path: Path) -> None:
    with open_run(tmp_path, "p", "m") as one:
        one.log_groups("train", 0, [group(trajectory("a"))])
    file = one.folder / "trajectories" / "train" / "step-0000.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[: len(whole) // 2])
    assert [t.id for t in Run(one.folder).trajectories()] == ["a"]
    assert file.stat().st_size > len(whole)
    with open_run(tmp_path, "p", "m") as one:
        one.log_groups("train", 0, [group(trajectory("b"))])
        assert [t.id for t in one.trajectories()] == ["a", "b"]
        assert one.summaries()[0].counts.trajectories == 2


def _log_until_full(path: Path) -> None:
    """A limit on the size of files stops a write in its middle, as a full disk does."""
    with open_run(path, "p", "m") as one:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        members = [trajectory(str(number), logs=["x" * 3000]) for number in range(9)]
        try:
            one.log_groups("train", 0, [group(*members)])
        except StorageError as error:
            (path / "error.txt").write_text(str(error))


@pytest.mark.slow
def test_a_full_disk_leaves_whole_records_that_are_counted(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_log_until_full, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    process.close()
    assert "could not append to" in (tmp_path / "error.txt").read_text()
    one = Run(tmp_path / "p" / "m")
    ids = [t.id for t in one.trajectories()]
    file = one.folder / "trajectories" / "train" / "step-0000.jsonl"
    assert ids == ["0", "1", "2", "3", "4"]
    assert file.read_bytes().endswith(b"\n")
    assert one.summaries()[0].counts.trajectories == 5
