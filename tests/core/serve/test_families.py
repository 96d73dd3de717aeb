"""Models whose chat template is their own, served through the `renderers` library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from openai import AsyncOpenAI, BadRequestError

from art_core.protocols import Engine
from art_core.render import ChatRenderer, load_renderer
from art_core.samples import to_samples
from art_core.serve.server import ModelServer
from art_core.trajectories import Trajectory
from tests.core.serve.support import TOOLS, USER, LineEngine

pytestmark = pytest.mark.slow

HEAD = """{%- if tools %}{{- '<|im_start|>system\\nTools: ' + (tools | tojson) + '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}"""
TAIL = """{{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
TURN = "{{- '<|im_start|>' + message.role + '\\n' + (message.content or '').split('</think>')[-1].lstrip('\\n') }}"
HERMES = """{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}{%- endfor %}"""
PYTHONIC = """{%- for call in message.tool_calls or [] %}{{- '[' + call.function.name + '()]' }}{%- endfor %}"""
SPREAD = HERMES.replace('{"name": ', '{ "name" : ')
TEMPLATES = {
    "spread": HEAD + TURN + SPREAD + TAIL,
    "hermes": HEAD + TURN + HERMES + TAIL,
    "pythonic": HEAD + TURN + PYTHONIC + TAIL,
    "unknown": HEAD + TURN + TAIL,
    "thinking": HEAD + TURN + TAIL + "{#- <think> #}",
}


def family(folder: Path, name: str) -> tuple[ChatRenderer, Any]:
    """A model folder with a byte tokenizer that has the tokens of Qwen, and the template of that name."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    plain = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate([*special, *alphabet])}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(special)
    backend.add_tokens(plain)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATES[name]
    tokenizer.save_pretrained(folder)
    return load_renderer(folder), tokenizer


class Family:
    def __init__(self, folder: Path, name: str) -> None:
        self.renderer, self.tokenizer = family(folder, name)
        self.engine = LineEngine()
        self.server = ModelServer(cast(Engine, self.engine), self.renderer, model_name="m")

    def say(self, text: str) -> None:
        self.engine.lines.append(self.tokenizer.encode(text + "<|im_end|>", add_special_tokens=False))

    async def ask(self, messages: Any, **options: Any) -> Any:
        async with AsyncOpenAI(base_url=self.server.base_url("t"), api_key="k", max_retries=0, timeout=20) as client:
            answer = await client.chat.completions.create(model="m", messages=messages, **options)
            return [chunk async for chunk in cast(Any, answer)] if options.get("stream") else answer


HERMES_CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


async def test_b064_calls_are_read_where_the_format_is_known(tmp_path: Path) -> None:
    model = Family(tmp_path, "hermes")
    async with model.server as server:
        server.open_trajectory("t")
        model.say(HERMES_CALL)
        choice = (await model.ask([USER], tools=TOOLS)).choices[0]
        assert [(c.function.name, c.function.arguments) for c in choice.message.tool_calls] == [("f", '{"a":1}')]
        assert choice.finish_reason == "tool_calls"
        model.say(HERMES_CALL)
        model.say(f"{HERMES_CALL}\n{HERMES_CALL}")
        for options in ({"tool_choice": "required"}, {"parallel_tool_calls": False}):
            message = (await model.ask([USER], tools=TOOLS, **options)).choices[0].message
            assert [call.function.name for call in message.tool_calls] == ["f"]
        grammar = model.engine.prompts[1][1].grammar or ""
        assert grammar == model.renderer.tool_call_grammar(TOOLS)
        assert 'call_0: <tool_call> "\\n{\\"name\\": \\"f\\", \\"arguments\\": " arguments_0' in grammar


async def test_b064_a_call_is_required_only_where_its_spelling_is_known(tmp_path: Path) -> None:
    model = Family(tmp_path, "spread")
    async with model.server as server:
        server.open_trajectory("t")
        model.say(HERMES_CALL)
        assert (await model.ask([USER], tools=TOOLS)).choices[0].message.tool_calls
        with pytest.raises(BadRequestError) as caught:
            await model.ask([USER], tools=TOOLS, tool_choice="required")
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "tool_choice")


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["hermes", "spread"])
async def test_an_only_call_ends_sampling_also_where_its_spelling_is_not_known(
    tmp_path: Path, name: str, streaming: bool
) -> None:
    model = Family(tmp_path, name)
    model.engine.chunk_size = 7
    async with model.server as server:
        server.open_trajectory("t")
        model.say(f"One: }} {HERMES_CALL}\n{HERMES_CALL}")
        answer = await model.ask([USER], tools=TOOLS, parallel_tool_calls=False, stream=streaming)
        [exchange] = server.close_trajectory("t")
        if streaming:
            calls = [call for chunk in answer for call in chunk.choices[0].delta.tool_calls or ()]
            content = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        else:
            calls, content = answer.choices[0].message.tool_calls, answer.choices[0].message.content
        assert [(c.function.name, c.function.arguments) for c in calls] == [("f", '{"a":1}')]
        assert content.rstrip() == "One: }"
        assert len(exchange.response["tool_calls"]) == 1
    assert model.tokenizer.decode(exchange.completion_ids) == f"One: }} {HERMES_CALL}"
    assert exchange.finish_reason == "stop"


