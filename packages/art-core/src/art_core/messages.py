"""One normal form for messages that clients write in many ways. Pure.

Every renderer sees this form only: `content` is a string, reasoning has one spelling, tool arguments are values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from art_core.errors import DataError
from art_core.types import ChatMessage, ToolSpec

PART_SEPARATOR = "\n"
"""Stands between the text parts of a message whose content is a list."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is not a finite number")
    return value


STRICT_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite_float)
"""Refuses NaN, Infinity and numbers that overflow to it, with ValueError."""


def compact_json(value: Any) -> str:
    """`value` as JSON without spaces, non-ASCII text as it is."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def canonical_json(value: Any) -> str:
    """`value` as JSON that is the same for equal values: keys sorted, no spaces, ASCII."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), sort_keys=True)


def content_text(content: Any) -> str:
    """The text of a message's content: None is "", the text parts of a list are joined with `PART_SEPARATOR`.

    Raises:
        DataError: a part that is not text; the models served here read text only.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise DataError(f"message content is a {type(content).__name__}; wanted a string, null or a list of text parts")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise DataError(f"a content part is of type {kind!r}; this model reads only parts of type 'text'")
    return PART_SEPARATOR.join(texts)


def call_arguments(raw: Any) -> Any:
    """The arguments of a tool call in a history as a value, however they were written; never raises.

    Nothing at all and `null` are no arguments, an object that was encoded twice is decoded twice. Other JSON is taken
    as it is, and text that is no JSON (a call cut off in the middle) stays a string.
    """
    value = _decoded(raw) if isinstance(raw, str) else raw
    if value is None:
        return {}
    if isinstance(value, str) and value is not raw:
        inner = _decoded(value)
        return inner if isinstance(inner, dict) else value
    return value


def _decoded(text: str) -> Any:
    stripped = text.strip()
    if not stripped:
        return None
    try:
        value, end = STRICT_DECODER.raw_decode(stripped)
    except (ValueError, RecursionError):
        return text
    return value if end == len(stripped) else text


def normal_message(message: ChatMessage) -> ChatMessage:
    """`message` with role, string content, and, where they say something, reasoning, tool calls, call id and name.

    `content` None, "" and missing are the same. Reasoning may come as `reasoning_content` or `reasoning`; where the
    content already opens with its own think block, the field repeats it and is left out.

    Raises:
        DataError: an unknown role, content that is not text, or a tool call without a function name.
    """
    said = message.get("role", "")
    role = _ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        raise DataError(f"message role {said!r} is unknown; wanted one of {sorted(_ROLES)}")
    normal: ChatMessage = {"role": role, "content": content_text(message.get("content"))}
    if role == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if reasoning and not normal["content"].lstrip().startswith("<think>"):
            normal["reasoning_content"] = content_text(reasoning)
        if calls := message.get("tool_calls"):
            normal["tool_calls"] = [_normal_call(call) for call in calls]
    for key in ("name", "tool_call_id"):
        if message.get(key):
            normal[key] = message[key]
    return normal


def _normal_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise DataError("a tool call has no function name; wanted {'function': {'name': ..., 'arguments': ...}}")
    normal = {"type": "function", "function": {"name": name, "arguments": call_arguments(function.get("arguments"))}}
    return {"id": call["id"], **normal} if call.get("id") else normal


def message_key(message: ChatMessage) -> str:
    """Equal for two spellings of the same message; ids of tool calls and fields that are not rendered do not count.

    Nor does the name of an assistant: frameworks put one on the answers of each agent, and no model writes its own.
    """
    normal = normal_message(message)
    normal.pop("tool_call_id", None)
    if normal["role"] == "assistant":
        normal.pop("name", None)
    normal["tool_calls"] = [call["function"] for call in normal.get("tool_calls", [])]
    return canonical_json(normal)


def tool_function(tool: ToolSpec) -> dict[str, Any]:
    """The function of a tool, from the OpenAI envelope or given bare.

    Raises:
        DataError: it has no name.
    """
    function = tool.get("function", tool)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise DataError("a tool has no name; wanted {'type': 'function', 'function': {'name': ..., 'parameters': ...}}")
    return dict(function)
