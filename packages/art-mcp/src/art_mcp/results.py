"""What a tool answered, as the text that a model is shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic import JsonValue

from art_core.errors import ConfigError
from art_mcp.types import ToolResult

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

MIN_RESULT_CHARS = 100
_HEAD_SHARE = 0.75


def to_tool_result(result: CallToolResult, *, max_chars: int) -> ToolResult:
    """The result of a call as text and data, the text at most `max_chars` long.

    Text parts are joined by newlines; images, audio and binary resources become a short placeholder. JSON text that
    only repeats the structured content is written on one line: indentation costs a small model context and says
    nothing. Without any text, the structured content is shown. No text at all is said in words.

    Raises:
        ConfigError: `max_chars` is below `MIN_RESULT_CHARS`.
    """
    parts = [_part(block) for block in result.content]
    text = "\n".join(part for part in parts if part)
    structured: JsonValue = result.structured_content
    data = parse_json(text) if all(block.type == "text" for block in result.content) else None
    if structured is None:
        structured = data
    elif not text.strip():
        text = compact_json(structured)
    elif data is not None and _repeats(data, structured):
        text = compact_json(data)
    if not text.strip():
        text = "(the tool failed and did not say why)" if result.is_error else "(empty result)"
    text, num_cut_chars = cut_middle(_encodable(text), max_chars)
    return ToolResult(text, structured, is_error=bool(result.is_error), num_cut_chars=num_cut_chars)


def error_result(message: str, *, max_chars: int) -> ToolResult:
    """A call that the server, or the protocol, refused."""
    text, num_cut_chars = cut_middle(_encodable(message), max_chars)
    return ToolResult(text, is_error=True, num_cut_chars=num_cut_chars)


def cut_middle(text: str, max_chars: int) -> tuple[str, int]:
    """At most `max_chars` of `text` (its head and tail around a note of how much is missing), and that number.

    Raises:
        ConfigError: `max_chars` is below `MIN_RESULT_CHARS`.
    """
    if max_chars < MIN_RESULT_CHARS:
        raise ConfigError(
            f"tool results are to be cut at {max_chars} characters; wanted at least {MIN_RESULT_CHARS}, "
            "so that there is room for a beginning, an end and a note of what is missing"
        )
    if len(text) <= max_chars:
        return text, 0
    kept = max_chars - len(_note(len(text)))
    head = int(kept * _HEAD_SHARE)
    num_cut = len(text) - kept
    return text[:head] + _note(num_cut) + text[len(text) - (kept - head) :], num_cut


def compact_json(value: JsonValue) -> str:
    """`value` as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def parse_json(text: str) -> JsonValue:
    """`text` as JSON, or None where it is not JSON (NaN and Infinity are not)."""
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _note(num_cut: int) -> str:
    return f"\n[… {num_cut} characters cut …]\n"


def _repeats(data: JsonValue, structured: JsonValue) -> bool:
    """Whether the text's JSON is the structured content, or what Python servers wrap as `{"result": …}`."""
    wrapped = {"result": data}
    return _canonical(structured) in (_canonical(data), _canonical(wrapped))


def _canonical(value: Any) -> str:
    # Python's == takes True for 1; JSON does not.
    return json.dumps(value, sort_keys=True)


def _part(block: ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type}: {block.mime_type}, {_decoded_size(block.data)}, not shown]"
        case "resource_link":
            about = ", ".join(word for word in (block.mime_type, block.description) if word)
            return f"[link: {block.title or block.name}, {block.uri}" + (f", {about}]" if about else "]")
        case "resource":
            resource = block.resource
            if hasattr(resource, "text"):
                return f"[resource: {resource.uri}]\n{resource.text}"
            kind = f", {resource.mime_type}" if resource.mime_type else ""
            return f"[resource: {resource.uri}{kind}, {_decoded_size(resource.blob)}, not shown]"


def _decoded_size(base64_text: str) -> str:
    num_bytes = len(base64_text.rstrip("=")) * 3 // 4
    if num_bytes < 1000:
        return f"{num_bytes} B"
    if num_bytes < 1_000_000:
        return f"{round(num_bytes / 1000)} kB"
    return f"{num_bytes / 1_000_000:.1f} MB"


def _encodable(text: str) -> str:
    """`text` with lone surrogates replaced: JSON can carry them, a tokenizer cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")
