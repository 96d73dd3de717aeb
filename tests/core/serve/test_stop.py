"""Stop strings: in pure text, in a parser, and over the wire."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_core.render.parsing import StopScanner
from tests.core.serve.support import CALL, END, TOKENIZER, USER, Setup, collected, ids_of, raw


def scanned(text: str, stops: list[str], cuts: list[int] | None = None) -> tuple[list[str], bool]:
    scanner = StopScanner(stops)
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts or []), len(text)]
    pieces = [scanner.push(text[start:end]) for start, end in itertools.pairwise(borders)]
    return [*pieces, scanner.finish()], scanner.found


def first_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """What precedes the stop string that is completed first, by trying every beginning of the text."""
    for end in range(len(text) + 1):
        if starts := [end - len(stop) for stop in stops if text[:end].endswith(stop)]:
            return text[: min(starts)], True
    return text, False


@pytest.mark.parametrize(
    ("text", "stops", "shown", "found"),
    [
        ("abcd", ["c"], "ab", True),
        ("abcd", ["bc", "c"], "a", True),
        ("abcd", ["c", "abcd"], "ab", True),
        ("aab", ["ab"], "a", True),
        ("aaab", ["aab"], "a", True),
        ("abc", ["abcd"], "abc", False),
        ("abc", [], "abc", False),
        ("stop", ["stop"], "", True),
    ],
)
def test_text_ends_where_the_first_completed_stop_string_begins(
    text: str, stops: list[str], shown: str, found: bool
) -> None:
    pieces, was_found = scanned(text, stops)
    assert ("".join(pieces), was_found) == (shown, found)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    scanner = StopScanner(["END", "\n\n"])
    assert [scanner.push(piece) for piece in ("a\n", "b", "E", "N", "x", "EN", "D", "y")] == [
        *("a", "\nb", "", "", "ENx", "", "", ""),
    ]
    assert (scanner.found, scanner.finish()) == (True, "")


small = st.text(alphabet="abc", max_size=12)


@given(small, st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=4), st.lists(st.integers(0, 12)))
def test_what_is_shown_does_not_depend_on_the_pieces(text: str, stops: list[str], cuts: list[int]) -> None:
    pieces, found = scanned(text, stops, cuts)
    assert ("".join(pieces), found) == first_stop(text, stops)


@pytest.mark.parametrize("chunk_size", [1, 3, 50])
async def test_sampling_ends_with_the_token_that_completes_the_stop_string(setup: Setup, chunk_size: int) -> None:
    setup.engine.chunk_size = chunk_size
    setup.engine.say("Thought. Observation: it rains", "Thought. Observation: it rains")
    agent = setup.agent("t")
    choice = (await agent([USER], stop=["\n", "Observation:"], logprobs=True)).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Thought. ", "stop")
    drawn = ids_of("Thought. Observation:", closed=False)
    assert choice.token_ids == drawn
    assert [entry.token for entry in choice.logprobs.content] == list("Thought. Observation:")
    joined = await collected(await agent([USER], stop="Observation:", stream=True))
    assert (joined["content"], joined["finish_reason"], joined["token_ids"]) == ("Thought. ", "stop", drawn)
    plain, streamed = setup.server.close_trajectory("t")
    assert plain.completion_ids == streamed.completion_ids == tuple(drawn)
    assert (plain.finish_reason, plain.response["content"]) == ("stop", "Thought. ")
    assert setup.engine.freed.is_set()


async def test_a_possible_beginning_is_held_back_from_the_stream_and_comes_when_it_is_none(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art_core.serve.reply._LEAST_GAP_S", 0.0)  # an event for each token
    setup.engine.say("ab###c")
    stream = await setup.agent("t")([USER], stop=["####"], stream=True)
    texts = [c.choices[0].delta.content async for c in stream if c.choices and c.choices[0].delta.content]
    assert texts == ["a", "b", "###c"]


async def test_characters_spread_over_tokens_are_found(setup: Setup) -> None:
    setup.engine.say("x€y😀z")
    choice = (await setup.agent("t")([USER], stop=["😀"])).choices[0]
    assert (choice.message.content, choice.token_ids) == ("x€y", ids_of("x€y😀", closed=False))


async def test_the_end_of_the_turn_wins_over_a_stop_string_that_never_came(setup: Setup) -> None:
    setup.engine.say("ab#")
    choice = (await setup.agent("t")([USER], stop=["##"])).choices[0]
    assert (choice.message.content, choice.finish_reason, choice.token_ids[-1]) == ("ab#", "stop", END)


async def test_a_limit_reached_by_the_stop_string_itself_is_a_stop(setup: Setup) -> None:
    setup.engine.say("ab#", "ab", closed=False)
    agent = setup.agent("t")
    reasons = [(await agent([USER], stop=["#"])).choices[0].finish_reason for _ in range(2)]
    assert reasons == ["stop", "length"]


async def test_a_stop_string_inside_a_call_ends_the_answer_and_a_whole_call_before_it_is_kept(setup: Setup) -> None:
    setup.engine.say(f"{CALL}\nnow wait", '<tool_call>\n{"name": "f", "arguments": {"a": "STOP"}}')
    agent = setup.agent("t")
    first = (await agent([USER], stop="wait")).choices[0]
    assert ([c.function.name for c in first.message.tool_calls], first.message.content) == (["f"], "now ")
    assert first.finish_reason == "tool_calls"
    second = (await agent([USER], stop="STOP")).choices[0]
    assert (second.message.tool_calls, second.malformed_tool_calls) == (None, 1)
    assert "STOP" not in second.message.content


async def test_the_next_turn_extends_what_was_drawn_stop_string_included(setup: Setup) -> None:
    setup.engine.say("Act. Observation: x", "done")
    agent = setup.agent("t")
    message = (await agent([USER], stop=["Observation:"])).choices[0].message
    await agent([USER, message, {"role": "user", "content": "rain"}], stop=["Observation:"])
    first, second = setup.server.close_trajectory("t")
    whole = first.prompt_ids + first.completion_ids
    assert second.prompt_ids[: len(whole)] == whole
    assert not second.forked
    added = TOKENIZER.decode(second.prompt_ids[len(whole) :])
    assert added == "<|im_end|>\n<|im_start|>user\nrain<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("stop", [["a"] * 5, [""], "", [3], {"a": 1}])
async def test_a_wrong_stop_is_refused(setup: Setup, stop: Any) -> None:
    body = {"model": "m", "messages": [USER], "stop": stop}
    async with raw(setup) as client:
        answer = await client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")
    assert answer.json()["error"]["param"].startswith("stop")
