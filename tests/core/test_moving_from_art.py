"""Every row of the tables in docs/moving-from-art.md is executed."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import art_core as art
from art_core.moving import NAMES
from art_core.testing import InProcessBackend

PAGE = Path(__file__).resolve().parents[2] / "docs" / "moving-from-art.md"


def rows(heading: str) -> list[tuple[str, str]]:
    """The code of the first column, and the text of the second, of each row of the table below `heading`."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    found = []
    for line in section.splitlines():
        if match := re.fullmatch(r"\| `([^`]+)` \| (.+) \|", line):
            found.append((match[1], match[2].replace("`", "")))
    assert len(found) == sum(line.startswith("| ") for line in section.splitlines()) - 1, "a row is not code and text"
    return found


async def evaluated(code: str, names: dict[str, Any]) -> Any:
    compiled = compile(code, str(PAGE), "eval", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = eval(compiled, names)
    return await value if inspect.iscoroutine(value) else value


@pytest.fixture
async def backend() -> AsyncIterator[InProcessBackend]:
    async with InProcessBackend() as made:
        yield made


async def names_of(backend: InProcessBackend) -> dict[str, Any]:
    """What a row may use, made anew for it."""
    model = art.TrainableModel(name="m", project="p", base_model="b")
    await model.register(backend)

    async def ask() -> Any:
        return await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=[{"role": "user", "content": "hi"}]
        )

    async def rollout(_: art.TrainableModel, task: int) -> art.Trajectory:
        trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": "hi"}], reward=float(task))
        trajectory.messages_and_choices.append((await ask()).choices[0])
        return trajectory

    async def fails() -> art.Trajectory:
        raise ValueError("broken")

    async def slow(delay_s: float) -> art.Trajectory:
        await asyncio.sleep(delay_s / 50 if delay_s < 5 else delay_s)
        return art.Trajectory(reward=delay_s)

    async def score(group: art.TrajectoryGroup) -> art.TrajectoryGroup:
        return group

    def raised(call: Callable[[], object]) -> str:
        try:
            call()
        except Exception as error:  # noqa: BLE001
            return str(error)
        return ""

    def pending_groups() -> list[Any]:
        return [art.TrajectoryGroup(rollout(model, task) for task in (0, 1))]

    await model.log(metrics={"reward": 1.0}, step=0)
    return {
        "art": art,
        "model": model,
        "backend": backend,
        "completion": await ask(),
        "trajectory": art.Trajectory(),
        "groups": [art.TrajectoryGroup([await rollout(model, 0), await rollout(model, 1)])],
        "equal_group": art.TrajectoryGroup([await rollout(model, 1), await rollout(model, 1)]),
        "tasks": [0, 1, 2],
        "rollout": rollout,
        "fails": fails,
        "slow": slow,
        "score": score,
        "pending_groups": pending_groups,
        "raised": raised,
    }


@pytest.mark.parametrize("row", rows("The same"), ids=lambda row: row[0][:50])
async def test_what_is_the_same_runs(row: tuple[str, str], backend: InProcessBackend) -> None:
    await evaluated(row[0], await names_of(backend))


@pytest.mark.parametrize("row", rows("Different on purpose"), ids=lambda row: row[0][:50])
async def test_what_differs_is_as_stated(row: tuple[str, str], backend: InProcessBackend) -> None:
    assert await evaluated(row[0], await names_of(backend)) is True


@pytest.mark.parametrize("row", rows("Not here"), ids=lambda row: row[0][:50])
async def test_what_is_missing_stops_with_what_to_write(row: tuple[str, str], backend: InProcessBackend) -> None:
    code, instead = row
    with pytest.raises((art.ArtError, AttributeError)) as caught:
        await evaluated(code, await names_of(backend))
    assert instead in str(caught.value)
    if isinstance(caught.value, art.ArtError):
        assert backend.trainer.steps == []


def test_every_missing_name_is_in_the_table() -> None:
    shown = {code.removeprefix("art.") for code, _ in rows("Not here")}
    assert sorted(set(NAMES) - shown - {"PipelineTrainer"}) == []


def test_other_missing_names_are_plain_attribute_errors() -> None:
    with pytest.raises(AttributeError, match=r"art_core has no 'nonsense'$"):
        art.nonsense  # noqa: B018
    assert not hasattr(art.TrainableModel(name="m", project="p", base_model="b"), "nonsense")
