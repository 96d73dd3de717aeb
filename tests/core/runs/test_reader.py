from __future__ import annotations

import json
import multiprocessing
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art_core.advantage import group_advantages
from art_core.errors import DataError
from art_core.runs import Run, run, runs
from art_core.runs.records import Tally
from art_core.samples import to_samples
from art_core.trajectories import TrajectoryGroup
from art_core.types import StepReport
from tests.core.runs.building import GROUPS, exchange, group, open_run, same, trajectory


def logged(path: Path, project: str = "p", name: str = "m") -> Run:
    """Steps 0 and 10 of `train`, step 2 of `val`: ids say where each trajectory belongs."""
    with open_run(path, project, name, identity={"base_model": "tiny"}) as one:
        for split, step in (("train", 10), ("val", 2), ("train", 0)):
            members = [trajectory(f"{split}-{step}-{place}", float(place)) for place in range(2)]
            one.log_groups(split, step, [group(*members)])
        one.log_step(StepReport(1, {"loss": 0.5}))
        one.log_step(StepReport(2, {"loss": 0.25}))
    return Run(one.folder)


@pytest.mark.slow
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(GROUPS, max_size=2))
def test_groups_come_back_as_they_were(groups: list[TrajectoryGroup]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with open_run(Path(folder), "p", "m") as one:
            one.log_groups("train", 0, groups)
        read = list(one.groups())
        assert len(read) == len(groups)
        assert all(same(left, right) for left, right in zip(read, groups, strict=True))
        assert list(one.trajectories()) == [member for each in groups for member in each]


@pytest.mark.slow
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(GROUPS, max_size=3), st.integers(0, 3))
def test_counts_of_parts_add_up_to_those_of_the_whole(groups: list[TrajectoryGroup], cut: int) -> None:
    parts, whole = Tally.of(groups[:cut]) + Tally.of(groups[cut:]), Tally.of(groups)
    assert parts.counts == whole.counts
    assert set(parts.averages) == set(whole.averages)
    assert all(parts.averages[name][1] == number for name, (_, number) in whole.averages.items())


def test_averages_of_parts_are_weighted_by_their_numbers() -> None:
    first, second = (
        Tally.of([group(trajectory("a", 1.0), trajectory("b", 0.0))]),
        Tally.of([group(trajectory("c", 1.0))]),
    )
    mean, number = (first + second).averages["reward"]
    assert mean == pytest.approx(2 / 3)
    assert number == 3


def test_what_was_read_gives_the_same_training_rows(tmp_path: Path) -> None:
    first = exchange("x", prompt=(1, 2))
    turns = [first, exchange("y", prompt=(1, 2, 4, 5, 7)), exchange("z", prompt=(8,), forked=True)]
    made = group(trajectory("a", 1.0, exchanges=turns), trajectory("b", 0.0))
    with open_run(tmp_path, "p", "m") as one:
        one.log_groups("train", 0, [made])
    (read,) = run(tmp_path, "m").groups("train", 0)

    def rows(group: TrajectoryGroup) -> list[object]:
        scored = group.with_rewards()
        pairs = zip(scored.members, group_advantages(scored.rewards), strict=True)
        return [row for (member, _), advantage in pairs for row in to_samples(member, advantage)]

    assert rows(read) == rows(made)
    assert len(rows(read)) == 3


def test_splits_and_steps_are_chosen_and_ordered_by_number(tmp_path: Path) -> None:
    one = logged(tmp_path)

    def ids(split: str | None = None, step: int | None = None) -> list[str]:
        return [t.id for t in one.trajectories(split, step)]

    assert ids() == ["train-0-0", "train-0-1", "train-10-0", "train-10-1", "val-2-0", "val-2-1"]
    assert ids("val") == ["val-2-0", "val-2-1"]
    assert ids("train", 10) == ["train-10-0", "train-10-1"]
    assert ids(step=2) == ["val-2-0", "val-2-1"]
    assert one.splits == ["train", "val"]
    assert [(report.step, report.metrics) for report in one.steps()] == [(1, {"loss": 0.5}), (2, {"loss": 0.25})]
    with pytest.raises(DataError, match=r"no trajectories of split 'test'.*train, val"):
        one.trajectories("test")
    with pytest.raises(DataError, match=r"no trajectories of step 3.*its steps: 0, 10"):
        one.trajectories("train", 3)


