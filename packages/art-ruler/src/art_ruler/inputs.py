"""Anything that holds a conversation -> a transcript: what a judge may see of it, in one canonical form.

Taken are lists of messages in the OpenAI wire shape (dicts, or the client's objects), LangChain messages, anything
with `messages`, `messages_and_choices` or `exchanges` (attribute, method or key). They are known by shape; none of
those libraries is imported. Two trajectories that did the same have equal transcripts: ids of tool calls, which are
drawn at random, become numbers in order of appearance, and times, names of models and the like are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from art_ruler.errors import DataError
from art_ruler.messages import BadMessageError, Block, Message, as_json, clean, field, is_list, read_message

__all__ = ["Block", "Message", "Transcript", "common_prefix_length", "digest", "read_trajectories"]

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
        try:
            transcript, own = _conversation(trajectory, where)
            shown = common or _tools_message(own, f"{where}: tools")
        except BadMessageError as error:
            raise DataError(f"{where}{error}") from error.__cause__
        transcripts.append(((shown,) if shown else ()) + transcript)
    return transcripts


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


def _conversation(trajectory: Any, where: str) -> tuple[Transcript, list[Any]]:
    """The messages of a trajectory, and the tools that it carries."""
    if is_list(trajectory):
        return _messages(trajectory, where) or _NO_MESSAGES, []
    tools = _listed(field(trajectory, "tools"), f"{where}: tools")
    exchanges = field(trajectory, "exchanges")
    if exchanges is not None:
        exchanges = list(exchanges)
        for exchange in exchanges:
            tools += _listed(field(exchange, "tools"), f"{where}: tools")
        return _of_exchanges(exchanges, where), tools
    found = next(
        (value for name in ("messages_and_choices", "messages") if (value := field(trajectory, name)) is not None),
        None,
    )
    if found is None or not is_list(found):
        raise DataError(
            f"{where} is a {type(trajectory).__name__} without messages; wanted a list of messages, or an object "
            "or dict that has `messages`"
        )
    transcript = _messages(found, where)
    for extra in field(trajectory, "additional_histories") or ():
        history, its_tools = _conversation(extra, f"{where}: additional history")
        transcript += (_SEPARATOR, *history)
        tools += its_tools
    return transcript or _NO_MESSAGES, tools


_NO_MESSAGES: Transcript = (Message((Block("note", "(no messages)"),)),)
_SEPARATOR = Message((Block("note", "(another conversation of the same attempt)"),))


def _of_exchanges(exchanges: Sequence[Any], where: str) -> Transcript:
    """Model calls in order: each continues the longest conversation that it begins with, or else opens one.

    Agents may take turns. That a later call leaves out what was thought before does not make it another conversation.
    """
    histories: list[list[Message]] = []
    for exchange in exchanges:
        asked = list(field(exchange, "messages") or ())
        read = _messages([*asked, field(exchange, "response")], where)
        lengths = [_continued(history, read) for history in histories]
        longest = max(lengths, default=0)
        if longest:
            histories[lengths.index(longest)] += read[longest:]
        else:
            histories.append(list(read))
    shown: list[Message] = []
    for history in histories:
        shown += [_SEPARATOR, *history] if shown else history
    return tuple(shown) or _NO_MESSAGES


def _continued(history: Sequence[Message], read: Transcript) -> int:
    """How many messages of `read` repeat all of `history`; 0 if it does not begin with it."""
    if len(read) <= len(history):
        return 0
    for before, now in zip(history, read, strict=False):
        if before != now and _without_thoughts(before) != _without_thoughts(now):
            return 0
    return len(history)


def _without_thoughts(message: Message) -> list[Block]:
    return [block for block in message.blocks if block.kind != "reasoning"]


def _messages(messages: Sequence[Any], where: str) -> Transcript:
    numbers: dict[str, int] = {}
    read: list[Message] = []
    for message in messages:
        try:
            read.append(read_message(message, numbers))
        except BadMessageError as error:
            raise DataError(f"{where}, message {len(read)}{error}") from error.__cause__
    return tuple(read)


def _listed(tools: Any, where: str) -> list[Any]:
    if tools and not is_list(tools):
        raise DataError(f"{where} are a {type(tools).__name__}; wanted a list of tools in the OpenAI wire shape")
    return list(tools or ())


def _tools_message(tools: Any, where: str) -> Message | None:
    lines: dict[str, None] = {}  # the calls of an agent mostly carry the same tools
    for tool in _listed(tools, where):
        function = field(tool, "function") or tool
        name = field(function, "name")
        if not isinstance(name, str):
            raise DataError(
                f'{where}: one of them has no name; wanted {{"type": "function", "function": {{"name": ...}}}}'
            )
        description = field(function, "description") or ""
        parameters = field(function, "parameters") or field(function, "args_schema") or field(function, "input_schema")
        lines[f"{name}: {description} {as_json(parameters or {})}"] = None
    return Message((Block("tools", clean("\n".join(lines))),)) if lines else None
