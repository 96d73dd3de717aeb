"""Each option of a training step changes what the step does."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from art_core.config import TrainConfig
from art_core.rows import training_rows
from art_core.trainers.native import NativeTrainer, NativeTrainerConfig
from art_core.trajectories import ScoredGroup, Trajectory, TrajectoryGroup
from art_core.types import Checkpoint, Exchange, FinishReason, Sampling
from art_core.weights.lora import LoraConfig, read_adapter

Options = dict[str, Any]

FAR = {"learning_rate": 0.02, "epochs": 3}
"""So large a step that the second and third pass find ratios outside of any clip range."""
KL = {**FAR, "kl_coef": 0.3}

CHANGES: dict[str, tuple[Options, Options]] = {
    "learning_rate": ({}, {"learning_rate": 2e-5}),
    "loss": (FAR, {"loss": "cispo"}),
    "clip_low": (FAR, {"clip_low": 0.99}),
    "clip_high": (FAR, {"clip_high": 1e6}),
    "aggregation": ({}, {"aggregation": "row"}),
    "constant_length": ({"aggregation": "constant"}, {"constant_length": 7}),
    "scale_rewards": ({}, {"scale_rewards": "none"}),
    "baseline": ({"scale_rewards": "none"}, {"baseline": "leave_one_out"}),
    "epochs": ({}, {"epochs": 2}),
    "minibatches": ({}, {"minibatches": 2}),
    "correction": ({}, {"correction": "none"}),
    "correction_max": ({}, {"correction_max": 1.01}),
    "kl_coef": (FAR, {"kl_coef": 0.3}),
    "kl_in": (KL, {"kl_in": "advantage"}),
    "kl_estimator": (KL, {"kl_estimator": "k1"}),
    "kl_reference": (KL, {"kl_reference": 1}),
    "truncated": ({}, {"truncated": "drop"}),
    "max_row_tokens": ({"overlong": "cut", "max_row_tokens": 100}, {"max_row_tokens": 6}),
    "overlong": ({"overlong": "cut", "max_row_tokens": 6}, {"overlong": "mask"}),
    "roles": ({}, {"roles": ("worker",)}),
}
"""For each option where it is changed, and to what."""


def call(prompt: tuple[int, ...], completion: tuple[int, ...], end: FinishReason = "stop", role: str = "") -> Exchange:
    return Exchange(
        id="x",
        trajectory_id="t",
        messages=(),
        response={},
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=tuple(-5.5 - 0.3 * index for index in range(len(completion))),
        finish_reason=end,
        sampling=Sampling(max_tokens=8),
        policy_version=2,
        metadata={"role": role} if role else {},
        started_at=0.0,
        ended_at=1.0,
    )


def groups() -> list[ScoredGroup]:
    """Groups whose rewards lie differently far apart: rows of one turn and two, long, cut off, and of two roles."""
    prompt = (1, 10, 11)
    one = [
        (Trajectory(id="a", exchanges=[call(prompt, (30, 40), role="worker")]), 1.0),
        (Trajectory(id="b", exchanges=[call(prompt, (30, 41, 42, 43, 44), "length")]), 0.0),
        (Trajectory(id="c", exchanges=[call(prompt, (31,)), call((1, 12), (50, 51), role="worker")]), 0.3),
    ]
    two = [
        (Trajectory(id="d", exchanges=[call((1, 20), (60, 61, 62))]), 5.0),
        (Trajectory(id="e", exchanges=[call((1, 20), (63,), role="worker")]), 1.0),
        (Trajectory(id="f", exchanges=[call((1, 20), (64, 65))]), 0.5),
        (Trajectory(id="g", exchanges=[call((1, 20), (66,))]), 2.0),
    ]
    return [TrajectoryGroup([one for one, _ in some]).with_scores([score for _, score in some]) for some in (one, two)]


async def trained(folder: Path, start: Path, model: Path, options: Options) -> dict[str, Tensor]:
    """What the adapter of `start` becomes by one step."""
    config = TrainConfig(**{"learning_rate": 1e-3, **options})
    rows, _ = training_rows(groups(), policy_version=2, config=config)
    reference = start.parent / "1" if config.kl_reference == 1 else None
    trainer = NativeTrainer(_config(model))
    try:
        trainer.restore(Checkpoint(2, start))
        await trainer.step(rows, config.objective(reference))
        _save(trainer, folder)
    finally:
        await trainer.aclose()
    factors = read_adapter(folder).factors
    return {f"{name}.{side}": pair[side] for name, pair in factors.items() for side in (0, 1)}


def _save(trainer: NativeTrainer, folder: Path) -> None:
    folder.mkdir()
    trainer.save(folder)


def _config(model: Path) -> NativeTrainerConfig:
    return NativeTrainerConfig(
        model_folder=model, base_model="tiny", seed=0, lora=LoraConfig(rank=4, alpha=8.0), dtype="float32"
    )


@pytest.fixture(scope="module")
def start(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint two steps away from the untrained model; the one before lies beside it."""
    folder = tmp_path_factory.mktemp("start")
    asyncio.run(_two_steps(folder, tiny))
    return folder / "2"


async def _two_steps(folder: Path, model: Path) -> None:
    config = TrainConfig(learning_rate=5e-3)
    rows, _ = training_rows(groups(), policy_version=2, config=config)
    trainer = NativeTrainer(_config(model))
    for step in (1, 2):
        await trainer.step([dataclasses.replace(row, policy_version=step - 1) for row in rows], config.objective())
        _save(trainer, folder / str(step))
    await trainer.aclose()


def test_no_option_is_left_out() -> None:
    assert list(CHANGES) == [field.name for field in dataclasses.fields(TrainConfig)]


@pytest.mark.parametrize("option", CHANGES)
async def test_it_changes_the_step(option: str, start: Path, tiny: Path, tmp_path: Path) -> None:
    before, change = CHANGES[option]
    with_it = await trained(tmp_path / "with", start, tiny, {**before, **change})
    without = await trained(tmp_path / "without", start, tiny, before)
    assert max(float((with_it[name] - without[name]).abs().max()) for name in without) > 1e-7


async def test_a_step_without_a_change_is_the_same(start: Path, tiny: Path, tmp_path: Path) -> None:
    """Or the tests above would say nothing."""
    first = await trained(tmp_path / "first", start, tiny, KL)
    again = await trained(tmp_path / "again", start, tiny, KL)
    assert all(bool((first[name] == again[name]).all()) for name in first)
