"""Weights of tokens and the rows of each update."""

from __future__ import annotations

from collections import defaultdict
from typing import get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from art_core.objective import Aggregation, Objective
from art_core.trainers.aggregation import minibatches, token_weights
from art_core.types import TokenSample


def row(trajectory_id: str, num_trained: int, *, context: int = 1) -> TokenSample:
    length = context + num_trained
    return TokenSample(
        token_ids=tuple(range(length)),
        trained=(False,) * context + (True,) * num_trained,
        logprobs=(0.0,) * context + (-1.0,) * num_trained,
        advantage=1.0,
        policy_version=0,
        trajectory_id=trajectory_id,
    )


ROWS = [row("a", 2), row("b", 3), row("a", 4, context=7), row("none", 0), row("a", 0), row("c", 1)]
"""10 trained tokens, in 4 rows that have some, of 3 trajectories: `a` has 6 in two rows, `b` 3 and `c` 1."""


@pytest.mark.parametrize(
    ("aggregation", "weights"),
    [
        ("token", [1 / 10, 1 / 10, 1 / 10, 0, 0, 1 / 10]),
        ("trajectory", [1 / (3 * 6), 1 / (3 * 3), 1 / (3 * 6), 0, 0, 1 / (3 * 1)]),
        ("row", [1 / (4 * 2), 1 / (4 * 3), 1 / (4 * 4), 0, 0, 1 / (4 * 1)]),
        ("constant", [1 / (3 * 50), 1 / (3 * 50), 1 / (3 * 50), 0, 0, 1 / (3 * 50)]),
    ],
)
def test_the_weight_of_a_token(aggregation: Aggregation, weights: list[float]) -> None:
    assert token_weights(ROWS, Objective(aggregation=aggregation, constant_length=50)) == pytest.approx(weights)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_nothing_trained_weighs_nothing(aggregation: Aggregation) -> None:
    objective = Objective(aggregation=aggregation)
    assert token_weights([], objective) == []
    assert token_weights([row("a", 0), row("b", 0)], objective) == [0.0, 0.0]


rows_of_a_step = st.lists(
    st.builds(row, st.sampled_from("abcde"), st.integers(0, 6), context=st.integers(1, 3)), max_size=12
)


@given(rows_of_a_step, st.sampled_from(get_args(Aggregation)), st.integers(1, 5000))
def test_weights_of_a_step_sum_to_one_or_are_those_of_a_constant(
    rows: list[TokenSample], aggregation: Aggregation, length: int
) -> None:
    weights = token_weights(rows, Objective(aggregation=aggregation, constant_length=length))
    total = sum(weight * one.num_trained for weight, one in zip(weights, rows, strict=True))
    count = sum(one.num_trained for one in rows)
    if not count:
        assert total == 0.0
    elif aggregation == "constant":
        trained = {one.trajectory_id for one in rows if one.num_trained}
        assert total == pytest.approx(count / (len(trained) * length))
    else:
        assert total == pytest.approx(1.0)
    # What has no trained token is as if it were not there.
    kept = [index for index, one in enumerate(rows) if one.num_trained]
    alone = token_weights([rows[i] for i in kept], Objective(aggregation=aggregation, constant_length=length))
    assert [weights[index] for index in kept] == pytest.approx(alone)


@given(rows_of_a_step)
def test_each_trajectory_or_row_has_the_same_share(rows: list[TokenSample]) -> None:
    of_trajectory: defaultdict[str, float] = defaultdict(float)
    of_row = []
    for weight, one in zip(token_weights(rows, Objective(aggregation="trajectory")), rows, strict=True):
        of_trajectory[one.trajectory_id] += weight * one.num_trained
    for weight, one in zip(token_weights(rows, Objective(aggregation="row")), rows, strict=True):
        of_row.append(weight * one.num_trained)
    trained = {one.trajectory_id for one in rows if one.num_trained}
    assert all(of_trajectory[name] == pytest.approx(1 / len(trained)) for name in trained)
    with_some = [share for share in of_row if share]
    assert with_some == pytest.approx([1 / max(1, len(with_some))] * len(with_some))


@given(rows_of_a_step, st.integers(1, 4), st.integers(1, 5), st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_each_epoch_deals_every_trained_row_once_and_no_trajectory_apart(
    rows: list[TokenSample], epochs: int, parts: int, seed: tuple[int, int]
) -> None:
    objective = Objective(epochs=epochs, minibatches=parts)
    updates = minibatches(rows, objective, seed=seed)
    trained = [index for index, one in enumerate(rows) if one.num_trained]
    names = {rows[index].trajectory_id for index in trained}
    per_epoch = min(parts, len(names))
    assert len(updates) == epochs * per_epoch
    for start in range(0, len(updates), per_epoch or 1):
        epoch = updates[start : start + per_epoch]
        assert sorted(index for update in epoch for index in update) == trained
        of_update = [{rows[index].trajectory_id for index in update} for update in epoch]
        assert sum(len(members) for members in of_update) == len(names)
        sizes = [len(members) for members in of_update]
        assert max(sizes) - min(sizes) <= 1
        assert all(update == sorted(update) for update in epoch)
    assert minibatches(rows, objective, seed=seed) == updates


def test_epochs_steps_and_seeds_deal_differently() -> None:
    rows = [row(str(number), 1) for number in range(20)]
    first, second, third, fourth = minibatches(rows, Objective(epochs=2, minibatches=2), seed=(0, 0))
    assert {tuple(first), tuple(second)} != {tuple(third), tuple(fourth)}
    for other in ((1, 0), (0, 1)):
        assert minibatches(rows, Objective(epochs=2, minibatches=2), seed=other)[0] != first


def test_one_minibatch_is_all_rows_in_their_order() -> None:
    assert minibatches(ROWS, Objective(epochs=2), seed=(0, 0)) == [[0, 1, 2, 5], [0, 1, 2, 5]]
    assert minibatches([row("a", 0)], Objective(epochs=2, minibatches=2), seed=(0, 0)) == []


@given(rows_of_a_step, st.integers(2, 4))
def test_which_trajectories_are_dealt_together_depends_on_their_order_of_appearance_only(
    rows: list[TokenSample], parts: int
) -> None:
    """Further rows of a trajectory do not move others to another update."""
    assume(any(one.num_trained for one in rows))
    doubled = [*rows, *(row(one.trajectory_id, 2) for one in rows if one.num_trained)]
    objective = Objective(minibatches=parts)

    def dealt(given_rows: list[TokenSample]) -> list[set[str]]:
        updates = minibatches(given_rows, objective, seed=(0, 0))
        return [{given_rows[index].trajectory_id for index in update} for update in updates]

    assert dealt(doubled) == dealt(rows)
