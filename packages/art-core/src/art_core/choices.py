"""Items of a conversation: message dicts, and the answers of a model in the shapes in which libraries hand them on.

An answer carries the id of its recorded exchange: as `exchange_id` of an OpenAI choice, or on one of the other carriers
of `art_core.carriers`. A completion with one choice stands for that choice: what libraries build from a stream keeps
its id nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from art_core import carriers
from art_core.errors import DataError
from art_core.types import ChatMessage
from art_core.values import json_value


def message_of(item: Any, where: str) -> ChatMessage:
    """`item` as a message dict, the way an OpenAI client sends it.

    Raises:
        DataError: it is neither a message nor an answer.
    """
    if (choice := _only_choice(item, where)) is not None:
        return message_of(choice, where)
    if isinstance(item, Mapping):
        message = item.get("message")
        return dict(message) if isinstance(message, Mapping) and "role" not in item else dict(item)
    if _is_langchain(item):
        return _from_langchain(item)
    message = getattr(item, "message", None)
    if message is None and isinstance(getattr(item, "role", None), str):
        message = item
    if not isinstance(message, BaseModel):
        raise DataError(f"{where} is a {type(item).__name__}; wanted a message dict or a choice of a completion")
    return _dumped(message)


def data_of(item: Any, where: str) -> Any:
    """`item` as plain JSON data that `message_of` and `exchange_id_of` read as they read `item`.

    Raises:
        DataError: it holds something that has no JSON form, or is no part of a conversation.
    """
    if isinstance(item, Mapping):
        return json_value(item, where)
    message = message_of(item, where)
    if _only_choice(item, where) is not None or (_is_langchain(item) and is_answer(item)):
        return json_value({"message": message, "exchange_id": exchange_id_of(item)}, where)
    if getattr(item, "message", None) is None:
        return json_value(message, where)
    if not isinstance(item, BaseModel):
        return json_value({"message": message, "exchange_id": exchange_id_of(item)}, where)
    return json_value(_dumped(item), where)


def is_answer(item: Any) -> bool:
    """Whether `item` is the answer of a model as a client handed it over, and not a message that was written down."""
    if isinstance(item, Mapping):
        return ("role" not in item and ("message" in item or "choices" in item)) or exchange_id_of(item) is not None
    if _is_langchain(item):
        return item.type in ("ai", "AIMessageChunk")
    return getattr(item, "message", None) is not None or getattr(item, "choices", None) is not None


def exchange_id_of(item: Any) -> str | None:
    """The id of the recorded call that `item` is the answer of; None where it carries none."""
    for holder in _holders(item):
        found = _get(holder, "exchange_id")
        if isinstance(found, str) and found:
            return found
    for holder in _holders(item):
        for carrier in (_get(holder, "id"), _get(holder, "system_fingerprint"), *_call_ids(holder)):
            if isinstance(carrier, str) and (carried := carriers.exchange_id_of(carrier)):
                return carried
    return None


def _call_ids(holder: Any) -> Iterator[Any]:
    calls = _get(holder, "tool_calls")
    return (_get(call, "id") for call in calls) if isinstance(calls, list) else iter(())


def has_logprobs(item: Any) -> bool:
    """Whether the answer carries log-probabilities or token ids of its own."""
    return any(_get(holder, "logprobs") or _get(holder, "token_ids") for holder in _holders(item))


def _holders(item: Any) -> Iterator[Any]:
    choices = _get(item, "choices")
    if isinstance(choices, list) and len(choices) == 1:
        yield from _holders(choices[0])
    yield item
    for name in ("message", "provider_specific_fields", "response_metadata"):
        holder = _get(item, name)
        if holder is not None:
            yield holder
            inner = _get(holder, "provider_specific_fields")
            if inner is not None:
                yield inner


def _only_choice(item: Any, where: str) -> Any:
    """The choice of a completion; None where `item` is something else."""
    choices = None if _get(item, "role") else _get(item, "choices")
    if not isinstance(choices, list):
        return None
    if len(choices) != 1:
        raise DataError(f"{where} is a completion with {len(choices)} choices; append the one you went on with")
    return choices[0]


def _get(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _dumped(item: BaseModel) -> dict[str, Any]:
    return item.model_dump(mode="json", exclude_none=True)


def _is_langchain(item: Any) -> bool:
    return hasattr(item, "response_metadata") and hasattr(item, "type")


def _from_langchain(item: Any) -> ChatMessage:
    """By LangChain's own conversion: whoever has such a message has the library."""
    message: ChatMessage = sys.modules["langchain_core.messages"].convert_to_openai_messages(item)
    return message
