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
from functools import partial
from typing import Any, NamedTuple

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


class Block(NamedTuple):  # a tuple is made and compared faster than a dataclass
    """One piece of a message. `kind` is from a fixed set; all text that came from outside is in `text`."""

    kind: str
    text: str


class Message(NamedTuple):
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
    parts = []
    for (blocks,) in transcript:  # lengths keep apart what would read the same when joined
        part = ""
        for kind, text in blocks:
            part += f"{kind} {len(text)} {text}"
        parts.append(f"{len(part)} {part}")
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def common_prefix_length(transcripts: Sequence[Transcript]) -> int:
    """How many leading messages all transcripts share, so that each keeps at least its last message.

    A lone transcript shares what comes before its first assistant message.
    """
    if not transcripts:
        return 0
    limit = max(0, min(map(len, transcripts)) - 1)
    if len(transcripts) == 1:
        return next((i for i, message in enumerate(transcripts[0][:limit]) if message.is_assistant), limit)
    # What the least and the greatest share, in the order of tuples, all between them share.
    least, greatest = min(transcripts), max(transcripts)
    return next((i for i in range(limit) if least[i] != greatest[i]), limit)


def _conversation(trajectory: Any, where: str) -> Transcript:
    if _is_list(trajectory):
        messages = trajectory
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
        messages = found
    transcript = _messages(messages, where)
    for extra in _field(trajectory, "additional_histories") or () if messages is not trajectory else ():
        transcript += (_SEPARATOR, *_conversation(extra, f"{where}: additional history"))
    return transcript or (Message((Block("note", "(no messages)"),)),)


_SEPARATOR = Message((Block("note", "(another conversation of the same attempt)"),))


def _of_exchanges(exchanges: Iterable[Any], where: str) -> Transcript:
    """Model calls in order: each that continues a conversation replaces it, any other stands on its own."""
    histories: list[Transcript] = []
    for exchange in exchanges:
        asked = list(_field(exchange, "messages") or ())
        read = _messages([*asked, _field(exchange, "response")], where)
        if histories and len(asked) >= len(histories[-1]) and read[: len(histories[-1])] == histories[-1]:
            histories[-1] = read
        else:
            histories.append(read)
    shown: list[Message] = []
    for history in histories:
        shown += [_SEPARATOR, *history] if shown else history
    return tuple(shown) or (Message((Block("note", "(no messages)"),)),)


class _BadMessageError(Exception):
    """What is wrong with a message, in words that follow the name of its place."""


def _messages(messages: Sequence[Any], where: str) -> Transcript:
    numbers: dict[str, int] = {}  # of calls by their ids, and under "" how many there were
    read = []
    for message in messages:
        try:
            read.append(_message(message, numbers))
        except _BadMessageError as error:
            raise DataError(f"{where}, message {len(read)}{error}") from None
    return tuple(read)


