"""The HTTP surface under random requests: never a 5xx, never a hang, always an OpenAI error."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art_core.serve.server import ModelServer
from art_core.serve.wire import ERROR_CODES
from art_core.testing import ScriptedEngine
from tests.core.serve.support import CALL, RENDERER, TOOLS, USER, ids_of

pytestmark = pytest.mark.slow
fuzz = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client of a server that runs in a thread of its own and answers everything with the same call."""
    ready, over = threading.Event(), threading.Event()
    url: list[str] = []

    async def serve() -> None:
        engine = ScriptedEngine(lambda _prompt, _sampling: ids_of(f"é {CALL}"), max_context_tokens=600)
        async with ModelServer(engine, RENDERER, model_name="m") as server:
            server.open_trajectory("t")
            url.append(server.url)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(20)
    with httpx.Client(base_url=url[0], timeout=20) as made:
        yield made
    over.set()
    thread.join(20)
    assert not thread.is_alive()


def check(answer: httpx.Response) -> None:
    assert answer.status_code < 500, answer.text
    if answer.status_code == 200:
        return
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] in ERROR_CODES
    assert error["message"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
paths = st.sampled_from(
    [
        *("/v1/chat/completions", "/v1/completions", "/v1/models", "/healthz", "/t/t/v1/chat/completions"),
        *("/t/t/v1/completions", "/t/none/v1/completions", "/t//v1/models", "/", "/v1", "/t/a%2Fb/healthz", "/%ff"),
    ]
)
endpoints = st.sampled_from(["/v1/chat/completions", "/v1/completions", "/t/t/v1/chat/completions"])


@fuzz
@given(st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"]), paths, st.binary(max_size=40))
def test_random_bytes_methods_and_paths(client: httpx.Client, method: str, path: str, body: bytes) -> None:
    answer = client.request(method, path, content=body)
    assert answer.status_code < 500
    if method != "HEAD":
        check(answer)


@fuzz
@given(endpoints, json_values)
def test_random_json(client: httpx.Client, path: str, value: Any) -> None:
    check(client.post(path, content=json.dumps(value)))


content = st.none() | st.text(max_size=8) | st.just([{"type": "text", "text": "a"}]) | json_values
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "x"])},
        optional={
            "content": content,
            "tool_call_id": st.text(max_size=4),
            "name": st.text(max_size=4),
            "reasoning_content": st.none() | st.text(max_size=5),
            "tool_calls": st.lists(
                st.fixed_dictionaries(
                    {"id": st.text(max_size=3), "type": st.just("function")},
                    optional={"function": st.fixed_dictionaries({"name": st.text(max_size=3), "arguments": content})},
                ),
                max_size=2,
            ),
        },
    ),
    max_size=3,
) | st.just([USER])
schemas = st.recursive(
    st.sampled_from([{}, {"type": "string"}, {"type": "integer"}, {"const": 1}, {"enum": ["a"]}, {"$ref": "#"}, True]),
    lambda inner: st.fixed_dictionaries(
        {"type": st.sampled_from(["object", "array"])},
        optional={
            "properties": st.dictionaries(st.text(max_size=3), inner, max_size=2),
            "required": st.lists(st.text(max_size=3), max_size=2),
            "items": inner,
            "anyOf": st.lists(inner, max_size=2),
            "not": inner,
            "pattern": st.text(max_size=4),
            "additionalProperties": st.booleans() | inner,
            "minItems": st.integers(-2, 5),
        },
    ),
    max_leaves=4,
)
tools = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("function")},
        optional={
            "function": st.fixed_dictionaries(
                {"name": st.text(max_size=4)}, optional={"parameters": schemas, "description": st.text(max_size=4)}
            )
        },
    ),
    max_size=2,
) | st.just(TOOLS)
shared: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0, 2) | json_values,
    "top_p": st.floats(0, 1) | json_values,
    "seed": st.integers(),
    "n": st.integers(-1, 3) | json_values,
    "stop": st.none() | st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=5) | json_values,
    "stream": st.booleans(),
    "stream_options": st.just({"include_usage": True}) | json_values,
    "max_tokens": st.integers(-1, 700),
}
chats = st.fixed_dictionaries(
    {"model": st.just("m"), "messages": messages},
    optional={
        **shared,
        "tools": tools,
        "tool_choice": st.sampled_from(["auto", "none", "required", {"type": "function", "function": {"name": "f"}}])
        | json_values,
        "parallel_tool_calls": st.booleans(),
        "response_format": st.fixed_dictionaries(
            {
                "type": st.sampled_from(["text", "json_object", "json_schema"]),
                "json_schema": st.fixed_dictionaries({"name": st.just("n"), "schema": schemas}),
            }
        )
        | st.just({"type": "json_object"})
        | json_values,
        "logprobs": st.booleans(),
        "top_logprobs": st.integers(-1, 21),
    },
)
texts = st.fixed_dictionaries(
    {"model": st.just("m"), "prompt": st.text(max_size=5) | st.lists(st.integers(-1, 300), max_size=3) | json_values},
    optional={**shared, "logprobs": st.integers(-1, 21), "echo": st.booleans()},
)


@fuzz
@given(chats, st.sampled_from(["/v1/chat/completions", "/t/t/v1/chat/completions"]), st.sampled_from(["0", "1", "x"]))
def test_requests_that_are_nearly_right(client: httpx.Client, body: Any, path: str, retry: str) -> None:
    answer = client.post(path, content=json.dumps(body), headers={"x-stainless-retry-count": retry})
    check(answer)
    if answer.status_code == 200 and body.get("stream"):
        assert answer.text.endswith("data: [DONE]\n\n"), answer.text


@fuzz
@given(texts, st.sampled_from(["/v1/completions", "/t/t/v1/completions"]))
def test_text_requests_that_are_nearly_right(client: httpx.Client, body: Any, path: str) -> None:
    answer = client.post(path, content=json.dumps(body))
    check(answer)
    if answer.status_code == 200 and body.get("stream"):
        assert answer.text.endswith("data: [DONE]\n\n"), answer.text
