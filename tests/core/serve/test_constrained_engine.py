"""Restricted answers from a real engine, over the real server and client: a tiny random model, and SmolLM2."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openai import AsyncOpenAI, BadRequestError

from art_core.engines.embedded import EmbeddedEngine, EmbeddedEngineConfig
from art_core.render import ChatRenderer, load_renderer
from art_core.samples import to_samples
from art_core.serve.server import ModelServer
from art_core.testing import write_tiny_model
from art_core.trajectories import Trajectory
from art_core.weights.source import default_cache
from tests.core.serve.support import collected
from tests.core.tokenizers_of_families import write_tiny_qwen3

USER: Any = {"role": "user", "content": "What is the weather in Bonn in two days? Answer as JSON."}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bonn", "Berlin", "Köln"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "description": "Forecast.", "parameters": SCHEMA}}
PING: Any = {
    "type": "function",
    "function": {"name": "ping", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": SCHEMA}}
BAD_FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {"name": "w", "schema": {"type": "array", "uniqueItems": True}},
}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}


class Served:
    def __init__(self, server: ModelServer, client: AsyncOpenAI, renderer: ChatRenderer) -> None:
        self.server = server
        self.client = client
        self.renderer = renderer

    async def ask(self, trajectory_id: str, messages: Any = (USER,), **options: Any) -> Any:
        client = self.client.with_options(base_url=self.server.base_url(trajectory_id))
        return await client.chat.completions.create(
            model="m", messages=list(messages), **{"max_tokens": 200, "temperature": 1.0, **options}
        )


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[Served]:
    renderer = load_renderer(folder)
    engine = await asyncio.to_thread(EmbeddedEngine, EmbeddedEngineConfig(model_folder=folder, **options))
    try:
        async with (
            ModelServer(engine, renderer, model_name="m") as server,
            AsyncOpenAI(base_url=server.base_url(), api_key="k", max_retries=0, timeout=250) as client,
        ):
            yield Served(server, client, renderer)
    finally:
        await engine.aclose()


@pytest.fixture
async def tiny(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(write_tiny_model(tmp_path / "tiny"), dtype="float32", num_threads=1) as served:
        yield served


def check_trained(served: Served, trajectory_id: str) -> None:
    """Forced tokens are in the record and in the rows, and no row trains them."""
    exchanges = served.server.close_trajectory(trajectory_id)
    for exchange in exchanges:
        assert len(exchange.forced) == len(exchange.completion_ids)
        assert True in exchange.forced
        [row] = to_samples(Trajectory(id=trajectory_id, exchanges=[exchange]), 1.0)
        size = len(exchange.prompt_ids)
        assert row.token_ids == exchange.prompt_ids + exchange.completion_ids
        assert list(row.trained[size:]) == [not forced for forced in exchange.forced]
        own = zip(exchange.logprobs, exchange.forced, strict=True)
        assert list(row.logprobs[size:]) == [0.0 if forced else logprob for logprob, forced in own]
    assert exchanges


def check_calls(message: Any, *, only: str | None = None) -> None:
    assert message.tool_calls
    for call in message.tool_calls:
        assert call.function.name in ((only,) if only else ("weather", "ping"))
        schema = WEATHER["function"]["parameters"] if call.function.name == "weather" else {"maxProperties": 0}
        jsonschema.validate(json.loads(call.function.arguments), schema)


async def test_a_random_model_answers_by_schema_and_calls_what_it_must(tiny: Served) -> None:
    tiny.server.open_trajectory("t")
    answer = (await tiny.ask("t", response_format=FORMAT)).choices[0]
    assert answer.finish_reason == "stop"
    jsonschema.validate(json.loads(answer.message.content), SCHEMA)
    named = (await tiny.ask("t", tools=[WEATHER, PING], tool_choice=NAMED)).choices[0]
    assert (named.finish_reason, len(named.message.tool_calls)) == ("tool_calls", 1)
    check_calls(named.message, only="weather")
    one = await tiny.ask("t", tools=[WEATHER, PING], tool_choice="required", parallel_tool_calls=False, stream=True)
    joined = await collected(one)
    assert (joined["finish_reason"], len(joined["calls"]), joined["content"]) == ("tool_calls", 1, None)
    check_trained(tiny, "t")


async def test_the_turn_after_a_required_call_extends_the_record(tiny: Served) -> None:
    tiny.server.open_trajectory("t")
    tools = [WEATHER]
    message = (await tiny.ask("t", tools=tools, tool_choice="required", parallel_tool_calls=False)).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
    await tiny.ask("t", [USER, message, result], tools=tools, max_tokens=5)
    first, second = tiny.server.close_trajectory("t")
    whole = first.prompt_ids + first.completion_ids
    assert (second.forked, second.prompt_ids[: len(whole)]) == (False, whole)
    [row] = to_samples(Trajectory(id="t", exchanges=[first, second]), 1.0)
    assert row.num_trained == first.forced.count(False) + len(second.completion_ids)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_enforced_is_refused_with_an_error_object_before_any_event(
    tiny: Served, stream: bool
) -> None:
    tiny.server.open_trajectory("t")
    bad_tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}
    refused: list[tuple[dict[str, Any], str, str]] = [
        ({"response_format": BAD_FORMAT}, "invalid_json_schema", "response_format"),
        (
            {"tools": [bad_tool], "tool_choice": "required"},
            "invalid_function_parameters",
            "tools[0].function.parameters",
        ),
        ({"max_tokens": 100_000}, "context_length_exceeded", "messages"),
    ]
    for options, code, param in refused:
        with pytest.raises(BadRequestError) as caught:
            await tiny.ask("t", stream=stream, **options)
        assert (caught.value.status_code, caught.value.code, caught.value.param) == (400, code, param)
        assert caught.value.type == "invalid_request_error"
    assert tiny.server.close_trajectory("t") == []


async def test_what_only_the_engine_can_refuse_is_refused_before_any_event(
    tiny: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grammar that is right, and that no token of this model can follow."""
    monkeypatch.setattr("art_core.serve.chat.json_object_grammar", lambda: "start: <nosuch>")
    tiny.server.open_trajectory("t")
    for stream in (False, True):
        with pytest.raises(BadRequestError) as caught:
            await tiny.ask("t", stream=stream, response_format={"type": "json_object"})
        assert caught.value.code == "invalid_value"
        assert "the grammar cannot be used" in str(caught.value)


