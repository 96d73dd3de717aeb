from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from art_core.objective import Objective
from art_core.trainers.loss import (
    ScoredTokens,
    cispo_loss,
    correction_weights,
    kl_estimate,
    objective_loss,
    ppo_loss,
    reinforce_loss,
    sequence_ratio,
    token_losses,
)
from art_core.trainers.shift import PolicyShift, policy_shift

LOGP: Sequence[float] = (-1.0, -2.0, -0.5)
RATIO: Sequence[float] = (1.25, 1.5, 0.5)
ADVANTAGE: Sequence[float] = (2.0, 1.0, -1.0)


def logs(values: Sequence[float], ratios: Sequence[float]) -> list[float]:
    """What log-probabilities were, where they are `values` now and the ratio is `ratios`."""
    return [value - math.log(ratio) for value, ratio in zip(values, ratios, strict=True)]


def tokens(
    *,
    logp: Sequence[float] = LOGP,
    ratio: Sequence[float] = RATIO,
    mismatch: Sequence[float] | None = None,
    advantage: Sequence[float] = ADVANTAGE,
    weight: Sequence[float] | None = None,
    row: Sequence[int] | None = None,
    reference: Sequence[float] | None = None,
) -> ScoredTokens:
    """Tokens whose probability was `ratio` times smaller as the step began, and that over `mismatch` at the sampler."""
    old = logs(logp, ratio)
    places = list(row or [0] * len(logp))
    return ScoredTokens(
        logp=torch.tensor(logp, requires_grad=True),
        old_logp=torch.tensor(old),
        sampler_logp=torch.tensor(logs(old, mismatch or [1.0] * len(logp))),
        advantage=torch.tensor(advantage),
        weight=torch.tensor(weight or [1.0] * len(logp)),
        row=torch.tensor(places),
        num_rows=max(places) + 1,
        reference_logp=None if reference is None else torch.tensor(reference),
    )


def value_and_gradient(objective: Objective, given: ScoredTokens) -> tuple[float, list[float]]:
    loss = objective_loss(objective, given)
    loss.backward()  # type: ignore[no-untyped-call]
    assert given.logp.grad is not None
    return loss.item(), given.logp.grad.tolist()


def test_ppo_of_three_tokens() -> None:
    """Terms 1.25 * 2 (inside), 1.28 * 1 (clipped above) and 0.8 * -1 (clipped below)."""
    for objective in (Objective(loss="ppo"), Objective(loss="dapo")):
        value, gradient = value_and_gradient(objective, tokens(weight=[0.25] * 3))
        assert value == pytest.approx(-(2.5 + 1.28 - 0.8) / 4, abs=1e-6)
        assert gradient == pytest.approx([-2.5 / 4, 0.0, 0.0], abs=1e-6)


def test_ppo_does_not_clip_what_moved_against_the_advantage() -> None:
    """A ratio above the limit with a negative advantage, and one below it with a positive advantage, keep gradients."""
    value, gradient = value_and_gradient(Objective(loss="ppo"), tokens(advantage=[0.0, -1.0, 1.0]))
    assert value == pytest.approx(1.5 - 0.5, abs=1e-6)
    assert gradient == pytest.approx([0.0, 1.5, -0.5], abs=1e-6)


def test_dr_grpo_clips_as_ppo_with_equal_limits() -> None:
    value, gradient = value_and_gradient(Objective(loss="dr_grpo"), tokens())
    assert value == pytest.approx(-(1.2 * 2 + 1.2 - 0.8), abs=1e-6)  # 1.25 and 1.5 are above 1.2
    assert gradient == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)


def test_cispo_of_three_tokens() -> None:
    """Weights 1.25, 1.28 (limited) and 0.5 (no lower limit), through which no gradient flows."""
    value, gradient = value_and_gradient(Objective(loss="cispo", clip_high=0.28), tokens(weight=[0.25] * 3))
    assert value == pytest.approx(-(1.25 * 2 * -1.0 + 1.28 * -2.0 + 0.5 * -1.0 * -0.5) / 4, abs=1e-6)
    assert gradient == pytest.approx([-1.25 * 2 / 4, -1.28 / 4, 0.5 / 4], abs=1e-6)


