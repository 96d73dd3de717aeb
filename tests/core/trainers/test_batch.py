from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_core.errors import ConfigError
from art_core.trainers.batch import RowForest, Segment, Target, TokenBatch, pack
from art_core.types import TokenSample


def row(text: str, trained: str, *, advantage: float = 1.0, first_logprob: float = -1.0) -> TokenSample:
    """Letters are tokens; `trained` marks them with x. Logprobs count down from `first_logprob`."""
    mask = tuple(mark == "x" for mark in trained)
    return TokenSample(
        token_ids=tuple(ord(letter) for letter in text),
        trained=mask,
        logprobs=tuple(first_logprob - index if is_trained else 0.0 for index, is_trained in enumerate(mask)),
        advantage=advantage,
        policy_version=0,
        trajectory_id=text,
    )


def text(batch: TokenBatch, segment: Segment) -> str:
    return "".join(chr(token) for token in batch.token_ids[segment.start : segment.stop])


def test_two_rows_share_their_prefix_once() -> None:
    (batch,) = pack([row("abcde", "...xx"), row("abxy", "..xx", advantage=-1.0)], max_tokens=100)
    assert [text(batch, segment) for segment in batch.segments] == ["ab", "cd", "x"]
    assert [segment.ancestors for segment in batch.segments] == [(), (0,), (0,)]
    assert batch.positions == [0, 1, 2, 3, 2]
    assert batch.row_tokens == 7


def test_what_follows_the_last_trained_token_is_not_computed() -> None:
    (batch,) = pack([row("abcdef", "..x...")], max_tokens=100)
    assert text(batch, batch.segments[0]) == "ab"
    assert batch.predictions == ((1, ord("c")),)


def test_targets_carry_their_rows_logprob_and_advantage() -> None:
    rows = [row("abc", ".xx", advantage=2.0, first_logprob=-0.5), row("abd", ".xx", advantage=-1.0)]
    (batch,) = pack(rows, max_tokens=100)
    assert batch.token_ids == (ord("a"), ord("b"))
    assert batch.predictions == ((0, ord("b")), (1, ord("c")), (1, ord("d")))
    assert batch.targets == (
        Target(prediction=0, logprob=-1.5, advantage=2.0, row=0),
        Target(prediction=1, logprob=-2.5, advantage=2.0, row=0),
        Target(prediction=0, logprob=-2.0, advantage=-1.0, row=1),
        Target(prediction=2, logprob=-3.0, advantage=-1.0, row=1),
    )


def test_equal_rows_are_computed_once_and_both_trained() -> None:
    (batch,) = pack([row("abc", ".xx"), row("abc", ".xx", advantage=-1.0)], max_tokens=100)
    assert len(batch) == 2
    assert len(batch.predictions) == 2
    assert [target.row for target in batch.targets] == [0, 0, 1, 1]


def test_a_row_that_another_extends_ends_inside_it() -> None:
    (batch,) = pack([row("abcdef", ".....x"), row("abc", "..x")], max_tokens=100)
    assert [text(batch, segment) for segment in batch.segments] == ["ab", "cde"]
    assert batch.predictions == ((1, ord("c")), (4, ord("f")))


def test_rows_with_nothing_in_common_are_roots_of_their_own() -> None:
    (batch,) = pack([row("ab", ".x"), row("cd", ".x")], max_tokens=100)
    assert [segment.ancestors for segment in batch.segments] == [(), ()]
    assert batch.positions == [0, 0]


def test_three_levels_of_sharing() -> None:
    rows = [row("sysAx1", "...x.x"), row("sysAx2", "...x.x"), row("sysBy1", "...x.x"), row("sysBy2", "...x.x")]
    (batch,) = pack(rows, max_tokens=100)
    assert [text(batch, segment) for segment in batch.segments] == ["sys", "Ax", "By"]
    assert len(batch.targets) == 8
    assert len(batch.predictions) == 6


def test_the_budget_counts_shared_tokens_once() -> None:
    rows = [row(f"prefix{letter}z", ".......x") for letter in "abcd"]
    assert [len(batch) for batch in pack(rows, max_tokens=10)] == [10]
    assert [len(batch) for batch in pack(rows, max_tokens=9)] == [9, 7]
    assert [len(batch) for batch in pack(rows, max_tokens=1)] == [7, 7, 7, 7]


def test_a_row_longer_than_the_budget_is_not_cut() -> None:
    batches = pack([row("abcdefgh", ".......x"), row("xy", ".x")], max_tokens=3)
    assert [len(batch) for batch in batches] == [7, 1]


def test_rows_without_trained_tokens_are_left_out() -> None:
    assert pack([row("abc", "...")], max_tokens=10) == []
    (batch,) = pack([row("abc", "..."), row("abd", "..x")], max_tokens=10)
    assert [target.row for target in batch.targets] == [1]