def _message(message: Any, numbers: dict[str, int]) -> Message:
    if type(message) is dict and len(message) == 2:  # by far the most common one needs no search
        role, content = message.get("role"), message.get("content")
        if type(role) is type(content) is str and (kind := _ROLES.get(role)) and _says_something(content):
            return Message((Block(kind, _clean(content)),))
    get = _getter(message)
    role = get("role")
    if role is None and (wrapped := get("message")) is not None:  # a choice of a chat completion
        message, get = wrapped, _getter(wrapped)
        role = get("role")
    role = role or get("type")
    if not isinstance(role, str) or isinstance(message, str):
        raise _BadMessageError(
            f" is a {type(message).__name__} without a role; wanted a chat message such as "
            '{"role": "user", "content": "..."}'
        )
    role = str.__str__(role)  # of a member of an enum that is a string: its value
    kind = _ROLES.get(role, "other")
    blocks: list[Block] = []
    for name in ("reasoning_content", "reasoning"):
        reasoning = get(name)
        if isinstance(reasoning, str) and _says_something(reasoning):
            blocks.append(Block("reasoning", _clean(reasoning)))
            break
    content = get("content")
    if isinstance(content, str):
        if _says_something(content):
            blocks.append(Block(kind, _clean(content)))
    elif content is not None:
        blocks += _parts(content, kind)
    refusal = get("refusal")
    if isinstance(refusal, str) and refusal:
        blocks.append(Block(kind, _clean(f"(refusal) {refusal}")))
    calls, old_style, invalid = get("tool_calls"), get("function_call"), get("invalid_tool_calls")
    if calls or old_style or invalid:
        blocks += _calls(calls or (), invalid or (), old_style, numbers)
    if kind in ("tool", "other"):
        label = _label(get, numbers) if kind == "tool" else f"role {_clean(role)}: "
        return Message(tuple([Block(kind, label + block.text) for block in blocks] or [Block(kind, label + EMPTY)]))
    if all(block.kind == "reasoning" for block in blocks):
        blocks.append(Block(kind, EMPTY_ANSWER if kind == "assistant" else EMPTY))
    return Message(tuple(blocks))


def _label(get: _Getter, numbers: dict[str, int]) -> str:
    call_id, name = get("tool_call_id"), get("name")
    number = numbers.get(str(call_id)) if call_id else None
    words = ([f"#{number}"] if number else []) + ([_clean(name)] if isinstance(name, str) and name else [])
    return " ".join(words) + ": " if words else ""


def _parts(content: Any, kind: str) -> list[Block]:
    if not _is_list(content):
        raise _BadMessageError(f": content is a {type(content).__name__}; wanted a text, a list of parts, or null")
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
        return Block(kind, _clean(part)) if _says_something(part) else None
    of = _field(part, "type")
    if of in ("tool_use", "function_call"):
        return None  # shown once, with the tool calls of the message
    for name in ("reasoning", "thinking"):
        text = _field(part, name)
        if of in ("reasoning", "thinking") and isinstance(text, str):
            return Block("reasoning", _clean(text)) if _says_something(text) else None
    for name in ("text", "refusal"):
        text = _field(part, name)
        if isinstance(text, str):
            return Block(kind, _clean(text)) if _says_something(text) else None
    # A picture or a file: the judge learns that it was there, and equal ones are equal.
    plain = json.dumps(_plain(part), sort_keys=True, default=str)
    return Block(kind, f"({_clean(str(of or 'part'))} {hashlib.sha256(plain.encode()).hexdigest()[:8]})")


def _calls(calls: Any, invalid: Any, old_style: Any, numbers: dict[str, int]) -> list[Block]:
    if not _is_list(calls) or not _is_list(invalid):
        raise _BadMessageError(": tool_calls are not a list; wanted a list of calls, or none")
    blocks = []
    for call in [*calls, *invalid, *([old_style] if old_style else [])]:
        of_function = _getter(_field(call, "function") or call)
        for key in ("arguments", "args", "input"):
            if (arguments := of_function(key)) is not None:
                break
        else:
            arguments = ""
        if not isinstance(arguments, str):
            arguments = json.dumps(_plain(arguments), ensure_ascii=False, default=str)
        number = numbers[""] = numbers.get("", 0) + 1  # counted: some servers give every call the same id
        if call_id := _field(call, "id"):
            numbers[str(call_id)] = number
        blocks.append(Block("call", _clean(f"#{number} {of_function('name') or '(no name)'} {arguments}")))
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


def _says_something(text: str) -> bool:
    return bool(text) and not text.isspace()


_UNSENDABLE = re.compile("[\0\ud800-\udfff]")


def _clean(text: str) -> str:
    """`text` without what no JSON request can carry: NUL, and halves of surrogate pairs."""
    if text.isascii() and "\0" not in text:  # most are, and this is found much faster
        return text
    return _UNSENDABLE.sub("\ufffd", text)
