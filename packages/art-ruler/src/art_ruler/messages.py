"""One chat message of any library -> its blocks: what a judge may see of it, in one canonical form.

Messages are known by shape. What is neither shown nor known to say nothing is an error, so that no judge takes an
agent that acted for one that stayed silent.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

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
# Types of content parts and of items of the Responses API, in whatever way their first words differ.
_CALL = re.compile(r"(.*_)?(tool_use|tool_call|function_call|custom_tool_call|mcp_call)")
_RESULT = re.compile(r".*(tool_result|call_output)")
_MEDIA = re.compile(r"(\w+_)?(image|audio|video|file|document|media)(_url|_data)?|image_generation_call")
_REASONING = ("reasoning", "thinking", "redacted_thinking")


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


class BadMessageError(Exception):
    """What is wrong with a message, in words that follow the name of its place."""


def read_message(message: Any, numbers: dict[str, int]) -> Message:
    """The blocks of `message`. `numbers` holds those of calls by their ids, and under "" how many there were.

    Raises:
        BadMessageError: it is no message, or holds something that cannot be shown.
    """
    if type(message) is dict and len(message) == 2:  # by far the most common one needs no search
        role, content = message.get("role"), message.get("content")
        if type(role) is type(content) is str and (kind := _ROLES.get(role)) and says_something(content):
            if kind == "assistant" and _is_only_thought(content):
                return Message((Block("reasoning", clean(content)), Block(kind, EMPTY_ANSWER)))
            return Message((Block(kind, clean(content)),))
    if type(message) is dict and message.keys() <= _PLAIN:  # then nothing has to be looked for elsewhere
        role = message.get("role")
        if type(role) is str and (kind := _ROLES.get(role)):
            return Message(tuple(_blocks(message.get, kind, role, numbers, _nothing)))
    message = _unwrapped(message)
    get = _getter(message)
    role = get("role") or get("type")
    if not isinstance(role, str) or isinstance(message, str):
        raise BadMessageError(
            f" is a {type(message).__name__} without a role; wanted a chat message such as "
            '{"role": "user", "content": "..."}'
        )
    role = str.__str__(role).removesuffix("MessageChunk")  # of a member of an enum that is a string: its value
    kind = _ROLES.get(role) or _ROLES.get(role.lower()) or "other"
    if kind == "other" and get("role") is None and (get("content") is None or _is_item(role)):
        return Message((_part(message, kind, numbers, ()) or Block(kind, f"role {clean(role)}: {EMPTY}"),))
    extra = _getter(get("additional_kwargs") or {})  # where LangChain keeps what only some providers have
    return Message(
        tuple(_blocks(get, kind, role, numbers, lambda name: get(name) if get(name) is not None else extra(name)))
    )


_PLAIN = frozenset(("role", "content", "tool_calls", "tool_call_id"))
"""What most clients write, and no more."""


def _nothing(_name: str) -> None:
    return None


def _is_item(of: str) -> bool:
    """Whether that is the type of something in the Responses API that is no message."""
    return of in _REASONING or bool(_CALL.fullmatch(of) or _RESULT.fullmatch(of))


def _unwrapped(message: Any) -> Any:
    """The message in a choice of a completion, in what LangChain writes to files, or in a pair of role and text."""
    if isinstance(message, tuple) and len(message) == 2 and isinstance(message[0], str):
        return {"role": message[0], "content": message[1]}
    get = _getter(message)
    if get("role") is not None:
        return message
    if _says_who(inner := get("message")):
        return inner
    of = get("type")
    for name, is_written in (("data", of in _ROLES), ("kwargs", get("lc") is not None)):
        if is_written and isinstance(inner := get(name), Mapping):
            return inner if _says_who(inner) else {**inner, "type": of}
    return message


def _says_who(message: Any) -> bool:
    return message is not None and not isinstance(message, str) and (field(message, "role") or field(message, "type"))


def _blocks(get: _Getter, kind: str, role: str, numbers: dict[str, int], found: _Getter) -> list[Block]:
    """What a message says. `found` looks up the fields that not every client writes."""
    blocks = [] if found is _nothing else _reasoning(found)
    calls, old_style, invalid = get("tool_calls"), found("function_call"), get("invalid_tool_calls")
    if not _is_call_list(calls) or not _is_call_list(invalid):
        raise BadMessageError(": tool_calls are not a list; wanted a list of calls, or none")
    listed = [*(calls or ()), *(invalid or ()), *([old_style] if old_style else [])]
    content = get("content")
    if isinstance(content, str):
        if says_something(content):
            blocks.append(Block(_kind_of(content, kind), clean(content)))
    elif content is not None:
        blocks += _parts(content, kind, numbers, listed)
    if refusal := found("refusal"):
        blocks.append(Block(kind, clean(f"(refusal) {_text(refusal)}")))
    if (audio := found("audio")) is not None:
        blocks.append(Block(kind, _media("audio", audio)))
    for call in listed:
        blocks.append(_call(call, numbers))
    if kind in ("tool", "other"):
        label = _label(get, numbers) if kind == "tool" else f"role {clean(role)}: "
        return [Block(kind, label + block.text) for block in blocks] or [Block(kind, label + EMPTY)]
    if all(block.kind == "reasoning" for block in blocks):
        blocks.append(Block(kind, EMPTY_ANSWER if kind == "assistant" else EMPTY))
    return blocks


def _reasoning(found: _Getter) -> list[Block]:
    for name in ("reasoning_content", "reasoning"):
        if isinstance(text := found(name), str) and says_something(text):
            return [Block("reasoning", clean(text))]
    thoughts = found("thinking_blocks")
    return _parts(thoughts, "reasoning", {}, ()) if is_list(thoughts) else []


def _is_call_list(value: Any) -> bool:
    return not value or is_list(value)


def _label(get: _Getter, numbers: dict[str, int]) -> str:
    call_id = get("tool_call_id") or get("tool_use_id") or get("call_id")
    name = get("name")
    number = numbers.get(str(call_id)) if call_id else None
    words = ([f"#{number}"] if number else []) + ([clean(name)] if isinstance(name, str) and name else [])
    label = " ".join(words) + ": " if words else ""
    return label + ("(error) " if get("status") == "error" or get("is_error") is True else "")


def _parts(content: Any, kind: str, numbers: dict[str, int], listed: Sequence[Any]) -> list[Block]:
    if not is_list(content):
        raise BadMessageError(f": content is a {type(content).__name__}; wanted a text, a list of parts, or null")
    blocks: list[Block] = []
    for part in content:
        block = _part(part, kind, numbers, listed)
        if block is None:
            continue
        if blocks and blocks[-1].kind == block.kind in (
            kind,
            "reasoning",
        ):  # so that one text in two parts is the same as in one
            blocks[-1] = Block(block.kind, f"{blocks[-1].text}\n{block.text}")
        else:
            blocks.append(block)
    return blocks


def _part(part: Any, kind: str, numbers: dict[str, int], listed: Sequence[Any]) -> Block | None:
    """One part of a message; None where it says nothing, or is a call that is among those `listed` in the message."""
    if isinstance(part, str):
        return Block(_kind_of(part, kind), clean(part)) if says_something(part) else None
    get = _getter(part)
    of = get("type")
    of = of if isinstance(of, str) else "part"
    if of in _REASONING:
        texts = [get("reasoning"), get("thinking"), *map(_text, (*_list(get("summary")), *_list(get("content"))))]
        said = "\n".join(text for text in texts if isinstance(text, str) and says_something(text))
        if said:
            return Block("reasoning", clean(said))
        return Block("reasoning", EMPTY) if kind == "other" else None  # what is hidden by its provider
    if _CALL.fullmatch(of):
        ids = {field(call, "id") for call in listed}
        is_listed = bool(listed) and (get("id") is None or get("id") in ids or get("call_id") in ids)
        return None if is_listed else _call(part, numbers)
    if _RESULT.fullmatch(of):
        result = get("output") if get("content") is None else get("content")
        said = _text(result) if result is not None else ""
        return Block("tool", _label(get, numbers) + (clean(said) if says_something(said) else EMPTY))
    for name in ("text", "refusal"):
        if isinstance(text := get(name), str):
            text = text if name == "text" else f"(refusal) {text}"
            return Block(_kind_of(text, kind), clean(text)) if says_something(text) else None
    if _MEDIA.fullmatch(of):
        return Block(kind, _media(of, part))
    return Block(kind, clean(f"({of}) {as_json(part)}"))


def _text(value: Any) -> str:
    """What a text, a part with text, or a list of them says; of anything else, its JSON."""
    if isinstance(value, str):
        return value
    if is_list(value):
        blocks = [_part(part, "tool", {}, ()) for part in value]
        return "\n".join(block.text for block in blocks if block is not None)
    text = field(value, "text")
    return text if isinstance(text, str) else as_json(value)


def _media(of: str, part: Any) -> str:
    """A picture, a sound or a file: its words if it has some, else only that it was there. Equal ones are equal."""
    inner = field(part, of) or part
    spoken = field(inner, "transcript")
    if isinstance(spoken, str) and says_something(spoken):
        return clean(f"({of}) {spoken}")
    source = field(part, "source")
    if field(source, "type") == "text" and isinstance(text := field(source, "data"), str):
        return clean(f"({of}) {text}")
    return clean(f"({of} {hashlib.sha256(as_json(part, sort_keys=True).encode()).hexdigest()[:8]})")


def _call(call: Any, numbers: dict[str, int]) -> Block:
    get = _getter(call)
    inner = get("function") or get("custom")
    of_function = get if inner is None or isinstance(inner, str) else _getter(inner)
    for key in ("arguments", "args", "input"):
        if (arguments := of_function(key)) is not None:
            break
    else:
        arguments = "" if of_function("name") else call
    number = numbers[""] = numbers.get("", 0) + 1  # counted: some servers give every call the same id
    if call_id := get("call_id") or get("id"):
        numbers[str(call_id)] = number
    said = arguments if isinstance(arguments, str) else as_json(arguments)
    if (output := get("output")) is not None:
        said += f" -> {_text(output)}"
    return Block("call", clean(f"#{number} {of_function('name') or '(no name)'} {said}"))


# -- what any object or dict holds ------------------------------------------------------------------------------------


_Getter = Callable[[str], Any]


def _getter(value: Any) -> _Getter:
    return value.get if type(value) is dict else partial(field, value)


def field(value: Any, name: str) -> Any:
    """What an object or dict holds under `name`; methods without arguments are called.

    Raises:
        BadMessageError: it raises when it is asked.
    """
    if type(value) is dict:  # the quick test first: this is most of the work
        return value.get(name)
    try:
        if isinstance(value, Mapping):
            return value.get(name)
        found = getattr(value, name, None)
        if not callable(found) or isinstance(found, type):
            return found
        return found() if _takes_nothing(found) else None  # else it is something else of the same name
    except Exception as error:
        raise BadMessageError(f": `{name}` cannot be read: {type(error).__name__}: {error}") from error


def _takes_nothing(method: Callable[..., Any]) -> bool:
    try:
        inspect.signature(method).bind()
    except (TypeError, ValueError):
        return False
    return True


def as_json(value: Any, *, sort_keys: bool = False) -> str:
    """`value`, a plain one or a model of pydantic, as JSON.

    Raises:
        BadMessageError: it has none.
    """
    try:
        return json.dumps(_plain(value), ensure_ascii=False, sort_keys=sort_keys, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadMessageError(
            f": a {type(value).__name__} in it cannot be written as JSON ({error}); wanted plain values"
        ) from error


def _plain(value: Any) -> Any:
    for method in ("model_dump", "model_json_schema", "dict"):
        if isinstance(value, type) != (method == "model_json_schema"):
            continue
        if callable(made := getattr(value, method, None)):
            return made()
    return value


def is_list(value: Any) -> bool:
    return type(value) in (list, tuple) or (isinstance(value, Sequence) and not isinstance(value, str | bytes))


def _list(value: Any) -> Sequence[Any]:
    return value if is_list(value) else ()


# -- text -------------------------------------------------------------------------------------------------------------

# Anything but white space, controls, and characters that take no ink: joiners, marks of direction, fillers, selectors.
_INK = re.compile(
    "[^\\s\x01-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
_THOUGHT = re.compile(r"\s*<(think|thinking|thoughts?|reasoning)\b[^>]*>")
_UNSENDABLE = re.compile("[\0\ud800-\udfff]")


def says_something(text: str) -> bool:
    """Whether there is anything to see in `text`."""
    return _INK.search(text) is not None


def clean(text: str) -> str:
    """`text` without what no JSON request can carry: NUL, and halves of surrogate pairs."""
    if text.isascii() and "\0" not in text:  # most are, and this is found much faster
        return text
    return _UNSENDABLE.sub("\ufffd", text)


def _kind_of(text: str, kind: str) -> str:
    return "reasoning" if kind == "assistant" and _is_only_thought(text) else kind


def _is_only_thought(text: str) -> bool:
    """Whether an answer ends with its thinking, or before it is over."""
    opened = _THOUGHT.match(text)
    _, closed, rest = text.partition(f"</{opened[1] if opened else 'think'}>")
    return bool(opened or closed) and not says_something(rest)
