"""What restricts an answer: `tool_choice`, `parallel_tool_calls`, `response_format`, and the grammars they become."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from openai import BadRequestError

from art_core.render.calls import COMPACT_HERMES
from art_core.render.grammars import json_object_grammar, json_schema_grammar, regex_grammar
from art_core.render.hermes import call_text
from tests.core.serve.support import CALL, RENDERER, TOKENIZER, TOOLS, USER, Setup, collected, ids_of

BYTES = LLTokenizer("byte")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/count"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"count": {"type": "integer", "minimum": 1}},
}
WEATHER: Any = {"type": "function", "function": {"name": 'we"ather', "parameters": SCHEMA}}
PING: Any = {"type": "function", "function": {"name": "ping"}}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": SCHEMA}}


def accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.consume_tokens(BYTES.tokenize_str(text))) and bool(matcher.is_accepting())


def call(name: str, arguments: Any) -> str:
    return call_text({"name": name, "arguments": arguments})


GOOD, OTHER = call('we"ather', {"city": "Bonn", "days": 2}), call("ping", {"anything": [1]})


@pytest.mark.parametrize(
    ("only_one", "text", "accepted"),
    [
        (False, GOOD, True),
        (False, OTHER, True),
        (False, f"{GOOD}\n{OTHER}", True),
        (True, GOOD, True),
        (True, f"{GOOD}\n{OTHER}", False),
        (False, call('we"ather', {"city": "Bonn", "days": 0}), False),
        (False, call('we"ather', {"days": 1}), False),
        (False, call("nosuch", {}), False),
        (False, call("ping", [1]), False),
        (False, "hello", False),
        (False, f"hello {GOOD}", False),
        (False, "", False),
        (False, '{"city":"Bonn"}', False),
    ],
)
def test_a_grammar_of_calls_accepts_calls_as_they_are_rendered(only_one: bool, text: str, accepted: bool) -> None:
    grammar = RENDERER.tool_call_grammar([WEATHER, PING], only_one=only_one)
    assert accepts(grammar or "", text) is accepted


def test_with_another_answer_allowed_it_is_calls_or_that() -> None:
    grammar = RENDERER.tool_call_grammar([PING], instead=SCHEMA) or ""
    texts = (OTHER, '{"city": "Bonn"}', '{"city":"Bonn","days":0}', f'{{"city":"B"}}{OTHER}', "x")
    assert [accepts(grammar, text) for text in texts] == [True, True, False, False, False]


def test_tags_that_are_special_tokens_of_a_model_are_those_tokens() -> None:
    grammar = COMPACT_HERMES.grammar([{"name": "f"}], only_one=True, special=["<tool_call>", "</tool_call>"])
    assert grammar.splitlines()[3].startswith('call_0: <tool_call> "')
    assert LLMatcher.validate_grammar_with_warnings(grammar)[0] is False


def test_grammars_of_values() -> None:
    assert [accepts(json_object_grammar(), text) for text in ('{"a": [1]}', "[1]", "{")] == [True, False, False]
    assert [accepts(json_schema_grammar({"type": "integer"}), text) for text in ("12", "1.5")] == [True, False]
    assert [accepts(regex_grammar("a/b+"), text) for text in ("a/bb", "a/", "xa/b")] == [True, False, False]


names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=6)
flat = st.dictionaries(st.text("ab", max_size=3), st.integers(-5, 5) | st.text("xy<>/", max_size=6), max_size=3)


@given(names, flat)
def test_every_call_that_a_renderer_writes_fits_its_own_grammar(name: str, arguments: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": name}}
    assert accepts(RENDERER.tool_call_grammar([tool]) or "", call(name, arguments))


async def test_a_required_call_is_a_restriction_of_sampling(setup: Setup) -> None:
    setup.engine.say(f"{CALL}\n{CALL}", CALL, CALL)
    agent = setup.agent("t")
    named = {"type": "function", "function": {"name": "f"}}
    required = await agent([USER], tool_choice="required")
    one = await agent([USER], tool_choice="required", parallel_tool_calls=False)
    by_name = await agent([USER], tools=[*TOOLS, PING], tool_choice=named)
    assert [len(answer.choices[0].message.tool_calls) for answer in (required, one, by_name)] == [2, 1, 1]
    assert {answer.choices[0].finish_reason for answer in (required, one, by_name)} == {"tool_calls"}
    sent = [sampling.grammar for _, sampling in setup.engine.prompts]
    assert sent == [
        RENDERER.tool_call_grammar(TOOLS),
        RENDERER.tool_call_grammar(TOOLS, only_one=True),
        RENDERER.tool_call_grammar(TOOLS, only_one=True),
    ]
    exchanges = setup.server.close_trajectory("t")
    assert [exchange.sampling.grammar for exchange in exchanges] == sent
    assert exchanges[2].tools == (*TOOLS, PING), "all tools are shown, so a prompt does not depend on the choice"


@pytest.mark.parametrize("chunk_size", [1, 1000])
async def test_without_parallel_calls_the_answer_ends_with_the_first(setup: Setup, chunk_size: int) -> None:
    setup.engine.chunk_size = chunk_size
    setup.engine.say(f"I ask. {CALL}\n{CALL}", f"I ask. {CALL} and", "I never call")
    agent = setup.agent("t")
    choice = (await agent([USER], parallel_tool_calls=False)).choices[0]
    assert (choice.message.content, len(choice.message.tool_calls), choice.finish_reason) == ("I ask.", 1, "tool_calls")
    assert choice.token_ids == ids_of(f"I ask. {CALL}", closed=False)
    joined = await collected(await agent([USER], parallel_tool_calls=False, stream=True))
    assert ([c[1:] for c in joined["calls"].values()], joined["content"]) == ([("f", '{"a":1}')], "I ask.")
    assert (await agent([USER], parallel_tool_calls=False)).choices[0].message.content == "I never call"
    assert [sampling.grammar for _, sampling in setup.engine.prompts] == [None] * 3


async def test_the_turn_after_an_only_call_extends_what_was_drawn(setup: Setup) -> None:
    setup.engine.say(f"{CALL}\n{CALL}", "ok")
    agent = setup.agent("t")
    message = (await agent([USER], parallel_tool_calls=False)).choices[0].message
    await agent([USER, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}])
    first, second = setup.server.close_trajectory("t")
    whole = first.prompt_ids + first.completion_ids
    assert second.prompt_ids[: len(whole)] == whole
    added = TOKENIZER.decode(second.prompt_ids[len(whole) :])
    assert added == "<|im_end|>\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n"


async def test_a_response_format_is_a_restriction_of_sampling(setup: Setup) -> None:
    setup.engine.say('{"a": 1}', '{"city":"Bonn"}', '{"city":"Bonn"}', CALL, "x")
    agent = setup.agent("t")
    formats = [{"type": "json_object"}, FORMAT, {**FORMAT, "json_schema": {"name": "n", "schema": SCHEMA}}]
    answers = [await agent([USER], tools=[], response_format=each) for each in formats]
    assert [json.loads(answer.choices[0].message.content) for answer in answers[1:]] == [{"city": "Bonn"}] * 2
    with_tools = await agent([USER], response_format=FORMAT)
    assert with_tools.choices[0].message.tool_calls[0].function.name == "f"
    await agent([USER], response_format={"type": "text"})
    assert [sampling.grammar for _, sampling in setup.engine.prompts] == [
        json_object_grammar(),
        json_schema_grammar(SCHEMA),
        json_schema_grammar(SCHEMA),
        RENDERER.tool_call_grammar(TOOLS, instead=SCHEMA),
        None,
    ]


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "strin"}, "strin"),
        ({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}, '"not"'),
        ({"type": "object", "if": {}, "then": {}}, '"if", "then"'),
        ({"properties": 5}, "properties must be an object"),
        ({"$ref": "#/$defs/none"}, "/$defs/none"),
        ({"$ref": "http://example.org/x"}, "example.org"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
        ({"type": "array", "minItems": 3, "maxItems": 1}, "minItems"),
        ({"type": "string", "format": "nonsense"}, "nonsense"),
    ],
)
async def test_a_schema_that_cannot_be_enforced_is_refused_by_what_is_wrong(
    setup: Setup, schema: Any, named: str
) -> None:
    agent = setup.agent("t")
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    with pytest.raises(BadRequestError) as caught:
        await agent([USER], tools=[], response_format=wanted)
    assert (caught.value.code, caught.value.param) == ("invalid_json_schema", "response_format")
    assert named in str(caught.value)
    parameters = {"properties": {"x": schema}, "required": ["x"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    with pytest.raises(BadRequestError) as caught:
        await agent([USER], tools=[PING, tool], tool_choice="required")
    assert caught.value.code == "invalid_function_parameters"
    assert caught.value.param == "tools[1].function.parameters"
    assert setup.engine.prompts == []


async def test_a_tool_that_is_only_offered_may_use_any_keyword(setup: Setup) -> None:
    setup.engine.say("ok")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}
    assert (await setup.agent("t")([USER], tools=[tool])).choices[0].message.content == "ok"


async def test_a_model_whose_format_is_not_known_refuses_by_name(setup: Setup, monkeypatch: Any) -> None:
    monkeypatch.setattr(type(RENDERER), "tool_call_grammar", lambda *_, **__: None)
    monkeypatch.setattr(type(RENDERER), "prefill_ids", lambda *_: None)
    agent = setup.agent("t")
    begun = [USER, {"role": "assistant", "content": "x"}]
    for messages, options, param in (
        ([USER], {"tool_choice": "required"}, "tool_choice"),
        ([USER], {"response_format": FORMAT}, "response_format"),
        (begun, {}, "messages"),
    ):
        with pytest.raises(BadRequestError) as caught:
            await agent(messages, **options)
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", param)
    monkeypatch.setattr(type(RENDERER), "supports_tools", False)
    with pytest.raises(BadRequestError) as caught:
        await agent([USER])
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "tools")


@pytest.mark.parametrize("keyword", [{"not": {}}, {"$ref": "#"}, {"properties": {"x": {"pattern": "(?=a)b"}}}])
async def test_a_refusal_of_a_tools_schema_quotes_the_reason_and_nothing_of_the_grammar(
    setup: Setup, keyword: dict[str, Any]
) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", **keyword}}}]
    with pytest.raises(BadRequestError) as caught:
        await setup.agent("t")([USER], tools=tools, tool_choice="required")
    assert caught.value.code == "invalid_function_parameters"
    message = str(caught.value)
    assert "cannot be enforced: " in message
    assert all(ours not in message for ours in ("x-guidance", "call_0", "arguments_0", "start:"))


async def test_a_schema_that_takes_long_to_check_holds_up_nobody_and_one_that_is_too_large_is_refused(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, threads = threading.Event(), threading.Event(), []

    def slow(*_: object, **__: object) -> None:
        begun.set()
        threads.append(threading.current_thread())
        go_on.wait(20)

    monkeypatch.setattr("art_core.serve.chat.check_grammar", slow)
    setup.engine.say("meanwhile", '{"city":"Bonn"}')
    agent = setup.agent("t")
    long = asyncio.create_task(agent([USER], tools=[], response_format=FORMAT))
    await asyncio.to_thread(begun.wait, 20)
    assert (await agent([USER], tools=[])).choices[0].message.content == "meanwhile"
    go_on.set()
    assert json.loads((await long).choices[0].message.content) == {"city": "Bonn"}
    assert threads[0] is not threading.main_thread()
    monkeypatch.undo()
    schema = {"type": "object", "properties": {f"property_{i}": {"type": "string"} for i in range(5000)}}
    with pytest.raises(BadRequestError, match="wanted at most 120000") as caught:
        await agent([USER], response_format={**FORMAT, "json_schema": {"name": "n", "schema": schema}})
    assert caught.value.code == "invalid_json_schema"