def test_find_gives_the_trajectory_that_was_logged_last(tmp_path: Path) -> None:
    with open_run(tmp_path, "p", "m") as one:
        one.log_groups("train", 0, [group(trajectory("same", 0.0), trajectory("other", logs=["same"]))])
        one.log_groups("train", 1, [group(trajectory("same", 1.0))])
        assert one.find("same").trajectory.reward == 1.0
        assert one.find("same", step=0).trajectory.reward == 0.0
        with pytest.raises(DataError, match="no trajectory 'sam'"):
            one.find("sam")


@pytest.mark.parametrize(
    "line", [b'{"x": "\xff"}', b"5", b"[" * 100_000, b"{}", b'{"split": 1, "step": 0, "group": {}}']
)
@pytest.mark.parametrize("kind", ["trajectories/train/step-0000", "metrics", "steps"])
def test_a_damaged_line_is_named_with_file_and_number(tmp_path: Path, kind: str, line: bytes) -> None:
    one = logged(tmp_path)
    file = one.folder / f"{kind}.jsonl"
    whole = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(whole[0] + line + b"\n" + b"".join(whole[1:]))
    with pytest.raises(DataError, match=rf"{kind}\.jsonl:2: .*remove the line"):
        print(list(one.trajectories()), one.summaries(), list(one.steps()))


def test_a_line_of_another_version_is_refused_by_its_field(tmp_path: Path) -> None:
    one = logged(tmp_path)
    file = one.folder / "trajectories" / "val" / "step-0002.jsonl"
    first, second = file.read_text().splitlines()
    file.write_text(f"{first}\n{json.dumps({**json.loads(second), 'mood': 'good'})}\n")
    with pytest.raises(DataError, match=r"step-0002\.jsonl:2: .*mood"):
        list(one.trajectories("val"))


def test_trajectories_that_the_killed_writer_had_not_counted_are_counted(tmp_path: Path) -> None:
    one = logged(tmp_path)
    metrics = one.folder / "metrics.jsonl"
    kept = metrics.read_text().splitlines(keepends=True)[:2]
    metrics.write_text("".join(kept))  # as if killed before the third call had noted what it wrote
    assert [(s.split, s.step, s.counts.trajectories, s.reward) for s in one.summaries()] == [
        ("train", 0, 2, 0.5),
        ("train", 10, 2, 0.5),
        ("val", 2, 2, 0.5),
    ]
    with open_run(tmp_path, "p", "m") as again:
        again.store.append("trajectories/val/step-0002", json.loads(_line(again, "val", 2)))
        assert again.summaries()[-1].counts.trajectories == 3


def test_a_file_that_was_edited_by_hand_is_counted_anew(tmp_path: Path) -> None:
    one = logged(tmp_path)
    file = one.folder / "trajectories" / "val" / "step-0002.jsonl"
    first, second = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + second[:-2] + b"   }\n" + first)
    assert one.summaries()[-1].counts.trajectories == 3


def _line(one: Run, split: str, step: int) -> str:
    return (one.folder / "trajectories" / split / f"step-{step:04d}.jsonl").read_text().splitlines()[0]


def test_exchanges_of_the_log_of_calls_are_read_and_its_other_lines_passed_over(tmp_path: Path) -> None:
    one = logged(tmp_path)
    assert list(one.exchanges()) == []
    (one.folder / "exchanges").mkdir()
    calls = [exchange("x"), exchange("y"), exchange("z")]
    texts = [call.model_dump_json() for call in calls]
    (one.folder / "exchanges" / "00000001.jsonl").write_text(f'{{"opened":"t"}}\n{texts[0]}\n{texts[1]}\n')
    (one.folder / "exchanges" / "00000002.jsonl").write_text(f'{texts[2]}\n{{"closed":"t"}}\n{texts[0][:50]}')
    assert list(one.exchanges()) == calls


