"""Demonstrations: what they show, and what happens to those that cannot be shown whole."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from art_core.errors import ConfigError, DataError, InfrastructureError
from art_core.render import load_renderer
from art_core.testing import MemoryStore, write_tiny_model
from art_core.types import TokenSample
from art_mcp.facts import Fact
from art_mcp.inspect import openai_tool
from art_mcp.scenarios import Scenario
from art_mcp.settings import RunSettings
from art_mcp.stack import RolloutCaller, ServedModel, Toolbox
from art_mcp.types import McpTool, ToolResult
from art_mcp.warmup import agent_limits, demonstrated, demonstrations

DOUBLE = McpTool("double", "Double a number.", {"type": "object", "properties": {"n": {"type": "integer"}}})


def scenario(number: int, tool: str = "double") -> Scenario:
    return Scenario(
        id=f"{tool}-{number}",
        split="train",
        tool=tool,
        arguments={"n": number},
        task=f"Double {number}.",
        facts=(Fact(label="result", kind="number"),),
    )


class Tools:
    """A toolbox whose tool answers with `results[n]`, or raises it."""

    def __init__(self, results: Mapping[int, ToolResult | Exception] | None = None) -> None:
        self.tools = {"double": DOUBLE}
        self.specs = [openai_tool(DOUBLE)]
        self.command = SimpleNamespace(uses_workdir=False)
        self.num_calls = 0
        self._results = results or {}

    @contextlib.asynccontextmanager
    async def caller(self) -> AsyncIterator[RolloutCaller]:
        yield RolloutCaller(self._execute, None)

    async def _execute(self, _name: str, arguments: Mapping[str, Any]) -> ToolResult:
        self.num_calls += 1
        number = arguments["n"]
        result = self._results.get(number, ToolResult(str(2 * number), structured=2 * number))
        if isinstance(result, Exception):
            raise result
        return result


class Stage:
    def __init__(self, folder: Path) -> None:
        self.renderer = load_renderer(folder)
        self.store = MemoryStore()
        self.said: list[str] = []

    def model(self, context: int) -> ServedModel:
        engine = SimpleNamespace(max_context_tokens=context)
        return cast(ServedModel, SimpleNamespace(renderer=self.renderer, engine=engine))

    async def rows(
        self, scenarios: list[Scenario], tools: Tools, *, answer_every: int = 1, context: int = 4096
    ) -> list[TokenSample]:
        toolbox = cast(Toolbox, tools)
        made = await demonstrations(
            self.store, self.model(context), toolbox, scenarios, answer_every=answer_every, say=self.said.append
        )
        assert all(len(example) == 1 for example in made.examples), "this template rewrites no history"
        return made.rows

    def text(self, row: TokenSample) -> str:
        return "".join(self.renderer.token_text(token) for token in row.token_ids)

    def trained(self, row: TokenSample) -> str:
        pairs = zip(row.token_ids, row.trained, strict=True)
        return "".join(self.renderer.token_text(token) for token, flag in pairs if flag)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def stage(model_folder: Path) -> Stage:
    return Stage(model_folder)


async def test_one_in_so_many_goes_on_to_the_answer_and_only_what_the_agent_says_is_trained(stage: Stage) -> None:
    tools = Tools()
    rows = await stage.rows([scenario(n) for n in range(7)], tools, answer_every=3)
    answered = ["The" in stage.trained(row) or "result" in stage.trained(row) for row in rows]
    assert answered == [True, False, False, True, False, False, True]
    assert tools.num_calls == 3
    assert all('"n":5' in stage.trained(row).replace(" ", "") for row in rows[5:6])
    assert "Double 5." in stage.text(rows[5])
    assert "Double 5." not in stage.trained(rows[5])
    assert not stage.said


async def test_rows_are_made_once(stage: Stage) -> None:
    tools = Tools()
    first = await stage.rows([scenario(n) for n in range(3)], tools)
    again = await stage.rows([scenario(n) for n in range(3)], tools)
    assert again == first
    assert tools.num_calls == 3


async def test_a_result_that_does_not_fit_or_cannot_be_had_leaves_the_call(stage: Stage) -> None:
    tools = Tools(
        {
            1: ToolResult("9" * 3000, structured=9),
            2: InfrastructureError("no answer within 2 s"),
            3: ToolResult("overflow", is_error=True),
        }
    )
    rows = await stage.rows([scenario(n) for n in range(4)], tools, context=1500)
    assert len(rows) == 4
    records = stage.store.records("demonstrations")
    assert [record["shortened"] for record in records] == [False, True, True, True]
    assert all(f'"n":{n}' in stage.trained(rows[n]).replace(" ", "") for n in range(4))
    assert "the context 1500" in stage.said[0]
    assert "no answer within 2 s" in stage.said[1]
    assert "now fails with 'overflow'" in stage.said[2]


async def test_no_demonstration_that_fits_is_an_error_with_the_remedy(stage: Stage) -> None:
    with pytest.raises(DataError, match="raise --max-context"):
        await stage.rows([scenario(1)], Tools(), context=64)


def test_demonstrations_are_taken_of_each_tool_in_turn() -> None:
    by_tool = [*(scenario(n, "a") for n in range(4)), *(scenario(n, "b") for n in range(2))]
    assert [each.id for each in demonstrated(by_tool, 5)] == ["a-0", "b-0", "a-1", "b-1", "a-2"]
    assert len(demonstrated(by_tool, 99)) == 6


def test_a_context_that_cannot_hold_a_task_is_refused_at_the_start(stage: Stage) -> None:
    toolbox = cast(Toolbox, Tools())
    settings = RunSettings(server="calc")
    limits = agent_limits(settings, [scenario(1)], stage.model(4096), toolbox)
    assert limits.max_tokens > 20
    with pytest.raises(ConfigError, match=r"context holds 128; raise --max-context"):
        agent_limits(settings, [scenario(1)], stage.model(128), toolbox)
