"""What a conversation must be to be trained on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from art_core.errors import DataError
from art_core.messages import STRICT_DECODER, normal_message, tool_function
from art_core.types import ChatMessage

_MESSAGE_KEYS = {
    *("role", "content", "name", "tool_calls", "tool_call_id", "weight", "reasoning_content", "reasoning"),
    *("annotations", "audio", "refusal"),
}


def trained_turns(messages: Sequence[ChatMessage], train_on: str = "all") -> list[int]:
    """The places of the answers that are trained: those of the assistant without `weight` 0, or the last of them."""
    turns = [
        index
        for index, message in enumerate(messages)
        if message.get("role") == "assistant" and message.get("weight") in (None, 1)
    ]
    return turns[-1:] if train_on == "last" else turns


def check_keys(messages: Sequence[ChatMessage]) -> None:
    """Refuse fields of messages that would be read by nobody.

    Raises:
        DataError: there is one that is not null.
    """
    for index, message in enumerate(messages):
        unknown = sorted(key for key, value in message.items() if key not in _MESSAGE_KEYS and value is not None)
        if unknown and unknown[0] != "function_call":  # which is told apart below
            raise DataError(
                f"messages[{index}] has the field {unknown[0]!r}, which nothing reads; known are "
                f"{sorted(_MESSAGE_KEYS - {'annotations', 'audio', 'refusal'})}"
            )


def check_conversation(messages: Any, tools: Any = (), *, one_call: bool = False) -> None:
    """Refuse what cannot be trained on. With `one_call`, also answers with several calls of tools.

    Raises:
        DataError: what is wrong, and in which message.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise DataError("'messages' is empty or no list; wanted a conversation with an answer of the assistant")
    names = _tool_names(tools)
    trained = set(trained_turns([dict(m) if isinstance(m, Mapping) else {} for m in messages]))
    calls: dict[str, None] = {}  # ids of calls without a result so far
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise DataError(f"messages[{index}] is a {type(message).__name__}; wanted an object with role and content")
        try:
            _check_message(dict(message), names, calls, is_trained=index in trained, one_call=one_call)
        except DataError as error:
            raise DataError(f"messages[{index}]: {error}") from None
    if not trained:
        answers = any(message.get("role") == "assistant" for message in messages)
        raise DataError(
            "every answer of the assistant has weight 0; wanted one to train"
            if answers
            else "there is no message of the assistant, so nothing to train"
        )
    if 0 in trained:
        raise DataError(
            'messages[0] is an answer to nothing; wanted a message before it, or "weight": 0, which makes it context'
        )


def _tool_names(tools: Any) -> set[str]:
    if not isinstance(tools, list | tuple):
        raise DataError(f"'tools' is a {type(tools).__name__}; wanted a list")
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise DataError(f"tools[{index}] is a {type(tool).__name__}; wanted an object")
    return {tool_function(tool)["name"] for tool in tools}


def _check_message(
    message: ChatMessage, names: set[str], calls: dict[str, None], *, is_trained: bool, one_call: bool
) -> None:
    if message.get("function_call") is not None or message.get("role") == "function":
        raise DataError("functions are of an older format; wanted 'tool_calls', and results with the role 'tool'")
    normal = normal_message(message)
    role = normal["role"]
    if role != "assistant" and message.get("weight") is not None:
        raise DataError(f"'weight' is given for the role {role!r}; only answers of the assistant have one")
    if message.get("weight") not in (None, 0, 1) or isinstance(message.get("weight"), bool):
        raise DataError(f"'weight' is {message['weight']!r}; wanted 0 or 1")
    if role == "tool":
        call_id = message.get("tool_call_id")
        if not isinstance(call_id, str) or call_id not in calls:
            raise DataError(
                f"'tool_call_id' is {call_id!r}, and the calls before it that wait for a result are {list(calls)}"
            )
        del calls[call_id]
        return
    if calls:
        raise DataError(f"the call {next(iter(calls))!r} before it has no result of the role 'tool'")
    if role == "assistant":
        _check_answer(message, normal, names, calls, is_trained=is_trained, one_call=one_call)
    elif role == "user" and not normal["content"].strip():
        raise DataError("the content is empty; wanted text")


def _check_answer(
    message: ChatMessage,
    normal: ChatMessage,
    names: set[str],
    calls: dict[str, None],
    *,
    is_trained: bool,
    one_call: bool,
) -> None:
    made = normal.get("tool_calls", [])
    if not made and not normal["content"].strip():
        raise DataError("the answer is empty: neither content nor tool_calls")
    if one_call and len(made) > 1:
        raise DataError(f"{len(made)} calls of tools in one answer, and 'parallel_tool_calls' is false")
    for given, call in zip(message.get("tool_calls") or (), made, strict=True):
        function = call["function"]
        if function["name"] not in names:
            known = f"'tools' are {sorted(names)}" if names else "there are no 'tools' that the model could be shown"
            raise DataError(f"calls {function['name']!r}, and {known}")
        if is_trained and not _is_object(given["function"].get("arguments")):
            raise DataError(
                f"the arguments of the call of {function['name']!r} are no JSON object: "
                f"{given['function'].get('arguments')!r:.100}"
            )
        call_id = call.get("id")
        if call_id is not None and not isinstance(call_id, str):
            raise DataError(f"the id of the call of {function['name']!r} is {call_id!r:.100}; wanted text")
        if call_id in calls:
            raise DataError(f"two calls have the id {call_id!r}")
        if call_id is not None:
            calls[call_id] = None


def _is_object(arguments: Any) -> bool:
    if isinstance(arguments, str):
        try:
            arguments = STRICT_DECODER.decode(arguments)
        except (ValueError, RecursionError):
            return False
    return isinstance(arguments, Mapping)
