"""What is masked, or of a group without signal, moves nothing: the real trainer on rows of whole groups."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from art_core.canary import WeightSyncCanary
from art_core.config import TrainConfig
from art_core.loop import train_step
from art_core.objective import Objective
from art_core.outcomes import skip_reason
from art_core.rows import training_rows
from art_core.testing import MemoryStore, ScriptedEngine
from art_core.trainers.native import NativeTrainer, NativeTrainerConfig
from art_core.trainers.optimizer_state import OPTIMIZER_FILE
from art_core.trajectories import ScoredGroup, Trajectory, TrajectoryGroup
from art_core.types import Exchange, FinishReason, Sampling, TokenSample
from art_core.weights.lora import LoraConfig

Open = Callable[..., NativeTrainer]


@pytest.fixture
async def open_trainer(tiny: Path) -> AsyncIterator[Open]:
    opened: list[NativeTrainer] = []

    def make(**options: Any) -> NativeTrainer:
        config = {"lora": LoraConfig(rank=4, alpha=8.0), "seed": 0, **options}
        opened.append(NativeTrainer(NativeTrainerConfig(model_folder=tiny, base_model="tiny", **config)))
        return opened[-1]

    yield make
    for trainer in opened:
        await trainer.aclose()


def member(name: str, *completions: tuple[int, ...], finish_reason: FinishReason = "stop") -> Trajectory:
    """Turns of one conversation, each after one token of the user's; the last ends with `finish_reason`."""
    exchanges: list[Exchange] = []
    history: tuple[int, ...] = (1, 10)
    for number, completion in enumerate(completions):
        exchanges.append(
            Exchange(
                id=f"{name}{number}",
                trajectory_id=name,
                messages=(),
                response={},
                prompt_ids=history,
                completion_ids=completion,
                logprobs=(-5.5,) * len(completion),
                finish_reason=finish_reason if number == len(completions) - 1 else "stop",
                sampling=Sampling(max_tokens=8),
                policy_version=0,
                started_at=0.0,
                ended_at=0.0,
            )
        )
        history = (*history, *completion, 11)
    return Trajectory(id=name, exchanges=exchanges)


def scored(*members: tuple[Trajectory, float]) -> ScoredGroup:
    return TrajectoryGroup([one for one, _ in members]).with_scores([reward for _, reward in members])


MIXED = scored((member("a", (30, 31), (32,)), 1.0), (member("b", (40, 41, 42)), 0.0), (member("c", (43,)), 0.25))
EQUAL = scored((member("d", (50, 51)), 1.0), (member("e", (60, 61, 62, 63)), 1.0))
ALL_CUT = scored(
    *((member(f"cut{n}", (70 + n,), (80, 81 + n), finish_reason="length"), float(n % 2)) for n in range(4))
)


def rows_of(*groups: ScoredGroup, **options: Any) -> tuple[list[TokenSample], Objective, dict[str, float]]:
    config = TrainConfig(learning_rate=1e-3, **options)
    rows, counters = training_rows(groups, policy_version=0, config=config)
    return rows, config.objective(), counters


def stored(trainer: NativeTrainer, folder: Path) -> dict[str, torch.Tensor]:
    """Every number of adapter and optimiser."""
    folder.mkdir()
    trainer.save(folder)
    adapter = load_file(folder / "adapter_model.safetensors")
    return {**adapter, **{f"optimizer/{name}": value for name, value in load_file(folder / OPTIMIZER_FILE).items()}}


