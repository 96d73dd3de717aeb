"""Steps of several optimiser updates, KL to a reference, and the correction of the sampler's mismatch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from art_core.errors import AdapterMismatchError, NonFiniteLossError
from art_core.objective import Objective
from art_core.trainers.native import NativeTrainer, NativeTrainerConfig
from art_core.types import Checkpoint, TokenSample
from art_core.weights.lora import LoraConfig

Open = Callable[..., NativeTrainer]
PROMPT = (1, 10, 11, 12)
REINFORCE = Objective(loss="reinforce", learning_rate=1e-3)


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


async def sampled(trainer: NativeTrainer, completion: tuple[int, ...], advantage: float) -> TokenSample:
    """A row with the logprobs that `trainer` itself gives to `completion`."""
    logprobs = await trainer.logprobs(PROMPT + completion, num_completion=len(completion))
    return TokenSample(
        token_ids=PROMPT + completion,
        trained=(False,) * 4 + (True,) * len(completion),
        logprobs=(0.0,) * 4 + tuple(logprobs),
        advantage=advantage,
        policy_version=trainer.step_count,
        trajectory_id=str(completion),
    )


async def on_policy(trainer: NativeTrainer) -> list[TokenSample]:
    return [
        await sampled(trainer, completion, advantage)
        for completion, advantage in (((30, 40, 50), 1.0), ((31, 41), -0.5), ((30, 60, 61, 62), -0.25), ((70,), -0.25))
    ]


def checkpoint(trainer: NativeTrainer, folder: Path) -> Checkpoint:
    folder.mkdir(parents=True)
    trainer.save(folder)
    return Checkpoint(trainer.step_count, folder)


def factors(trainer: NativeTrainer, folder: Path) -> dict[str, torch.Tensor]:
    stored: dict[str, torch.Tensor] = load_file(checkpoint(trainer, folder).path / "adapter_model.safetensors")
    return stored


async def moved(trainer: NativeTrainer) -> NativeTrainer:
    """`trainer` after a step that made its adapter differ from the base model."""
    await trainer.step(await on_policy(trainer), Objective(loss="ppo", learning_rate=5e-3))
    return trainer


async def test_epochs_and_minibatches_are_one_step_of_several_updates(open_trainer: Open) -> None:
    trainer = open_trainer()
    rows = await on_policy(trainer)
    report = await trainer.step(rows, Objective(learning_rate=1e-3, epochs=3, minibatches=2))
    assert (report.step, trainer.step_count) == (1, 1)
    assert report.metrics["train/updates"] == 6.0
    assert report.metrics["train/trained_tokens"] == 10.0


async def test_two_epochs_are_two_updates_that_compare_with_the_policy_before_both(
    open_trainer: Open, tmp_path: Path
) -> None:
    """By hand: the second update of the step is that of a trainer whose rows carry the logprobs of before the first."""
    objective = Objective(loss="ppo", learning_rate=2e-2, correction="none")
    twice = open_trainer()
    rows = await on_policy(twice)
    metrics = (await twice.step(rows, dataclasses.replace(objective, epochs=2))).metrics
    assert metrics["train/ratio_mean"] != pytest.approx(1.0, abs=1e-3), "the second epoch is compared with the first"
    assert metrics["train/clip_share"] > 0.0
    assert metrics["mismatch/logprob_diff_max"] < 1e-5, "the sampler is compared with the policy before the step"

    # A policy whose every update compares with itself has no clipped token, and goes further.
    alone = open_trainer()
    for _ in range(2):
        await alone.step(rows, objective)
    a, b = factors(twice, tmp_path / "twice"), factors(alone, tmp_path / "alone")
    assert any(not torch.equal(a[name], b[name]) for name in a)


async def test_the_gradient_of_the_second_epoch_is_clipped_as_the_first_left_it(open_trainer: Open) -> None:
    """With one row and a large first update its ratio leaves the clip, so the second update has no gradient at all."""
    trainer = open_trainer()
    rows = [await sampled(trainer, (30,), 1.0)]
    objective = Objective(loss="ppo", learning_rate=5e-2)
    one = (await open_trainer().step(rows, objective)).metrics["train/grad_norm"]
    two = (await trainer.step(rows, dataclasses.replace(objective, epochs=2))).metrics
    assert two["train/clip_share"] == 0.5
    assert two["train/grad_norm"] == pytest.approx(one / 2, rel=1e-4)


async def test_a_step_of_several_updates_repeats_bit_for_bit(open_trainer: Open, tmp_path: Path) -> None:
    objective = Objective(learning_rate=1e-3, epochs=2, minibatches=3)
    stored = []
    for name in ("a", "b"):
        trainer = open_trainer()
        for _ in range(2):
            await trainer.step(await on_policy(trainer), objective)
        stored.append(factors(trainer, tmp_path / name))
    assert all(torch.equal(stored[0][name], stored[1][name]) for name in stored[0])


async def test_a_failure_in_a_later_update_leaves_everything_as_before_the_step(
    open_trainer: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, fresh = await moved(open_trainer()), await moved(open_trainer())
    rows, objective = await on_policy(trainer), Objective(learning_rate=1e-2, epochs=3)
    clip, calls = torch.nn.utils.clip_grad_norm_, 0

    def third_is_infinite(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return torch.tensor(math.inf) if calls == 3 else clip(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", third_is_infinite)
        with pytest.raises(NonFiniteLossError, match="gradient's norm is inf"):
            await trainer.step(rows, objective)
    assert (calls, trainer.step_count) == (3, 1)
    assert await trainer.logprobs(rows[0].token_ids, num_completion=3) == list(rows[0].logprobs[4:])
    for name, one in (("after", trainer), ("fresh", fresh)):  # also the optimiser is what it was
        await one.step(rows, objective)
        checkpoint(one, tmp_path / name)
    for file in ("adapter_model.safetensors", "optimizer.safetensors"):
        assert (tmp_path / "after" / file).read_bytes() == (tmp_path / "fresh" / file).read_bytes()


async def test_a_gradient_beyond_a_float_names_the_advantage_that_made_it(open_trainer: Open, tmp_path: Path) -> None:
    trainer = open_trainer()
    rows = await on_policy(trainer)
    before = factors(trainer, tmp_path / "before")
    huge = [dataclasses.replace(row, advantage=row.advantage * 1e30) for row in rows]
    with pytest.raises(NonFiniteLossError, match=r"the loss -?[\d.e+]+;.*largest advantage 1e\+30"):
        await trainer.step(huge, Objective())
    after = factors(trainer, tmp_path / "after")
    assert all(torch.equal(before[name], after[name]) for name in before)


async def test_more_minibatches_than_trajectories_are_as_many_as_there_are(open_trainer: Open) -> None:
    trainer = open_trainer()
    report = await trainer.step(await on_policy(trainer), Objective(minibatches=100))
    assert report.metrics["train/updates"] == 4.0


async def test_kl_to_the_starting_weights_is_zero_at_the_start_and_pulls_back_later(open_trainer: Open) -> None:
    trainer = open_trainer()
    with_kl = Objective(learning_rate=1e-3, kl_coef=0.5)
    first = (await trainer.step(await on_policy(trainer), with_kl)).metrics
    assert first["train/kl_reference"] == pytest.approx(0.0, abs=1e-6)
    await moved(trainer)
    rows = [
        dataclasses.replace(row, advantage=0.0) for row in await on_policy(trainer)
    ]  # so only the KL has a gradient
    losses = [(await trainer.step(rows, with_kl)).metrics for _ in range(6)]
    assert losses[0]["train/kl_reference"] > 1e-4
    assert losses[-1]["train/kl_reference"] < 0.7 * losses[0]["train/kl_reference"]
    assert losses[0]["train/loss"] == pytest.approx(losses[0]["train/kl_loss"], rel=1e-4)


async def test_kl_is_measured_from_the_model_without_adapter(open_trainer: Open) -> None:
    trainer, base = await moved(open_trainer()), open_trainer()
    rows = await on_policy(trainer)
    expected = []
    for row in rows:
        count = row.num_trained
        before = await base.logprobs(row.token_ids, num_completion=count)
        expected += [math.exp(b - a) - (b - a) - 1 for a, b in zip(row.logprobs[-count:], before, strict=True)]
    metrics = (await trainer.step(rows, Objective(kl_coef=0.1))).metrics
    assert metrics["train/kl_reference"] == pytest.approx(sum(expected) / len(expected), rel=1e-3)


async def test_kl_to_a_named_checkpoint(open_trainer: Open, tmp_path: Path) -> None:
    trainer = await moved(open_trainer())
    named = checkpoint(trainer, tmp_path / "named").path
    rows = await on_policy(trainer)
    metrics = (await trainer.step(rows, Objective(learning_rate=1e-2, kl_coef=0.1, kl_reference=named))).metrics
    assert metrics["train/kl_reference"] == pytest.approx(0.0, abs=1e-6)
    later = (await trainer.step(await on_policy(trainer), Objective(kl_coef=0.1, kl_reference=named))).metrics
    assert later["train/kl_reference"] > 1e-5


async def test_the_reference_leaves_no_trace_in_the_weights(open_trainer: Open, tmp_path: Path) -> None:
    """A step with a coefficient too small to matter ends where one without it does."""
    ends = []
    for name, coef in (("without", 0.0), ("with", 1e-30)):
        trainer = await moved(open_trainer())
        await trainer.step(await on_policy(trainer), Objective(learning_rate=1e-3, kl_coef=coef))
        ends.append(factors(trainer, tmp_path / name))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


async def test_a_reference_that_is_not_there_or_does_not_fit_changes_nothing(
    open_trainer: Open, tmp_path: Path
) -> None:
    trainer = await moved(open_trainer())
    rows = await on_policy(trainer)
    with pytest.raises(AdapterMismatchError, match=r"kl_reference.*no readable adapter.*another step"):
        await trainer.step(rows, Objective(kl_coef=0.1, kl_reference=tmp_path / "nowhere"))
    other = checkpoint(open_trainer(lora=LoraConfig(rank=2, alpha=4.0)), tmp_path / "other").path
    with pytest.raises(AdapterMismatchError, match="kl_reference"):
        await trainer.step(rows, Objective(kl_coef=0.1, kl_reference=other))
    assert await trainer.logprobs(rows[0].token_ids, num_completion=3) == list(rows[0].logprobs[4:])


async def test_kl_in_the_advantage_is_relative_to_its_mean(open_trainer: Open) -> None:
    """The gradient is that of rows whose every token has the advantage A - coef (k - mean k), written out here."""
    trainer, base = await moved(open_trainer()), open_trainer()
    rows = [await sampled(trainer, (token,), advantage) for token, advantage in ((30, 1.0), (41, -1.0), (70, 0.0))]
    k1 = [row.logprobs[-1] - (await base.logprobs(row.token_ids, num_completion=1))[0] for row in rows]
    mean = sum(k1) / 3
    shaped = [
        dataclasses.replace(row, advantage=row.advantage - 2.0 * (k - mean)) for row, k in zip(rows, k1, strict=True)
    ]
    objective = dataclasses.replace(REINFORCE, kl_coef=2.0, kl_in="advantage", kl_estimator="k1")
    found = (await trainer.step(rows, objective)).metrics
    expected = (await (await moved(open_trainer())).step(shaped, REINFORCE)).metrics
    assert max(abs(k - mean) for k in k1) > 1e-3
    for name in ("train/loss", "train/grad_norm", "train/advantage_abs_mean"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4), name
    assert found["train/kl_loss"] == 0.0


@pytest.mark.parametrize(
    ("correction", "weights"),
    [
        ("none", (1.0, 1.0, 1.0)),
        ("token_truncate", (0.5, 2.0, 1.0)),
        ("token_mask", (0.5, 0.0, 1.0)),
        ("sequence_truncate", (1.5, 1.5, 1.0)),
        ("sequence_mask", (1.5, 1.5, 1.0)),
    ],
)
async def test_a_sampler_that_disagrees_is_corrected_for(
    open_trainer: Open, correction: Any, weights: tuple[float, ...]
) -> None:
    """The policy gives the two tokens of the first row 0.5 and 3 times the probability that the sampler recorded."""
    trainer = open_trainer()
    exact = [await sampled(trainer, (30, 40), 1.0), await sampled(trainer, (71,), -1.0)]
    first = exact[0]
    skewed = (0.0,) * 4 + (first.logprobs[4] - math.log(0.5), first.logprobs[5] - math.log(3.0))
    rows = [dataclasses.replace(first, logprobs=skewed), exact[1]]
    objective = dataclasses.replace(REINFORCE, correction=correction, aggregation="token")
    metrics = (await trainer.step(rows, objective)).metrics
    logprobs = [first.logprobs[4], first.logprobs[5], exact[1].logprobs[4]]
    expected = -sum(w * a * logp for w, a, logp in zip(weights, (1.0, 1.0, -1.0), logprobs, strict=True)) / 3
    assert metrics["train/loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["mismatch/ratio_max"] == pytest.approx(3.0, rel=1e-5)
    assert metrics["mismatch/logprob_diff_max"] == pytest.approx(math.log(3.0), rel=1e-5)
    of_correction = {"none": 0.0, "token_truncate": 1 / 3, "token_mask": 1 / 3}
    assert metrics["mismatch/corrected_share"] == pytest.approx(of_correction.get(correction, 0.0))


async def test_what_a_step_changed_is_reported(open_trainer: Open, tmp_path: Path) -> None:
    trainer = open_trainer()
    before = factors(trainer, tmp_path / "before")
    report = await trainer.step(await on_policy(trainer), Objective(learning_rate=1e-3))
    after = factors(trainer, tmp_path / "after")
    change = math.sqrt(sum(float((after[name] - before[name]).square().sum()) for name in before))
    assert report.metrics["train/weight_change"] == pytest.approx(change, rel=1e-5)
    assert report.metrics["train/grad_clipped"] == float(report.metrics["train/grad_norm"] > 1.0)
    tight = open_trainer(grad_clip=1e-3)
    assert (await tight.step(await on_policy(tight), Objective())).metrics["train/grad_clipped"] == 1.0
