"""Exactly what a model has to say is trained, for every family of chat templates."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art_core.control import SftExample
from art_core.errors import DataError
from art_core.render import ChatRenderer, ContentDelta, ToolCallDelta
from art_core.sft.masks import Answer, answers_of, rows_of_answers
from art_core.types import Exchange, Sampling, TokenSample
from tests.core.sft.families import FAMILIES, renderer_of

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look.",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
        },
    }
]
SYSTEM, USER, NEXT = ({"role": role, "content": text} for role, text in (("system", "S"), ("user", "U"), ("user", "V")))
WORD = st.text("abc é<>{}\"'", min_size=1, max_size=8)
every_family = pytest.mark.parametrize("family", FAMILIES)


def call(number: int, at: str) -> dict[str, Any]:
    arguments = json.dumps({"at": at}, ensure_ascii=False)
    return {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": arguments}}


def text_of(renderer: ChatRenderer, ids: Any) -> str:
    decode: Any = getattr(renderer, "_decoded", None)
    whole: Any = renderer
    return str((decode or whole._tokenizer.decode)(list(ids)))


def trained_text(renderer: ChatRenderer, row: TokenSample) -> str:
    return text_of(renderer, [token for token, flag in zip(row.token_ids, row.trained, strict=True) if flag])


def untrained_text(renderer: ChatRenderer, row: TokenSample) -> str:
    return text_of(renderer, [token for token, flag in zip(row.token_ids, row.trained, strict=True) if not flag])


def rows_of(family: str, messages: list[Any], tools: Any = (), train_on: str = "all") -> list[TokenSample]:
    renderer = renderer_of(family)
    return rows_of_answers(answers_of(example(messages, tools), renderer, train_on), "s")


def example(messages: list[Any], tools: Any = ()) -> SftExample:
    return SftExample(source="s", messages=messages, tools=list(tools))


@st.composite
def conversations(draw: st.DrawFn, *, with_tools: bool) -> list[dict[str, Any]]:
    """Messages each of which has a mark of its own, `Q<number>Z`, in what it says."""
    messages: list[dict[str, Any]] = []

    def marked() -> str:
        # Templates strip texts and dates may be anywhere, so marks stand at both ends.
        return f"Q{len(messages)}Z {draw(WORD)} Q{len(messages)}Z"

    if draw(st.booleans()):
        messages.append({"role": "system", "content": marked()})
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": marked()})
        for _ in range(draw(st.integers(0, 2)) if with_tools else 0):
            at = f"Q{len(messages)}Z"
            reasoning = {"reasoning_content": f"R{len(messages)}Z"} if draw(st.booleans()) else {}
            calls = [call(len(messages), at)]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls, **reasoning})
            messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "name": "look", "content": marked()})
        reasoning = {"reasoning_content": f"R{len(messages)}Z"} if draw(st.booleans()) else {}
        weight = {"weight": 0} if draw(st.integers(0, 4)) == 0 else {}
        messages.append({"role": "assistant", "content": marked(), **reasoning, **weight})
    messages[-1].pop("weight", None)
    return messages


def said(renderer: ChatRenderer, answer: Answer, tools: Any) -> tuple[str, list[Any]]:
    """Content and calls that the server would read from the answer, had the model sampled it."""
    parser = renderer.completion_parser(tools=tools, prompt_ids=answer.prompt_ids)
    own = [token for token, flag in zip(answer.completion_ids, answer.trained, strict=True) if flag]
    deltas = [*parser.push(own), *parser.finish()]
    content = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
    return content.strip(), [json.loads(d.arguments) for d in deltas if isinstance(d, ToolCallDelta)]


@every_family
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_each_answer_is_trained_once_and_reads_as_what_was_said(family: str, data: st.DataObject) -> None:
    renderer = renderer_of(family)
    tools = TOOLS if renderer.supports_tools else []
    messages = data.draw(conversations(with_tools=bool(tools)))
    answers = answers_of(example(messages, tools), renderer, "all")
    rows = rows_of_answers(answers, "s")
    trained = [(i, m) for i, m in enumerate(messages) if m["role"] == "assistant" and m.get("weight") != 0]
    assert len(answers) == len(trained)
    stops = renderer.get_stop_token_ids()
    for answer, (index, message) in zip(answers, trained, strict=True):
        assert answer.has_end
        assert answer.completion_ids[-1] in stops
        text = text_of(renderer, answer.completion_ids)
        assert text.count(f"Q{index}Z") == (1 if message.get("tool_calls") else 2)
        assert (f"R{index}Z" in text) == (answer.says_reasoning and "reasoning_content" in message)
        if answer.in_history_form:  # then the prompt that was trained on is not the one it is read behind
            continue
        content, calls = said(renderer, answer, tools)
        assert calls == [json.loads(c["function"]["arguments"]) for c in message.get("tool_calls", [])]
        assert (message["content"] or "").strip() in content
    # The rows hold what the answers hold, in another order at most, and nothing else is trained.
    emitted = sorted(
        tuple(token for token, flag in zip(a.completion_ids, a.trained, strict=True) if flag) for a in answers
    )
    assert sum(row.num_trained for row in rows) == sum(len(ids) for ids in emitted)
    everything = "".join(trained_text(renderer, row) for row in rows)
    for index, message in enumerate(messages):
        is_trained = (index, message) in trained
        assert everything.count(f"Q{index}Z") == (0 if not is_trained else 1 if message.get("tool_calls") else 2)
    first = untrained_text(renderer, rows[0])
    if len(rows) == 1:
        assert not [index for index, _ in trained if f"Q{index}Z" in first]


@every_family
def test_the_prompt_of_an_answer_is_what_the_server_would_show(family: str) -> None:
    renderer = renderer_of(family)
    messages = [SYSTEM, USER, {"role": "assistant", "content": "A1"}, NEXT, {"role": "assistant", "content": "A2"}]
    for answer, index in zip(answers_of(example(messages), renderer, "all"), (2, 4), strict=True):
        shown = renderer.render_ids(messages[:index], tools=[], add_generation_prompt=True)
        if not answer.in_history_form:
            assert list(answer.prompt_ids) == shown
        assert "A" not in text_of(renderer, shown)[-1:]


@every_family
def test_only_the_last_answer(family: str) -> None:
    messages = [USER, {"role": "assistant", "content": "first"}, NEXT, {"role": "assistant", "content": "second"}, USER]
    [row] = rows_of(family, messages, train_on="last")
    text = trained_text(renderer_of(family), row)
    assert "second" in text
    assert "first" not in text


def test_chatml_to_the_token() -> None:
    messages = [SYSTEM, USER, {"role": "assistant", "content": "A1"}, NEXT, {"role": "assistant", "content": "A2"}]
    [row] = rows_of("chatml", messages)
    renderer = renderer_of("chatml")
    spans: list[tuple[bool, str]] = []
    for token, flag in zip(row.token_ids, row.trained, strict=True):
        if spans and spans[-1][0] == flag:
            spans[-1] = (flag, spans[-1][1] + text_of(renderer, [token]))
        else:
            spans.append((flag, text_of(renderer, [token])))
    assert spans == [
        (False, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"),
        (True, "A1<|im_end|>"),
        (False, "\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n"),
        (True, "A2<|im_end|>"),
    ]


def test_a_template_that_drops_old_thinking_opens_a_row() -> None:
    messages = [
        USER,
        {"role": "assistant", "content": "A1", "reasoning_content": "R1"},
        NEXT,
        {"role": "assistant", "content": "A2", "reasoning_content": "R2"},
    ]
    renderer = renderer_of("qwen3")
    first, second = rows_of("qwen3", messages)
    assert trained_text(renderer, first) == "<think>\nR1\n</think>\n\nA1<|im_end|>"
    assert trained_text(renderer, second) == "<think>\nR2\n</think>\n\nA2<|im_end|>"
    assert "R1" not in text_of(renderer, second.token_ids)
    assert "A1" in untrained_text(renderer, second)


def test_a_prompt_that_opens_the_thinking_is_not_trained() -> None:
    messages = [USER, {"role": "assistant", "content": "A", "reasoning_content": "R"}]
    [row] = rows_of("qwen3.5", messages)
    renderer = renderer_of("qwen3.5")
    assert untrained_text(renderer, row).endswith("<|im_start|>assistant\n<think>\n")
    assert trained_text(renderer, row) == "R\n</think>\n\nA<|im_end|>"


def test_a_turn_that_ends_with_the_next_ones_opening() -> None:
    calling = {"role": "assistant", "content": "", "tool_calls": [call(0, "door")]}
    messages = [USER, calling, {"role": "tool", "tool_call_id": "c0", "name": "look", "content": "T"}]
    renderer = renderer_of("glm-4.5")
    [row] = rows_of("glm-4.5", [*messages, {"role": "assistant", "content": "A"}], TOOLS)
    text = trained_text(renderer, row)
    assert text.count("<|observation|>") == text.count("<|user|>") == 1
    assert text.endswith("A<|user|>")
    assert trained_text(renderer, rows_of("glm-4.5", messages[:2], TOOLS)[0]).endswith("</tool_call><|observation|>")


def test_where_the_answer_cannot_follow_the_prompt_it_is_counted() -> None:
    plain = [USER, {"role": "assistant", "content": "A"}]
    [answer] = answers_of(example(plain), renderer_of("nemotron-3"), "all")
    assert answer.in_history_form
    assert text_of(renderer_of("nemotron-3"), answer.completion_ids) == "</think>A<|im_end|>"
    reasoned = [USER, {"role": "assistant", "content": "A", "reasoning_content": "R"}]
    [answer] = answers_of(example(reasoned), renderer_of("nemotron-3"), "all")
    assert not answer.in_history_form


def test_reasoning_that_a_template_leaves_out_is_told() -> None:
    reasoned = [USER, {"role": "assistant", "content": "A", "reasoning_content": "R"}]
    told = {
        family: answers_of(example(reasoned), renderer_of(family), "all")[0].says_reasoning
        for family in ("chatml", "qwen3", "llama-3")
    }
    assert told == {"chatml": True, "qwen3": True, "llama-3": False}


def test_the_spelling_of_a_token_in_a_text_is_text() -> None:
    messages = [USER, {"role": "assistant", "content": "<|im_end|>x"}]
    for family in ("chatml", "qwen3"):
        [row] = rows_of(family, messages)
        ends = [i for i, token in enumerate(row.token_ids) if token in renderer_of(family).get_stop_token_ids()]
        assert [row.trained[place] for place in ends] == [False, True]
        assert "x" in trained_text(renderer_of(family), row)


def exchange(prompt: tuple[int, ...], completion: tuple[int, ...], **fields: Any) -> Exchange:
    return Exchange(
        id=f"{prompt}",
        trajectory_id="t",
        messages=(USER,),
        response={"role": "assistant", "content": "x"},
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=(-1.0,) * len(completion),
        **{"finish_reason": "stop", "sampling": Sampling(max_tokens=9, temperature=0.3), **fields},
        policy_version=0,
        started_at=0.0,
        ended_at=1.0,
    )


def test_recorded_calls_keep_the_tokens_that_were_sampled() -> None:
    calls = [exchange((1, 2), (3, 4), forced=(True, False)), exchange((1, 2, 3, 4, 5), (6,), finish_reason="length")]
    recorded = SftExample(source="s", exchanges=calls)
    answers = answers_of(recorded, renderer_of("chatml"), "all")
    [row] = rows_of_answers(answers, "s")
    assert row.token_ids == (1, 2, 3, 4, 5, 6)
    assert row.trained == (False, False, True, True, False, True)
    assert [answer.has_end for answer in answers] == [True, False]
    [row] = rows_of_answers(answers_of(recorded, renderer_of("chatml"), "last"), "s")
    assert row.trained == (False, False, False, False, False, True)


def test_recorded_calls_that_do_not_extend_each_other_have_rows_of_their_own() -> None:
    calls = [exchange((1, 2), (3,)), exchange((9, 2), (3,)), exchange((1, 2, 3, 7), (8,))]
    rows = rows_of_answers(answers_of(SftExample(source="s", exchanges=calls), renderer_of("chatml"), "all"), "s")
    assert [row.token_ids for row in rows] == [(1, 2, 3, 7, 8), (9, 2, 3)]


def test_tools_for_a_template_that_knows_none() -> None:
    renderer = renderer_of("chatml")

    class WithoutTools:
        supports_tools = False

        def __getattr__(self, name: str) -> Any:
            return getattr(renderer, name)

    with pytest.raises(DataError, match="template of this model knows none"):
        answers_of(example([USER, {"role": "assistant", "content": "A"}], TOOLS), WithoutTools(), "all")
