"""`ruler` and `ruler_score_group`: names and arguments that ART's users know."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel, PrivateAttr

from art_ruler import JudgeFormatError, JudgeUnavailableError, ruler, ruler_score_group
from art_ruler.errors import DataError
from art_ruler.fakes import HeuristicJudge, ScriptedJudge


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


async def test_parameters_for_litellm_reach_it() -> None:
    from art_ruler.testing_server import FakeJudgeServer

    with FakeJudgeServer(judge=fair) as server:
        params = {"api_base": server.api_base, "api_key": "sk-0123456789", "temperature": 0.3}
        scores = await ruler([conversation("4")], "openai/m", params)
        assert scores[0].score == 0.4
        assert server.requests[0].headers["authorization"] == "Bearer sk-0123456789"
        assert server.requests[0].body["temperature"] == 0.3