@pytest.mark.parametrize("name", ["pythonic", "unknown"])
async def test_b064_tools_are_refused_by_name_where_it_is_not(tmp_path: Path, name: str) -> None:
    model = Family(tmp_path, name)
    async with model.server as server:
        server.open_trajectory("t")
        with pytest.raises(BadRequestError) as caught:
            await model.ask([USER], tools=TOOLS)
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "tools")
        assert model.engine.prompts == []
        model.say("hi")
        assert (await model.ask([USER], tools=TOOLS, tool_choice="none")).choices[0].message.content == "hi"


@pytest.mark.parametrize("streaming", [False, True])
async def test_stop_strings_end_sampling_also_where_answers_are_parsed_at_their_end(
    tmp_path: Path, streaming: bool
) -> None:
    model = Family(tmp_path, "hermes")
    async with model.server as server:
        server.open_trajectory("t")
        for text, shown in ((f"é {HERMES_CALL}\nthen STOP it", "é"), ("one STOP two", "one ")):
            model.say(text)
            with_tools: dict[str, Any] = {"tools": TOOLS} if "tool" in text else {}
            answer = await model.ask([USER], stop=["STOP"], stream=streaming, **with_tools)
            if streaming:
                content = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
            else:
                content = answer.choices[0].message.content
            assert content.startswith(shown)
            assert "STOP" not in content
        first, second = server.close_trajectory("t")
        drawn = model.tokenizer.decode(first.completion_ids)
        assert drawn.endswith("then STOP")
        assert [call["function"]["name"] for call in first.response["tool_calls"]] == ["f"]
        assert model.tokenizer.decode(second.completion_ids) == "one STOP"


async def test_b005_each_turn_is_trained_once_in_the_context_that_was_sent(tmp_path: Path) -> None:
    model = Family(tmp_path, "thinking")
    async with model.server as server:
        server.open_trajectory("t")
        model.say("<think>a</think>4")
        message = (await model.ask([{"role": "user", "content": "2+2?"}])).choices[0].message
        assert (message.reasoning_content, message.content) == ("a", "4")
        model.say("<think>b</think>6")
        history = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
        await model.ask([*history, {"role": "user", "content": "3+3?"}])
        first, second = server.close_trajectory("t")
    rows = to_samples(Trajectory(id="t", exchanges=[first, second]), 1.0)
    assert sum(row.num_trained for row in rows) == len(first.completion_ids) + len(second.completion_ids)
    assert [exchange.prompt_ids for exchange in (first, second)] == [prompt for prompt, _ in model.engine.prompts]
    assert [first.forked, second.forked] == [False, True]
    assert "<think>" not in model.tokenizer.decode(second.prompt_ids)
    for row, exchange in zip(rows, (first, second), strict=True):
        assert row.token_ids == exchange.prompt_ids + exchange.completion_ids


async def test_text_completions_of_any_model(tmp_path: Path) -> None:
    model = Family(tmp_path, "thinking")
    async with model.server as server:
        model.say("<think>a</think>b STOP")
        async with AsyncOpenAI(base_url=server.base_url(), api_key="k", max_retries=0) as client:
            answer = await client.completions.create(model="m", prompt="<|im_end|>é", stop="STOP", max_tokens=40)
    assert answer.choices[0].text == "<think>a</think>b "
    prompt = json.loads(answer.model_dump_json())["choices"][0]["prompt_token_ids"]
    assert model.tokenizer.decode(prompt) == "<|im_end|>é"
    assert model.tokenizer.convert_tokens_to_ids("<|im_end|>") not in prompt
