"""`ruler` and `ruler_score_group`: names and arguments that ART's users know."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, PrivateAttr

from art_ruler import (
    ConfigError,
    JudgeFormatError,
    JudgeReply,
    JudgeRequest,
    JudgeUnavailableError,
    ruler,
    ruler_score_group,
)
from art_ruler.errors import DataError
from art_ruler.fakes import HeuristicJudge, ScriptedJudge
from art_ruler.testing_server import FakeJudgeServer


def conversation(answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": answer}]


class Trajectory(BaseModel):
    messages_and_choices: list[dict[str, Any]]
    reward: float = 0.0
    metrics: dict[str, float] = {}
    metadata: dict[str, Any] = {}
    logs: list[str] = []

    def messages(self) -> list[dict[str, Any]]:
        return self.messages_and_choices


class ToolTrajectory(Trajectory):
    num_turns: int = 0


class Group(BaseModel):
    trajectories: list[Trajectory]
    exceptions: list[Any] = []
    metadata: dict[str, Any] = {}


class NamedGroup(Group):
    name: str = ""
    _private: str = PrivateAttr("")


@dataclass(frozen=True)
class FrozenGroup:
    trajectories: tuple[Trajectory, ...]
    scenario_id: str = "s"


@dataclass
class Plain:
    messages: list[dict[str, Any]]
    reward: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)


fair = HeuristicJudge(lambda attempt: int(attempt[-1][1]) / 10)


async def test_ruler_gives_a_score_for_each_list_of_messages() -> None:
    scores = await ruler([conversation("4"), conversation("5")], fair, rubric="Higher is better.")
    assert [(score.trajectory_id, score.score) for score in scores] == [("1", 0.4), ("2", 0.5)]
    assert scores[0].explanation == "scored by a fake"


async def test_debug_prints_the_scores(capsys: pytest.CaptureFixture[str]) -> None:
    await ruler([conversation("4")], fair, debug=True)
    assert "score=0.4" in capsys.readouterr().out


async def test_the_group_that_comes_back_keeps_everything_it_had() -> None:
    private = NamedGroup(
        trajectories=[
            ToolTrajectory(
                messages_and_choices=conversation("4"),
                reward=7.0,
                metrics={"turns": 3.0},
                metadata={"id": "x"},
                logs=["began"],
                num_turns=3,
            ),
            Trajectory(messages_and_choices=conversation("5")),
        ],
        exceptions=["boom"],
        metadata={"step": 3},
        name="n",
    )
    private._private = "kept"
    before = copy.deepcopy(private)
    scored = await ruler_score_group(private, fair)
    assert isinstance(scored, NamedGroup)
    assert private == before
    assert private.trajectories[0].logs == ["began"]
    assert (scored.exceptions, scored.metadata, scored.name, scored._private) == (["boom"], {"step": 3}, "n", "kept")
    first, second = scored.trajectories
    assert isinstance(first, ToolTrajectory)
    assert (first.reward, first.num_turns, first.metadata) == (0.4, 3, {"id": "x"})
    assert first.metrics == {"turns": 3.0, "independent_reward": 7.0, "ruler_score": 0.4}
    assert first.logs == ["began", "RULER explanation: scored by a fake"]
    assert second.reward == 0.5


async def test_groups_of_any_class_with_trajectories() -> None:
    frozen = FrozenGroup((Trajectory(messages_and_choices=conversation("4")),), "kept")
    scored = await ruler_score_group(frozen, fair)
    assert scored is not None
    assert (scored.scenario_id, scored.trajectories[0].reward) == ("kept", 0.4)
    assert isinstance(scored.trajectories, tuple)
    with pytest.raises(DataError, match="without `trajectories`"):
        await ruler_score_group(5, fair)


async def test_a_group_that_cannot_be_scored_is_an_error_or_none_and_never_a_reward() -> None:
    group = Group(trajectories=[Trajectory(messages_and_choices=conversation("4"), reward=7.0)])
    for judge, error in (
        (ScriptedJudge(["nonsense"]), JudgeFormatError),
        (ScriptedJudge([JudgeUnavailableError("down")]), JudgeUnavailableError),
    ):
        with pytest.raises(error):
            await ruler_score_group(group, judge)
        assert await ruler_score_group(group, judge, swallow_exceptions=True) is None
        assert group.trajectories[0].reward == 7.0


class Failing:
    name = "failing"

    async def complete(self, request: JudgeRequest) -> JudgeReply:
        raise ConnectionError("reset")


class RaisingTrajectory:
    reward = 0.0

    def messages(self) -> list[Any]:
        raise RuntimeError("db gone")


@pytest.mark.parametrize(
    ("group", "judge"),
    [
        (Group(trajectories=[Trajectory(messages_and_choices=conversation("4"))]), Failing()),
        (FrozenGroup((RaisingTrajectory(),)), fair),  # type: ignore[arg-type]
        (FrozenGroup(({"messages": conversation("4")},)), fair),  # type: ignore[arg-type]
        (5, fair),
    ],
)
async def test_whatever_goes_wrong_can_be_swallowed_and_is_logged(
    group: Any, judge: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert await ruler_score_group(group, judge, swallow_exceptions=True) is None
    assert "group not scored" in caplog.text
    with pytest.raises((DataError, ConnectionError)):
        await ruler_score_group(group, judge)


@dataclass(frozen=True)
class FrozenTrajectory:
    messages: list[dict[str, Any]]


class StrictTrajectory(BaseModel):
    model_config = ConfigDict(extra="forbid")
    messages: list[dict[str, Any]]


@dataclass
class WithLock:
    messages: list[dict[str, Any]]
    reward: float = 0.0
    lock: Any = field(default_factory=threading.Lock)


@pytest.mark.parametrize(
    ("trajectory", "said"),
    [
        ({"messages": conversation("4")}, "a dict cannot hold `reward`"),
        (conversation("4"), "a list cannot hold `reward`"),
        (FrozenTrajectory(conversation("4")), "a FrozenTrajectory cannot hold `reward`"),
        (StrictTrajectory(messages=conversation("4")), "a StrictTrajectory cannot hold `reward`"),
        (WithLock(conversation("4")), "a WithLock cannot be copied"),
    ],
)
async def test_what_cannot_hold_a_reward_is_refused_before_anything_is_paid(trajectory: Any, said: str) -> None:
    judge = ScriptedJudge(["nonsense"])
    with pytest.raises(DataError, match=said):
        await ruler_score_group(FrozenGroup((trajectory,)), judge)
    assert judge.requests == []


class FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True)
    messages: list[dict[str, Any]]
    reward: float = 3.0
    metrics: dict[str, float] = {}


class FrozenModelGroup(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")
    trajectories: list[FrozenModel]
    _private: str = PrivateAttr("kept")


@dataclass
class Dynamic:
    trajectories: list[Plain]
    exceptions: list[str] = field(default_factory=list, init=False)


@dataclass(frozen=True, slots=True)
class Slotted:
    trajectories: tuple[Plain, ...]
    made: str = field(default="", init=False)


async def test_frozen_groups_and_trajectories_keep_everything_as_well() -> None:
    group = FrozenModelGroup(trajectories=[FrozenModel(messages=conversation("4"))], more="kept")  # type: ignore[call-arg]
    scored = await ruler_score_group(group, fair)
    assert scored is not None
    assert (scored.model_extra, scored._private) == ({"more": "kept"}, "kept")
    assert (scored.trajectories[0].reward, group.trajectories[0].reward) == (0.4, 3.0)
    assert scored.trajectories[0].metrics == {"independent_reward": 3.0, "ruler_score": 0.4}


async def test_fields_that_no_constructor_takes_are_kept() -> None:
    group = Dynamic([Plain(conversation("4"))])
    group.exceptions.append("boom")
    group.extra = "dynamic"  # type: ignore[attr-defined]
    scored = await ruler_score_group(group, fair)
    assert scored is not None
    assert (scored.exceptions, scored.extra) == (["boom"], "dynamic")  # type: ignore[attr-defined]
    assert (scored.trajectories[0].reward, group.trajectories[0].reward) == (0.4, None)
    slotted = Slotted((Plain(conversation("5")),))
    object.__setattr__(slotted, "made", "later")
    also = await ruler_score_group(slotted, fair)
    assert also is not None
    assert (also.made, also.trajectories[0].reward, slotted.trajectories[0].reward) == ("later", 0.5, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        {"timeout": 30},
        {"request_timeout": 30.5},
        {"timeout_s": 5},
        {"num_retries": 2},
        {"max_retries": 0},
        {"headers": {"X-Team": "blue"}},
        {"extra_headers": {"X-Team": "blue"}},
        {"timeout": None, "headers": None},
        {"timeout": 30, "request_timeout": 30},
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
async def test_what_litellm_calls_by_its_own_names_becomes_an_option(params: dict[str, Any]) -> None:
    with FakeJudgeServer(judge=fair) as server:
        scores = await ruler([conversation("4")], "openai/m", {"base_url": server.api_base, **params})
        assert scores[0].score == 0.4
        (request,) = server.requests
        assert set(request.body) == {"model", "messages", "response_format"}
        if any(params.get(name) for name in ("headers", "extra_headers")):
            assert request.headers["x-team"] == "blue"


async def test_an_option_under_two_names_with_two_values_is_refused() -> None:
    with pytest.raises(ConfigError, match="timeout_s twice"):
        await ruler([conversation("4")], "openai/m", {"timeout": 1, "request_timeout": 2})


@pytest.mark.slow
async def test_parameters_for_litellm_reach_it() -> None:
    with FakeJudgeServer(judge=fair) as server:
        params = {"api_base": server.api_base, "api_key": "sk-0123456789", "temperature": 0.3}
        scores = await ruler([conversation("4")], "openai/m", params)
        assert scores[0].score == 0.4
        assert server.requests[0].headers["authorization"] == "Bearer sk-0123456789"
        assert server.requests[0].body["temperature"] == 0.3
