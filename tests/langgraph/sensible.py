"""A model that does what it is asked: it reads the prompt as it was rendered, and the grammar it has to follow."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import art_core as art
from art_core.testing import InProcessBackend
from art_core.types import Sampling

END = 2
KEY = "sk-very-secret"
_WEATHER = ("weather", "tool", "magic", "create", "+")


def call_of(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def answer(prompt: str, sampling: Sampling) -> str:
    """What a model of good will says."""
    if "<|im_start|>" not in prompt:
        return "no conversation"
    last = prompt.removesuffix("<|im_start|>assistant\n").rsplit("<|im_start|>", 1)[1]
    role, _, text = last.removesuffix("<|im_end|>\n").partition("\n")
    tools = [json.loads(line) for line in _shown_tools(prompt)]
    grammar = sampling.grammar or ""
    if grammar and "tool_call" in grammar:
        allowed = [tool for tool in tools if json.dumps(tool["name"]).strip('"') in grammar]
        chosen = next((tool for tool in allowed if tool["name"] in text), allowed[0])
        return call_of(chosen["name"], _arguments(chosen.get("parameters") or {}, text))
    if grammar:
        schema, _ = json.JSONDecoder().raw_decode(grammar[grammar.index("{") :])
        names = re.findall("'(setup|punchline)'", text)
        shaped = schema if schema.get("properties") else {"properties": {name: {} for name in names}}
        return json.dumps(_arguments(shaped, text))
    if tools and role == "user" and any(word in text.lower() for word in _WEATHER):
        return call_of(tools[0]["name"], _arguments(tools[0].get("parameters") or {}, text))
    return f"You said: {text}"


def _shown_tools(prompt: str) -> list[str]:
    _, _, rest = prompt.partition("# Tools\n")
    return rest.partition("\nCall a tool with\n")[0].splitlines() if rest else []


def _arguments(schema: dict[str, Any], text: str) -> dict[str, Any]:
    numbers = iter(int(digits) for digits in re.findall(r"\d+", text))
    quoted = iter(re.findall("'([^']+)'", text))
    made: dict[str, Any] = {}
    for name, described in (schema.get("properties") or {}).items():
        kind = described.get("type", "string")
        made[name] = next(numbers, 7) if kind == "integer" else next(quoted, f"the {name}")
    return made


class SensibleBackend(InProcessBackend):
    """A backend whose model is sensible. It says what is `planned`, one after the other, before what it would say.

    A planned exception is raised: the call fails with 500.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.planned: list[str | Exception] = []

    def _script(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Sequence[int]:
        text = self.planned.pop(0) if self.planned else answer(self._tokenizer.decode(prompt_ids), sampling)
        if isinstance(text, Exception):
            raise text
        return [*self._tokenizer.encode(text), END]


@contextmanager
def served(backend: InProcessBackend) -> Iterator[art.TrainableModel]:
    """A model registered with `backend`, which runs in a thread of its own: it answers synchronous calls as well."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def wait(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(timeout=30)

    model = art.TrainableModel(name="clerk", project="shop", base_model="scripted")
    wait(model.register(backend))
    try:
        yield model
    finally:
        wait(backend.close())
        wait(loop.shutdown_asyncgens())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class RawServer:
    """Answers each request with the next of `replies`, byte for byte: what our own server never sends. Logs bodies."""

    def __init__(self, *replies: tuple[str, bytes]) -> None:
        self._replies = list(replies)
        self.bodies: list[Any] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(re.findall(r"content-length: (\d+)", head)[0])
        self.bodies.append(json.loads(await reader.readexactly(size)))
        kind, body = self._replies.pop(0)
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n".encode())
        writer.write(b"connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()


def completion(message: dict[str, Any]) -> tuple[str, bytes]:
    whole = {"role": "assistant", "content": "", **message}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    choice = {"index": 0, "message": whole, "finish_reason": "stop"}
    return "application/json", json.dumps({**body, "choices": [choice]}).encode()


def chunks(*deltas: dict[str, Any]) -> tuple[str, bytes]:
    """A stream of these, and its end."""
    events = []
    for delta, reason in [*((delta, None) for delta in deltas), ({}, "stop")]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        events.append(f"data: {json.dumps(body)}\n\n")
    return "text/event-stream", "".join([*events, "data: [DONE]\n\n"]).encode()
