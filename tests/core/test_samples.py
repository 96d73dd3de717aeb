from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from art_core.errors import DataError, TokenAlignmentError
from art_core.samples import demonstration, to_samples
from art_core.trajectories import Trajectory
from art_core.types import Exchange, FinishReason, Sampling, TokenSample

SYSTEM, USER, HEADER, THINK, END, NEWLINE = 1, 2, 3, 4, 5, 6


def exchange(
    prompt: tuple[int, ...],
    completion: tuple[int, ...],
    *,
    version: int = 0,
    first_logprob: float = -1.0,
    finish_reason: FinishReason = "stop",
    number: int = 0,
    forced: tuple[bool, ...] = (),
) -> Exchange:
    return Exchange(
        id=f"e{number}",
        trajectory_id="t",
        messages=(),
        response={},
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=tuple(first_logprob - index for index in range(len(completion))),
        forced=forced,
        finish_reason=finish_reason,
        sampling=Sampling(max_tokens=100),
        policy_version=version,
        started_at=0.0,
        ended_at=0.0,
    )


def trajectory(*exchanges: Exchange) -> Trajectory:
    return Trajectory(id="t", scenario_id="s", exchanges=list(exchanges))


def trained(row: TokenSample) -> list[int]:
    return [token for token, is_trained in zip(row.token_ids, row.trained, strict=True) if is_trained]


def test_one_turn_is_prompt_untrained_and_completion_trained() -> None:
    (row,) = to_samples(trajectory(exchange((SYSTEM, HEADER), (10, END), version=3)), 0.5)
    assert row == TokenSample(
        token_ids=(SYSTEM, HEADER, 10, END),
        trained=(False, False, True, True),
        logprobs=(0.0, 0.0, -1.0, -2.0),
        advantage=0.5,
        policy_version=3,
        trajectory_id="t",
    )


def test_tokens_that_a_grammar_forced_are_context_between_those_that_were_chosen() -> None:
    (row,) = to_samples(trajectory(exchange((SYSTEM, HEADER), (10, 11, 12, END), forced=(True, False, True, False))), 1)
    assert row.token_ids == (SYSTEM, HEADER, 10, 11, 12, END)
    assert row.trained == (False, False, False, True, False, True)
    assert row.logprobs == (0.0, 0.0, 0.0, -2.0, 0.0, -4.0)


def test_forced_tokens_of_one_turn_leave_those_of_the_next_alone() -> None:
    first = exchange((USER, HEADER), (10, END), forced=(False, True))
    second = exchange((USER, HEADER, 10, END, NEWLINE, USER, HEADER), (11, END), first_logprob=-5.0)
    (row,) = to_samples(trajectory(first, second), 1.0)
    assert row.token_ids == (USER, HEADER, 10, END, NEWLINE, USER, HEADER, 11, END)
    assert row.trained == (False, False, True, False, False, False, False, True, True)
    assert row.logprobs == (0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0, -5.0, -6.0)


def test_a_turn_without_a_choice_gives_no_row_of_its_own_but_stays_context() -> None:
    forced = exchange((USER, HEADER), (10, END), forced=(True, True))
    assert to_samples(trajectory(forced), 1.0) == []
    (row,) = to_samples(trajectory(forced, exchange((USER, HEADER, 10, END, USER, HEADER), (11,))), 1.0)
    assert row.token_ids == (USER, HEADER, 10, END, USER, HEADER, 11)
    assert row.trained == (False,) * 6 + (True,)


def test_marks_that_force_nothing_are_as_good_as_none() -> None:
    plain, marked = (exchange((USER, HEADER), (10, END), forced=marks) for marks in ((), (False, False)))
    assert to_samples(trajectory(marked), 1.0) == to_samples(trajectory(plain), 1.0)


@pytest.mark.parametrize("marks", [(True,), (True, False, True)])
def test_marks_of_forced_tokens_must_be_one_for_each_token(marks: tuple[bool, ...]) -> None:
    with pytest.raises(TokenAlignmentError, match=rf"'e7': 2 sampled tokens but {len(marks)} marks"):
        exchange((USER, HEADER), (10, END), number=7, forced=marks)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_empty_completion_takes_no_logprobs_from_its_neighbour(order: tuple[int, int]) -> None:
    empty = exchange((USER, HEADER), (), number=0)
    full = exchange((USER, HEADER, 7), (10, 11, 12, 13, END), number=1)
    (row,) = to_samples(trajectory(*((empty, full)[index] for index in order)), 1.0)
    assert row.trained == (False, False, False, True, True, True, True, True)
    assert row.logprobs == (0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0)