def test_gspo_of_two_rows() -> None:
    """Ratios sqrt(1.25 * 1.5) = 1.369 of the first row, clipped at 1.3 but for the negative advantage, and 0.5."""
    objective = Objective(loss="gspo", clip_low=0.6, clip_high=0.3)
    ratio = math.sqrt(1.25 * 1.5)
    value, gradient = value_and_gradient(objective, tokens(row=[0, 0, 1]))
    assert value == pytest.approx(-(1.3 * 2 + 1.3 - 0.5), abs=1e-6)
    assert gradient == pytest.approx([0.0, 0.0, 0.5], abs=1e-6)
    value, gradient = value_and_gradient(objective, tokens(row=[0, 0, 1], advantage=[-1.0, -1.0, 1.0]))
    assert value == pytest.approx(2 * ratio - 0.5, abs=1e-6)
    # Both tokens of the first row share the derivative of twice its ratio, a half each.
    assert gradient == pytest.approx([ratio, ratio, -0.5], abs=1e-6)


def test_the_limits_of_gspo_are_those_of_its_paper() -> None:
    given = tokens(ratio=[1.0005, 1.0, 0.9995], row=[0, 1, 2])
    assert token_losses(Objective(loss="gspo"), given)[0].tolist() == pytest.approx(
        [-1.0004 * 2, -1.0, 0.9997], abs=1e-6
    )


def test_reinforce_of_three_tokens() -> None:
    value, gradient = value_and_gradient(Objective(loss="reinforce"), tokens(weight=[0.5] * 3))
    assert value == pytest.approx(-(2 * -1.0 + 1 * -2.0 + -1 * -0.5) / 2, abs=1e-6)
    assert gradient == pytest.approx([-1.0, -0.5, 0.5], abs=1e-6)


def test_sft_of_three_tokens() -> None:
    value, gradient = value_and_gradient(Objective(loss="sft"), tokens(weight=[0.2] * 3, mismatch=[9.0] * 3))
    assert value == pytest.approx(3.5 / 5, abs=1e-6)
    assert gradient == pytest.approx([-0.2, -0.2, -0.2], abs=1e-6)


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        ("none", [1.0, 1.0, 1.0]),
        ("token_truncate", [0.5, 1.5, 2.0]),
        ("token_mask", [0.5, 1.5, 0.0]),
        ("sequence_truncate", [0.75, 0.75, 2.0]),  # of the row's product 0.5 * 1.5
        ("sequence_mask", [0.75, 0.75, 0.0]),
    ],
)
def test_corrections_of_three_tokens_of_two_rows(correction: Any, expected: list[float]) -> None:
    given = tokens(mismatch=[0.5, 1.5, 2.5], row=[0, 0, 1])
    objective = Objective(loss="reinforce", correction=correction)
    assert objective.correction_max == 2.0
    assert correction_weights(objective, given).tolist() == pytest.approx(expected, abs=1e-6)
    _, gradient = value_and_gradient(objective, given)
    assert gradient == pytest.approx([-a * w for a, w in zip(ADVANTAGE, expected, strict=True)], abs=1e-6)


def test_a_correction_that_overflows_is_truncated_or_masked() -> None:
    given = tokens(mismatch=[math.exp(80.0)] * 3)  # three of them multiplied are above what a float32 holds
    for how, expected in (("sequence_truncate", 2.0), ("sequence_mask", 0.0)):
        assert correction_weights(Objective(correction=how), given).tolist() == [expected] * 3  # type: ignore[arg-type]


def test_kl_estimates_of_three_tokens() -> None:
    logp, reference = torch.tensor(LOGP), torch.tensor([-1.5, -1.0, -0.5])
    assert kl_estimate(logp, reference, "k1").tolist() == pytest.approx([0.5, -1.0, 0.0], abs=1e-6)
    assert kl_estimate(logp, reference, "k3").tolist() == pytest.approx(
        [math.exp(-0.5) + 0.5 - 1, math.e - 2, 0.0], abs=1e-6
    )


