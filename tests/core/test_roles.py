"""Several agents on one model: roles travel in the request's `metadata`, are recorded, and can be trained apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

import art_core as art
from art_core.config import TrainConfig
from art_core.errors import ConfigError, DataError
from art_core.histories import conversations
from art_core.testing import InProcessBackend


@pytest.fixture
async def backend() -> AsyncIterator[InProcessBackend]:
    async with InProcessBackend(lambda prompt: prompt.rsplit("user\n", 1)[-1].split("<|im_end|>")[0].upper()) as made:
        yield made


@pytest.fixture
async def model(backend: InProcessBackend) -> art.TrainableModel:
    made = art.TrainableModel(name="team", project="shop", base_model="scripted")
    await made.register(backend)
    return made


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def say(model: art.TrainableModel, text: str, role: str | None = None, *before: Any, **options: Any) -> str:
    metadata: dict[str, str] = {} if role is None else {"role": role, "task": "7"}
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=[*before, user(text)], metadata=metadata, **options
    )
    return completion.choices[0].message.content or ""


async def team(model: art.TrainableModel, reward: float, **options: Any) -> art.Trajectory:
    """A planner, then a worker, whose conversation goes on for a second turn; and a call without a role."""
    async with art.capture(model) as trajectory:
        await say(model, "plan", "planner")
        first = await say(model, "work", "worker")
        await say(model, "more", "worker", user("work"), {"role": "assistant", "content": first})
        await say(model, "alone", **options)
        trajectory.reward = reward
    return trajectory


def trained_texts(backend: InProcessBackend, step: int = -1) -> list[str]:
    """What is trained of each row, in order."""
    texts = []
    for row in backend.trainer.steps[step][0]:
        ids = [token for token, flag in zip(row.token_ids, row.trained, strict=True) if flag]
        texts.append(backend._tokenizer.decode(ids).replace("<|im_end|>", "|"))
    return texts


async def test_metadata_of_any_client_is_recorded_and_each_role_has_conversations_of_its_own(
    model: art.TrainableModel,
) -> None:
    trajectory = await team(model, 1.0)
    assert [exchange.metadata for exchange in trajectory.exchanges] == [
        {"role": "planner", "task": "7"},
        {"role": "worker", "task": "7"},
        {"role": "worker", "task": "7"},
        {},
    ]
    told = [(history.role, len(history.messages())) for history in (trajectory, *trajectory.additional_histories)]
    assert told == [("planner", 2), ("worker", 4), ("", 2)]
    assert art.Trajectory.model_validate_json(trajectory.model_dump_json()).exchanges == trajectory.exchanges


async def test_streamed_raw_and_outside_calls_keep_it_too(model: art.TrainableModel, backend: InProcessBackend) -> None:
    async with art.capture(model) as trajectory, httpx2.AsyncClient() as client:
        body = {"model": "shop/team", "messages": [user("a")], "metadata": {"role": "r", "ü": "ß"}, "stream": True}
        answer = await client.post(f"{trajectory.base_url}/chat/completions", json=body)
        assert answer.status_code == 200
        refused = await client.post(f"{trajectory.base_url}/chat/completions", json={**body, "metadata": {"role": 7}})
        assert refused.json()["error"]["param"] == "metadata.role"
    assert [exchange.metadata for exchange in trajectory.exchanges] == [{"role": "r", "ü": "ß"}]


async def test_equal_messages_of_two_roles_are_two_conversations(model: art.TrainableModel) -> None:
    async with art.capture(model) as trajectory:
        first = await say(model, "x", "a")
        await say(model, "y", "b", user("x"), {"role": "assistant", "content": first})
    assert [history.role for history in conversations(trajectory.exchanges)] == ["a", "b"]


async def test_only_the_roles_asked_for_are_trained_and_the_rest_is_counted(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    group = art.TrajectoryGroup([await team(model, 1.0), await team(model, 0.0)])
    result = await model.train([group], roles=["worker"])
    assert trained_texts(backend) == ["WORK|MORE|"] * 2
    assert result.metrics["exchanges/other_roles"] == 4
    assert result.metrics["trajectories/forks"] == 0
    group = art.TrajectoryGroup([await team(model, 1.0), await team(model, 0.0)])
    result = await model.train([group], roles=("", "planner"))
    assert trained_texts(backend) == ["PLAN|", "ALONE|"] * 2
    assert result.metrics["exchanges/other_roles"] == 4
    group = art.TrajectoryGroup([await team(model, 1.0), await team(model, 0.0)])
    result = await model.train([group])
    assert trained_texts(backend) == ["PLAN|", "WORK|MORE|", "ALONE|"] * 2
    assert result.metrics["exchanges/other_roles"] == 0


async def test_what_another_role_said_in_the_same_conversation_is_context(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    async def debate(reward: float) -> art.Trajectory:
        async with art.capture(model) as trajectory:
            first = await say(model, "x", "a")
            await say(model, "y", "b", user("x"), {"role": "assistant", "content": first})
            trajectory.reward = reward
        return trajectory

    await model.train([art.TrajectoryGroup([await debate(1.0), await debate(0.0)])], roles=("b",))
    assert trained_texts(backend) == ["Y|", "Y|"]
    assert "X<|im_end|>" in backend._tokenizer.decode(backend.trainer.steps[-1][0][0].token_ids)


async def test_a_role_that_is_not_trained_may_sample_as_it_likes(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    group = art.TrajectoryGroup([await team(model, reward, temperature=0.3) for reward in (1.0, 0.0)])
    with pytest.raises(DataError, match=r"temperature 0\.3"):
        await model.train([group])
    assert (await model.train([group], roles=("worker",))).step == 1


async def test_calls_of_a_role_that_another_version_answered_are_context_and_counted(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    async def across_a_step(reward: float) -> art.Trajectory:
        async with art.capture(model) as trajectory:
            await say(model, "old", "frozen")
            began.set()
            await stepped.wait()
            await say(model, "new", "learner")
            trajectory.reward = reward
        return trajectory

    began, stepped = asyncio.Event(), asyncio.Event()
    rollouts = [asyncio.ensure_future(across_a_step(reward)) for reward in (1.0, 0.0)]
    await began.wait()
    await model.train([art.TrajectoryGroup([await team(model, 1.0), await team(model, 0.0)])])
    stepped.set()
    group = art.TrajectoryGroup([await rollout for rollout in rollouts])
    assert [member.metrics["capture/policy_versions"] for member in group] == [2, 2]
    assert group.trajectories[0].logs == ["its calls were answered by the policy versions [0, 1]"]
    with pytest.raises(DataError, match="policy version 0, but version 1"):
        await model.train([group])
    await model.train([group], roles=("learner",))
    assert trained_texts(backend) == ["NEW|", "NEW|"]


async def test_a_role_that_no_call_has_is_refused_and_nothing_is_trained(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    group = art.TrajectoryGroup([await team(model, 1.0), await team(model, 0.0)])
    with pytest.raises(DataError, match=r"'wroker'.*\['', 'planner', 'worker'\]"):
        await model.train([group], roles=("wroker",))
    assert backend.trainer.steps == []


async def test_a_role_that_made_no_call_this_time_is_warned_about(
    model: art.TrainableModel, backend: InProcessBackend, caplog: pytest.LogCaptureFixture
) -> None:
    group = art.TrajectoryGroup([await team(model, 1.0), await team(model, 0.0)])
    result = await model.train([group], roles=("worker", "critic"))
    assert (result.step, result.metrics["roles/absent"]) == (1, 1)
    assert "1 of the roles ('worker', 'critic') made no call in this step" in caplog.text


def test_roles_are_names() -> None:
    wrong: Any
    for wrong in ("worker", [1]):
        with pytest.raises(ConfigError, match=r"wanted names of roles, such as roles=\('worker',\)"):
            TrainConfig(roles=wrong)
    assert TrainConfig(roles=["a"]).roles == ("a",)  # type: ignore[arg-type]
