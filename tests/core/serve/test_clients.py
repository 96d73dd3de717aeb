"""The clients that people use, each against the real server, and what each keeps of an exchange's id."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, cast

import httpx2
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, BadRequestError, LengthFinishReasonError, OpenAI, pydantic_function_tool
from pydantic import BaseModel

from art_core.carriers import exchange_id_of
from art_core.render.hermes import call_text
from tests.core.serve.support import CALL, SECRET, TOOLS, USER, Setup


class Place(BaseModel):
    """A place."""

    city: str
    kind: Literal["town", "village"]
    days: int | None = None


PLACE = '{"city": "Bonn", "kind": "town", "days": 2}'
PLACE_CALL = call_text({"name": "Place", "arguments": json.loads(PLACE)})
WANTED = Place(city="Bonn", kind="town", days=2)


# openai


async def test_openai_parses_structured_answers_and_calls(setup: Setup) -> None:
    setup.engine.say(PLACE, PLACE_CALL, PLACE)
    parse = setup.client.chat.completions.parse
    answer = await parse(model="m", messages=[USER], response_format=Place)
    assert answer.choices[0].message.parsed == WANTED
    called = await parse(model="m", messages=[USER], tools=[pydantic_function_tool(Place)], tool_choice="required")
    calls = called.choices[0].message.tool_calls or []
    assert [call.function.parsed_arguments for call in calls] == [WANTED]
    setup.engine.lines = [setup.engine.lines[0][:10]]
    with pytest.raises(LengthFinishReasonError):
        await parse(model="m", messages=[USER], response_format=Place)


async def test_openais_stream_helper_gives_the_whole_answer(setup: Setup) -> None:
    setup.engine.say(PLACE, f"Well. {CALL}")
    async with setup.client.chat.completions.stream(model="m", messages=[USER], response_format=Place) as stream:
        events = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == WANTED
    assert "content.done" in events
    async with setup.client.chat.completions.stream(model="m", messages=[USER], tools=TOOLS) as stream:
        final_call = await stream.get_final_completion()
    message = final_call.choices[0].message
    assert message.content == "Well."
    assert [call.function.arguments for call in message.tool_calls or []] == ['{"a":1}']
    assert exchange_id_of(final_call.id) == setup.outside[-1].id


async def test_openai_raw_response(setup: Setup) -> None:
    setup.engine.say("x")
    raw = await setup.client.chat.completions.with_raw_response.create(model="m", messages=[USER])
    assert raw.headers["content-type"] == "application/json"
    assert raw.parse().choices[0].message.content == "x"
    assert json.loads(raw.text)["choices"][0]["exchange_id"] == setup.outside[0].id


async def test_the_sync_openai_client(setup: Setup) -> None:
    setup.engine.say("plain", "streamed")

    def both() -> tuple[Any, str]:
        with OpenAI(base_url=setup.server.base_url(), api_key=SECRET, max_retries=0, timeout=20) as client:
            plain = client.chat.completions.create(model="m", messages=[USER])
            chunks = list(client.chat.completions.create(model="m", messages=[USER], stream=True))
        return plain, "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    plain, streamed = await asyncio.to_thread(both)
    assert (plain.choices[0].message.content, streamed) == ("plain", "streamed")
    assert plain.choices[0].exchange_id == setup.outside[0].id


async def test_openai_keeps_every_extra_field(setup: Setup) -> None:
    setup.engine.say("x", "x")
    answer: Any = await setup.client.chat.completions.create(model="m", messages=[USER])
    dumped = answer.model_dump()
    assert dumped["choices"][0]["token_ids"] == list(setup.outside[0].completion_ids)
    assert dumped["prompt_token_ids"] == list(setup.outside[0].prompt_ids)
    stream: Any = await setup.client.chat.completions.create(model="m", messages=[USER], stream=True)
    chunks = [chunk async for chunk in stream]
    assert [c.choices[0].exchange_id for c in chunks if hasattr(c.choices[0], "exchange_id")] == [setup.outside[1].id]
    assert {exchange_id_of(chunk.id) for chunk in chunks} == {setup.outside[1].id}


# LangChain


@pytest.fixture
async def langchain(setup: Setup) -> AsyncIterator[Callable[[str], ChatOpenAI]]:
    """A chat model by its base URL."""
    async with httpx2.AsyncClient() as http:
        yield lambda base_url: ChatOpenAI(
            model="m",
            base_url=base_url,
            api_key=cast(Any, SECRET),
            use_responses_api=False,
            max_retries=0,
            http_async_client=http,
        )


@pytest.fixture
def chat(setup: Setup, langchain: Callable[[str], ChatOpenAI]) -> ChatOpenAI:
    return langchain(setup.server.base_url())


async def streamed(model: Any, question: str) -> Any:
    whole: Any = None
    async for chunk in model.astream(question):
        whole = chunk if whole is None else whole + chunk
    return whole


async def test_langchain_keeps_an_id_of_the_exchange_in_both_modes(setup: Setup, chat: ChatOpenAI) -> None:
    setup.engine.say("a", "b", CALL, CALL)
    plain, streaming = await chat.ainvoke("u"), await streamed(chat, "u")
    bound = chat.bind_tools(TOOLS, parallel_tool_calls=False)
    called, called_streaming = await bound.ainvoke("u"), await streamed(bound, "u")
    ids = [exchange.id for exchange in setup.outside]
    assert [plain.content, streaming.content] == ["a", "b"]
    assert [exchange_id_of(m.response_metadata["system_fingerprint"]) for m in (plain, streaming)] == ids[:2]
    assert exchange_id_of(plain.response_metadata["id"]) == ids[0]
    assert "id" not in streaming.response_metadata
    assert [exchange_id_of(str(m.tool_calls[0]["id"])) for m in (called, called_streaming)] == ids[2:]
    assert called_streaming.tool_calls[0]["args"] == {"a": 1}
    assert called.usage_metadata is not None
    assert called.usage_metadata["input_tokens"] == len(setup.outside[2].prompt_ids)


async def test_langchain_tools_go_round(setup: Setup, langchain: Callable[[str], ChatOpenAI]) -> None:
    setup.engine.say(CALL, "three")
    model = langchain(setup.server.open_trajectory("t")).bind_tools(TOOLS)
    asked = HumanMessage("u")
    called = await model.ainvoke([asked])
    await model.ainvoke([asked, called, ToolMessage("3", tool_call_id=called.tool_calls[0]["id"])])
    first, second = setup.server.close_trajectory("t")
    whole = first.prompt_ids + first.completion_ids
    assert second.prompt_ids[: len(whole)] == whole


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of the `openai` client's own types
@pytest.mark.parametrize(
    ("method", "line"), [("json_schema", PLACE), ("function_calling", PLACE_CALL), ("json_mode", PLACE)]
)
async def test_langchain_structured_output(
    setup: Setup, chat: ChatOpenAI, method: Literal["json_schema", "function_calling", "json_mode"], line: str
) -> None:
    setup.engine.say(line, line)
    model = chat.with_structured_output(Place, method=method)
    assert await model.ainvoke("u") == WANTED
    assert [part async for part in model.astream("u")][-1] == WANTED
    assert setup.engine.prompts[0][1].grammar is not None


async def test_langchain_tool_choice_and_stop(setup: Setup, chat: ChatOpenAI) -> None:
    setup.engine.say(CALL, CALL, "a STOP b")
    for choice in ("any", "f"):
        answer = await chat.bind_tools(TOOLS, tool_choice=choice).ainvoke("u")
        assert answer.tool_calls[0]["name"] == "f"
    assert (await chat.ainvoke("u", stop=["STOP"])).content == "a "


async def test_langchain_sync_in_a_thread(setup: Setup, chat: ChatOpenAI) -> None:
    setup.engine.say("a", "b")
    assert (await asyncio.to_thread(chat.invoke, "u")).content == "a"
    parts = await asyncio.to_thread(lambda: [str(chunk.content) for chunk in chat.stream("u")])
    assert "".join(parts) == "b"


# litellm


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # its aiohttp transports are not closed
async def test_litellm(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm: Any = pytest.importorskip("litellm")
    monkeypatch.setattr(litellm, "suppress_debug_info", True)
    options: dict[str, Any] = {
        "api_base": setup.server.base_url(),
        "api_key": SECRET,
        "messages": [USER],
        "timeout": 20,
    }
    for prefix in ("openai", "hosted_vllm"):
        setup.outside.clear()
        setup.engine.say(f"A {CALL}", f"A {CALL}", PLACE, "a", "b", "a STOP")
        model = f"{prefix}/m"
        plain = await litellm.acompletion(model=model, tools=TOOLS, **options)
        stream = await litellm.acompletion(model=model, tools=TOOLS, stream=True, **options)
        chunks = [chunk async for chunk in stream]
        whole = litellm.stream_chunk_builder(chunks)
        first, second = setup.outside
        choice = plain.choices[0]
        assert choice.provider_specific_fields["exchange_id"] == exchange_id_of(plain.id) == first.id
        assert choice.token_ids == list(first.completion_ids)
        assert {exchange_id_of(chunk.id) for chunk in chunks} == {exchange_id_of(whole.id)} == {second.id}
        for answer, exchange in ((plain, first), (whole, second)):
            message = answer.choices[0].message
            assert (message.content, answer.choices[0].finish_reason) == ("A", "tool_calls")
            assert [call.function.arguments for call in message.tool_calls] == ['{"a":1}']
            assert exchange_id_of(message.tool_calls[0].id) == exchange.id
        formatted = await litellm.acompletion(model=model, response_format=Place, **options)
        assert Place.model_validate_json(formatted.choices[0].message.content) == WANTED
        both = await litellm.acompletion(model=model, n=2, seed=1, **options)
        assert [c.message.content for c in both.choices] == ["a", "b"]
        assert (await litellm.acompletion(model=model, stop=["STOP"], **options)).choices[0].message.content == "a "
        setup.engine.max_context_tokens = 20
        with pytest.raises(litellm.ContextWindowExceededError):
            await litellm.acompletion(model=model, max_tokens=30, **options)
        setup.engine.max_context_tokens = 4096


# curl


async def curl(*arguments: str) -> bytes:
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not installed")
    process = await asyncio.create_subprocess_exec(
        program, "-sS", "--noproxy", "*", "-m", "20", *arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out


async def test_curl(setup: Setup) -> None:
    setup.engine.say("h€", "h€", "t")
    url = f"{setup.server.base_url()}/chat/completions"
    body = {"model": "m", "messages": [USER]}
    plain = json.loads(await curl(url, "-d", json.dumps(body)))
    assert plain["choices"][0]["message"] == {"role": "assistant", "content": "h€"}
    lines = (await curl("-N", url, "-d", json.dumps({**body, "stream": True}))).decode().split("\n\n")
    assert (lines[-2], lines[-1]) == ("data: [DONE]", "")
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "h€"
    text = json.loads(await curl(f"{setup.server.base_url()}/completions", "-d", '{"model": "m", "prompt": "p"}'))
    assert text["choices"][0]["text"] == "t"
    refused = json.loads(await curl(url, "-d", "{"))
    assert refused["error"]["code"] == "invalid_json"


async def test_errors_reach_clients_with_their_codes(setup: Setup) -> None:
    async with AsyncOpenAI(base_url=setup.server.base_url(), api_key="k", max_retries=0) as client:
        with pytest.raises(BadRequestError) as caught:
            await client.chat.completions.create(model="m", messages=[USER], extra_body={"best_effort": True})
    assert (caught.value.code, caught.value.param, caught.value.type) == (
        "unsupported_parameter",
        "best_effort",
        "invalid_request_error",
    )