def test_the_header_and_the_newline_after_the_turn_are_not_trained() -> None:
    first = exchange((USER, HEADER), (10, END))
    second = exchange((USER, HEADER, 10, END, NEWLINE, USER, HEADER), (11, END), first_logprob=-5.0)
    (row,) = to_samples(trajectory(first, second), 1.0)
    assert row.token_ids == (USER, HEADER, 10, END, NEWLINE, USER, HEADER, 11, END)
    assert row.trained == (False, False, True, True, False, False, False, True, True)
    assert row.logprobs == (0.0, 0.0, -1.0, -2.0, 0.0, 0.0, 0.0, -5.0, -6.0)


def test_a_stop_token_that_only_the_template_wrote_is_context() -> None:
    """The completion was cut off; the next prompt closes the turn for it. No logprob is invented for that token."""
    first = exchange((USER, HEADER), (9, 8), finish_reason="length")
    second = exchange((USER, HEADER, 9, 8, END, USER, HEADER), (7, END))
    (row,) = to_samples(trajectory(first, second), 1.0)
    assert row.trained == (False, False, True, True, False, False, False, True, True)
    assert [logprob for logprob, is_trained in zip(row.logprobs, row.trained, strict=True) if not is_trained] == [
        0.0
    ] * 5


def test_a_template_that_drops_earlier_thinking_opens_a_row_per_context_that_was_sent() -> None:
    """Each turn is trained once, after the prompt it really had; the thinking of both carries loss."""
    first = exchange((USER, HEADER), (THINK, 20, THINK, 30, END))
    second = exchange((USER, HEADER, 30, END, USER, HEADER), (THINK, 21, THINK, 31, END))
    rows = to_samples(trajectory(first, second), 1.0)
    assert [trained(row) for row in rows] == [[THINK, 20, THINK, 30, END], [THINK, 21, THINK, 31, END]]
    assert [row.token_ids[: len(row.token_ids) - 5] for row in rows] == [first.prompt_ids, second.prompt_ids]
    assert len(to_samples(trajectory(first, second), 0.0)) == 2


def test_compaction_in_mid_rollout_opens_a_second_row_that_later_turns_join() -> None:
    turns = [exchange((1,), (10,)), exchange((1, 10, 2), (11,)), exchange((1, 10, 2, 11, 3), (12,))]
    summarised = [exchange((50, 51), (13,)), exchange((50, 51, 13, 4), (14,))]
    rows = to_samples(trajectory(*turns, *summarised), -0.25)
    assert [row.token_ids for row in rows] == [(1, 10, 2, 11, 3, 12), (50, 51, 13, 4, 14)]
    assert [trained(row) for row in rows] == [[10, 11, 12], [13, 14]]
    assert [row.advantage for row in rows] == [-0.25, -0.25]
    assert len(to_samples(trajectory(*turns, *summarised), 0.0)) == 2


def test_a_turn_edited_by_one_token_is_a_fork() -> None:
    rows = to_samples(trajectory(exchange((1, 2), (10, 11)), exchange((1, 2, 10, 99, 3), (12,))), 1.0)
    assert [trained(row) for row in rows] == [[10, 11], [12]]


def test_the_same_prompt_asked_twice_gives_two_rows() -> None:
    rows = to_samples(trajectory(exchange((1, 2), (10,)), exchange((1, 2), (11,))), 1.0)
    assert [row.token_ids for row in rows] == [(1, 2, 10), (1, 2, 11)]


def test_parallel_agents_each_keep_their_own_row() -> None:
    """Two conversations take turns; each following turn goes to the one it extends."""
    interleaved = [
        exchange((1,), (10,)),
        exchange((2,), (20,)),
        exchange((1, 10, 5), (11,)),
        exchange((2, 20, 5), (21,)),
    ]
    rows = to_samples(trajectory(*interleaved), 1.0)
    assert [row.token_ids for row in rows] == [(1, 10, 5, 11), (2, 20, 5, 21)]


def test_the_longest_matching_row_is_continued() -> None:
    """After a fork at the first answer, both rows are prefixes of the last prompt only if it extends the longer one."""
    rows = to_samples(
        trajectory(
            exchange((1,), (10,)), exchange((1, 2), (11,)), exchange((1, 10, 2), (12,)), exchange((1, 2, 11, 3), (13,))
        ),
        1.0,
    )
    assert [row.token_ids for row in rows] == [(1, 10, 2, 12), (1, 2, 11, 3, 13)]


def test_turns_of_different_policies_never_share_a_row() -> None:
    rows = to_samples(trajectory(exchange((1,), (10,), version=1), exchange((1, 10, 2), (11,), version=2)), 1.0)
    assert [(row.policy_version, trained(row)) for row in rows] == [(1, [10]), (2, [11])]