# Which run


def test_runs_are_listed_with_what_they_hold(tmp_path: Path) -> None:
    logged(tmp_path, "shop", "clerk")
    logged(tmp_path, "lab", "clerk")
    (tmp_path / "lab" / "notes").mkdir()
    (tmp_path / "stray.txt").write_text("")
    first, second = runs(tmp_path)
    assert (first.project, second.project) == ("lab", "shop")
    assert (second.name, second.base_model, second.step) == ("clerk", "tiny", 10)
    assert second.num_trajectories == {"train": 4, "val": 2}
    assert second.reward == {"train": 0.5, "val": 0.5}
    assert second.size_bytes > 1000
    assert second.updated_at > 0


@pytest.mark.parametrize(("file", "text"), [("model.json", "{"), ("metrics.jsonl", "5\n"), ("model.json", "[]")])
def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path, file: str, text: str) -> None:
    logged(tmp_path, "p", "bad")
    logged(tmp_path, "p", "good")
    (tmp_path / "p" / "bad" / file).write_text(text)
    bad, good = runs(tmp_path)
    assert (bad.name, good.name, good.fault) == ("bad", "good", "")
    assert file in bad.fault


def test_a_run_is_found_by_its_name_where_that_is_clear(tmp_path: Path) -> None:
    for project, name in (("shop", "clerk"), ("lab", "clerk"), ("lab", "cook")):
        logged(tmp_path, project, name)
    assert run(tmp_path, "cook").folder == tmp_path / "lab" / "cook"
    assert run(tmp_path, "shop/clerk").folder == tmp_path / "shop" / "clerk"
    with pytest.raises(DataError, match=r"in several projects .*: lab/clerk, shop/clerk"):
        run(tmp_path, "clerk")
    with pytest.raises(DataError, match=r"no run 'chef' .*: lab/clerk, lab/cook, shop/clerk"):
        run(tmp_path, "chef")
    with pytest.raises(DataError, match="is no folder"):
        run(tmp_path / "nowhere", "clerk")


def test_a_folder_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "time").mkdir()
    (tmp_path / "time" / "run.json").write_text("{}")
    with pytest.raises(DataError, match="is a run of art-mcp"):
        run(tmp_path, "time")


# While it is written


def _log_many(path: Path, count: int) -> None:
    with open_run(path, "p", "m") as one:
        for number in range(count):
            members = [trajectory(f"{number}-{place}", 0.5, logs=["x" * 9000]) for place in range(2)]
            one.log_groups("train", number // 50, [group(*members)])


@pytest.mark.slow
def test_a_reader_sees_whole_trajectories_in_order_while_they_are_written(tmp_path: Path) -> None:
    count = 300
    with open_run(tmp_path, "p", "m"):
        pass
    process = multiprocessing.get_context("spawn").Process(target=_log_many, args=(tmp_path, count))
    process.start()
    one = Run(tmp_path / "p" / "m")
    wanted = [f"{number}-{place}" for number in range(count) for place in range(2)]
    seen = counted = looks = 0
    while seen < 2 * count:
        assert process.is_alive() or process.exitcode == 0
        total = sum(summary.counts.trajectories for summary in one.summaries())
        ids = [t.id for t in one.trajectories()]
        assert ids == wanted[: len(ids)]
        assert counted <= total <= len(ids)
        assert len(ids) >= seen
        seen, counted, looks = len(ids), total, looks + 1
    process.join()
    process.close()
    assert looks > 1
    assert sum(summary.counts.trajectories for summary in one.summaries()) == 2 * count


def test_memory_does_not_grow_with_the_number_of_trajectories(tmp_path: Path) -> None:
    with open_run(tmp_path, "p", "m") as one:
        for step in range(4):
            one.log_groups("train", step, [group(*(trajectory(str(n), logs=["x" * 20_000]) for n in range(50)))])
    size = sum(path.stat().st_size for path in one.folder.rglob("*.jsonl"))
    tracemalloc.start()
    number = sum(1 for _ in one.trajectories())
    one.find("0")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert number == 200
    assert size > 4_000_000
    assert peak < 1_000_000
