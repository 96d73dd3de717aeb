"""What is proven of each family of models with its real tokenizer, and that docs/models.md says just that."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from renderers.base import MODEL_RENDERER_MAP

from art_core.render import ChatRenderer, ContentDelta, ReasoningDelta, ToolCallDelta, load_renderer
from art_core.serve.session import Session
from art_core.types import Exchange, Sampling
from tests.core.tokenizers_of_families import tokenizer_folder

DOCS = Path(__file__).resolve().parents[2] / "docs" / "models.md"
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look.",
            "parameters": {
                "type": "object",
                "properties": {"at": {"type": "string"}, "times": {"type": "integer"}},
                "required": ["at"],
                "additionalProperties": False,
            },
        },
    }
]
USER: Any = {"role": "user", "content": "Where is the key?"}
NEXT: Any = {"role": "user", "content": "And now?"}
CALL: Any = {"id": "c", "type": "function", "function": {"name": "look", "arguments": {"at": "tür", "times": 2}}}
RESULT: Any = {"role": "tool", "tool_call_id": "c", "name": "look", "content": "nothing"}

FAMILIES = {
    "SmolLM2, ChatML": ("smollm2", None),
    "Qwen3": ("qwen3", None),
    "Llama 3.2": ("llama3", "meta-llama/Llama-3.2-1B-Instruct"),
    "DeepSeek V3": ("deepseek_v3", "deepseek-ai/DeepSeek-V3"),
    "Gemma 3": ("gemma3", None),
}
families = pytest.mark.parametrize("family", FAMILIES)


@cache
def renderer_of(family: str) -> ChatRenderer:
    package, model_id = FAMILIES[family]
    if package == "smollm2":
        from tests.core.serve.support import RENDERER

        return RENDERER
    return load_renderer(tokenizer_folder(package), model_id=model_id)


def answers(renderer: ChatRenderer) -> dict[str, Any]:
    """Messages of an assistant as this family can write them."""
    reasoning = {"reasoning_content": "I think."} if reads_reasoning(renderer) else {}
    found: dict[str, Any] = {"text": {"role": "assistant", "content": "In the drawer.", **reasoning}}
    if renderer.supports_tools:
        found["call"] = {"role": "assistant", "content": "", "tool_calls": [CALL], **reasoning}
    return found


def sampled(renderer: ChatRenderer, message: Any, tools: Any) -> tuple[list[int], list[int]]:
    """Prompt and completion, had the model sampled `message` just as the family writes it."""
    prompt = renderer.render_ids([USER], tools=tools, add_generation_prompt=True)
    whole = renderer.render_ids([USER, message], tools=tools)
    assert whole[: len(prompt)] == prompt
    end = max(i for i, token in enumerate(whole) if token in renderer.get_stop_token_ids())
    return prompt, whole[len(prompt) : end + 1]


def parsed(renderer: ChatRenderer, prompt: list[int], completion: list[int], tools: Any) -> list[Any]:
    parser = renderer.completion_parser(tools=tools, prompt_ids=prompt)
    return [*parser.push(completion), *parser.finish()]


def reads_reasoning(renderer: ChatRenderer) -> bool:
    """Whether reasoning is written, and comes back apart from the content."""
    prompt = renderer.render_ids([USER], add_generation_prompt=True)
    whole = renderer.render_ids([USER, {"role": "assistant", "content": "x", "reasoning_content": "I think."}])
    deltas = parsed(renderer, prompt, whole[len(prompt) :], None)
    return [d.text.strip() for d in deltas if isinstance(d, ReasoningDelta)] == ["I think."]


def extends(renderer: ChatRenderer, answer: Any, new: Any) -> bool:
    tools = TOOLS if answer.get("tool_calls") else None
    prompt, completion = sampled(renderer, answer, tools)
    bridged = renderer.bridge_to_next_turn(prompt, completion, [new], tools=tools)
    if bridged is None:
        return False
    whole = prompt + completion
    assert list(bridged.token_ids)[: len(whole)] == whole
    shown = renderer.render_ids([USER, answer, new], tools=tools, add_generation_prompt=True)
    assert list(bridged.token_ids) == shown, "the extension is what the family shows its model"
    return True


def facts(renderer: ChatRenderer) -> list[str]:
    """The cells of this family's row, without its renderer."""
    made = answers(renderer)
    prefill = renderer.prefill_ids({"role": "assistant", "content": "It is"})
    yes = [
        extends(renderer, made["call"], RESULT) if renderer.supports_tools else False,
        extends(renderer, made["text"], NEXT),
        renderer.supports_tools,
        reads_reasoning(renderer),
        renderer.supports_tools and renderer.tool_call_grammar(TOOLS) is not None,
        prefill is not None,
    ]
    return ["yes" if cell else "no" for cell in yes]