def test_an_empty_completion_trains_nothing_and_does_not_disturb_the_next() -> None:
    empty, full = exchange((1, 2), ()), exchange((1, 2, 3), (10, 11))
    assert to_samples(trajectory(empty), 1.0) == []
    (row,) = to_samples(trajectory(empty, full), 1.0)
    assert row.logprobs == (0.0, 0.0, 0.0, -1.0, -2.0)


def test_no_exchange_gives_no_row() -> None:
    assert to_samples(trajectory(), 1.0) == []
    assert len(to_samples(trajectory(), 0.0)) == 0


def test_an_empty_prompt_is_never_accepted() -> None:
    with pytest.raises(ValueError, match="no prompt ids"):
        exchange((), (5, 6, 7))


ROLES = ("", "planner", "worker")
MARK = 9
"""A token that templates write and no policy samples here: the end of a turn that was cut off, for one."""


@st.composite
def rollouts(draw: st.DrawFn) -> Trajectory:
    """Calls whose prompts extend an earlier one, or edit it, or start afresh; few token ids, so much coincides.

    Among them multi-turn conversations, parallel branches and sub-agents (a prompt extends any earlier call), forks,
    compaction (only the end of a history is kept), turns that a template closes, empty completions, tokens that a
    grammar forced, and steps of training in between.
    """
    tokens = st.lists(st.integers(0, 2), max_size=4)
    exchanges: list[Exchange] = []
    for number in range(draw(st.integers(0, 7))):
        kind = draw(st.sampled_from(["new", "extend", "extend", "close", "edit", "compact"]))
        prompt = draw(tokens)
        if kind != "new" and exchanges:
            base = draw(st.sampled_from(exchanges))
            history = [*base.prompt_ids, *base.completion_ids]
            if kind == "edit":
                del history[draw(st.integers(0, len(history) - 1))]
            elif kind == "compact":
                del history[: draw(st.integers(1, len(history)))]
            prompt = [*history, *([MARK] if kind == "close" else []), *prompt]
        completion = draw(tokens)
        forced = draw(st.sampled_from([False, False, True]))
        role = draw(st.sampled_from(ROLES))
        made = exchange(
            tuple(prompt) or (0,),
            tuple(completion),
            version=draw(st.integers(0, 1)),
            first_logprob=-100.0 * (number + 1),
            finish_reason=draw(st.sampled_from(["stop", "length"])),
            number=number,
            forced=tuple(draw(st.booleans()) for _ in completion) if forced else (),
        )
        exchanges.append(made.model_copy(update={"metadata": {"role": role} if role else {}}))
    return trajectory(*exchanges)


def own_tokens(each: Exchange) -> list[int]:
    """Places of the tokens of `each` that the policy chose."""
    return [index for index in range(len(each.completion_ids)) if not (each.forced and each.forced[index])]


def trained_of(rows: list[TokenSample]) -> Counter[tuple[object, ...]]:
    """Each trained token with all before it, its logprob and its version."""
    return Counter(
        (row.token_ids[: index + 1], row.logprobs[index], row.policy_version)
        for row in rows
        for index in range(len(row.token_ids))
        if row.trained[index]
    )


def sampled_of(exchanges: list[Exchange]) -> Counter[tuple[object, ...]]:
    return Counter(
        (each.prompt_ids + each.completion_ids[: index + 1], each.logprobs[index], each.policy_version)
        for each in exchanges
        for index in own_tokens(each)
    )


@given(rollouts(), st.floats(-3.0, 3.0))
def test_every_sampled_token_is_trained_once_with_the_context_logprob_and_version_it_was_sampled_with(
    rollout: Trajectory, advantage: float
) -> None:
    rows = to_samples(rollout, advantage)
    assert trained_of(rows) == sampled_of(rollout.exchanges)
    assert sum(row.num_trained for row in rows) == rollout.num_trained_tokens


@given(rollouts(), st.sets(st.sampled_from(ROLES), min_size=1).map(tuple))
def test_with_roles_exactly_what_was_sampled_in_them_is_trained(rollout: Trajectory, roles: tuple[str, ...]) -> None:
    rows = to_samples(rollout, 1.0, roles=roles)
    assert trained_of(rows) == sampled_of([each for each in rollout.exchanges if each.role in roles])


