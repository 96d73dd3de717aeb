"""Hermes-style tool calls: `<tool_call>`, one JSON object with `name` and `arguments`, `</tool_call>`. Pure.

The end of the JSON object decides where a call ends, so a closing tag inside an argument is text of that argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from renderers import ParsedToolCall, ToolCallParseStatus

from art_core.messages import STRICT_DECODER, compact_json
from art_core.render.calls import COMPACT_HERMES, HERMES_CLOSE, HERMES_OPEN

OPEN = HERMES_OPEN
CLOSE = HERMES_CLOSE


def call_text(function: Mapping[str, Any]) -> str:
    """A call as a model writes it. `arguments` may be any JSON value."""
    return COMPACT_HERMES.text(function["name"], function.get("arguments", {}))


class HermesSplitter:
    """Splits text that arrives in pieces into content and calls.

    A call is well formed when a JSON object with a non-empty string `name` and optional `arguments` stands between
    the two tags. Whitespace next to a well-formed call is dropped, and content on both sides of one is joined by a
    line break. Whatever else follows an opening tag, up to the first closing tag or the end, is content, unchanged.
    `attempts` has both kinds, in order, told apart by their status.

    As long as the text after an opening tag may still become a call it is held back.
    """

    def __init__(self) -> None:
        self.attempts: list[ParsedToolCall] = []
        self._undecided = ""
        self._space = ""  # whitespace at the end of the content so far: dropped if a call follows
        self._after_call = False
        self._piece_begun = False
        self._any_content = False

    def push(self, text: str) -> list[str | ParsedToolCall]:
        """Content and well-formed calls that `text` has decided, in order."""
        self._undecided += text
        return self._drain(final=False)

    def finish(self) -> list[str | ParsedToolCall]:
        """What is left at the end of the text."""
        events = self._drain(final=True)
        if self._space and (self._piece_begun or not self._after_call):
            events.append(self._space)
        self._space = ""
        return events

    def _drain(self, *, final: bool) -> list[str | ParsedToolCall]:
        events: list[str | ParsedToolCall] = []
        while self._undecided:
            start = self._undecided.find(OPEN)
            if start < 0:
                held = 0 if final else _overlap(self._undecided)
                decided = len(self._undecided) - held
                events += self._content(self._undecided[:decided])
                self._undecided = self._undecided[decided:]
                break
            events += self._content(self._undecided[:start])
            self._undecided = self._undecided[start:]
            call = _read_call(self._undecided, final=final)
            if call is None:
                break
            self._undecided = self._undecided[len(call.raw) :]
            self.attempts.append(call)
            if call.status == ToolCallParseStatus.OK:
                events.append(call)
                self._space, self._after_call, self._piece_begun = "", True, False
            else:
                events += self._content(call.raw)
        return events

    def _content(self, text: str) -> tuple[str, ...]:
        text = self._space + text
        if self._after_call and not self._piece_begun:
            text = text.lstrip()
        body = text.rstrip()
        self._space = text[len(body) :]
        if not body:
            return ()
        joint = "\n" if self._any_content and not self._piece_begun else ""
        self._piece_begun = self._any_content = True
        return (joint + body,)


def _overlap(text: str) -> int:
    """Length of the longest end of `text` that an opening tag may begin with."""
    return next(
        size for size in range(min(len(text), len(OPEN) - 1), -1, -1) if OPEN.startswith(text[len(text) - size :])
    )


def _read_call(text: str, *, final: bool) -> ParsedToolCall | None:
    """The attempted call that `text`, which starts with an opening tag, begins with; None while it is undecided."""
    start = _skip_space(text, len(OPEN))
    if start == len(text) and not final:
        return None
    if text.startswith("{", start):
        try:
            value, end = STRICT_DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            if not final:  # the object may be unfinished, and the first closing tag may be inside a string
                return None
        else:
            close = _skip_space(text, end)
            if text.startswith(CLOSE, close):
                return _classified(text[: close + len(CLOSE)], value)
            if CLOSE.startswith(text[close:]) and not final:
                return None
    close = text.find(CLOSE)
    if close >= 0:
        return ParsedToolCall(raw=text[: close + len(CLOSE)], status=ToolCallParseStatus.INVALID_JSON)
    return ParsedToolCall(raw=text, status=ToolCallParseStatus.UNCLOSED_BLOCK) if final else None


def _classified(raw: str, value: dict[str, Any]) -> ParsedToolCall:
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str) or not name:
        return ParsedToolCall(raw=raw, status=ToolCallParseStatus.MISSING_NAME)
    try:
        (name + compact_json(arguments)).encode()
    except (UnicodeEncodeError, RecursionError):  # half of a surrogate pair, or too deep: it cannot be sent on
        return ParsedToolCall(raw=raw, status=ToolCallParseStatus.INVALID_JSON)
    return ParsedToolCall(raw=raw, name=name, arguments=arguments)


def _skip_space(text: str, start: int) -> int:
    while start < len(text) and text[start] in " \t\n\r":
        start += 1
    return start
