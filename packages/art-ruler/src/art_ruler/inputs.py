"""Anything that holds a conversation -> a transcript: what a judge may see of it, in one canonical form.

Taken are lists of messages in the OpenAI wire shape (dicts, or the client's objects), LangChain messages, anything
with `messages`, `messages_and_choices` or `exchanges` (attribute, method or key). They are known by shape; none of
those libraries is imported. Two trajectories that did the same have equal transcripts: ids of tool calls, which are
drawn at random, become numbers in order of appearance, and times, names of models and the like are left out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from art_ruler.errors import DataError

EMPTY_ANSWER = "(empty response)"
EMPTY = "(empty)"
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "tool": "tool",
    "function": "tool",
}


@dataclass(frozen=True)
class Block:
    """One piece of a message. `kind` is from a fixed set; all text that came from outside is in `text`."""

    kind: str
    text: str


@dataclass(frozen=True)
class Message:
    """The blocks of one message; never none, so that an empty message is seen to be there."""

    blocks: tuple[Block, ...]

    @property
    def is_assistant(self) -> bool:
        return self.blocks[0].kind in ("assistant", "reasoning", "call")


Transcript = tuple[Message, ...]


def read_trajectories(trajectories: Sequence[Any], tools: Sequence[Any] | None = None) -> list[Transcript]:
    """The transcript of each trajectory, in their order. What is given is not changed.

    `tools` (OpenAI wire shape) take the place of those a trajectory carries itself.

    Raises:
        DataError: something is not a conversation; the message names which trajectory and which message.
    """
    if isinstance(trajectories, str | bytes | Mapping) or not isinstance(trajectories, Iterable):
        raise DataError(
            f"trajectories are a {type(trajectories).__name__}; wanted a list with one conversation for each attempt"
        )
    common = _tools_message(tools, "tools")
    transcripts = []
    for index, trajectory in enumerate(trajectories):
        where = f"trajectory {index}"
        own = _field(trajectory, "tools") if common is None and not _is_list(trajectory) else None
        tools_shown = common or _tools_message(own, f"{where}: tools")
        transcripts.append(((tools_shown,) if tools_shown else ()) + _conversation(trajectory, where))
    return transcripts


def check_trajectories(trajectories: Sequence[Any], *, tools: Sequence[Any] | None = None) -> None:
    """Raise `DataError` for what `read_trajectories` would refuse."""
    read_trajectories(trajectories, tools)


def digest(transcript: Transcript) -> str:
    """Equal for equal transcripts only."""
    # Lengths keep apart what would read the same when joined.
    parts = [
        "".join(f"{block.kind} {len(block.text)} {block.text}" for block in message.blocks) for message in transcript
    ]
    return hashlib.sha256("".join(f"{len(part)} {part}" for part in parts).encode()).hexdigest()


def common_prefix_length(transcripts: Sequence[Transcript]) -> int:
    """How many leading messages all transcripts share, so that each keeps at least its last message.

    A lone transcript shares what comes before its first assistant message.
    """
    if not transcripts:
        return 0
    limit = max(0, min(len(transcript) for transcript in transcripts) - 1)
    first = transcripts[0]
    if len(transcripts) == 1:
        return next((i for i, message in enumerate(first[:limit]) if message.is_assistant), limit)
    return next((i for i in range(limit) if any(other[i] != first[i] for other in transcripts[1:])), limit)


def _conversation(trajectory: Any, where: str) -> Transcript:
    if _is_list(trajectory):
        messages = list(trajectory)
    else:
        exchanges = _field(trajectory, "exchanges")
        if exchanges is not None:
            return _of_exchanges(exchanges, where)
        found = next(
            (value for name in ("messages_and_choices", "messages") if (value := _field(trajectory, name)) is not None),
            None,
        )
        if found is None or not _is_list(found):
            raise DataError(
                f"{where} is a {type(trajectory).__name__} without messages; wanted a list of messages, or an object "
                "or dict that has `messages`"
            )
        messages = list(found)
    transcript = _messages(messages, where)
    for extra in _field(trajectory, "additional_histories") or () if not _is_list(trajectory) else ():
        transcript += (_SEPARATOR, *_conversation(extra, f"{where}: additional history"))
    return transcript or (Message((Block("note", "(no messages)"),)),)


_SEPARATOR = Message((Block("note", "(another conversation of the same attempt)"),))


def _of_exchanges(exchanges: Iterable[Any], where: str) -> Transcript:
    """Model calls in order: each that continues a conversation replaces it, any other stands on its own."""
    histories: list[list[Any]] = []
    for exchange in exchanges:
        asked = list(_field(exchange, "messages") or ())
        whole = [*asked, _field(exchange, "response")]
        if histories and len(asked) >= len(histories[-1]):
            before = _messages(histories[-1], where)
            if _messages(asked[: len(histories[-1])], where) == before:
                histories[-1] = whole
                continue
        histories.append(whole)
    shown: list[Message] = []
    for history in histories:
        shown += ([_SEPARATOR] if shown else []) + list(_messages(history, where))
    return tuple(shown) or (Message((Block("note", "(no messages)"),)),)


def _messages(messages: Sequence[Any], where: str) -> Transcript:
    numbers: dict[str, int] = {}
    return tuple(_message(message, numbers, f"{where}, message {i}") for i, message in enumerate(messages))


def _message(message: Any, numbers: dict[str, int], where: str) -> Message:
    if type(message) is dict and len(message) == 2:  # by far the most common one needs no search
        role, content = message.get("role"), message.get("content")
        if type(content) is str and role in ("system", "user", "assistant") and content.strip():
            return Message((Block(role, _clean(content)),))
    get = _getter(message)
    role = get("role")
    if role is None and (wrapped := get("message")) is not None:  # a choice of a chat completion
        message, get = wrapped, _getter(wrapped)
        role = get("role")
    role = role or get("type")
    if not isinstance(role, str) or isinstance(message, str):
        raise DataError(
            f"{where} is a {type(message).__name__} without a role; wanted a chat message such as "
            '{"role": "user", "content": "..."}'
        )
    kind = _ROLES.get(role, "other")
    blocks: list[Block] = []
    for name in ("reasoning_content", "reasoning"):
        reasoning = get(name)
        if isinstance(reasoning, str) and reasoning.strip():
            blocks.append(Block("reasoning", _clean(reasoning)))
            break
    blocks += _content(get("content"), kind, where)
    refusal = get("refusal")
    if isinstance(refusal, str) and refusal:
        blocks.append(Block(kind, _clean(f"(refusal) {refusal}")))
    blocks += _calls(get, numbers, where)
    if kind == "tool":
        blocks = [Block("tool", _label(get, numbers) + block.text) for block in blocks or [Block("tool", EMPTY)]]
    elif kind == "other":
        blocks = [Block("other", f"role {_clean(role)}: {block.text}") for block in blocks or [Block("other", EMPTY)]]
    if not any(block.kind != "reasoning" for block in blocks):
        blocks.append(Block(kind, EMPTY_ANSWER if kind == "assistant" else EMPTY))
    return Message(tuple(blocks))


def _label(get: _Getter, numbers: dict[str, int]) -> str:
    number = numbers.get(str(get("tool_call_id") or ""))
    name = get("name")
    words = ([f"#{number}"] if number else []) + ([_clean(name)] if isinstance(name, str) and name else [])
    return " ".join(words) + ": " if words else ""


def _content(content: Any, kind: str, where: str) -> list[Block]:
    if content is None:
        return []
    if isinstance(content, str):
        return [Block(kind, _clean(content))] if content.strip() else []
    if not _is_list(content):
        raise DataError(f"{where}: content is a {type(content).__name__}; wanted a text, a list of parts, or null")
    blocks: list[Block] = []
    for part in content:
        block = _part(part, kind)
        if block is None:
            continue
        if blocks and blocks[-1].kind == block.kind:  # so that one text in two parts is the same as in one
            blocks[-1] = Block(block.kind, f"{blocks[-1].text}\n{block.text}")
        else:
            blocks.append(block)
    return blocks


def _part(part: Any, kind: str) -> Block | None:
    if isinstance(part, str):
        return Block(kind, _clean(part)) if part.strip() else None
    of = _field(part, "type")
    if of in ("tool_use", "function_call"):
        return None  # shown once, with the tool calls of the message
    for name in ("reasoning", "thinking"):
        text = _field(part, name)
        if of in ("reasoning", "thinking") and isinstance(text, str):
            return Block("reasoning", _clean(text)) if text.strip() else None
    for name in ("text", "refusal"):
        text = _field(part, name)
        if isinstance(text, str):
            return Block(kind, _clean(text)) if text.strip() else None
    # A picture or a file: the judge learns that it was there, and equal ones are equal.
    plain = json.dumps(_plain(part), sort_keys=True, default=str)
    return Block(kind, f"({_clean(str(of or 'part'))} {hashlib.sha256(plain.encode()).hexdigest()[:8]})")


def _calls(get: _Getter, numbers: dict[str, int], where: str) -> list[Block]:
    blocks = []
    calls = get("tool_calls") or ()
    old_style = get("function_call")
    invalid = get("invalid_tool_calls") or ()
    if not _is_list(calls) or not _is_list(invalid):
        raise DataError(f"{where}: tool_calls are not a list; wanted a list of calls, or none")
    for call in [*calls, *invalid, *([old_style] if old_style else [])]:
        of_function = _getter(_field(call, "function") or call)
        name = of_function("name")
        arguments = next(
            (found for key in ("arguments", "args", "input") if (found := of_function(key)) is not None), ""
        )
        if not isinstance(arguments, str):
            arguments = json.dumps(_plain(arguments), ensure_ascii=False, default=str)
        call_id = _field(call, "id")
        number = len(numbers) + 1
        numbers[str(call_id) if call_id else f"call without an id {number}"] = number
        blocks.append(Block("call", _clean(f"#{number} {name or '(no name)'} {arguments}")))
    return blocks


def _tools_message(tools: Any, where: str) -> Message | None:
    if not tools:
        return None
    if not _is_list(tools):
        raise DataError(f"{where} are a {type(tools).__name__}; wanted a list of tools in the OpenAI wire shape")
    lines = []
    for tool in tools:
        function = _field(tool, "function") or tool
        name = _field(function, "name")
        if not isinstance(name, str):
            raise DataError(
                f'{where}: one of them has no name; wanted {{"type": "function", "function": {{"name": ...}}}}'
            )
        description = _field(function, "description") or ""
        parameters = _field(function, "parameters") or _field(function, "args_schema") or {}
        shown = json.dumps(_plain(parameters), ensure_ascii=False, default=str)
        lines.append(f"{name}: {description} {shown}")
    return Message((Block("tools", _clean("\n".join(lines))),))


_Getter = Callable[[str], Any]


def _getter(value: Any) -> _Getter:
    return value.get if type(value) is dict else partial(_field, value)


def _field(value: Any, name: str) -> Any:
    """What an object or dict holds under `name`; methods without arguments are called."""
    if type(value) is dict or isinstance(value, Mapping):  # the quick test first: this is most of the work
        return value.get(name)
    found = getattr(value, name, None)
    if callable(found) and not isinstance(found, type):
        try:
            return found()
        except TypeError:  # a method that wants arguments is something else of the same name
            return None
    return found


def _plain(value: Any) -> Any:
    for method in ("model_dump", "model_json_schema", "dict"):
        if isinstance(value, type) != (method == "model_json_schema"):
            continue
        if callable(made := getattr(value, method, None)):
            return made()
    return value


def _is_list(value: Any) -> bool:
    return type(value) in (list, tuple) or (isinstance(value, Sequence) and not isinstance(value, str | bytes))


_UNSENDABLE = re.compile("[\0\ud800-\udfff]")


def _clean(text: str) -> str:
    """`text` without what no JSON request can carry: NUL, and halves of surrogate pairs."""
    return _UNSENDABLE.sub("\ufffd", text)
