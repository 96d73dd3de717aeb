"""Drawing tokens from logits: which distribution, with which logprob."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from art_core.engines.sampler import Draw, NonFiniteLogitsError, draw, uniform
from art_core.types import Sampling

PROBABILITIES = (0.5, 0.25, 0.15, 0.1)
LOGITS = torch.tensor([PROBABILITIES]).log() + 3.0  # any constant may be added


def drawn(random: float, *, logits: torch.Tensor = LOGITS, **sampling: float | int) -> tuple[int, float]:
    [result] = draw(logits.clone(), [Draw(Sampling(max_tokens=1, **sampling), random)])  # type: ignore[arg-type]
    assert result[2:] == (False, ())
    return result[:2]


def near(token: int, likelihood: float) -> Any:
    """What `drawn` gives for `token`, up to rounding."""
    return (token, pytest.approx(math.log(likelihood), abs=1e-6))


@pytest.mark.parametrize(
    ("random", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.74, 1), (0.76, 2), (0.89, 2), (0.91, 3), (1 - 2**-53, 3)]
)
def test_inverts_the_cumulative_distribution(random: float, token: int) -> None:
    assert drawn(random) == near(token, PROBABILITIES[token])


def test_temperature_reshapes_the_distribution_before_the_logprob_is_taken() -> None:
    squares = [p**2 for p in PROBABILITIES]
    token, logprob = drawn(0.99, temperature=0.5)
    assert token == 3
    assert logprob == pytest.approx(math.log(squares[3] / sum(squares)), abs=1e-6)


def test_top_k_renormalises_over_the_k_most_likely() -> None:
    assert drawn(0.7, top_k=2) == near(1, 0.25 / 0.75)
    assert drawn(0.99, top_k=1) == (0, 0.0)


def test_top_k_above_the_vocabulary_keeps_everything() -> None:
    assert drawn(0.99, top_k=1000) == near(3, 0.1)


def test_top_p_keeps_the_fewest_tokens_that_reach_the_share() -> None:
    assert drawn(0.99, top_p=0.7) == near(1, 0.25 / 0.75)
    assert drawn(0.99, top_p=0.76) == near(2, 0.15 / 0.9)
    assert drawn(0.99, top_p=1e-6) == (0, 0.0)


def test_top_p_applies_to_what_top_k_left() -> None:
    # Of the first three, renormalised to 5/9, 2.5/9 and 1.5/9, two hold 7.5/9 = 0.83.
    assert drawn(0.99, top_k=3, top_p=0.8) == near(1, 0.25 / 0.75)


def test_top_p_over_a_flat_vocabulary_keeps_more_than_the_first_candidates() -> None:
    flat = torch.zeros(1, 5000)
    token, logprob = drawn(0.999, logits=flat, top_p=0.4999)
    assert token == 2497  # of 2500 equal tokens, in a stable order
    assert logprob == pytest.approx(-math.log(2500), abs=1e-4)


def test_greedy_takes_the_most_likely_with_its_logprob_at_temperature_1() -> None:
    assert drawn(0.99, temperature=0.0, top_k=1) == near(0, 0.5)


def test_a_tiny_temperature_is_greedy_and_finite() -> None:
    assert drawn(0.99, temperature=1e-45) == (0, 0.0)


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.full((1, 600), float("-inf"))
    logits[0, [17, 300]] = torch.tensor([2.0, 1.0])
    assert {drawn(uniform(0, i), logits=logits)[0] for i in range(200)} == {17, 300}
    assert drawn(0.0, logits=logits)[0] == 17
    assert drawn(1 - 2**-53, logits=logits)[0] == 300


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.0}, {"top_k": 2}, {"temperature": 0.7}])
def test_logits_that_are_not_finite_are_refused(value: float, sampling: dict[str, float | int]) -> None:
    logits = LOGITS.clone()
    logits[0, 1] = value
    with pytest.raises(NonFiniteLogitsError, match="not finite"):
        drawn(0.5, logits=logits, **sampling)


def test_empirical_frequencies_are_those_of_the_distribution() -> None:
    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(1)) * 2
    n = 20_000
    draws = [Draw(Sampling(max_tokens=1), uniform(7, i)) for i in range(n)]
    counts = torch.bincount(torch.tensor([result.token for result in draw(logits.expand(n, -1), draws)]), minlength=300)
    expected = torch.softmax(logits[0].double(), -1) * n
    likely = expected > 5
    chi_square = float(((counts - expected)[likely] ** 2 / expected[likely]).sum())
    degrees = int(likely.sum())
    assert degrees > 100
    assert abs(chi_square - degrees) < 4 * math.sqrt(2 * degrees)


@given(
    st.lists(st.sampled_from(["plain", "warm", "cold", "greedy", "k", "p"]), min_size=1, max_size=9), st.integers(0, 99)
)
def test_a_row_is_drawn_alike_alone_and_among_others(kinds: list[str], seed: int) -> None:
    options: dict[str, dict[str, float | int]] = {
        "plain": {},
        "warm": {"temperature": 1.7},
        "cold": {"temperature": 0.3},
        "greedy": {"temperature": 0.0},
        "k": {"top_k": 5},
        "p": {"top_p": 0.8, "temperature": 0.9},
    }
    logits = torch.randn(len(kinds), 259, generator=torch.Generator().manual_seed(seed)) * 4
    draws = [
        Draw(Sampling(max_tokens=1, **options[kind]), uniform(seed, i))  # type: ignore[arg-type]
        for i, kind in enumerate(kinds)
    ]
    together = draw(logits.clone(), draws)
    alone = [draw(logits[i : i + 1].clone(), draws[i : i + 1])[0] for i in range(len(kinds))]
    assert together == alone


@given(st.integers(), st.integers(0, 10**6))
def test_uniform_is_in_the_half_open_unit_interval_and_repeats(seed: int, index: int) -> None:
    assert 0.0 <= uniform(seed, index) < 1.0
    assert uniform(seed, index) == uniform(seed, index)


def test_uniform_numbers_of_neighbouring_seeds_and_indices_are_uncorrelated() -> None:
    table = torch.tensor([[uniform(seed, i) for i in range(200)] for seed in range(200)], dtype=torch.float64) - 0.5
    assert abs(float(table.mean())) < 5 / math.sqrt(12 * 40_000)
    for shifted in (table[1:] * table[:-1], table[:, 1:] * table[:, :-1]):
        assert abs(float(shifted.mean())) < 5 / 12 / math.sqrt(39_800)
