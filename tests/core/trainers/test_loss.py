from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from art_core.trainers.loss import PolicyShift, cispo_loss, objective_loss, policy_shift, ppo_loss, sft_loss
from art_core.types import LossName, Objective

LOGP = (-1.0, -2.0, -0.5)
RATIO = (1.25, 1.5, 0.5)
ADVANTAGE = torch.tensor([2.0, 1.0, -1.0])
ALL = torch.tensor([True, True, True])


def logp() -> Tensor:
    return torch.tensor(LOGP, requires_grad=True)


def old_logp() -> Tensor:
    return torch.tensor([value - math.log(ratio) for value, ratio in zip(LOGP, RATIO, strict=True)])


def test_ppo_of_three_tokens() -> None:
    """Terms 1.25 * 2 (inside), 1.28 * 1 (clipped above) and 0.8 * -1 (clipped below), over a denominator of 4."""
    current = logp()
    loss = ppo_loss(current, old_logp(), ADVANTAGE, ALL, clip_low=0.2, clip_high=0.28, denominator=4)
    assert loss.item() == pytest.approx(-(2.5 + 1.28 - 0.8) / 4, abs=1e-6)
    loss.backward()  # type: ignore[no-untyped-call]
    assert current.grad is not None
    assert current.grad.tolist() == pytest.approx([-2.5 / 4, 0.0, 0.0], abs=1e-6)


def test_ppo_does_not_clip_what_moved_against_the_advantage() -> None:
    """A ratio above the limit with a negative advantage, and one below it with a positive advantage, keep gradients."""
    current = logp()
    advantage = torch.tensor([0.0, -1.0, 1.0])
    loss = ppo_loss(current, old_logp(), advantage, ALL, clip_low=0.2, clip_high=0.28, denominator=1)
    assert loss.item() == pytest.approx(1.5 - 0.5, abs=1e-6)
    loss.backward()  # type: ignore[no-untyped-call]
    assert current.grad is not None
    assert current.grad.tolist() == pytest.approx([0.0, 1.5, -0.5], abs=1e-6)


def test_cispo_of_three_tokens() -> None:
    """Weights 1.25, 1.28 (limited) and 0.5 (no lower limit), through which no gradient flows."""
    current = logp()
    loss = cispo_loss(current, old_logp(), ADVANTAGE, ALL, clip_high=0.28, denominator=4)
    assert loss.item() == pytest.approx(-(1.25 * 2 * -1.0 + 1.28 * -2.0 + 0.5 * -1.0 * -0.5) / 4, abs=1e-6)
    loss.backward()  # type: ignore[no-untyped-call]
    assert current.grad is not None
    assert current.grad.tolist() == pytest.approx([-1.25 * 2 / 4, -1.28 / 4, 0.5 / 4], abs=1e-6)


def test_sft_of_three_tokens() -> None:
    current = logp()
    loss = sft_loss(current, ALL, denominator=5)
    assert loss.item() == pytest.approx(3.5 / 5, abs=1e-6)
    loss.backward()  # type: ignore[no-untyped-call]
    assert current.grad is not None
    assert current.grad.tolist() == pytest.approx([-0.2, -0.2, -0.2], abs=1e-6)


@pytest.mark.parametrize("loss", ["ppo", "cispo", "sft"])
def test_untrained_positions_may_hold_anything(loss: LossName) -> None:
    objective = Objective(loss=loss)
    trained = torch.tensor([True, False, True])
    current = torch.tensor([-1.0, math.nan, -0.5], requires_grad=True)
    old = torch.tensor([-1.1, math.inf, -0.4])
    advantage = torch.tensor([1.0, math.nan, -1.0])
    value = objective_loss(objective, current, old, advantage, trained, denominator=2)
    keep = torch.tensor([0, 2])
    two = torch.tensor([True, True])
    expected = objective_loss(objective, current[keep], old[keep], advantage[keep], two, denominator=2)
    assert value.item() == expected.item()
    value.backward()  # type: ignore[no-untyped-call]
    assert current.grad is not None
    assert current.grad[1].item() == 0.0
    assert bool(torch.isfinite(current.grad).all())