@pytest.mark.parametrize(
    ("estimator", "estimates"),
    [("k1", [0.5, -1.0, 0.0]), ("k3", [math.exp(-0.5) - 0.5, math.e - 2, 0.0])],
)
def test_kl_is_added_to_the_loss_times_the_ratio(estimator: Any, estimates: list[float]) -> None:
    """The derivative of r k is r (k + k'), with k' 1 for k1 and 1 - exp(d) for k3; where r is 1, k3's is k1 itself."""
    objective = Objective(loss="reinforce", kl_coef=0.1, kl_estimator=estimator)
    reference = [-1.5, -1.0, -0.5]
    derivative = [1.0] * 3 if estimator == "k1" else [1 - math.exp(r - p) for r, p in zip(reference, LOGP, strict=True)]
    for ratio in ([1.0] * 3, RATIO):
        given = tokens(ratio=ratio, advantage=[0.0] * 3, reference=reference, weight=[0.5] * 3, mismatch=[0.5] * 3)
        value, gradient = value_and_gradient(objective, given)
        assert value == pytest.approx(0.05 * sum(r * k for r, k in zip(ratio, estimates, strict=True)), abs=1e-6)
        expected = [0.05 * r * (k + d) for r, k, d in zip(ratio, estimates, derivative, strict=True)]
        assert gradient == pytest.approx(expected, abs=1e-6)
        if estimator == "k3" and ratio is not RATIO:
            assert gradient == pytest.approx([0.05 * 0.5, 0.05 * -1.0, 0.0], abs=1e-6)


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=3), st.sampled_from(["ppo", "cispo", "reinforce", "gspo"]))
def test_every_loss_has_the_policy_gradient_where_the_policy_has_not_moved(advantage: list[float], loss: Any) -> None:
    """-A times the gradient of logp: what all of them are corrections of. GSPO spreads it over the row."""
    given = tokens(ratio=[1.0] * 3, advantage=advantage, row=[0, 1, 2])
    _, gradient = value_and_gradient(Objective(loss=loss), given)
    assert gradient == pytest.approx([-a for a in advantage], abs=1e-5)


def test_rows_of_one_token_have_their_own_ratio_as_sequence_ratio() -> None:
    log_ratio = torch.tensor([0.1, -0.2, 0.3])
    assert torch.equal(sequence_ratio(log_ratio, torch.tensor([2, 0, 1]), 3), log_ratio.exp())


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


def of_trl(old_logp: Tensor, weight_of_row: Sequence[float]) -> ScoredTokens:
    row = torch.arange(3)[:, None].expand(3, 6)[TRL_TRAINED]
    old = old_logp[TRL_TRAINED]
    return ScoredTokens(
        logp=TRL_LOGP[TRL_TRAINED],
        old_logp=old,
        sampler_logp=old,
        advantage=TRL_ADVANTAGE[TRL_TRAINED],
        weight=torch.tensor(weight_of_row)[row],
        row=row,
        num_rows=3,
    )


PER_TOKEN, PER_ROW, CONSTANT = [1 / 14] * 3, [1 / 12, 1 / 18, 1 / 12], [1 / 24] * 3
PPO, GSPO = Objective(loss="ppo"), Objective(loss="gspo", clip_low=0.2, clip_high=0.28)
CISPO = Objective(loss="cispo", clip_high=0.2)


