"""Which of the library's hand-written renderers writes what a model's own template writes, and what it is known to do.

Nothing is taken on trust from a name: a renderer is used for a template it was never told about only after both have
written the same ids for every kind of conversation below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from renderers import create_renderer
from renderers.configs import config_from_name

from art_core.render.calls import KNOWN_FORMATS, CallFormat
from art_core.types import ChatMessage, ToolSpec

RECOGNISED = ("qwen3", "llama-3", "deepseek-v3", "deepseek-r1", "glm-4.5", "kimi-k2", "minimax-m2")
"""The library's names of text-only families, in the order in which they are tried."""

_TOOL: ToolSpec = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
_CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
_CALLING: ChatMessage = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_USER: ChatMessage = {"role": "user", "content": " u "}
_RESULT: ChatMessage = {"role": "tool", "content": "3", "name": "f", "tool_call_id": "c"}
_PROBES: tuple[tuple[list[ChatMessage], list[ToolSpec] | None], ...] = (
    ([_USER], None),
    ([{"role": "system", "content": "s"}, _USER, {"role": "assistant", "content": "v"}, _USER], None),
    ([_USER, {"role": "assistant", "content": "v", "reasoning_content": "r"}, _USER], None),
    ([{"role": "system", "content": "s"}, _USER], [_TOOL]),
    ([_USER, _CALLING, _RESULT], [_TOOL]),
    ([_USER, _CALLING, _RESULT, {"role": "assistant", "content": "v"}, _USER], [_TOOL]),
)


def recognised(tokenizer: Any) -> Any | None:
    """The hand-written renderer that writes the same ids as the chat template of `tokenizer`; None for none."""
    for name in RECOGNISED:
        try:
            renderer = create_renderer(tokenizer, config_from_name(name))
            if all(_agrees(renderer, tokenizer, *probe) for probe in _PROBES):
                return renderer
        except Exception:  # noqa: BLE001 - lacking tokens, a refused probe: each says that it is not this one
            continue
    return None


def _agrees(renderer: Any, tokenizer: Any, messages: list[ChatMessage], tools: list[ToolSpec] | None) -> bool:
    return all(
        list(renderer.render_ids(messages, tools=tools, add_generation_prompt=generate))
        == list(
            tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=generate, tokenize=True, return_dict=False
            )
        )
        for generate in (False, True)
    )


Answer = Callable[[ChatMessage, Sequence[ToolSpec] | None], str | None]
"""The text of an assistant message as the model would have sampled it, without the token that ends the turn."""


def call_format(answer: Answer) -> CallFormat | None:
    """The format in which `answer` writes calls; None if it is none of those known.

    Several calls stand on lines of their own, or the format is one of single calls. An empty think block may precede
    the first call: a model that reasons is shown one where it did not.
    """
    written = answer(_CALLING, [_TOOL])
    if written is None:
        return None
    for form in KNOWN_FORMATS:
        call = form.text("f", {"a": 1})
        if written.endswith(call) and written.removesuffix(call).split() in ([], ["<think>", "</think>"]):
            two = answer({**_CALLING, "tool_calls": [_CALL, _CALL]}, [_TOOL])
            return form if two is not None and two.endswith(f"{call}\n{call}") else replace(form, several=False)
    return None
