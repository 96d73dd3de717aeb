"""Findings while a model trains: produced end to end, told once, kept in the run folder."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import art_core as art
import art_core.doctor.watch as watching
from art_core.cli import app
from art_core.doctor import Watch
from art_core.doctor.reading import read_findings, read_history
from art_core.testing import InProcessBackend, MemoryStore
from art_core.types import RolloutError, StepReport
from tests.core.doctor.building import HEALTHY

TOOL: Any = {
    "type": "function",
    "function": {"name": "price", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>\n{"name": "price", "arguments": {}}\n</tool_call>'


async def attempt(model: art.TrainableModel, reward: float, **options: Any) -> art.Trajectory:
    async with art.capture(model) as trajectory:
        await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=[{"role": "user", "content": "u"}], **options
        )
        trajectory.reward = reward
    return trajectory


async def batch(model: art.TrainableModel, rewards: Sequence[Sequence[float]], **options: Any) -> list[Any]:
    return [
        art.TrajectoryGroup(await asyncio.gather(*(attempt(model, reward, **options) for reward in some)))
        for some in rewards
    ]


class Bench:
    """A model whose answers are `say(number of the call)`."""

    def __init__(self, path: Path, say: Callable[[int], str] = lambda number: f"answer {number}") -> None:
        numbers = itertools.count()
        self.backend = InProcessBackend(lambda _: say(next(numbers)), path=path)
        self.model = art.TrainableModel(name="clerk", project="shop", base_model="scripted")

    async def __aenter__(self) -> Bench:
        await self.backend.__aenter__()
        await self.model.register(self.backend)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.backend.close()

    @property
    def folder(self) -> Path:
        return self.backend.folder("shop", "clerk")

    async def train(self, groups: list[Any], **options: Any) -> list[str]:
        return [finding.name for finding in (await self.model.train(groups, **options)).findings]


SIGNAL = [[0.0, 1.0]] * 4
SAME = [[0.0, 0.0]] * 4


async def test_a_healthy_run_has_no_findings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with Bench(tmp_path) as bench:
        for _ in range(3):
            groups = await batch(bench.model, SIGNAL)
            await bench.model.log(groups, split="train")
            assert await bench.train(groups) == []
        assert read_findings(bench.folder) == []
        assert not [record for record in caplog.records if "art_core.doctor" in record.name]
        assert [step.number for step in read_history(bench.folder).steps] == [1, 2, 3]


async def test_no_signal_is_told_once_in_log_result_and_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Bench(tmp_path) as bench:
        result = await bench.model.train(await batch(bench.model, SAME))
        assert [finding.name for finding in result.findings] == ["no-signal"]
        assert "4 all at the worst" in result.findings[0].evidence
        assert result.skipped
        assert await bench.train(await batch(bench.model, SAME)) == []
        loggers = {record.name for record in caplog.records if "no-signal" in record.getMessage()}
        assert loggers == {"art_core.doctor.watch", "art_core.model"}
        kept = [json.loads(line) for line in (bench.folder / "findings.jsonl").read_text().splitlines()]
        assert [(record["event"], record["name"]) for record in kept] == [("began", "no-signal")]
        ((finding, told),) = read_findings(bench.folder)
        assert (finding.name, told) == ("no-signal", 0)


async def test_a_run_that_has_solved_its_tasks_is_told_so_and_nothing_else(tmp_path: Path) -> None:
    async with Bench(tmp_path, lambda _: "4") as bench:
        found = [await bench.train(await batch(bench.model, [[1.0, 1.0]] * 4)) for _ in range(4)]
        assert found == [["no-signal"], [], ["no-signal"], []]  # a warning first, then a problem
        ((finding, _),) = read_findings(bench.folder)
        assert "harder ones, or stop here" in finding.remedy


async def test_groups_of_different_tasks_are_noted(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        groups = await batch(bench.model, SIGNAL)
        for group in groups:
            for number, member in enumerate(group):
                (made,) = member.exchanges
                member.exchanges = [made.model_copy(update={"prompt_ids": (*made.prompt_ids, number)})]
        assert await bench.train(groups) == ["groups-mixed"]


async def test_supervised_updates_are_counted_where_nothing_is_wrong(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        await bench.model.train_sft([art.Trajectory(messages_and_choices=said)])
        text = CliRunner().invoke(app, ["doctor", str(bench.folder)]).stdout
        assert "the 0 training steps and the 1 supervised updates of" in text


async def test_a_finding_that_went_away_and_came_back_is_told_again(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        assert await bench.train(await batch(bench.model, SAME)) == ["no-signal"]
        assert await bench.train(await batch(bench.model, SAME)) == []
        assert await bench.train(await batch(bench.model, SAME)) == ["reward-constant"]  # no-signal follows from it
        assert await bench.train(await batch(bench.model, SIGNAL)) == []
        for _ in range(3):
            await bench.train(await batch(bench.model, SIGNAL))
        assert await bench.train(await batch(bench.model, SAME * 5)) == ["no-signal"]  # most of three steps


async def test_a_restart_does_not_repeat_what_still_holds(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        assert await bench.train(await batch(bench.model, SIGNAL), learning_rate=1e-12) == ["learning-rate-too-small"]
    async with Bench(tmp_path) as again:
        assert await again.train(await batch(again.model, SIGNAL), learning_rate=1e-12) == []
        assert await again.train(await batch(again.model, SIGNAL)) == []
        assert await again.train(await batch(again.model, SIGNAL), learning_rate=1e-12) == ["learning-rate-too-small"]


async def test_a_learning_rate_that_is_too_small_is_named(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        assert await bench.train(await batch(bench.model, SIGNAL), learning_rate=1e-12) == ["learning-rate-too-small"]


async def test_empty_masks_are_named(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        worker = await batch(bench.model, [[0.0, 1.0]], metadata={"role": "worker"})
        others = await batch(bench.model, SIGNAL)
        assert await bench.train([*worker, *others], roles=("worker",)) == ["empty-masks"]


async def test_truncated_answers_are_named(tmp_path: Path) -> None:
    async with Bench(tmp_path, lambda number: f"{number} a long answer") as bench:
        assert await bench.train(await batch(bench.model, SIGNAL, max_tokens=4)) == ["truncation"]


async def test_repeated_text_and_equal_answers_are_named(tmp_path: Path) -> None:
    async with Bench(tmp_path, lambda _: "ha " * 40) as bench:
        assert await bench.train(await batch(bench.model, SIGNAL)) == ["repeated-text", "same-answers"]


async def test_tools_that_are_not_called_any_more_are_named(tmp_path: Path) -> None:
    calls = 3 * 8
    async with Bench(tmp_path, lambda number: CALL * (number < calls) + f" {number}") as bench:
        found = [await bench.train(await batch(bench.model, SIGNAL, tools=[TOOL])) for _ in range(5)]
        assert found == [[], [], [], [], ["tool-use-dies-out"]]


async def test_failures_of_the_judge_and_of_rollouts_are_named_apart(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        groups = await batch(bench.model, [[0.0, 1.0, 0.0]] * 4)
        for group in groups:
            group.trajectories[2].error = RolloutError(kind="RateLimit", message="429", source="judge")
        assert await bench.train(groups) == ["judge-failures"]
        groups = await batch(bench.model, [[0.0, 1.0, 0.0]] * 4)
        for group in groups:
            group.trajectories[2].error = RolloutError(kind="TimeoutError", message="no answer")
        result = await bench.model.train(groups)
        assert [finding.name for finding in result.findings] == ["failed-rollouts"]
        assert "TimeoutError 4" in result.findings[0].evidence


async def test_rewards_out_of_the_usual_range_are_named(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        assert await bench.train(await batch(bench.model, [[0.0, 5000.0]] * 4)) == ["reward-out-of-range"]


async def test_rollouts_that_no_step_reported_are_read_from_the_trajectories(tmp_path: Path) -> None:
    async with Bench(tmp_path, lambda number: f"{number} a long answer") as bench:
        for step in range(3):
            groups = await batch(bench.model, SAME, max_tokens=4)
            await bench.model.log(groups, split="train", step=step)
        found = {finding.name: finding for finding, _ in read_findings(bench.folder)}
        assert set(found) == {"reward-constant", "truncation"}
        assert found["truncation"].steps == (0, 1, 2)


async def test_a_damaged_checkpoint_and_lost_calls_are_named(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        await bench.train(await batch(bench.model, SIGNAL))
        (bench.folder / "checkpoints" / "step-0001" / "recording.json").write_text("{}")
        await bench.model.log(metrics={"calls_not_found": 2.0}, split="val")
        assert [finding.name for finding, _ in read_findings(bench.folder)] == ["checkpoint-damaged", "calls-not-found"]


async def test_findings_go_on_when_what_was_kept_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    store.append("findings", {"nonsense": 1})
    watch = Watch(store)
    assert "findings begin anew" in caplog.text
    report = watch.observed(StepReport(1, {**HEALTHY, "train/grad_norm": 0.0}))
    assert [finding.name for finding in report.findings] == ["gradient-zero"]


async def test_a_finding_that_cannot_be_kept_does_not_cost_the_step(caplog: pytest.LogCaptureFixture) -> None:
    class Full(MemoryStore):
        def append(self, kind: str, record: dict[str, Any]) -> None:
            raise OSError("no space")

    caplog.set_level(logging.ERROR)
    report = Watch(Full()).observed(StepReport(1, {**HEALTHY, "train/grad_norm": 0.0}))
    assert report.metrics["train/grad_norm"] == 0.0
    assert "could not be found out" in caplog.text


def test_a_long_run_is_compared_with_its_beginning_and_misses_no_step_that_was_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "_FIRST_STEPS", 5)
    monkeypatch.setattr(watching, "_LAST_STEPS", 20)
    watch, found = Watch(MemoryStore()), {}
    for number in (1, 2):
        watch.supervised(StepReport(number, {"sft/update": float(number), "train/loss": 1.0}))
    for number in range(3, 63):  # so slowly that the last 20 steps alone show nothing
        entropy = 0.9 * 0.94 ** (number - 3)
        for finding in watch.observed(StepReport(number, {**HEALTHY, "train/entropy": entropy})).findings:
            found[finding.name] = finding
    assert list(found) == ["entropy-collapse"]
    assert found["entropy-collapse"].evidence.startswith("entropy fell from 0.8")


def test_rewards_that_grow_slowly_are_no_jump_where_the_steps_between_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "_FIRST_STEPS", 5)
    monkeypatch.setattr(watching, "_LAST_STEPS", 20)
    watch = Watch(MemoryStore())
    found: list[Any] = []
    for number in range(1, 101):
        rewards = {"reward/min": 0.0, "reward/max": 0.001 * 1.1**number}
        found += watch.observed(StepReport(number, {**HEALTHY, **rewards})).findings
    assert found == []
    report = watch.observed(StepReport(101, {**HEALTHY, "reward/min": 0.0, "reward/max": 0.001 * 1.1**101 * 30}))
    assert "reward-scale-jump" in [finding.name for finding in report.findings]


def test_batches_that_were_skipped_are_not_the_beginning_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_FIRST_STEPS", 5)
    monkeypatch.setattr(watching, "_LAST_STEPS", 20)
    watch = Watch(MemoryStore())
    found: list[Any] = []
    for _ in range(30):
        watch.observed(StepReport(0, {"step/skipped": 1.0}))
    for number in range(1, 61):
        metrics = {**HEALTHY, "train/entropy": 0.9 * 0.94**number}
        found += [finding.name for finding in watch.observed(StepReport(number, metrics)).findings]
    assert found == ["entropy-collapse"]
