"""Drawing tokens from logits: which distribution, with which logprob."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from art_core.engines.sampler import UNLIKELY, Draw, Drawn, draw, uniform
from art_core.errors import NonFiniteLogitsError
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


def only(*allowed: int, size: int = 4) -> np.ndarray:
    mask = np.zeros(size, np.bool_)
    mask[list(allowed)] = True
    return mask


def restricted(random: float, *allowed: int, logits: torch.Tensor = LOGITS, **sampling: float | int) -> Drawn:
    options = Sampling(max_tokens=1, **sampling)  # type: ignore[arg-type]
    [result] = draw(logits.clone(), [Draw(options, random, only(*allowed, size=logits.shape[1]))])
    return result


def logs(*pairs: tuple[int, float]) -> tuple[Any, ...]:
    return tuple(near(*pair) for pair in pairs)


@pytest.mark.parametrize(("random", "token"), [(0.0, 1), (0.71, 1), (0.72, 3), (1 - 2**-53, 3)])
def test_a_grammar_renormalises_what_is_drawn_and_leaves_the_logprob(random: float, token: int) -> None:
    # Of 0.25 and 0.1, the first has a share of 0.714.
    assert restricted(random, 1, 3) == (*near(token, PROBABILITIES[token]), False, ())


def test_a_grammar_goes_before_temperature_and_the_logprob_knows_the_temperature_only() -> None:
    squares = [p**2 for p in PROBABILITIES]
    # 0.0625 and 0.01: a share of 0.862.
    assert restricted(0.85, 1, 3, temperature=0.5)[:2] == near(1, squares[1] / sum(squares))
    assert restricted(0.87, 1, 3, temperature=0.5)[:2] == near(3, squares[3] / sum(squares))


def test_a_grammar_goes_before_top_k_and_top_p() -> None:
    # Among tokens 1 and 2, both are kept; without the grammar top_k keeps 0 and 1 only.
    assert restricted(0.62, 1, 2, top_k=2)[:2] == near(1, 0.25 / 0.75)
    assert restricted(0.63, 1, 2, top_k=2)[:2] == (2, UNLIKELY)
    # 1 has 0.714 of 1 and 3: enough for 0.7. Without the grammar, 0.7 is reached by 0 and 1.
    assert restricted(0.99, 1, 3, top_p=0.7)[:2] == near(1, 0.25 / 0.75)
    assert restricted(0.99, 1, 3, top_p=0.72)[:2] == (3, UNLIKELY)


def test_greedy_takes_the_most_likely_of_those_allowed() -> None:
    assert restricted(0.99, 2, 3, temperature=0.0) == (*near(2, 0.15), False, ())


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.0}, {"temperature": 0.5}])
def test_a_single_allowed_token_is_forced(sampling: dict[str, float]) -> None:
    token, logprob, forced, _ = restricted(0.5, 3, **sampling)  # type: ignore[arg-type]
    assert (token, forced) == (3, True)
    exponent = {0.5: 2}.get(sampling.get("temperature", 1.0), 1)
    assert logprob == pytest.approx(math.log(0.1**exponent / sum(p**exponent for p in PROBABILITIES)), abs=1e-6)


def test_a_forced_token_of_no_probability_has_a_finite_logprob() -> None:
    impossible = torch.tensor([[1.0, float("-inf"), 2.0, 0.0]])
    assert restricted(0.5, 1, logits=impossible) == (1, UNLIKELY, True, ())
    assert restricted(0.5, 2, top_k=1) == (2, UNLIKELY, True, ())


def test_allowed_tokens_far_below_the_others_keep_their_shares_and_logprobs() -> None:
    far = torch.tensor([[400.0, 1.0, 1.0 + math.log(3.0), 0.0]])
    first, second = restricted(0.24, 1, 2, logits=far), restricted(0.26, 1, 2, logits=far)
    assert (first.token, second.token) == (1, 2)
    assert [first.logprob, second.logprob] == pytest.approx([-399.0, -399.0 + math.log(3.0)], abs=1e-3)
    assert restricted(0.26, 1, 2, logits=far, temperature=1e-3)[:2] == (2, UNLIKELY)


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.8}, {"temperature": 1.3}, {"temperature": 0.2}]
)
def test_a_grammar_that_allows_everything_changes_no_bit(sampling: dict[str, float | int]) -> None:
    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(2)) * 5
    for index in range(50):
        random = uniform(3, index)
        assert restricted(random, *range(300), logits=logits, **sampling)[:2] == drawn(
            random, logits=logits, **sampling
        )


@given(st.integers(0, 999), st.sampled_from([{}, {"temperature": 0.7}, {"temperature": 0.0}, {"top_logprobs": 2}]))
def test_a_grammar_draws_allowed_tokens_with_the_logprob_of_no_grammar(
    seed: int, sampling: dict[str, float | int]
) -> None:
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(seed)) * 3
    allowed = np.random.default_rng(seed).choice(40, size=1 + seed % 5, replace=False).tolist()
    token, logprob, forced, _ = restricted(uniform(seed, 0), *allowed, logits=logits, **sampling)
    assert token in allowed
    assert forced == (len(allowed) == 1)
    scale = sampling.get("temperature", 1.0) or 1.0
    assert logprob == pytest.approx(float(torch.log_softmax(logits[0].double() / scale, -1)[token]), abs=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("allowed", [(0,), (0, 2), (1, 2)])
def test_logits_that_are_not_finite_are_refused_with_a_grammar_too(value: float, allowed: tuple[int, ...]) -> None:
    logits = LOGITS.clone()
    logits[0, 1] = value
    with pytest.raises(NonFiniteLogitsError, match="not finite"):
        restricted(0.5, *allowed, logits=logits)


def alternatives(random: float = 0.99, **sampling: float | int) -> tuple[tuple[int, float], ...]:
    [result] = draw(LOGITS.clone(), [Draw(Sampling(max_tokens=1, **sampling), random)])  # type: ignore[arg-type]
    assert dict(result.top_logprobs).get(result.token, result.logprob) == result.logprob
    return result.top_logprobs


def test_alternatives_are_the_likeliest_first_under_the_distribution_of_the_logprob() -> None:
    assert alternatives(top_logprobs=2) == logs((0, 0.5), (1, 0.25))
    squares = [p**2 for p in PROBABILITIES]
    assert alternatives(top_logprobs=1, temperature=0.5) == logs((0, squares[0] / sum(squares)))
    assert alternatives(top_logprobs=2, temperature=0.0) == logs((0, 0.5), (1, 0.25))


def test_alternatives_are_no_more_than_there_are() -> None:
    assert alternatives(top_logprobs=20) == logs((0, 0.5), (1, 0.25), (2, 0.15), (3, 0.1))
    assert alternatives(top_logprobs=20, top_k=1) == ((0, 0.0),)
    assert alternatives(top_logprobs=20, top_p=0.7) == logs((0, 0.5 / 0.75), (1, 0.25 / 0.75))
    assert alternatives(top_logprobs=1, top_p=0.7) == logs((0, 0.5 / 0.75))


def test_alternatives_are_those_of_before_the_grammar() -> None:
    result = restricted(0.5, 3, top_logprobs=2)
    assert result == (*near(3, 0.1), True, logs((0, 0.5), (1, 0.25)))
    result = restricted(0.99, 1, 2, top_logprobs=5, top_k=2)
    assert result == (2, UNLIKELY, False, logs((0, 0.5 / 0.75), (1, 0.25 / 0.75)))


def test_alternatives_are_finite_and_equally_likely_ones_come_by_their_ids() -> None:
    logits = torch.tensor([[0.0, 300.0, float("-inf"), 0.0]])
    [result] = draw(logits, [Draw(Sampling(max_tokens=1, top_logprobs=20), 0.5)])
    assert result.top_logprobs == ((1, 0.0), (0, -300.0), (3, -300.0), (2, UNLIKELY))


def some(row: int) -> np.ndarray:
    """One token, a few, or most of 259."""
    return only(*np.random.default_rng(row).permutation(259)[: (1, 5, 200)[row % 3]].tolist(), size=259)


@given(
    st.lists(
        st.sampled_from(["plain", "warm", "cold", "greedy", "k", "p", "top", "grammar", "grammar-k", "grammar-greedy"]),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 99),
)
def test_a_row_is_drawn_alike_alone_and_among_others(kinds: list[str], seed: int) -> None:
    options: dict[str, dict[str, float | int]] = {
        "grammar": {"temperature": 0.8},
        "grammar-k": {"top_k": 40, "top_logprobs": 3},
        "grammar-greedy": {"temperature": 0.0},
        "top": {"top_logprobs": 20},
        "plain": {},
        "warm": {"temperature": 1.7},
        "cold": {"temperature": 0.3},
        "greedy": {"temperature": 0.0},
        "k": {"top_k": 5},
        "p": {"top_p": 0.8, "temperature": 0.9},
    }
    logits = torch.randn(len(kinds), 259, generator=torch.Generator().manual_seed(seed)) * 4
    draws = [
        Draw(Sampling(max_tokens=1, **options[kind]), uniform(seed, i), some(i) if "grammar" in kind else None)  # type: ignore[arg-type]
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