def test_an_empty_completion_does_not_shift_the_next_row() -> None:
    empty, five = row("ab", ".."), row("abcdefg", "..xxxxx")
    for rows in ([empty, five], [five, empty]):
        (batch,) = pack(rows, max_tokens=100)
        assert [target.logprob for target in batch.targets] == [-3.0, -4.0, -5.0, -6.0, -7.0]
        assert {rows[target.row].trajectory_id for target in batch.targets} == {"abcdefg"}


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 tokens"):
        pack([], max_tokens=0)


@st.composite
def samples(draw: st.DrawFn) -> list[TokenSample]:
    """Rows over two token ids, so that prefixes of every length coincide."""
    rows = []
    for number in range(draw(st.integers(0, 7))):
        token_ids = draw(st.lists(st.integers(0, 1), min_size=1, max_size=12))
        trained = [False, *draw(st.lists(st.booleans(), min_size=len(token_ids) - 1, max_size=len(token_ids) - 1))]
        rows.append(
            TokenSample(
                token_ids=tuple(token_ids),
                trained=tuple(trained),
                logprobs=tuple(
                    -(number + 1) - 0.01 * at if is_trained else 0.0 for at, is_trained in enumerate(trained)
                ),
                advantage=float(number),
                policy_version=0,
                trajectory_id=str(number),
            )
        )
    return rows


def history(batch: TokenBatch, packed: int) -> tuple[int, ...]:
    """The token ids up to and including packed index `packed`, by the segments alone."""
    segment = next(segment for segment in batch.segments if segment.start <= packed < segment.stop)
    ids: list[int] = []
    for index in segment.ancestors:
        ids += batch.token_ids[batch.segments[index].start : batch.segments[index].stop]
    return (*ids, *batch.token_ids[segment.start : packed + 1])


def trained_tokens(rows: Sequence[TokenSample]) -> Counter[tuple[object, ...]]:
    return Counter(
        (number, row.token_ids[: at + 1], row.logprobs[at], row.advantage)
        for number, row in enumerate(rows)
        for at in range(len(row.token_ids))
        if row.trained[at]
    )


@given(samples(), st.integers(1, 40))
def test_every_trained_token_is_a_target_exactly_once_after_its_own_history(
    rows: list[TokenSample], max_tokens: int
) -> None:
    found: Counter[tuple[object, ...]] = Counter()
    for batch in pack(rows, max_tokens=max_tokens):
        for target in batch.targets:
            parent, token_id = batch.predictions[target.prediction]
            found[(target.row, (*history(batch, parent), token_id), target.logprob, target.advantage)] += 1
    assert found == trained_tokens(rows)


@given(samples(), st.integers(1, 40))
def test_packed_tokens_have_distinct_histories_and_consistent_positions(
    rows: list[TokenSample], max_tokens: int
) -> None:
    for batch in pack(rows, max_tokens=max_tokens):
        histories = [history(batch, packed) for packed in range(len(batch))]
        assert len(set(histories)) == len(batch)
        assert [len(each) - 1 for each in histories] == batch.positions
        assert len(set(batch.predictions)) == len(batch.predictions)
        assert all(ancestor < index for index, segment in enumerate(batch.segments) for ancestor in segment.ancestors)


@given(samples(), st.integers(1, 40))
def test_a_micro_batch_exceeds_the_budget_only_for_a_single_row(rows: list[TokenSample], max_tokens: int) -> None:
    for batch in pack(rows, max_tokens=max_tokens):
        assert len(batch) <= max_tokens or len({target.row for target in batch.targets}) == 1


@given(samples(), st.integers(1, 40), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_change_what_is_computed(
    rows: list[TokenSample], max_tokens: int, random: object
) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert [batch.token_ids for batch in pack(rows, max_tokens=max_tokens)] == [
        batch.token_ids for batch in pack(shuffled, max_tokens=max_tokens)
    ]


@given(samples(), st.integers(1, 40))
def test_descendants_stand_directly_behind_their_segment(rows: list[TokenSample], max_tokens: int) -> None:
    for batch in pack(rows, max_tokens=max_tokens):
        for index, segment in enumerate(batch.segments):
            below = [other for other in batch.segments if index in other.ancestors]
            assert below == list(batch.segments[index + 1 : index + 1 + len(below)])
            assert segment.stop == (batch.segments[index + 1].start if index + 1 < len(batch.segments) else len(batch))


@given(samples(), st.integers(1, 40))
def test_sizes_are_known_before_anything_is_packed(rows: list[TokenSample], max_tokens: int) -> None:
    forest = RowForest(rows)
    assert forest.sizes(max_tokens=max_tokens) == [len(batch) for batch in pack(rows, max_tokens=max_tokens)]
