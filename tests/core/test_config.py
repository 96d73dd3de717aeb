"""Options of a step: what they stand for where they are left out, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import art_core as art
from art_core.config import TrainConfig
from art_core.errors import ConfigError
from art_core.objective import LOSSES, Objective
from art_core.testing import InProcessBackend


@pytest.mark.parametrize(
    ("loss", "clip_low", "clip_high", "aggregation"),
    [
        ("ppo", 0.2, 0.28, "trajectory"),
        ("dapo", 0.2, 0.28, "token"),
        ("dr_grpo", 0.2, 0.2, "constant"),
        ("gspo", 3e-4, 4e-4, "trajectory"),
        ("cispo", None, 4.0, "token"),
        ("reinforce", None, None, "trajectory"),
    ],
)
def test_defaults_of_a_loss(loss: Any, clip_low: float | None, clip_high: float | None, aggregation: str) -> None:
    objective = TrainConfig(loss=loss).objective()
    assert (objective.clip_low, objective.clip_high, objective.aggregation) == (clip_low, clip_high, aggregation)
    assert (objective.correction, objective.correction_max) == ("token_truncate", 2.0)
    assert (objective.epochs, objective.minibatches, objective.kl_coef) == (1, 1, 0.0)


def test_a_default_is_that_of_the_loss_also_where_the_loss_is_changed_later() -> None:
    config = TrainConfig.made(TrainConfig(loss="ppo"), {"loss": "gspo"})
    assert config.objective() == Objective(loss="gspo")


def test_every_option_reaches_the_trainer() -> None:
    config = TrainConfig(
        loss="ppo",
        learning_rate=1e-4,
        clip_low=0.1,
        clip_high=0.5,
        aggregation="constant",
        constant_length=77,
        epochs=2,
        minibatches=3,
        correction="sequence_mask",
        correction_max=3.0,
        kl_coef=0.1,
        kl_in="advantage",
        kl_estimator="k3",
        kl_reference=4,
    )
    assert config.objective(Path("step-0004")) == Objective(
        loss="ppo",
        learning_rate=1e-4,
        clip_low=0.1,
        clip_high=0.5,
        aggregation="constant",
        constant_length=77,
        epochs=2,
        minibatches=3,
        correction="sequence_mask",
        correction_max=3.0,
        kl_coef=0.1,
        kl_in="advantage",
        kl_estimator="k3",
        kl_reference=Path("step-0004"),
    )


def test_the_estimator_goes_with_where_the_kl_stands() -> None:
    assert TrainConfig(kl_coef=0.1).objective().kl_estimator == "k3"
    assert TrainConfig(kl_coef=0.1, kl_in="advantage").objective().kl_estimator == "k1"
    assert TrainConfig(kl_coef=0.1, kl_in="advantage", kl_estimator="k3").objective().kl_estimator == "k3"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "cispo", "clip_low": 0.2}, "loss 'cispo' has no clip_low, so clip_low=0.2 would do nothing"),
        ({"loss": "reinforce", "clip_high": 0.2}, "loss 'reinforce' has no clip_high"),
        ({"constant_length": 100}, "constant_length=100 has no effect with aggregation 'trajectory'"),
        ({"correction": "none", "correction_max": 2.0}, "correction_max=2.0 has no effect with correction 'none'"),
        ({"kl_estimator": "k1"}, "kl_estimator='k1' has no effect with kl_coef 0.0"),
        ({"kl_in": "advantage"}, "kl_in='advantage' has no effect with kl_coef 0.0"),
        ({"kl_reference": 3}, "kl_reference=3 has no effect with kl_coef 0.0"),
        ({"loss": "reinforce", "epochs": 2}, "second update on the same rows"),
        ({"loss": "reinforce", "minibatches": 2}, "second update on the same rows"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "grpo"}, "loss is 'grpo'; wanted one of 'ppo', 'dapo', 'dr_grpo', 'gspo'"),
        ({"aggregation": "mean"}, "aggregation is 'mean'; wanted one of 'token', 'trajectory'"),
        ({"correction": "tis"}, "correction is 'tis'; wanted one of 'token_truncate'"),
        ({"correction_max": 0.5}, "correction_max is 0.5; wanted a finite number, 1 or more: a limit below"),
        ({"correction_max": float("nan")}, "correction_max is nan"),
        ({"epochs": 0}, "epochs is 0; wanted a whole number, 1 or more"),
        ({"epochs": True}, "epochs is True"),
        ({"minibatches": 1.5}, "minibatches is 1.5"),
        ({"kl_coef": -0.1}, "kl_coef is -0.1"),
        ({"kl_coef": 0.1, "kl_reference": -1}, "kl_reference is -1; wanted the step of a checkpoint"),
        ({"kl_coef": 0.1, "kl_reference": "base"}, "kl_reference is 'base'; wanted the step of a checkpoint"),
        ({"learning_rate": 0.0}, "learning_rate is 0, with which nothing is learned"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"clip_low": 1.0}, "clip_low is 1.0; wanted a number above 0 and below 1, or None"),
        ({"aggregation": "constant", "constant_length": 0}, "constant_length is 0"),
        ({"loss": "sft"}, "use model.train_sft"),
        ({"loss": np.array(["ppo"])}, "loss is array.*; wanted one of 'ppo'"),
        ({"baseline": ["mean"]}, "baseline is .*; wanted one of 'mean', 'leave_one_out'"),
        ({"learning_rate": 10**400}, "learning_rate is an integer of 1329 bits; wanted a finite number"),
        ({"kl_coef": 10**5000}, "kl_coef is an integer of 16610 bits; wanted a finite number"),
        ({"epochs": 10**30}, "epochs is an integer of 100 bits; wanted a whole number, 1 or more"),
        ({"minibatches": np.float64(2.0)}, "minibatches is 2.0; wanted a whole number"),
        ({"roles": "worker"}, "roles is 'worker'; wanted names of roles"),
        ({"roles": ("a", "b", "a")}, "roles names 'a' more than once"),
        ({"roles": [7, "x" * 1000]}, r"^roles is .{20,200}; wanted names of roles.{0,60}$"),
    ],
)
def test_impossible_values_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**options)


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    given = TrainConfig(epochs=np.int64(2), learning_rate=np.float32(0.5), kl_coef=torch.tensor(0.25))  # type: ignore[arg-type]
    assert given == TrainConfig(epochs=2, learning_rate=0.5, kl_coef=0.25)
    assert [type(value) for value in (given.epochs, given.learning_rate, given.kl_coef)] == [int, float, float]


def test_every_loss_has_its_defaults() -> None:
    for loss in LOSSES:
        assert Objective(loss=loss).aggregation == LOSSES[loss].aggregation


async def test_a_reference_that_is_no_checkpoint_is_refused_before_the_step(tmp_path: Path) -> None:
    async with InProcessBackend(path=tmp_path) as backend:
        model = art.TrainableModel(name="m", project="p", base_model="tiny")
        await model.register(backend)
        members = []
        for reward in (0.0, 1.0):
            async with art.capture(model) as trajectory:
                await model.openai_client().chat.completions.create(
                    model=model.get_inference_name(), messages=[{"role": "user", "content": "hello"}]
                )
                trajectory.reward = reward
            members.append(trajectory)
        group = art.TrajectoryGroup(members)
        with pytest.raises(
            ConfigError, match=r"kl_reference names step 3, of which 'p/m' has no checkpoint; there are \[0\]"
        ):
            await model.train([group], kl_coef=0.1, kl_reference=3)
        assert await model.get_step() == 0
        await model.train([group], kl_coef=0.1, kl_reference=0)
        (_, objective) = backend.trainer.steps[-1]
        assert (objective.kl_coef, objective.kl_reference) == (0.1, None)