@given(rollouts())
def test_a_token_that_only_a_template_wrote_is_never_trained(rollout: Trajectory) -> None:
    """Nor has it a logprob: no number is made up for what nobody sampled."""
    for row in to_samples(rollout, 1.0):
        for token, is_trained, logprob in zip(row.token_ids, row.trained, row.logprobs, strict=True):
            assert token != MARK or not is_trained
            assert (logprob == 0.0) is not is_trained


@given(rollouts())
def test_joining_calls_to_rows_changes_nothing_that_is_trained(rollout: Trajectory) -> None:
    joined = to_samples(rollout, 1.0)
    apart = [row for each in rollout.exchanges for row in to_samples(trajectory(each), 1.0)]
    assert trained_of(joined) == trained_of(apart)
    assert len(joined) <= len(apart)


@given(rollouts())
def test_each_call_stands_whole_at_the_beginning_of_a_row_of_its_version(rollout: Trajectory) -> None:
    rows = to_samples(rollout, 1.0)
    for each in rollout.exchanges:
        if own_tokens(each):
            whole = each.prompt_ids + each.completion_ids
            assert any(
                row.policy_version == each.policy_version and row.token_ids[: len(whole)] == whole for row in rows
            )
    # And a row is nothing but such beginnings: it ends where one of them ends.
    ends = {(each.prompt_ids + each.completion_ids, each.policy_version) for each in rollout.exchanges}
    assert {(row.token_ids, row.policy_version) for row in rows} <= ends


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1), st.lists(st.integers(0, 2))), max_size=6))
def test_a_conversation_in_which_each_prompt_extends_the_last_is_one_row(
    turns: list[tuple[list[int], list[int]]],
) -> None:
    history: tuple[int, ...] = ()
    exchanges = []
    for number, (said, answered) in enumerate(turns):
        exchanges.append(
            exchange((*history, *said), tuple(answered), number=number, first_logprob=-10.0 * (number + 1))
        )
        history = (*history, *said, *answered)
    rows = to_samples(trajectory(*exchanges), 1.0)
    assert [row.token_ids for row in rows] == ([history] if any(answered for _, answered in turns) else [])


@given(rollouts(), st.floats(-3.0, 3.0))
def test_all_rows_carry_the_trajectorys_advantage_and_invent_no_logprob(rollout: Trajectory, advantage: float) -> None:
    for row in to_samples(rollout, advantage):
        assert row.advantage == advantage
        assert row.trajectory_id == rollout.id
        assert any(row.trained)
        assert not row.trained[0]
        assert all(logprob == 0.0 for logprob, t in zip(row.logprobs, row.trained, strict=True) if not t)


def test_a_demonstration_marks_its_trained_segments() -> None:
    row = demonstration("demo", [((1, 2), False), ((3, 4), True), ((5,), False), ((6,), True)])
    assert row.token_ids == (1, 2, 3, 4, 5, 6)
    assert row.trained == (False, False, True, True, False, True)
    assert row.logprobs == (0.0,) * 6


def test_a_demonstration_without_trained_tokens_is_refused() -> None:
    with pytest.raises(DataError, match="'demo' has no trained token"):
        demonstration("demo", [((1, 2), False), ((), True)])


def test_a_demonstration_that_trains_its_first_token_is_refused() -> None:
    with pytest.raises(TokenAlignmentError, match="nothing comes before it"):
        demonstration("demo", [((1, 2), True)])


def test_an_exchange_without_a_logprob_for_each_token_is_refused_by_its_own_error() -> None:
    whole = exchange((1,), (2, 3)).model_dump()
    with pytest.raises(TokenAlignmentError, match="2 sampled tokens but 1 logprobs"):
        Exchange(**{**whole, "logprobs": (-1.0,)})
    with pytest.raises(TokenAlignmentError, match="no prompt ids"):
        Exchange(**{**whole, "prompt_ids": ()})
    with pytest.raises(ValidationError, match="not a finite number"):
        Exchange(**{**whole, "logprobs": (-1.0, float("nan"))})


@pytest.mark.parametrize("changed", [{"temperature": 0.7}, {"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 20}])
def test_what_was_not_sampled_from_the_policy_itself_cannot_be_trained_on(changed: dict[str, float]) -> None:
    tempered = exchange((1,), (2,)).model_copy(
        update={"sampling": Sampling.model_validate({"max_tokens": 9, **changed})}
    )
    with pytest.raises(DataError, match="temperature 1 without top_p and top_k"):
        to_samples(trajectory(exchange((1,), (2,)), tempered), 1.0)


def test_a_row_of_unequal_lengths_is_refused() -> None:
    with pytest.raises(TokenAlignmentError, match="2 token ids, 1 mask entries and 2 logprobs"):
        TokenSample((1, 2), (False,), (0.0, 0.0), 1.0, 0, "t")