def table(heading: str) -> dict[str, list[str]]:
    """The rows of the table behind `heading`, by their first cell."""
    text = DOCS.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows[2:]}


@pytest.mark.slow
@families
def test_the_table_says_what_is_so(family: str) -> None:
    assert table("Proven with the real tokenizer")[family][1:] == facts(renderer_of(family))


def test_the_tables_name_every_family_of_the_library_once() -> None:
    proven = [row[0].strip("`") for row in table("Proven with the real tokenizer").values()]
    trusted = [name.strip("`") for name in table("Taken from the library")]
    named = [name for name in (*proven, *trusted) if name in MODEL_RENDERER_MAP.values()]
    assert sorted(named) == sorted(set(MODEL_RENDERER_MAP.values()))


@pytest.mark.slow
@families
def test_what_a_family_writes_it_reads(family: str) -> None:
    renderer = renderer_of(family)
    for message in answers(renderer).values():
        tools = TOOLS if message.get("tool_calls") else None
        prompt, completion = sampled(renderer, message, tools)
        deltas = parsed(renderer, prompt, completion, tools)
        text = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
        reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
        calls = [(d.name, d.arguments) for d in deltas if isinstance(d, ToolCallDelta)]
        assert text.strip() == message["content"]
        assert reasoning.strip() == message.get("reasoning_content", "")
        assert calls == ([("look", '{"at":"tür","times":2}')] if tools else [])


@pytest.mark.slow
@families
def test_an_only_call_comes_with_the_token_that_completes_it(family: str) -> None:
    renderer = renderer_of(family)
    if not renderer.supports_tools:
        return
    other = {"id": "d", "type": "function", "function": {"name": "look", "arguments": {"at": "{x}"}}}
    calls = [CALL] if family == "Llama 3.2" else [CALL, other]
    prompt, completion = sampled(renderer, {"role": "assistant", "content": "", "tool_calls": calls}, TOOLS)
    parser = renderer.completion_parser(tools=TOOLS, prompt_ids=prompt, only_one_call=True)
    deltas: list[Any] = []
    size = 0
    while not any(isinstance(delta, ToolCallDelta) for delta in deltas):
        deltas += parser.push((completion[size],))
        size += 1
    whole = [delta for delta in parsed(renderer, prompt, completion, TOOLS) if isinstance(delta, ToolCallDelta)]
    assert [delta for delta in deltas if isinstance(delta, ToolCallDelta)] == whole[:1]
    assert parser.num_malformed_calls == 0
    assert size < len(completion), "before the token that ends the turn"
    assert len(whole) == len(calls)


