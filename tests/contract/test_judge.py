"""What every `Judge` promises, on the ruler and on a plain function."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from art_core.errors import ConfigError, MissingExtraError
from art_core.protocols import Judge
from art_core.registry import open_judge
from art_core.trajectories import Trajectory, TrajectoryGroup
from art_core.types import Exchange, Sampling, ToolSpec
from art_ruler import Ruler
from art_ruler.fakes import HeuristicJudge, ScriptedJudge, verdict_json


def rollout(name: str, answer: str, tools: tuple[ToolSpec, ...] = ()) -> Trajectory:
    exchange = Exchange(
        id=f"e-{name}",
        trajectory_id=name,
        messages=({"role": "user", "content": "2 + 2?"},),
        tools=tools,
        response={"role": "assistant", "content": answer},
        prompt_ids=(1, 2),
        completion_ids=(3,),
        logprobs=(-0.5,),
        finish_reason="stop",
        sampling=Sampling(max_tokens=8),
        policy_version=0,
        started_at=0.0,
        ended_at=1.0,
    )
    return Trajectory(id=name, scenario_id="s", exchanges=[exchange], metadata={"answer": answer})


class ByFunction:
    """The fake: a function of one trajectory."""

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[float | None]:
        return [int(str(trajectory.metadata["answer"])) / 10 for trajectory in trajectories]


@pytest.fixture(params=["ruler", "function"])
def judge(request: pytest.FixtureRequest) -> Judge:
    if request.param == "function":
        return ByFunction()
    return open_judge("ruler", judge=HeuristicJudge(lambda attempt: int(attempt[-1][1]) / 10), passes=2)


GROUP = (rollout("a", "4"), rollout("b", "9"), rollout("c", "4"), rollout("d", "0"))


def test_it_is_a_judge(judge: Judge) -> None:
    assert isinstance(judge, Judge)


async def test_one_finite_score_for_each_trajectory_in_their_order(judge: Judge) -> None:
    before = [trajectory.model_copy(deep=True) for trajectory in GROUP]
    scores = await judge.score(GROUP)
    assert list(scores) == [0.4, 0.9, 0.4, 0.0]
    assert list(GROUP) == before
    assert list(await judge.score(GROUP[::-1])) == [0.0, 0.4, 0.9, 0.4]
    assert all(score is not None and math.isfinite(score) for score in scores)


async def test_no_trajectories_have_no_scores(judge: Judge) -> None:
    assert len(await judge.score([])) == 0


async def test_its_scores_make_a_group_that_can_be_trained(judge: Judge) -> None:
    group = TrajectoryGroup(GROUP, scenario_id="s")
    scored = group.with_scores(await judge.score(group.trajectories))
    assert scored.rewards == [0.4, 0.9, 0.4, 0.0]


async def test_what_the_ruler_cannot_score_is_excluded_and_counted() -> None:
    group = TrajectoryGroup(GROUP, scenario_id="s")
    scored = group.with_scores(await Ruler(ScriptedJudge(["nonsense"])).score(group.trajectories))
    assert scored.members == ()
    assert scored.num_excluded == 4


def test_the_registry_imports_a_judge_when_it_is_asked_for() -> None:
    code = (
        "import sys; from art_core.registry import open_judge; assert 'art_ruler' not in sys.modules\n"
        "judge = open_judge('ruler', judge='openai/gpt-5-mini'); assert 'litellm' not in sys.modules\n"
        "print(type(judge).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Ruler\n"


@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        ("nobody", {}, r"judge 'nobody' is unknown; wanted one of \['ruler'\]"),
        ("ruler", {}, "judge 'ruler' needs the option 'judge'"),
        (
            "ruler",
            {"judge": "openai/m", "pases": 2},
            r"judge 'ruler' has no option 'pases': did you mean 'passes'\?; its options are",
        ),
        ("ruler", {"judge": "openai/m", "passes": 0}, "judge 'ruler': passes is 0; wanted"),
    ],
)
def test_the_registry_names_what_is_wrong(name: str, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        open_judge(name, **options)


def test_a_judge_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "art_ruler", None)
    with pytest.raises(MissingExtraError, match="pip install 'art-ruler'"):
        open_judge("ruler", judge="openai/m")


async def test_the_ruler_shows_the_tools_that_exchanges_carry() -> None:
    adder: ToolSpec = {"type": "function", "function": {"name": "adder", "description": "Adds.", "parameters": {}}}
    judge = ScriptedJudge([lambda request: verdict_json(dict.fromkeys(request.ids, 0.5))])
    await Ruler(judge).score([rollout("a", "4", (adder,)), rollout("b", "9", (adder,))])
    assert judge.requests[0].messages[-1]["content"].count("adder: Adds. {}") == 1
