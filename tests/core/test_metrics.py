"""The table of metrics holds what is emitted, and nothing else; docs/metrics.md is the table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import art_core as art
from art_core.metrics import METRICS, Metric
from art_core.objective import Objective
from art_core.testing import InProcessBackend
from art_core.trajectories import TrajectoryGroup
from art_core.types import TokenSample
from scripts.metrics_page import PAGE, page

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for path in ROOT.glob("packages/*/src/**/*.py") if path.name != "metrics.py"]
AREAS = {metric.name.split("/")[0] for metric in METRICS} - {"<split>"}
QUESTION: Any = {"role": "user", "content": "2 + 2?"}


def unknown(names: Iterable[str], *, splits: tuple[str, ...] = ()) -> set[str]:
    """Those of `names` that the table does not hold: as metrics of `splits`, or of a step."""

    def known(name: str, metric: Metric) -> bool:
        return metric.matches(name) and (not metric.name.startswith("<split>") or name.split("/")[0] in splits)

    return {name for name in names if not any(known(name, metric) for metric in METRICS)}


def test_a_name_of_a_family_is_one_area_and_one_word() -> None:
    family = Metric("<split>/group_<metric>", "", "", "")
    assert family.matches("val/group_judged")
    assert not family.matches("val/group_a/b")
    assert not family.matches("val/judged")
    assert not Metric("train/loss", "", "", "").matches("train/loss_")


def test_no_name_is_there_twice_and_every_direction_is_one() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert {metric.better for metric in METRICS} == {"higher", "lower", ""}
    assert all(metric.unit and metric.meaning for metric in METRICS)


def test_the_page_holds_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run `.venv/bin/python scripts/metrics_page.py`"


def test_every_name_in_the_code_is_in_the_table() -> None:
    pattern = re.compile(rf'"((?:{"|".join(AREAS)})/[a-z_]*[a-z])"')
    found = {name for path in SOURCES for name in pattern.findall(path.read_text(encoding="utf-8"))}
    assert len(found) > 30
    of_earlier_runs = {"train/kl_sampler"}
    assert unknown(found - of_earlier_runs, splits=("train",)) == set()
    assert {name for name in found if unknown([name])} - of_earlier_runs == {"train/reward", "train/success"}


def test_every_name_of_the_table_is_in_the_code() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)

    def named(metric: Metric) -> bool:
        if metric.name.startswith("<split>/"):
            return f'"{metric.name.removeprefix("<split>/").split("<")[0]}' in code or metric.name == "<split>/<metric>"
        parts = metric.name.split("<")[0]
        return f'"{parts}' in code

    assert {metric.name for metric in METRICS if not named(metric)} <= {"<split>/group_<metric>"}
    assert 'f"group_{name}"' in code


async def test_a_loop_emits_what_the_table_holds() -> None:
    def say(prompt: str) -> str:
        return "4"

    async def attempt(number: int) -> art.Trajectory:
        async with art.capture(model) as trajectory:
            await model.openai_client().chat.completions.create(
                model=model.get_inference_name(), messages=[QUESTION], max_tokens=9
            )
            if number == 3:
                raise ConnectionError("the shop is closed")
            trajectory.reward, trajectory.metrics["success"] = float(number), number > 0
        return trajectory

    model = art.TrainableModel(name="clerk", project="shop", base_model="tiny")
    async with InProcessBackend(say) as backend:
        await model.register(backend)
        groups = await art.gather_trajectory_groups(
            [TrajectoryGroup(attempt(n) for n in range(4)), TrajectoryGroup(attempt(0) for n in range(2))],
            pbar_desc=None,
        )
        groups[0].metrics |= {"judge_cost_usd": 0.25, "judge_tokens": 100, "judge_calls": 1}
        groups[1].metrics |= {"judge_tokens": 50, "judge_calls": 2}
        await model.log(groups, split="val")
        result = await model.train(groups)
        skipped = await model.train(groups[1:])
        logged = await backend.logged_metrics("shop", "clerk")
    metrics = result.metrics
    assert unknown(metrics) == unknown(skipped.metrics) == set()
    assert unknown({name for record in logged for name in record.metrics}, splits=("val",)) == set()
    assert {name: metrics[name] for name in ("cost/judge_usd", "cost/judge_tokens", "cost/judge_calls")} == {
        "cost/judge_usd": 0.25,
        "cost/judge_tokens": 150.0,
        "cost/judge_calls": 3.0,
    }
    assert metrics["tokens/sampled"] == 6 * 2
    assert metrics["tokens/prompt"] == sum(len(e.prompt_ids) for g in groups for t in g for e in t.exchanges) > 0
    assert metrics["reward/mean"] == (0 + 1 + 2 + 0 + 0) / 5
    assert metrics["time/rollout_s"] > 0
    assert metrics["tokens/sampled_per_s"] == pytest.approx(12 / metrics["time/rollout_s"])
    assert {"time/train_s", "time/sync_s", "time/step_s"} <= set(metrics)
    assert (metrics["trajectories/excluded"], metrics["groups/without_signal"], metrics["step/skipped"]) == (1, 1, 0)
    assert {"val/reward", "val/success", "val/exception_rate", "val/group_judge_tokens"} <= set(logged[0].metrics)


@pytest.mark.parametrize("loss", ["ppo", "cispo", "sft"])
async def test_the_trainer_emits_what_the_table_holds(loss: Any, tmp_path: Path) -> None:
    from art_core.testing import write_tiny_model
    from art_core.trainers.native import NativeTrainer, NativeTrainerConfig

    folder = write_tiny_model(tmp_path / "tiny")
    trainer = NativeTrainer(NativeTrainerConfig(model_folder=folder, base_model="tiny", seed=0))
    rows = [TokenSample((1, 10, 30), (False, False, True), (0.0, 0.0, -5.5), 1.0, 0, "t")]
    try:
        report = await trainer.step(rows, Objective(loss=loss))
    finally:
        await trainer.aclose()
    assert {"train/loss", "train/entropy", "train/grad_norm", "train/trained_tokens"} <= set(report.metrics)
    assert unknown(report.metrics) == set()
