"""Trajectories and groups as data."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pickle
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel

from art_core.choices import exchange_id_of, is_answer
from art_core.errors import DataError
from art_core.trajectories import History, PendingGroup, Trajectory, TrajectoryGroup
from art_core.types import RolloutError

text = st.text(st.characters(codec="utf-8"), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
numbers = st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
call = st.fixed_dictionaries(
    {
        "id": text,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": text, "arguments": text}),
    }
)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant"]), "content": st.none() | text},
    optional={"tool_calls": st.lists(call, min_size=1, max_size=2), "name": text},
)


def choice(content: str | None = "yes", **extra: Any) -> Choice:
    return Choice.model_validate(
        {
            "index": 0,
            "finish_reason": "stop",
            "logprobs": None,
            "message": {"role": "assistant", "content": content},
            "exchange_id": "x1",
            **extra,
        }
    )


choices = st.builds(choice, st.none() | text, exchange_id=text.filter(bool))
histories = st.builds(History, messages_and_choices=st.lists(message | choices, max_size=4))
trajectories = st.builds(
    Trajectory,
    id=text.filter(bool),
    scenario_id=text,
    messages_and_choices=st.lists(message | choices, max_size=4),
    additional_histories=st.lists(histories, max_size=2),
    reward=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    metrics=st.dictionaries(text, numbers, max_size=3),
    metadata=st.dictionaries(text, json_values, max_size=3),
    logs=st.lists(text, max_size=2),
    error=st.none() | st.builds(RolloutError, kind=text, message=text),
)


@given(trajectories)
def test_written_and_read_again_it_says_the_same(trajectory: Trajectory) -> None:
    read = Trajectory.model_validate_json(trajectory.model_dump_json())
    for one, other in zip(
        [trajectory, *trajectory.additional_histories], [read, *read.additional_histories], strict=True
    ):
        assert one.messages() == other.messages()
        assert [is_answer(item) for item in one.messages_and_choices] == [
            is_answer(item) for item in other.messages_and_choices
        ]
        assert [exchange_id_of(item) for item in one.messages_and_choices] == [
            exchange_id_of(item) for item in other.messages_and_choices
        ]
    for name in ("id", "scenario_id", "reward", "metrics", "metadata", "logs", "error"):
        assert getattr(read, name) == getattr(trajectory, name)
    assert [type(value) for value in read.metrics.values()] == [type(value) for value in trajectory.metrics.values()]
    assert read.model_dump_json() == trajectory.model_dump_json()
    assert Trajectory.model_validate_json(read.model_dump_json()) == read


class Sdk(BaseModel):
    x: int = 1


NOT_JSON = [
    datetime.now(),
    Path("a"),
    b"x",
    ValueError("bad call"),
    Sdk(),
    float("nan"),
    float("inf"),
    {1: 2},
    "\ud800",
]


@pytest.mark.parametrize("value", NOT_JSON, ids=lambda value: type(value).__name__)
def test_what_has_no_json_form_is_refused_when_it_is_set_with_its_path(value: Any) -> None:
    trajectory = Trajectory(metadata={"kept": 1})
    with pytest.raises(DataError, match=r"metadata\['a'\]\['b'\]\[1\]"):
        trajectory.metadata["a"] = {"b": [0, value]}
    with pytest.raises(DataError, match=r"metadata\['a'\]"):
        trajectory.metadata.update(a=value)
    with pytest.raises(DataError, match=r"metadata\['a'\]"):
        trajectory.metadata.setdefault("a", value)
    with pytest.raises(ValueError, match=r"metadata\['a'\]"):
        trajectory.metadata = {"a": value}
    with pytest.raises(ValueError, match=r"metadata\['a'\]"):
        Trajectory(metadata={"a": value})
    assert trajectory.metadata == {"kept": 1}


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), "1", None, [1]])
def test_metrics_are_finite_numbers(value: Any) -> None:
    trajectory = Trajectory(metrics={"won": True, "turns": 3, "share": 0.5})
    with pytest.raises(DataError, match=r"metrics\['m'\]"):
        trajectory.metrics["m"] = value
    with pytest.raises(ValueError, match=r"metrics\['m'\]"):
        trajectory.metrics |= {"m": value}
    assert trajectory.metrics == {"won": True, "turns": 3, "share": 0.5}


def test_numbers_of_numpy_become_plain_ones() -> None:
    trajectory = Trajectory(metrics={"a": np.float32(0.5), "b": np.int64(3)}, metadata={"c": (np.bool_(True),)})
    trajectory.reward = np.float32(0.25)  # type: ignore[assignment]
    assert trajectory.metrics == {"a": 0.5, "b": 3}
    assert trajectory.metadata == {"c": [True]}
    assert [type(value) for value in trajectory.metrics.values()] == [float, int]
    assert Trajectory.model_validate_json(trajectory.model_dump_json()).reward == 0.25


def test_an_exception_in_a_conversation_is_refused_with_its_path_when_it_is_written() -> None:
    trajectory = Trajectory(messages_and_choices=[{"role": "user", "content": "u"}])
    trajectory.messages_and_choices.append({"role": "tool", "content": ValueError("bad")})
    with pytest.raises(ValueError, match=r"messages_and_choices\[1\]\['content'\] is a ValueError"):
        trajectory.model_dump_json()


def test_a_whole_completion_stands_for_its_only_choice() -> None:
    completion = ChatCompletion.model_validate(
        {
            "id": "chatcmpl-0123456789abcdef01234567",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [choice("a", exchange_id=None).model_dump(), choice("b", exchange_id=None).model_dump()],
        }
    )
    trajectory = Trajectory(messages_and_choices=[completion])
    with pytest.raises(DataError, match=r"messages_and_choices\[0\] is a completion with 2 choices"):
        trajectory.messages()
    completion.choices.pop()
    assert trajectory.messages() == [{"role": "assistant", "content": "a"}]
    assert exchange_id_of(completion) == "0123456789abcdef01234567"
    assert Trajectory.model_validate_json(trajectory.model_dump_json()).messages() == trajectory.messages()


@pytest.mark.parametrize("item", [7, "text", None])
def test_what_is_no_message_is_named(item: Any) -> None:
    with pytest.raises(DataError, match=rf"messages_and_choices\[0\] is a {type(item).__name__}"):
        Trajectory(messages_and_choices=[item]).messages()


async def test_durations_are_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr("art_core.trajectories.time.monotonic", lambda: now[0])
    trajectory = Trajectory()
    async with trajectory.track_duration("llm"):
        now[0] += 2
    with trajectory.track_duration("llm"):
        now[0] += 3
    with contextlib.suppress(KeyError), trajectory.track_duration("tool"):
        now[0] += 1
        raise KeyError
    assert trajectory.finish() is trajectory
    assert trajectory.metrics == {"llm_duration": 5.0, "tool_duration": 1.0, "duration": 6.0}


def test_for_logging_tells_which_messages_are_trainable() -> None:
    trajectory = Trajectory(messages_and_choices=[{"role": "user", "content": "u"}, choice()], reward=1, logs=["l"])
    assert trajectory.for_logging() == {
        "reward": 1.0,
        "metrics": {},
        "metadata": {},
        "tools": None,
        "logs": ["l"],
        "error": None,
        "messages": [
            {"role": "user", "content": "u", "trainable": False},
            {"role": "assistant", "content": "yes", "trainable": True},
        ],
    }
    assert str(trajectory) == "Trajectory(reward=1.0, metrics={}, metadata={})"


def test_copies_of_a_group_are_apart() -> None:
    group = TrajectoryGroup([Trajectory(reward=1), OSError("down")], scenario_id="s", metadata={"k": [1]})
    for made in (copy.copy(group), copy.deepcopy(group), pickle.loads(pickle.dumps(group))):
        assert (list(made), made.scenario_id, made.metadata) == (list(group), "s", {"k": [1]})
    deep = copy.deepcopy(group)
    deep.trajectories[0].reward = 5
    assert group.trajectories[0].reward == 1


def test_exceptions_of_a_group_are_failed_members() -> None:
    group = TrajectoryGroup([Trajectory(reward=1)], exceptions=[OSError("down")])
    group.log("line")
    assert group.errors == [RolloutError(kind="OSError", message="down")]
    assert (len(group), group.logs) == (2, ["line"])


async def test_a_group_of_functions_or_coroutines_is_awaited_into_one() -> None:
    async def rollout(reward: float) -> Trajectory:
        await asyncio.sleep(0)
        return Trajectory(reward=reward)

    pending = TrajectoryGroup([lambda: rollout(1), lambda: rollout(2)], scenario_id="s")
    assert isinstance(pending, PendingGroup)
    group = await pending
    assert [trajectory.reward for trajectory in group] == [1, 2]
    assert [trajectory.reward for trajectory in await pending] == [1, 2]
    with pytest.raises(DataError, match="1 rollouts still to be run and 1 finished"):
        TrajectoryGroup([rollout(1), Trajectory()])  # type: ignore[list-item]


async def test_what_cannot_be_awaited_into_a_group_is_refused() -> None:
    async def rollout() -> Trajectory:
        return Trajectory()

    with pytest.raises(DataError, match=r"rollout 1 of group 0 gave Trajectory when it was called"):
        await cast(Any, TrajectoryGroup)([rollout, lambda: Trajectory()])
    pending = TrajectoryGroup([rollout()])
    await pending
    with pytest.raises(DataError, match="is to be run a second time"):
        await pending

    async def cancelled() -> Trajectory:
        raise asyncio.CancelledError

    (error,) = (await TrajectoryGroup([cancelled, rollout])).errors
    assert (error.kind, error.message) == ("CancelledError", "something inside was cancelled")


async def test_awaiting_a_group_is_gathering_it() -> None:
    def raises() -> Any:
        raise OSError("no such host")

    async def gives_a_number() -> Any:
        return 3

    (error,) = (await TrajectoryGroup([raises])).errors
    assert (error.kind, error.message) == ("OSError", "no such host")
    with pytest.raises(DataError, match=r"rollout 0 of group 0 gave int; wanted a Trajectory: let the rollout return"):
        await TrajectoryGroup([gives_a_number])


def test_a_group_has_the_first_scenario_id_that_there_is() -> None:
    assert TrajectoryGroup([OSError("gone"), Trajectory(scenario_id="s")]).scenario_id == "s"
    assert TrajectoryGroup([Trajectory()]).scenario_id == ""


def test_scores_of_another_kind_are_refused() -> None:
    group = TrajectoryGroup([Trajectory(), Trajectory()])
    for scores, message in (
        ({0: 1.0, 1: 0.0}, "scores are a dict"),
        ((score for score in (1.0, 0.0)), "scores are a generator"),
        ("10", "scores are a str"),
        ([1.0, "0.5"], "score 1 is '0.5'"),
        ([10**400, 0.0], "score 0 is 1000"),
    ):
        with pytest.raises(DataError, match=message):
            group.with_scores(scores)  # type: ignore[arg-type]
    assert group.with_scores(np.array([1.0, 0.5])).rewards == [1.0, 0.5]  # type: ignore[arg-type]


def test_what_was_put_into_inner_metadata_is_checked_when_it_is_written() -> None:
    trajectory = Trajectory(metadata={"seen": []})
    trajectory.metadata["seen"].append(float("nan"))
    with pytest.raises(ValueError, match=r"metadata\['seen'\]\[0\] is nan"):
        trajectory.model_dump_json()
    with pytest.raises(DataError, match="integer of 1329 bits"):
        trajectory.metrics["big"] = 10**400


@pytest.mark.parametrize("value", ["good", "1.5", [1.0], {}, float("nan"), 10**400])
def test_what_is_no_reward_is_refused_by_name(value: Any) -> None:
    trajectory = Trajectory(reward=1)
    with pytest.raises(
        ValueError, match=r" is not a finite number; wanted one as reward, or None while nothing has scored it"
    ):
        trajectory.reward = value
    assert trajectory.reward == 1.0


def test_a_decimal_is_a_reward_and_a_score() -> None:
    trajectory = Trajectory(reward=Decimal("0.1"))  # type: ignore[arg-type]
    assert (trajectory.reward, type(trajectory.reward)) == (0.1, float)
    scored = TrajectoryGroup([trajectory]).with_scores([Decimal("2.5")])  # type: ignore[list-item]
    assert scored.rewards == [2.5]
    for value in ("NaN", "sNaN", "Infinity", "1e400"):
        with pytest.raises(ValueError, match="is not a finite number"):
            trajectory.reward = Decimal(value)  # type: ignore[assignment]


def test_scalars_and_bools_are_rewards() -> None:
    values: list[Any] = [True, 2, np.float32(0.5), np.array(0.25), None]
    assert [Trajectory(reward=value).reward for value in values] == [1.0, 2.0, 0.5, 0.25, None]
