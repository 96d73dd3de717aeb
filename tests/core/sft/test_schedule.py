"""The learning rate of each update."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_core.sft.schedule import learning_rates, num_updates
from art_core.sft_config import SftConfig


def shares(total: int, **options: Any) -> list[float]:
    return learning_rates(total, SftConfig(learning_rate=1.0, **options))


def test_exact_values() -> None:
    assert shares(4, schedule="linear", warmup_ratio=0.0) == [1.0, 0.75, 0.5, 0.25]
    assert shares(5, schedule="linear", warmup_ratio=0.2) == [0.5, 1.0, 0.75, 0.5, 0.25]
    assert shares(3, schedule="constant", warmup_ratio=0.0) == [1.0, 1.0, 1.0]
    assert shares(4, schedule="cosine", warmup_ratio=0.0) == pytest.approx(
        [1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]
    )
    assert shares(4, schedule="constant", warmup_ratio=0.75) == [0.25, 0.5, 0.75, 1.0]
    assert shares(1, schedule="cosine", warmup_ratio=0.9) == [1.0]


@given(
    total=st.integers(1, 400),
    ratio=st.floats(0.0, 1.0, exclude_max=True),
    schedule=st.sampled_from(["constant", "linear", "cosine"]),
)
def test_every_update_has_a_rate_and_the_peak_is_reached(total: int, ratio: float, schedule: str) -> None:
    rates = shares(total, warmup_ratio=ratio, schedule=schedule)
    assert len(rates) == total
    assert min(rates) > 0.0
    assert max(rates) == 1.0
    peak = rates.index(1.0)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


@pytest.mark.parametrize(("examples", "updates"), [(1, 3), (8, 3), (9, 6), (16, 6), (17, 9)])
def test_updates_of_all_epochs(examples: int, updates: int) -> None:
    assert num_updates(examples, SftConfig(epochs=3, batch_size=8)) == updates
