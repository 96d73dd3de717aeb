"""Small trajectories, and any trajectory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from art_core.runs import ModelRun
from art_core.storage import RunStore
from art_core.trajectories import History, Trajectory, TrajectoryGroup
from art_core.types import Exchange, RolloutError, Sampling


@contextmanager
def open_run(path: Path, project: str, name: str, *, identity: Mapping[str, Any] | None = None) -> Iterator[ModelRun]:
    """The run folder of a model that no server knows: of its model.json only what readers look at."""
    store = RunStore(path / project / name)
    try:
        record = {"project": project, "name": name, **(identity or {})}
        (store.folder / "model.json").write_text(json.dumps(record))
        yield ModelRun(store)
    finally:
        store.close()


def exchange(id: str = "e", *, prompt: tuple[int, ...] = (1, 2, 3), forked: bool = False, **fields: Any) -> Exchange:
    """Two sampled tokens after a prompt of three."""
    return Exchange(
        **{
            "id": id,
            "trajectory_id": "t",
            "messages": ({"role": "user", "content": "hello"},),
            "response": {"role": "assistant", "content": "hi"},
            "prompt_ids": prompt,
            "completion_ids": (4, 5),
            "logprobs": (-0.1 - 0.2, -9999.0),
            "finish_reason": "stop",
            "sampling": Sampling(max_tokens=9),
            "policy_version": 0,
            "forked": forked,
            "started_at": 1.5,
            "ended_at": 2.5,
            **fields,
        }
    )


def trajectory(id: str, reward: float | None = 0.0, **fields: Any) -> Trajectory:
    return Trajectory(**{"id": id, "scenario_id": "s", "reward": reward, "exchanges": [exchange(f"{id}-e")], **fields})


def group(*members: Trajectory, **fields: Any) -> TrajectoryGroup:
    return TrajectoryGroup(members, **fields)


def same(left: TrajectoryGroup, right: TrajectoryGroup) -> bool:
    names = ("trajectories", "scenario_id", "metadata", "metrics", "logs")
    return all(getattr(left, name) == getattr(right, name) for name in names)


# Half a surrogate pair, line separators and NUL are text as well.
# Both halves side by side are one character in JSON, as in UTF-16.
TEXT = st.text(st.characters(exclude_categories=()), max_size=4).map(
    lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
)
KEYS = st.text(max_size=4)  # half a surrogate pair in a key is refused, see test_writer.py
FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=3,
)
DATA = st.dictionaries(KEYS, VALUES, max_size=1)
MESSAGES = st.builds(lambda extra: {**extra, "role": "user"}, DATA)


@st.composite
def exchanges(draw: st.DrawFn) -> Exchange:
    sampled = draw(st.lists(st.tuples(st.integers(0, 2**31 - 1), FINITE, st.booleans()), max_size=4))
    return Exchange(
        id=draw(TEXT),
        trajectory_id=draw(TEXT),
        messages=tuple(draw(st.lists(MESSAGES, max_size=1))),
        tools=tuple(draw(st.lists(DATA, max_size=1))),
        response=draw(MESSAGES),
        prompt_ids=tuple(draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4))),
        completion_ids=tuple(token for token, _, _ in sampled),
        logprobs=tuple(logprob for _, logprob, _ in sampled),
        forced=draw(st.sampled_from([(), tuple(forced for _, _, forced in sampled)])),
        finish_reason=draw(st.sampled_from(["stop", "length"])),
        sampling=Sampling(max_tokens=draw(st.integers(1, 99)), seed=draw(st.none() | st.integers(0, 9))),
        policy_version=draw(st.integers(0, 9)),
        forked=draw(st.booleans()),
        metadata=draw(st.dictionaries(TEXT, TEXT, max_size=1)),
        started_at=draw(FINITE),
        ended_at=draw(FINITE),
    )


ERRORS = st.builds(
    lambda kind, message, source: RolloutError(kind=kind, message=message, source=source),
    TEXT,
    TEXT,
    st.sampled_from(["rollout", "judge"]),
)
HISTORIES = st.builds(
    lambda messages, tools: History(messages_and_choices=messages, tools=tools),
    st.lists(MESSAGES, max_size=2),
    st.none() | st.lists(DATA, max_size=1),
)
TRAJECTORIES = st.builds(
    Trajectory,
    id=TEXT,
    scenario_id=TEXT,
    messages_and_choices=st.lists(MESSAGES, max_size=2),
    tools=st.none() | st.lists(DATA, max_size=1),
    additional_histories=st.lists(HISTORIES, max_size=1),
    role=TEXT,
    exchanges=st.lists(exchanges(), max_size=1),
    reward=st.none() | st.floats(-1e100, 1e100),
    metrics=st.dictionaries(KEYS, st.floats(-1e100, 1e100), max_size=2),
    metadata=DATA,
    logs=st.lists(TEXT, max_size=2),
    error=st.none() | ERRORS,
)
GROUPS = st.builds(
    lambda members, scenario, metadata, logs: TrajectoryGroup(
        members, scenario_id=scenario, metadata=metadata, logs=logs
    ),
    st.lists(TRAJECTORIES, min_size=1, max_size=2),
    TEXT,
    DATA,
    st.lists(TEXT, max_size=1),
)