@pytest.mark.parametrize(
    ("objective", "weights", "off_policy", "on_policy"),
    [
        (PPO, PER_ROW, -0.202673, -0.25),
        (GSPO, PER_ROW, -0.213306, -0.25),
        (PPO, PER_TOKEN, -0.100497, -0.142857),
        (GSPO, PER_TOKEN, -0.113747, -0.142857),
        (PPO, CONSTANT, -0.058623, -0.083333),
        (GSPO, CONSTANT, -0.066352, -0.083333),
        (CISPO, PER_TOKEN, 0.657964, 0.855825),
    ],
    ids=["grpo", "grpo, sequence", "dapo", "dapo, sequence", "dr_grpo", "dr_grpo, sequence", "cispo"],
)
def test_agrees_with_trl(objective: Objective, weights: list[float], off_policy: float, on_policy: float) -> None:
    """TRL's names; its limit of cispo is epsilon_high itself, without the 1."""
    assert objective_loss(objective, of_trl(TRL_OLD, weights)).item() == pytest.approx(off_policy, abs=2e-6)
    assert objective_loss(objective, of_trl(TRL_LOGP, weights)).item() == pytest.approx(on_policy, abs=2e-6)


def test_shift_of_three_tokens() -> None:
    given = tokens(mismatch=[1.0, 0.5, 3.0], reference=[-1.5, -2.0, -0.5])
    metrics = policy_shift(Objective(kl_coef=0.1), given).metrics()
    kl = (math.exp(-0.5) + 0.5 - 1) / 3
    assert metrics == pytest.approx(
        {
            "train/ratio_mean": 3.25 / 3,
            "train/clip_share": 2 / 3,
            "mismatch/kl": (0.5 - 1 - math.log(0.5) + 3 - 1 - math.log(3)) / 3,
            "mismatch/logprob_diff_max": math.log(3),
            "mismatch/ratio_max": 3.0,
            "mismatch/corrected_share": 1 / 3,
            "train/kl_reference": kl,
            "train/kl_loss": 0.1 * 1.25 * kl * 3,
        },
        abs=1e-6,
    )


@pytest.mark.parametrize(
    ("objective", "clipped"),
    [
        (Objective(loss="ppo"), 2),
        (Objective(loss="cispo", clip_high=0.28), 1),  # only what is above the limit
        (Objective(loss="cispo"), 0),  # 5 is its limit
        (Objective(loss="reinforce"), 0),
        (Objective(loss="gspo", clip_low=0.1, clip_high=0.3), 0),  # the row's ratio, 0.979, is inside
    ],
)
def test_what_counts_as_clipped(objective: Objective, clipped: int) -> None:
    assert policy_shift(objective, tokens()).clipped == clipped


def test_shift_of_the_sampler_itself_is_zero() -> None:
    shift = policy_shift(Objective(), tokens(ratio=[1.0] * 3))
    assert shift == PolicyShift(tokens=3, ratio=3.0, max_mismatch_ratio=1.0)


def test_shifts_of_parts_add_up_to_that_of_the_whole() -> None:
    mismatch, reference = [2.5, 1.0, 0.5], [-1.5, -2.0, -0.5]
    whole = policy_shift(Objective(kl_coef=0.1), tokens(mismatch=mismatch, reference=reference, row=[0, 1, 2]))
    parts = [
        policy_shift(
            Objective(kl_coef=0.1),
            tokens(
                logp=LOGP[part],
                ratio=RATIO[part],
                advantage=ADVANTAGE[part],
                mismatch=mismatch[part],
                reference=reference[part],
            ),
        )
        for part in (slice(0, 1), slice(1, 3))
    ]
    assert (parts[0] + parts[1]).metrics() == pytest.approx(whole.metrics())


def test_shift_of_nothing() -> None:
    none = torch.empty(0)
    empty = ScoredTokens(none, none, none, none, none, row=torch.empty(0, dtype=torch.int64), num_rows=0)
    assert set(policy_shift(Objective(), empty).metrics().values()) == {0.0}


def test_functions_of_a_loss_are_what_the_objective_computes() -> None:
    given = tokens()
    ratio = torch.exp(given.logp - given.old_logp)
    for objective, expected in itertools.chain(
        [(Objective(loss="ppo"), ppo_loss(ratio, given.advantage, clip_low=0.2, clip_high=0.28))],
        [(Objective(loss="cispo"), cispo_loss(given.logp, ratio, given.advantage, clip_high=4.0))],
        [(Objective(loss="reinforce"), reinforce_loss(given.logp, given.advantage))],
    ):
        assert torch.equal(token_losses(objective, given)[0], expected)