async def test_alternatives_reach_the_client(tiny: Served) -> None:
    tiny.server.open_trajectory("t")
    options: dict[str, Any] = {"logprobs": True, "top_logprobs": 3, "max_tokens": 60}
    free = (await tiny.ask("t", **options)).choices[0]
    bound = await collected(await tiny.ask("t", response_format=FORMAT, stream=True, **options))
    exchanges = tiny.server.close_trajectory("t")
    for entries, exchange in zip((free.logprobs.content, bound["logprobs"]), exchanges, strict=True):
        assert [entry.logprob for entry in entries] == pytest.approx(list(exchange.logprobs))
        for entry, token in zip(entries, exchange.completion_ids, strict=True):
            alternatives = [other.logprob for other in entry.top_logprobs]
            assert len(alternatives) == 3
            assert alternatives == sorted(alternatives, reverse=True)
            assert entry.token == tiny.renderer.token_text(token)
            assert entry.logprob <= alternatives[0]


@pytest.mark.slow
async def test_restricted_and_free_requests_side_by_side(tiny: Served) -> None:
    kinds: list[dict[str, Any]] = [
        {"response_format": FORMAT},
        {"max_tokens": 30},
        {"tools": [WEATHER], "tool_choice": NAMED},
        {"max_tokens": 30, "stream": True},
    ]
    asked = [{**kinds[index % 4], "seed": index} for index in range(16)]

    async def outcome(name: str, options: dict[str, Any]) -> Any:
        tiny.server.open_trajectory(name)
        answer = await tiny.ask(name, **options)
        if options.get("stream"):
            await collected(answer)
        [exchange] = tiny.server.close_trajectory(name)
        return exchange.completion_ids, exchange.logprobs, exchange.forced, exchange.response["content"]

    together = await asyncio.gather(*(outcome(f"t{index}", options) for index, options in enumerate(asked)))
    alone = [await outcome(f"a{index}", options) for index, options in enumerate(asked)]
    assert together == alone
    for (_, _, forced, content), options in zip(together, asked, strict=True):
        assert bool(forced) is ("max_tokens" not in options)
        if "response_format" in options:
            jsonschema.validate(json.loads(content), SCHEMA)