def identical(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return set(left) == set(right) and all(torch.equal(left[name], right[name]) for name in left)


async def one_step(trainer: NativeTrainer, rows: list[TokenSample], objective: Objective) -> dict[str, float]:
    """The whole step of the loop, with an engine that answers whatever it is asked."""

    class Agreeing(WeightSyncCanary):
        async def check(self, *_: Any) -> dict[str, float]:
            return {}

    report = await train_step(
        rows,
        objective,
        trainer=trainer,
        engine=ScriptedEngine([[2]], logprob=-math.log(259)),
        store=MemoryStore(),
        canary=Agreeing([1, 2], tolerance=1.0),
        cursor={},
    )
    return report.metrics


async def test_when_every_answer_is_masked_no_weight_moves_and_the_next_group_is_learned_from(
    open_trainer: Open, tmp_path: Path
) -> None:
    trainer = open_trainer()
    before = stored(trainer, tmp_path / "before")
    rows, objective, counters = rows_of(ALL_CUT, truncated="mask")
    metrics = await one_step(trainer, rows, objective)
    assert metrics == {"step/skipped": 1.0}
    assert skip_reason([ALL_CUT], counters) == "4 trajectories are masked because an answer ended at its token limit"
    assert trainer.step_count == 0
    assert identical(stored(trainer, tmp_path / "masked"), before)
    # Without the option the same group moves the weights, and so does another one with it.
    rows, objective, _ = rows_of(MIXED, truncated="mask")
    metrics = await one_step(trainer, rows, objective)
    assert metrics["step/skipped"] == 0.0
    assert math.isfinite(metrics["train/loss"])
    assert not identical(stored(trainer, tmp_path / "after"), before)
    assert rows_of(ALL_CUT)[0] != []


@pytest.mark.parametrize("aggregation", ["token", "trajectory", "row", "constant"])
async def test_a_masked_group_beside_another_leaves_the_step_as_it_is_without_it(
    aggregation: str, open_trainer: Open, tmp_path: Path
) -> None:
    """Every micro-batch holds one row here, so the masked ones would have some of their own."""
    results, reports = [], []
    for name, groups in (("with", [ALL_CUT, MIXED, ALL_CUT]), ("without", [MIXED])):
        trainer = open_trainer(micro_batch_tokens=1)
        rows, objective, _ = rows_of(*groups, truncated="mask", aggregation=aggregation)
        reports.append(await one_step(trainer, rows, objective))
        results.append(stored(trainer, tmp_path / name))
    assert identical(*results)
    for metric in ("train/loss", "train/grad_norm", "train/trained_tokens", "train/rows", "train/micro_batches"):
        assert reports[0][metric] == reports[1][metric]
    assert reports[0]["train/trained_tokens"] == 7.0
    assert reports[0]["train/micro_batches"] == 3.0


async def test_rows_without_a_trained_token_make_no_micro_batch_of_nothing(open_trainer: Open, tmp_path: Path) -> None:
    rows, objective, _ = rows_of(MIXED)
    empty = [
        TokenSample((1, 10, 20 + n), (False,) * 3, (0.0,) * 3, math.copysign(1.0, n - 1), 0, f"empty{n}")
        for n in range(3)
    ]
    plain, padded = open_trainer(micro_batch_tokens=1), open_trainer(micro_batch_tokens=1)
    before = (await plain.step(rows, objective)).metrics
    after = (await padded.step([*empty, *rows, *empty], objective)).metrics
    assert after["train/micro_batches"] == before["train/micro_batches"]
    assert (after["train/loss"], after["train/trained_tokens"]) == (
        before["train/loss"],
        before["train/trained_tokens"],
    )
    assert after["train/rows_untrained"] == 6.0
    assert identical(stored(padded, tmp_path / "padded"), stored(plain, tmp_path / "plain"))


@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
@pytest.mark.parametrize("kl_in", ["loss", "advantage"])
async def test_a_group_without_signal_adds_nothing_under_a_kl_term_either(
    kl_in: str, scale_rewards: str, open_trainer: Open, tmp_path: Path
) -> None:
    """Neither a pull towards the reference, nor a share of any mean."""
    results, reports = [], []
    for name, groups in (("with", [EQUAL, MIXED]), ("without", [MIXED])):
        trainer = open_trainer()
        first, objective, _ = rows_of(MIXED)
        await trainer.step(first, objective)  # now the policy is not its reference
        rows, objective, counters = rows_of(*groups, kl_coef=0.5, kl_in=kl_in, scale_rewards=scale_rewards)
        reports.append((await trainer.step(rows, objective)).metrics)
        results.append(stored(trainer, tmp_path / name))
        assert counters["groups/without_signal"] == len(groups) - 1
    assert identical(*results)
    assert reports[0]["train/trained_tokens"] == reports[1]["train/trained_tokens"] == 7.0
    assert reports[0]["train/kl_reference"] == reports[1]["train/kl_reference"] > 0.0


async def test_a_group_that_is_not_skipped_does_move_the_weights_under_a_kl_term(
    open_trainer: Open, tmp_path: Path
) -> None:
    """What the tests above compare is not the same whatever is given."""
    results = []
    for name, last in (("equal", 1.0), ("unequal", 0.0)):
        trainer = open_trainer()
        other = scored(*((one, reward) for (one, _), reward in zip(EQUAL.members, (1.0, last), strict=True)))
        rows, objective, _ = rows_of(other, MIXED, kl_coef=0.5)
        await trainer.step(rows, objective)
        results.append(stored(trainer, tmp_path / name))
    assert not identical(*results)