@pytest.mark.slow
@families
def test_whatever_was_sampled_is_extended_or_counted_as_a_fork(family: str) -> None:
    renderer = renderer_of(family)
    stops = renderer.get_stop_token_ids()
    rng = random.Random(0)
    turns = [[NEXT], [RESULT], [RESULT, RESULT], [RESULT, NEXT]] if renderer.supports_tools else [[NEXT]]
    tools = TOOLS if renderer.supports_tools else []
    prompt = tuple(renderer.render_ids([USER], tools=tools, add_generation_prompt=True))
    written = [token for message in answers(renderer).values() for token in sampled(renderer, message, None)[1]]
    for number in range(60):
        drawn = [
            rng.choice(written) if number % 3 == 0 else rng.randrange(renderer.vocabulary_size)
            for _ in range(rng.randrange(12))
        ]
        completion = tuple(token for token in drawn if token not in stops) + ((stops[0],) if number % 2 else ())
        answer = {"role": "assistant", "content": "as a client echoes it"}
        session = Session("t")
        session.record(
            Exchange(
                id="e",
                trajectory_id="t",
                messages=(USER,),
                tools=tuple(tools),
                response=answer,
                prompt_ids=prompt,
                completion_ids=completion,
                logprobs=(-1.0,) * len(completion),
                finish_reason="stop" if number % 2 else "length",
                sampling=Sampling(max_tokens=20),
                policy_version=0,
                started_at=0.0,
                ended_at=1.0,
            )
        )
        for new in turns:
            bridged = renderer.bridge_to_next_turn(prompt, completion, new, tools=tools)
            following = session.prompt(renderer, [USER, answer, *new], tools)
            extended = following.ids[: len(prompt + completion)] == prompt + completion
            assert following.forked is not extended
            if bridged is not None:
                assert tuple(bridged.token_ids) == following.ids
                assert extended


@pytest.mark.slow
@families
def test_a_required_call_is_exactly_what_the_family_writes(family: str) -> None:
    renderer = renderer_of(family)
    grammar = renderer.tool_call_grammar(TOOLS) if renderer.supports_tools else None
    if grammar is None or family.startswith("SmolLM2"):
        return
    from art_core.engines.grammar import Grammars

    message = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    _, completion = sampled(renderer, message, TOOLS)
    text = "".join(renderer.token_text(token) for token in completion)
    skipped = len(renderer.encode("<think>\n\n</think>\n\n")) if text.startswith("<think>") else 0
    grammars = Grammars(tokenizer_folder(FAMILIES[family][0]), renderer.vocabulary_size)
    matcher = grammars.matcher(grammar, renderer.get_stop_token_ids())
    for token in completion[skipped:-1]:
        assert matcher.allowed[token]
        matcher.advance(token)
    assert matcher.allowed[completion[-1]]


@pytest.mark.slow
def test_llama_writes_one_call_and_its_json_cannot_stand_beside_other_json() -> None:
    renderer = renderer_of("Llama 3.2")
    grammar = renderer.tool_call_grammar(TOOLS) or ""
    assert "calls: call\n" in grammar
    assert '"parameters": ' in grammar.replace('\\"', '"')
    assert renderer.tool_call_grammar(TOOLS, instead={"type": "object"}) is None


@pytest.mark.slow
def test_a_prefill_is_what_the_template_writes_for_it() -> None:
    renderer = renderer_of("Qwen3")
    ids = renderer.prefill_ids({"role": "assistant", "content": "It is "})
    assert ids is not None
    assert "".join(map(renderer.token_text, ids)) == "<think>\n\n</think>\n\nIt is "
    assert renderer.prefill_ids({"role": "assistant", "content": "", "tool_calls": [CALL]}) is None
    trimming = renderer_of("Llama 3.2")
    ids = trimming.prefill_ids({"role": "assistant", "content": "It is"})
    assert ids == trimming.encode("It is")
    assert trimming.prefill_ids({"role": "assistant", "content": "It is "}) is None, "the template would cut the space"


@pytest.mark.slow
def test_a_changed_template_is_followed_and_not_taken_for_its_family(tmp_path: Path) -> None:
    import shutil

    folder = shutil.copytree(tokenizer_folder("qwen3"), tmp_path / "m")
    config = (folder / "tokenizer_config.json").read_text()
    assert "# Tools" in config
    (folder / "tokenizer_config.json").write_text(config.replace("# Tools", "# Functions"))
    changed, known = load_renderer(folder), renderer_of("Qwen3")
    text = "".join(map(changed.token_text, changed.render_ids([USER], tools=TOOLS)))
    assert "# Functions" in text
    prompt, completion = sampled(known, answers(known)["call"], TOOLS)
    assert known.bridge_to_next_turn(prompt, completion, [RESULT], tools=TOOLS) is not None
    assert changed.bridge_to_next_turn(prompt, completion, [RESULT], tools=TOOLS) is None
    assert changed.tool_call_grammar(TOOLS) == known.tool_call_grammar(TOOLS), "calls are still spelled as before"
