"""A prompt that is far too long is refused before it is turned into tokens: nobody else waits for that."""

from __future__ import annotations

import pytest

from tests.core.serve.support import TOKENIZER, Setup, raw


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


@pytest.mark.slow
async def test_a_body_that_no_model_takes_is_not_even_read_as_json(setup: Setup) -> None:
    async with raw(setup) as client:
        answer = await client.post("/v1/chat/completions", content=b"{" + b" " * (64 << 20))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
