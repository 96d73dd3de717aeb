"""The agent loop, through the real `openai` client and a real socket, with a scripted model and a recording tool."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from tokenizers import Tokenizer

from art_core.errors import InfrastructureError
from art_core.render import load_renderer
from art_core.serve.server import ModelServer
from art_core.testing import ScriptedEngine, write_tiny_model
from art_mcp.rollout import AgentLimits, Attempt, attempt
from art_mcp.types import ToolResult

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
IM_END = 2


def call(arguments: str, name: str = "add") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class Tool:
    def __init__(self, result: ToolResult | Exception) -> None:
        self.result = result
        self.calls: list[tuple[str, dict[str, Any]]] = []

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        self.calls.append((name, dict(arguments)))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@contextlib.asynccontextmanager
async def scripted(folder: Path, *turns: str, context: int = 8192) -> AsyncIterator[tuple[ModelServer, AsyncOpenAI]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    completions = [[*tokenizer.encode(text, add_special_tokens=False).ids, IM_END] for text in turns]
    engine = ScriptedEngine(completions, max_context_tokens=context)
    async with ModelServer(engine, load_renderer(folder), model_name="tiny") as server:
        server.open_trajectory("t")
        async with AsyncOpenAI(base_url=server.base_url("t"), api_key="none", max_retries=0) as client:
            yield server, client


async def run(client: AsyncOpenAI, tool: Tool, *, max_turns: int = 4, max_tokens: int = 200) -> Attempt:
    return await attempt(
        "What is 1 + 2?",
        client=client,
        model="tiny",
        tools=[TOOL],
        caller=tool,
        limits=AgentLimits(max_turns=max_turns, max_tokens=max_tokens),
        seed=0,
    )


async def test_a_call_is_executed_and_its_result_answered(model_folder: Path) -> None:
    tool = Tool(ToolResult("3", structured=3))
    async with scripted(model_folder, call('{"a": 1, "b": 2}'), "It is 3.") as (server, client):
        outcome = await run(client, tool)
        exchanges = server.close_trajectory("t")
    assert tool.calls == [("add", {"a": 1, "b": 2})]
    assert outcome.answer == "It is 3."
    assert outcome.num_turns == 2
    assert [made.result for made in outcome.calls] == [ToolResult("3", structured=3)]
    first, second = exchanges
    recorded = first.prompt_ids + first.completion_ids
    assert second.prompt_ids[: len(recorded)] == recorded
    assert not second.forked


async def test_a_call_with_double_encoded_arguments_is_executed_with_the_object(model_folder: Path) -> None:
    tool = Tool(ToolResult("3"))
    async with scripted(model_folder, call(r'"{\"a\": 1}"'), "Done.") as (_, client):
        await run(client, tool)
    assert tool.calls == [("add", {"a": 1})]


@pytest.mark.parametrize("arguments", ["null", "{}", '""'])
async def test_no_arguments_reach_the_server_as_an_empty_object(model_folder: Path, arguments: str) -> None:
    tool = Tool(ToolResult("ok"))
    async with scripted(model_folder, call(arguments), "Done.") as (_, client):
        await run(client, tool)
    assert tool.calls == [("add", {})]


async def test_an_unknown_tool_is_answered_with_the_names_that_exist_and_not_executed(model_folder: Path) -> None:
    tool = Tool(ToolResult("3"))
    async with scripted(model_folder, call("{}", "subtract"), call('{"a": 1}'), "Done.") as (server, client):
        outcome = await run(client, tool)
        exchanges = server.close_trajectory("t")
    assert tool.calls == [("add", {"a": 1})]
    assert outcome.calls[0].result is None
    assert "there is no tool 'subtract'; the tools are add" in str(exchanges[1].messages[-1]["content"])
    assert len(outcome.tool_errors) == 1


async def test_arguments_that_are_no_object_are_answered_with_an_error_and_the_rollout_goes_on(
    model_folder: Path,
) -> None:
    tool = Tool(ToolResult("3"))
    async with scripted(model_folder, call("[1, 2]"), call('{"a": 1, "b": 2}'), "It is 3.") as (_, client):
        outcome = await run(client, tool)
    assert tool.calls == [("add", {"a": 1, "b": 2})]
    assert outcome.answer == "It is 3."


async def test_a_tool_error_is_information_for_the_model(model_folder: Path) -> None:
    tool = Tool(ToolResult("a must be positive", is_error=True))
    async with scripted(model_folder, call('{"a": -1}'), "Sorry.") as (_, client):
        outcome = await run(client, tool)
    assert outcome.answer == "Sorry."
    assert outcome.tool_errors == ("a must be positive",)


async def test_a_dead_server_is_an_infrastructure_failure(model_folder: Path) -> None:
    async with scripted(model_folder, call('{"a": 1}')) as (_, client):
        with pytest.raises(InfrastructureError, match="connection closed"):
            await run(client, Tool(InfrastructureError("connection closed")))


async def test_turns_are_bounded_and_running_out_of_them_gives_no_answer(model_folder: Path) -> None:
    tool = Tool(ToolResult("3"))
    async with scripted(model_folder, *[call('{"a": 1}')] * 5) as (_, client):
        outcome = await run(client, tool, max_turns=2)
    assert len(tool.calls) == 2
    assert outcome.answer is None


async def test_a_full_context_ends_the_attempt_as_truncated_and_keeps_earlier_turns(model_folder: Path) -> None:
    tool = Tool(ToolResult("x" * 2000))
    async with scripted(model_folder, call('{"a": 1}'), "never", context=1500) as (server, client):
        outcome = await run(client, tool)
        exchanges = server.close_trajectory("t")
    assert outcome.truncated
    assert outcome.answer is None
    assert len(outcome.calls) == 1
    assert len(exchanges) == 1
