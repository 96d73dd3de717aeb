"""A prompt that is far too long is refused before it is turned into tokens: nobody else waits for that."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest
from openai import BadRequestError

from tests.core.serve.support import TOKENIZER, Setup, ids_of, raw


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
async def test_a_prompt_of_too_many_bytes_is_never_tokenized(
    setup: Setup, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> list[int]:
        raise AssertionError("the text was tokenized")

    monkeypatch.setattr(type(TOKENIZER), "encode", refuse)
    text = "x" * (2 << 20)
    content = {"messages": [{"role": "user", "content": text}]} if route[:4] == "chat" else {"prompt": text}
    async with raw(setup) as client:
        answer = await client.post(f"/v1/{route}", json={"model": "m", **content})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert answer.json()["error"]["message"].startswith("This model's maximum context length is 4096 tokens")
    assert setup.engine.prompts == []


async def _answers(call: Awaitable[Any]) -> bool:
    try:
        await call
    except BadRequestError as error:
        if error.code != "context_length_exceeded":
            raise
        return False
    return True


async def test_a_prompt_is_refused_or_read_from_its_beginning_and_never_cut(setup: Setup) -> None:
    """From ten tokens below the limit to ten above it: what is answered begins with the system message."""
    setup.engine.max_context_tokens = 200
    system = {"role": "system", "content": "Obey the first law."}
    beginning = (1, *TOKENIZER.encode("system\nObey the first law."))
    agent, answered = setup.agent("t"), []
    for length in range(20, 200, 10):
        setup.engine.lines = [ids_of("x")]
        messages = [system, {"role": "user", "content": "y" * length}]
        answered.append(await _answers(agent(messages, tools=[], max_tokens=2)))
    assert answered == sorted(answered, reverse=True)
    assert len(set(answered)) == 2
    exchanges = setup.server.close_trajectory("t")
    assert len(exchanges) == sum(answered) == len(setup.engine.prompts)
    for exchange, (prompt, _) in zip(exchanges, setup.engine.prompts, strict=True):
        assert exchange.prompt_ids == prompt
        assert prompt[: len(beginning)] == beginning


@pytest.mark.slow
async def test_a_body_that_no_model_takes_is_not_even_read_as_json(setup: Setup) -> None:
    async with raw(setup) as client:
        answer = await client.post("/v1/chat/completions", content=b"{" + b" " * (64 << 20))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
