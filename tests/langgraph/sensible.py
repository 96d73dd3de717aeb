"""A model that does what it is asked: it reads the prompt as it was rendered, and the grammar it has to follow."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import art_core as art
from art_core.testing import InProcessBackend
from art_core.types import Sampling

END = 2
_WEATHER = ("weather", "tool", "magic", "create", "+")


def call_of(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def answer(prompt: str, sampling: Sampling) -> str:
    """What a model of good will says."""
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
    """A backend whose model is sensible."""

    def _script(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Sequence[int]:
        text = answer(self._tokenizer.decode(prompt_ids), sampling)
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
