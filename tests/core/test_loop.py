from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

import pytest

from art_core.canary import WeightSyncCanary
from art_core.config import TrainConfig
from art_core.errors import DataError
from art_core.loop import train_step
from art_core.objective import Objective
from art_core.protocols import Trainer
from art_core.rows import training_rows
from art_core.testing import MemoryStore, RecordingTrainer, ScriptedEngine
from art_core.trajectories import ScoredGroup, Trajectory, TrajectoryGroup
from art_core.types import Checkpoint, Exchange, RolloutError, Sampling, StepReport


def exchange(prompt: list[int], completion: list[int], *, version: int = 0, cut: bool = False) -> Exchange:
    return Exchange(
        id=f"x{len(prompt)}",
        trajectory_id="t",
        messages=({"role": "user", "content": "hi"},),
        response={"role": "assistant", "content": "yo"},
        prompt_ids=tuple(prompt),
        completion_ids=tuple(completion),
        logprobs=tuple(-0.5 for _ in completion),
        finish_reason="length" if cut else "stop",
        sampling=Sampling(max_tokens=8),
        policy_version=version,
        started_at=0.0,
        ended_at=1.0,
    )


def group(*rewards: float | None, exchanges: list[Exchange] | None = None) -> ScoredGroup:
    members = tuple(
        Trajectory(id=f"t{index}", scenario_id="s", exchanges=exchanges or [exchange([1, 2], [3, 4])])
        for index in range(len(rewards))
    )
    return TrajectoryGroup(members, scenario_id="s").with_scores(rewards)


def test_a_group_with_signal_gives_a_row_per_trajectory_with_its_advantage() -> None:
    rows, counters = training_rows([group(1.0, 0.0)], policy_version=0, config=TrainConfig(scale_rewards="none"))
    assert [row.advantage for row in rows] == [0.5, -0.5]
    assert rows[0].token_ids == (1, 2, 3, 4)
    assert rows[0].trained == (False, False, True, True)
    assert rows[0].logprobs == (0.0, 0.0, -0.5, -0.5)
    assert counters["trajectories/trained"] == 2


def test_groups_that_teach_nothing_are_counted_by_reason() -> None:
    rows, counters = training_rows([group(1.0, 1.0, 1.0), group(1.0, None), group(0.5, 0.5 + 1e-9)], policy_version=0)
    assert rows == []
    assert counters["groups/total"] == 3
    assert counters["groups/without_signal"] == 2
    assert counters["groups/too_small"] == 1
    assert counters["trajectories/excluded"] == 1


def test_an_unscored_member_changes_nobody_elses_advantage() -> None:
    with_unscored, _ = training_rows([group(None, 1.0, 0.0)], policy_version=0)
    without, _ = training_rows([group(1.0, 0.0)], policy_version=0)
    assert [row.advantage for row in with_unscored] == [row.advantage for row in without]


def test_a_trajectory_with_an_error_is_excluded_even_when_it_has_a_score() -> None:
    broken = Trajectory(id="t", scenario_id="s", error=RolloutError(kind="InfrastructureError", message="server died"))
    scored = TrajectoryGroup((broken,), scenario_id="s").with_scores([0.0])
    assert scored.members == ()
    assert scored.num_excluded == 1


def test_rows_of_one_trajectory_share_its_advantage_and_weigh_once_in_the_mean() -> None:
    forked = Trajectory(id="a", scenario_id="s", exchanges=[exchange([1], [2]), exchange([5], [6]), exchange([7], [8])])
    plain = Trajectory(id="b", scenario_id="s", exchanges=[exchange([1], [3])])
    scored = TrajectoryGroup((forked, plain), scenario_id="s").with_scores([1.0, 0.0])
    rows, counters = training_rows([scored], policy_version=0, config=TrainConfig(scale_rewards="none"))
    assert [row.advantage for row in rows] == [0.5, 0.5, 0.5, -0.5]
    assert counters["trajectories/forks"] == 2


def test_a_trajectory_of_forced_tokens_only_is_counted_apart() -> None:
    forced = exchange([1], [2, 3]).model_copy(update={"forced": (True, True)})
    members = [
        Trajectory(id="a", scenario_id="s", exchanges=[forced]),
        Trajectory(id="b", scenario_id="s", exchanges=[exchange([1], [4])]),
    ]
    rows, counters = training_rows([TrajectoryGroup(members).with_scores([1.0, 0.0])], policy_version=0)
    assert [row.trajectory_id for row in rows] == ["b"]
    assert (counters["trajectories/trained"], counters["trajectories/without_tokens"]) == (1, 1)
    assert [member.num_trained_tokens for member in members] == [0, 1]


def test_cut_trajectories_are_counted() -> None:
    _, counters = training_rows([group(1.0, 0.0, exchanges=[exchange([1], [2], cut=True)])], policy_version=0)
    assert counters["trajectories/truncated"] == 2


def test_training_on_another_policys_samples_is_refused() -> None:
    stale = group(1.0, 0.0, exchanges=[exchange([1], [2], version=3)])
    with pytest.raises(DataError, match="policy version 3, but version 4"):
        training_rows([stale], policy_version=4)


@pytest.mark.parametrize("scores", [[1.0], [1.0, 0.0, 0.5], [1.0, float("nan")], [float("inf"), 0.0]])
def test_scores_that_do_not_fit_the_group_are_refused(scores: list[float]) -> None:
    members = tuple(Trajectory(id=f"t{index}", scenario_id="s") for index in range(2))
    with pytest.raises(DataError, match="group 's'"):
        TrajectoryGroup(members, scenario_id="s").with_scores(scores)


def test_a_trajectory_without_a_trained_token_is_counted_as_such() -> None:
    """An empty completion, and one that a grammar forced entirely."""
    forced = exchange([1, 2], [3, 4]).model_copy(update={"forced": (True, True)})
    members = [Trajectory(exchanges=[one]) for one in (exchange([1, 2], []), forced, exchange([1, 2], [3, 4]))]
    rows, counters = training_rows([TrajectoryGroup(members).with_scores([0.0, 1.0, 2.0])], policy_version=0)
    assert [row.token_ids for row in rows] == [(1, 2, 3, 4)]
    assert (counters["trajectories/trained"], counters["trajectories/without_tokens"]) == (1, 2)


class SlowStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.writing, self.go = threading.Event(), threading.Event()

    def commit(self, trainer: Trainer, cursor: dict[str, Any]) -> Checkpoint:
        self.writing.set()
        assert self.go.wait(20)
        return super().commit(trainer, cursor)


def one_step(store: SlowStore) -> asyncio.Task[StepReport]:
    rows, _ = training_rows([group(1.0, 0.0)], policy_version=0)
    return asyncio.create_task(
        train_step(
            rows,
            Objective(),
            trainer=RecordingTrainer(),
            engine=ScriptedEngine([[2]], logprob=-math.log(259)),
            store=store,
            canary=WeightSyncCanary([1, 2], tolerance=1e-6),
            cursor={},
        )
    )


async def test_the_event_loop_goes_on_while_a_checkpoint_is_written() -> None:
    store = SlowStore()
    step = one_step(store)
    while not store.writing.is_set():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert not step.done()
    store.go.set()
    assert (await step).step == 1


async def test_cancelled_while_a_checkpoint_is_written_it_ends_when_that_is_whole() -> None:
    store = SlowStore()
    step = one_step(store)
    while not store.writing.is_set():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    step.cancel()
    await asyncio.sleep(0.01)
    assert not step.done()
    store.go.set()
    with pytest.raises(asyncio.CancelledError):
        await step
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1