@pytest.mark.slow
async def test_smollm2_answers_by_schema_and_calls_what_it_must() -> None:
    folder = default_cache() / "models" / "smollm2-135m"
    if not folder.is_dir():
        pytest.skip("smollm2-135m is not in the cache")
    loose = {"type": "json_object"}
    tools = [WEATHER, PING]
    async with serving(folder) as served:
        asked: list[dict[str, Any]] = [
            *({"response_format": FORMAT, "seed": seed} for seed in range(3)),
            *({"response_format": loose, "seed": seed, "max_tokens": 300} for seed in range(3)),
            *({"tools": tools, "tool_choice": "required", "seed": seed} for seed in range(3)),
            *({"tools": tools, "tool_choice": NAMED, "seed": seed} for seed in range(3)),
            {"max_tokens": 20},
        ]
        for index in range(len(asked)):
            served.server.open_trajectory(f"t{index}")
        answers = await asyncio.gather(*(served.ask(f"t{index}", **options) for index, options in enumerate(asked)))
        num_whole = 0
        for index, (answer, options) in enumerate(zip(answers, asked, strict=True)):
            choice = answer.choices[0]
            if choice.finish_reason == "length":  # any object, or ever more calls: a small model may find no end
                assert options.get("response_format") == loose or options.get("tool_choice") != NAMED
                continue
            num_whole += 1
            if "tools" in options:
                check_calls(choice.message, only="weather" if options["tool_choice"] == NAMED else None)
            elif "response_format" in options:
                value = json.loads(choice.message.content)
                jsonschema.validate(value, SCHEMA if options["response_format"] == FORMAT else {"type": "object"})
            if "max_tokens" not in options:
                check_trained(served, f"t{index}")
        assert num_whole >= 6, "three by schema and three by name always come to an end"


@pytest.mark.slow
async def test_a_family_of_the_library_calls_what_it_must_and_goes_on(tmp_path: Path) -> None:
    async with serving(write_tiny_qwen3(tmp_path / "qwen3"), dtype="float32", max_context_tokens=2048) as served:
        served.server.open_trajectory("t")
        options: dict[str, Any] = {"tools": [WEATHER, PING], "tool_choice": NAMED}
        message = (await served.ask("t", **options)).choices[0].message
        check_calls(message, only="weather")
        assert message.content is None
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
        again = (await served.ask("t", [USER, message, result], **options)).choices[0].message
        check_calls(again, only="weather")
        begun = [USER, {"role": "assistant", "content": "It is"}]
        await served.ask("t", begun, max_tokens=5)
        first, second, third = served.server.close_trajectory("t")
        whole = first.prompt_ids + first.completion_ids
        assert (second.forked, second.prompt_ids[: len(whole)]) == (False, whole)
        assert "".join(map(served.renderer.token_text, third.prompt_ids)).endswith("</think>\n\nIt is")
        [row] = to_samples(Trajectory(id="t", exchanges=[first, second]), 1.0)
        assert row.num_trained == first.forced.count(False) + second.forced.count(False)