# Completion logprobs, mask, off-policy shift and advantages of three rows; TRL 1.16 gives the losses below for them.
TRL_LOGP = torch.tensor(
    [
        [-4.458007, -6.487023, -2.036639, -9.160392, -4.685024, -8.652016],
        [-7.132617, -2.954021, -2.797022, -7.392583, -9.914562, -2.615382],
        [-5.548357, -5.775616, -3.190835, -1.895483, -2.047642, -5.950645],
    ]
)
TRL_OLD = TRL_LOGP - ((torch.arange(18).reshape(3, 6) % 5) - 2) * 0.2
TRL_ADVANTAGE = torch.tensor([1.0, -0.5, 0.25])[:, None].expand(3, 6)
TRL_TRAINED = torch.tensor(
    [
        [True, True, False, False, True, True],
        [True, True, True, True, True, True],
        [True, True, True, True, False, False],
    ]
)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (Objective(loss="ppo", clip_low=0.2, clip_high=0.28), -0.100497),
        (Objective(loss="cispo", clip_high=0.2), 0.657964),
    ],
    ids=["ppo is TRL's dapo", "cispo, which TRL limits at epsilon_high itself"],
)
def test_agrees_with_trl(objective: Objective, expected: float) -> None:
    loss = objective_loss(objective, TRL_LOGP, TRL_OLD, TRL_ADVANTAGE, TRL_TRAINED, denominator=14)
    assert loss.item() == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize(("loss", "expected"), [("ppo", -0.142857), ("cispo", 0.855825)])
def test_agrees_with_trl_on_policy(loss: LossName, expected: float) -> None:
    value = objective_loss(Objective(loss=loss), TRL_LOGP, TRL_LOGP, TRL_ADVANTAGE, TRL_TRAINED, denominator=14)
    assert value.item() == pytest.approx(expected, abs=2e-6)


def test_shift_of_three_tokens() -> None:
    shift = policy_shift(Objective(loss="ppo"), torch.tensor(LOGP), old_logp(), ADVANTAGE, ALL)
    metrics = shift.metrics()
    assert metrics["train/ratio_mean"] == pytest.approx(3.25 / 3, abs=1e-6)
    kl = sum(ratio - 1 - math.log(ratio) for ratio in RATIO) / 3
    assert metrics["mismatch/kl"] == pytest.approx(kl, abs=1e-6)
    assert metrics["train/clip_share"] == pytest.approx(2 / 3)
    assert metrics["mismatch/logprob_diff_max"] == pytest.approx(math.log(2), abs=1e-6)


def test_cispo_counts_only_what_is_above_the_limit_as_clipped() -> None:
    assert policy_shift(Objective(loss="cispo"), torch.tensor(LOGP), old_logp(), ADVANTAGE, ALL).clipped == 1


def test_shift_of_the_sampler_itself_is_zero() -> None:
    shift = policy_shift(Objective(), torch.tensor(LOGP), torch.tensor(LOGP), ADVANTAGE, ALL)
    assert shift == PolicyShift(tokens=3, ratio_sum=3.0)


def test_shift_ignores_untrained_tokens_and_adds_up() -> None:
    first = torch.tensor([True, False, False])
    rest = torch.tensor([False, True, True])
    parts = [policy_shift(Objective(), torch.tensor(LOGP), old_logp(), ADVANTAGE, mask) for mask in (first, rest)]
    whole = policy_shift(Objective(), torch.tensor(LOGP), old_logp(), ADVANTAGE, ALL)
    assert (parts[0] + parts[1]).metrics() == pytest.approx(whole.metrics())


def test_shift_of_nothing() -> None:
    assert policy_shift(Objective(), torch.tensor(LOGP), old_logp(), ADVANTAGE, ~ALL).metrics() == {
        "train/ratio_mean": 0.0,
        "mismatch/kl": 0.0,
        "train/clip_share": 0.0,
        "mismatch/logprob_diff_max": 0.0,
    }
