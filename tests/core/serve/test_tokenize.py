"""`POST /tokenize` answers with the prompt that a call would have."""

from __future__ import annotations

from typing import Any

from art_core.render.chatml import ChatMLHermesRenderer
from tests.core.serve.support import TOKENIZER, TOOLS, USER, Setup, raw


async def test_a_chat_calls_prompt_is_the_one_that_it_is_sampled_after(setup: Setup) -> None:
    setup.engine.say("x", "x")
    bodies: list[dict[str, Any]] = [
        {"model": "m", "messages": [USER]},
        {"model": "m", "messages": [USER], "tools": TOOLS},
        {"model": "m", "messages": [USER], "tools": TOOLS, "tool_choice": "none"},
    ]
    async with raw(setup) as client:
        answers = [(await client.post("/tokenize", json=body)).json() for body in bodies]
        for body in bodies[:2]:
            await client.post("/v1/chat/completions", json=body)
    assert [tuple(answer["tokens"]) for answer in answers[:2]] == [prompt for prompt, _ in setup.engine.prompts]
    assert [answer["count"] for answer in answers] == [len(answer["tokens"]) for answer in answers]
    assert answers[2] == answers[0]
    assert answers[0]["max_model_len"] == setup.engine.max_context_tokens
    assert len(setup.outside) == 2, "counting records nothing"


async def test_an_answer_at_the_end_may_be_whole(setup: Setup) -> None:
    answer: Any = {"role": "assistant", "content": "yo"}
    call: Any = {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    async with raw(setup) as client:
        for messages in ([USER], [USER, answer], [USER, call], [answer]):
            body = {"model": "m", "messages": messages, "continue_final_message": False}
            tokens = (await client.post("/tokenize", json=body)).json()["tokens"]
            assert tokens == ChatMLHermesRenderer(TOKENIZER).render_ids(messages, add_generation_prompt=True)


async def test_a_text_is_encoded_as_text_and_ids_are_counted(setup: Setup) -> None:
    async with raw(setup) as client:
        text = await client.post("/tokenize", json={"model": "m", "prompt": "<|im_end|>é"})
        ids = await client.post("/t/any/tokenize", json={"model": "m", "prompt": [1, 2, 3]})
    assert text.json()["tokens"] == list(TOKENIZER.encode("<|im_end|>é"))
    assert ids.json()["tokens"] == [1, 2, 3]
    assert setup.engine.prompts == []


async def test_what_no_call_may_say_is_refused_and_what_is_too_long_is_counted(setup: Setup) -> None:
    refused: list[dict[str, Any]] = [
        {"model": "other", "messages": [USER]},
        {"model": "m", "messages": []},
        {"model": "m", "messages": [USER], "what": 1},
        {"model": "m", "prompt": ["a", "b"]},
        {"model": "m"},
    ]
    async with raw(setup) as client:
        codes = [(await client.post("/tokenize", json=body)).status_code for body in refused]
        long = await client.post("/tokenize", json={"model": "m", "prompt": "a" * 9999})
    assert codes == [404, 400, 400, 400, 400]
    assert (long.json()["count"], long.json()["max_model_len"]) == (9999, 4096)


async def test_a_server_of_one_model_knows_the_step_it_serves(setup: Setup) -> None:
    setup.engine.say("x")
    async with raw(setup) as client:
        for step, code in ((3, 200), (2, 404)):
            body = {"model": f"m@{step}", "messages": [USER]}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == code
