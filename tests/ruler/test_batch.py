"""Many groups: what is written, what is left for another time, what ends it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from art_ruler import Ruler
from art_ruler.batch import Summary, for_each, score_groups
from art_ruler.errors import JudgeFormatError, JudgeUnavailableError
from art_ruler.fakes import ScriptedJudge, verdict_json
from art_ruler.files import read_groups
from art_ruler.scored import ScoredFile
from art_ruler.types import JudgeReply, JudgeRequest

SETTINGS = {"judges": ["scripted"]}


def attempt(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]


def groups_file(folder: Path, count: int) -> Path:
    path = folder / "groups.jsonl"
    path.write_text("".join(json.dumps([attempt(f"group {i}"), attempt("other")]) + "\n" for i in range(count)))
    return path


def fair(request: JudgeRequest) -> str:
    return verdict_json(dict.fromkeys(request.ids, 0.5))


def down_for(*numbers: int) -> ScriptedJudge:
    def answer(request: JudgeRequest) -> str:
        prompt = str(request.messages)
        if any(f"group {number}\\n" in prompt for number in numbers):
            raise JudgeUnavailableError("judge 'scripted': is down", retryable=True)
        return fair(request)

    return ScriptedJudge([answer])


async def score(ruler: Ruler, folder: Path, count: int, concurrency: int = 1) -> tuple[Summary, list[int]]:
    """The summary, and the lines of the input that are in the output."""
    summary = Summary(groups=count)
    with ScoredFile(folder / "out.jsonl", SETTINGS) as out:
        groups = read_groups(groups_file(folder, count))
        await score_groups(ruler, groups, out, summary, concurrency=concurrency)
    written = (folder / "out.jsonl").read_text() if (folder / "out.jsonl").exists() else ""
    return summary, [json.loads(line)["ruler"]["line"] for line in written.splitlines()]


async def test_groups_are_written_and_counted(tmp_path: Path) -> None:
    summary, lines = await score(Ruler(ScriptedJudge([fair])), tmp_path, 5, concurrency=3)
    assert sorted(lines) == [1, 2, 3, 4, 5]
    assert (summary.scored, summary.unscored, summary.not_tried, summary.usage.calls) == (5, 0, 0, 5)


async def test_a_group_without_an_answer_is_left_for_another_time(tmp_path: Path) -> None:
    summary, lines = await score(Ruler(down_for(1), max_retries=0), tmp_path, 3)
    assert lines == [1, 3]
    assert (summary.scored, summary.failed, summary.not_tried) == (2, 1, 0)
    assert (summary.usage.calls, summary.usage.failed_calls) == (3, 1)
    assert summary.problem is not None
    assert "groups.jsonl:2: " in summary.problem
    assert "is down" in summary.problem
    summary, lines = await score(Ruler(ScriptedJudge([fair])), tmp_path, 3)
    assert lines == [1, 3, 2]
    assert (summary.scored, summary.already_done) == (1, 2)


async def test_a_group_that_is_refused_as_it_is_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    too_long = JudgeUnavailableError("judge 'scripted': the prompt is too long", status=400)
    summary, lines = await score(Ruler(ScriptedJudge([fair, too_long, fair])), tmp_path, 3)
    assert lines == [1, 3]
    assert (summary.scored, summary.failed) == (2, 1)


async def test_a_judge_that_is_down_is_not_asked_a_thousand_times(tmp_path: Path) -> None:
    summary, lines = await score(Ruler(down_for(*range(1, 40)), max_retries=0), tmp_path, 40)
    assert lines == [1]
    assert (summary.failed, summary.not_tried, summary.usage.calls) == (5, 34, 6)


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_any_number_of_groups_refused_as_they_are_block_nothing(tmp_path: Path, status: int) -> None:
    def answer(request: JudgeRequest) -> str:
        if any(f"group {number}\\n" in str(request.messages) for number in range(12)):
            raise JudgeUnavailableError("judge 'scripted': against the policy", status=status)
        return fair(request)

    summary, lines = await score(Ruler(ScriptedJudge([answer])), tmp_path, 20)
    assert lines == list(range(13, 21))
    assert (summary.scored, summary.failed, summary.not_tried) == (8, 12, 0)


async def test_a_group_whose_passes_were_not_all_answered_is_left_for_another_time(tmp_path: Path) -> None:
    down = JudgeUnavailableError("judge 'scripted': is down", retryable=True)
    summary, lines = await score(Ruler(ScriptedJudge([fair, down, fair]), passes=2, max_retries=0), tmp_path, 2)
    assert lines == [2]
    assert (summary.scored, summary.failed) == (1, 1)
    assert summary.problem is not None
    assert "is down" in summary.problem
    summary, lines = await score(Ruler(ScriptedJudge([fair]), passes=2), tmp_path, 2)
    assert lines == [2, 1]
    assert (summary.scored, summary.already_done) == (1, 1)


async def test_a_group_that_one_judge_of_several_refuses_is_left_for_another_time(tmp_path: Path) -> None:
    refused = JudgeUnavailableError("judge 'picky': against the policy", status=400)
    picky = ScriptedJudge([fair, refused, fair], name="picky")
    summary, lines = await score(Ruler([ScriptedJudge([fair]), picky]), tmp_path, 3)
    assert lines == [1, 3]
    assert (summary.scored, summary.failed, summary.not_tried) == (2, 1, 0)
    assert "groups.jsonl:2: judge 'picky': against the policy" in (summary.problem or "")


async def test_judging_again_loses_no_score(tmp_path: Path) -> None:
    def first_alone(request: JudgeRequest) -> str:
        return verdict_json({request.ids[0]: 0.9})

    await score(Ruler(ScriptedJudge([first_alone])), tmp_path, 2)
    before = (tmp_path / "out.jsonl").read_text()
    summary = Summary(groups=2)
    with ScoredFile(tmp_path / "out.jsonl", SETTINGS, retry_unscored=True) as out:
        groups = read_groups(tmp_path / "groups.jsonl")
        await score_groups(Ruler(ScriptedJudge(["rubbish"])), groups, out, summary, concurrency=1)
        out.finish()
    assert (tmp_path / "out.jsonl").read_text() == before
    assert (summary.kept, summary.scored, summary.unscored, summary.not_tried) == (2, 0, 0, 0)
    assert summary.unscored_trajectories == 2
    assert "no valid score" in (summary.problem or "")


async def test_a_judge_that_dies_between_passes_is_not_asked_a_thousand_times(tmp_path: Path) -> None:
    down = JudgeUnavailableError("judge 'scripted': is down", retryable=True)
    ruler = Ruler(ScriptedJudge([fair, down] * 100), passes=2, max_retries=0)
    summary, lines = await score(ruler, tmp_path, 40)
    assert lines == []
    assert (summary.failed, summary.not_tried) == (5, 35)


async def test_what_a_cancelled_group_has_used_is_counted(tmp_path: Path) -> None:
    summary = Summary(groups=1)
    asked = asyncio.Event()

    class Slow(ScriptedJudge):
        async def complete(self, request: JudgeRequest) -> JudgeReply:
            asked.set()
            return await super().complete(request)

    judge = Slow([fair], latency_s=60)
    with ScoredFile(tmp_path / "out.jsonl", SETTINGS) as out:
        groups = read_groups(groups_file(tmp_path, 1))
        task = asyncio.ensure_future(score_groups(Ruler(judge), groups, out, summary, concurrency=1))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (summary.usage.calls, summary.usage.failed_calls) == (1, 1)


async def test_a_verdict_that_stays_faulty_is_written_with_its_problem(tmp_path: Path) -> None:
    summary, _ = await score(Ruler(ScriptedJudge(["no verdict"])), tmp_path, 1)
    (line,) = (json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines())
    assert (summary.scored, summary.unscored, summary.unscored_trajectories) == (0, 1, 2)
    assert summary.problem is not None
    assert summary.problem.startswith(f"{tmp_path / 'groups.jsonl'}:1: no valid score")
    assert line["ruler"]["scores"] == [None, None]
    assert all(verdict["problem"] for verdict in line["ruler"]["verdicts"])


async def test_what_can_never_succeed_ends_it_and_keeps_what_was_scored(tmp_path: Path) -> None:
    judge = ScriptedJudge([fair, JudgeUnavailableError("judge 'scripted': wrong key", status=401)])
    with pytest.raises(JudgeUnavailableError, match="wrong key"):
        await score(Ruler(judge), tmp_path, 5)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1
    assert len(judge.requests) == 2
    with pytest.raises(JudgeFormatError):
        await score(Ruler(ScriptedJudge(["x"]), on_format_error="raise"), tmp_path, 5)


async def test_the_end_of_the_budget_is_no_error_and_writes_no_half_group(tmp_path: Path) -> None:
    summary, lines = await score(Ruler(ScriptedJudge([fair]), passes=2, max_tokens=1700), tmp_path, 8)
    assert 0 < len(lines) == summary.scored < 8
    assert summary.stopped == 1
    assert summary.not_tried == 8 - summary.scored - 1


async def test_items_are_taken_when_their_turn_comes() -> None:
    open_items: set[int] = set()
    most = 0

    def items() -> Iterator[int]:
        nonlocal most
        for item in range(30):
            open_items.add(item)
            most = max(most, len(open_items))
            yield item

    async def work(item: int) -> None:
        await asyncio.sleep(0)
        open_items.remove(item)

    await for_each(items(), work, concurrency=7)
    assert (open_items, most) == (set(), 7)


async def test_the_first_exception_is_raised_as_itself_and_stops_the_rest() -> None:
    done: list[int] = []

    async def work(item: int) -> None:
        if item == 2:
            raise KeyError("two")
        await asyncio.sleep(0.01 if item == 1 else 0)
        done.append(item)

    with pytest.raises(KeyError, match="two"):
        await for_each(range(100), work, concurrency=2)
    assert done == [0]
