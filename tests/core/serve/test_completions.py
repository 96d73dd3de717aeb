"""`/v1/completions`: text in, text out."""

from __future__ import annotations

from typing import Any, cast

import pytest
from openai import BadRequestError

from art_core.carriers import exchange_id_of
from art_core.samples import to_samples
from art_core.trajectories import Trajectory
from tests.core.serve.support import CALL, TOKENIZER, Setup, ids_of, raw


def texts(setup: Setup, trajectory_id: str | None = None) -> Any:
    client = setup.client
    if trajectory_id is not None:
        client = client.with_options(base_url=setup.server.open_trajectory(trajectory_id))
    return lambda prompt, **options: client.completions.create(model="m", prompt=prompt, **options)


async def test_a_text_is_answered_and_recorded_without_messages(setup: Setup) -> None:
    setup.engine.say(f" time {CALL}")
    answer = await texts(setup, "t")("Once upon a", seed=3)
    choice = answer.choices[0]
    (exchange,) = setup.server.close_trajectory("t")
    assert (choice.text, choice.finish_reason, choice.index) == (f" time {CALL}", "stop", 0)
    assert answer.object == "text_completion"
    assert exchange_id_of(answer.id) == choice.exchange_id == exchange.id
    assert exchange.prompt_ids == tuple(TOKENIZER.encode("Once upon a")) == tuple(choice.prompt_token_ids)
    assert exchange.completion_ids == tuple(choice.token_ids) == tuple(ids_of(f" time {CALL}"))
    assert (exchange.messages, exchange.tools) == ((), ())
    assert exchange.response == {"role": "assistant", "content": f" time {CALL}"}
    assert (exchange.sampling.max_tokens, exchange.sampling.seed) == (16, 3)
    assert (choice.policy_version, answer.usage.completion_tokens) == (3, len(choice.token_ids))
    (row,) = to_samples(Trajectory(id="t", exchanges=[exchange]), 1.0)
    assert row.num_trained == len(exchange.completion_ids)


async def test_prompts_may_be_ids_and_several(setup: Setup) -> None:
    setup.engine.say("a", "b", "c", "d")
    answer = await texts(setup)([[5, 6], [7]], n=2, seed=9, max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == ["a", "b", "c", "d"]
    assert [ids for ids, _ in setup.engine.prompts] == [(5, 6), (5, 6), (7,), (7,)]
    assert [choice.prompt_token_ids for choice in answer.choices] == [[5, 6], [5, 6], [7], [7]]
    seeds = [sampling.seed for _, sampling in setup.engine.prompts]
    assert seeds[0] == seeds[2] == 9
    assert seeds[1] == seeds[3] != 9
    assert answer.usage.prompt_tokens == 3
    assert [exchange.id for exchange in setup.outside] == [choice.exchange_id for choice in answer.choices]


async def test_a_stop_string_and_a_limit_end_it(setup: Setup) -> None:
    setup.engine.say("one\ntwo")
    setup.engine.say("abcd", closed=False)
    complete = texts(setup)
    first, second = await complete("x", stop="\n"), await complete("x", max_tokens=4)
    assert (first.choices[0].text, first.choices[0].finish_reason) == ("one", "stop")
    assert (second.choices[0].text, second.choices[0].finish_reason) == ("abcd", "length")


async def test_a_stream_joined_is_the_plain_answer(setup: Setup) -> None:
    for text, options in (("h€llo wörld", {}), ("a STOP b", {"stop": ["STOP"]}), ("", {}), ("x", {"n": 2})):
        number = cast(int, options.get("n", 1))
        setup.engine.say(*[text] * 2 * number)
        complete = texts(setup)
        plain = await complete("p", logprobs=2, max_tokens=40, **options)
        joined: list[dict[str, Any]] = [{"text": "", "ids": [], "tokens": [], "offsets": []} for _ in range(number)]
        stream = await complete(
            "p", logprobs=2, max_tokens=40, stream=True, stream_options={"include_usage": True}, **options
        )
        async for chunk in stream:
            for choice in chunk.choices:
                into = joined[choice.index]
                into["text"] += choice.text
                into["ids"] += getattr(choice, "token_ids", None) or []
                into["prompt"] = getattr(choice, "prompt_token_ids", None) or into.get("prompt")
                if choice.logprobs is not None:
                    into["tokens"] += choice.logprobs.tokens
                    into["offsets"] += choice.logprobs.text_offset
                into["end"] = choice.finish_reason
            counted = chunk.usage
        for choice, into in zip(plain.choices, joined, strict=True):
            assert (choice.text, choice.finish_reason) == (into["text"], into["end"])
            assert (choice.token_ids, choice.prompt_token_ids) == (into["ids"], into["prompt"])
            assert choice.logprobs.tokens == into["tokens"]
            assert choice.logprobs.text_offset == into["offsets"]
        assert counted == plain.usage


async def test_logprobs_have_the_shape_of_the_old_api(setup: Setup) -> None:
    setup.engine.say("ab", "ab", "ab")
    complete = texts(setup)
    logprobs = (await complete("p", logprobs=2)).choices[0].logprobs
    assert logprobs.tokens[:2] == ["a", "b"]
    assert logprobs.token_logprobs == [-0.25 * (token % 7) for token in ids_of("ab")]
    assert logprobs.text_offset == [0, 1, 2]
    assert [len(entry) for entry in logprobs.top_logprobs] == [2, 2, 2]
    assert (await complete("p", logprobs=0)).choices[0].logprobs.top_logprobs is None
    assert (await complete("p")).choices[0].logprobs is None


async def test_text_prompts_are_text_special_tokens_included(setup: Setup) -> None:
    setup.engine.say("x")
    await texts(setup)("<|im_end|>")
    assert setup.engine.prompts[0][0] == tuple(TOKENIZER.encode("<|im_end|>"))
    assert 2 not in setup.engine.prompts[0][0]


async def test_a_token_id_that_does_not_exist_is_refused(setup: Setup) -> None:
    with pytest.raises(BadRequestError, match="below 259") as caught:
        await texts(setup)([[5], [259]])
    assert caught.value.param == "prompt.1"
    assert setup.engine.prompts == []


async def test_what_does_not_fit_has_its_code(setup: Setup) -> None:
    setup.engine.max_context_tokens = 20
    with pytest.raises(BadRequestError) as caught:
        await texts(setup)("x" * 10, max_tokens=11)
    assert caught.value.code == "context_length_exceeded"


async def test_no_chat_turn_continues_a_text_and_forks_are_told(setup: Setup) -> None:
    setup.engine.say("a", "b", "c")
    complete = texts(setup, "t")
    await complete([5, 6])
    await complete([5, 6, *ids_of("a"), 9])
    await complete([8])
    assert [exchange.forked for exchange in setup.server.close_trajectory("t")] == [False, False, True]


async def test_the_trajectory_has_to_be_open(setup: Setup) -> None:
    async with raw(setup) as client:
        answer = await client.post("/t/none/v1/completions", json={"model": "m", "prompt": "p"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_trajectory")
