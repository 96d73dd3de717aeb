"""From a user's call of `train` to its result: what was left out, and why, is in what the user sees."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import art_core as art
from art_core.errors import DataError
from art_core.testing import InProcessBackend


@pytest.fixture
async def backend() -> AsyncIterator[InProcessBackend]:
    async with InProcessBackend(lambda _: "a longer answer") as made:
        yield made


async def attempt(model: art.TrainableModel, reward: float, max_tokens: int = 50) -> art.Trajectory:
    async with art.capture(model) as trajectory:
        await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=[{"role": "user", "content": "hi"}], max_tokens=max_tokens
        )
        trajectory.reward = reward
    return trajectory


async def test_all_answers_cut_off_and_masked_make_no_step_and_say_so(backend: InProcessBackend) -> None:
    model = art.TrainableModel(name="m", project="p", base_model="b")
    await model.register(backend)
    cut = art.TrajectoryGroup([await attempt(model, float(number % 2), max_tokens=3) for number in range(4)])
    assert {exchange.finish_reason for trajectory in cut for exchange in trajectory.exchanges} == {"length"}
    result = await model.train([cut], truncated="mask")
    assert (result.step, await model.get_step()) == (0, 0)
    assert result.skipped == "4 trajectories are masked because an answer ended at its token limit"
    assert result.metrics["trajectories/masked_truncated"] == 4.0
    assert result.metrics["step/skipped"] == 1.0
    assert backend.trainer.steps == []
    # The same group is trained on where it is not masked.
    result = await model.train([cut])
    assert (result.step, result.metrics["trajectories/trained"], result.metrics["trajectories/truncated"]) == (1, 4, 4)


@pytest.mark.parametrize(
    ("options", "advantages", "counts"),
    [
        ({"truncated": "mask"}, [1.0, 1.0, -2.0], {"masked_truncated": 1.0, "trained": 3.0}),
        ({"truncated": "drop"}, [1.0, 1.0, -2.0], {"dropped_truncated": 1.0, "trained": 3.0}),
        ({"truncated": "drop", "baseline": "leave_one_out"}, [1.5, 1.5, -3.0], {"dropped_truncated": 1.0}),
        ({"baseline": "leave_one_out"}, [4 / 3, 4 / 3, -8 / 3, 0.0], {"trained": 4.0, "truncated": 1.0}),
    ],
)
async def test_options_of_rows_travel_to_the_server(
    options: dict[str, Any], advantages: list[float], counts: dict[str, float], backend: InProcessBackend
) -> None:
    """Rewards 3, 3, 0 and, cut off, 2: the mean is 2 with and without it."""
    model = art.TrainableModel(name="m", project="p", base_model="b")
    await model.register(backend)
    members = [await attempt(model, reward) for reward in (3.0, 3.0, 0.0)]
    members.append(await attempt(model, 2.0, max_tokens=3))
    result = await model.train([art.TrajectoryGroup(members)], scale_rewards="none", **options)
    (rows, _) = backend.trainer.steps[-1]
    assert [row.advantage for row in rows] == pytest.approx(advantages)
    for name, count in counts.items():
        assert result.metrics[f"trajectories/{name}"] == count


async def test_rows_that_are_too_long_are_refused_cut_or_dropped(backend: InProcessBackend) -> None:
    model = art.TrainableModel(name="m", project="p", base_model="b")
    await model.register(backend)
    group = art.TrajectoryGroup([await attempt(model, float(number)) for number in range(2)])
    length = max(len(e.prompt_ids) + len(e.completion_ids) for t in group for e in t.exchanges)
    with pytest.raises(DataError, match=f"has a row of {length} tokens, and max_row_tokens is {length - 2}"):
        await model.train([group], max_row_tokens=length - 2)
    result = await model.train([group], max_row_tokens=length - 2, overlong="drop")
    assert (result.step, result.metrics["trajectories/dropped_overlong"]) == (0, 2.0)
    assert result.skipped is not None
    assert "2 trajectories are dropped because a row is longer than max_row_tokens" in result.skipped
    result = await model.train([group], max_row_tokens=length - 2, overlong="cut")
    assert (result.step, result.metrics["rows/cut"], result.metrics["tokens/cut"]) == (1, 2.0, 4.0)
    assert {len(row.token_ids) for row in backend.trainer.steps[-1][0]} == {length - 2}
