"""Answers of the server as LangChain has them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_function
from pydantic import BaseModel, ValidationError

from art_langgraph.convert import read_calls

PROVIDER = "art"
_OF_CHOICE = ("token_ids", "token_logprobs", "exchange_id", "policy_version", "malformed_tool_calls")


def extras(message: BaseMessage, choice: Mapping[str, Any], wire: Mapping[str, Any]) -> None:
    """Put onto `message` what LangChain does not read of an answer, plain or a part of a stream.

    Of a stream, token ids come with each part, and what says something about the whole with the last only: merging
    parts extends lists and joins strings.
    """
    message.response_metadata |= {name: choice[name] for name in _OF_CHOICE if choice.get(name) is not None}
    message.response_metadata["model_provider"] = PROVIDER
    if reasoning := wire.get("reasoning_content"):
        message.additional_kwargs["reasoning_content"] = reasoning


def without_calls(data: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a plain answer without its tool calls.

    LangChain's reading of them fails on arguments that are no object, which a model that learns does write.
    """
    choices = []
    for choice in data["choices"]:
        message = {key: value for key, value in choice["message"].items() if key != "tool_calls"}
        choices.append({**choice, "message": message})
    return {**data, "choices": choices}


def chat_result(data: Mapping[str, Any], result: ChatResult) -> ChatResult:
    """`result`, which LangChain made of `data` without its calls, with all that `data` holds."""
    for generation, choice in zip(result.generations, data["choices"], strict=True):
        of_choice = {"finish_reason": choice.get("finish_reason"), "logprobs": choice.get("logprobs")}
        generation.generation_info = {**(generation.generation_info or {}), **of_choice}
        message = generation.message
        if isinstance(message, AIMessage):
            message.tool_calls, message.invalid_tool_calls = read_calls(choice["message"])
        extras(message, choice, choice["message"])
    return result


def response_format(wanted: dict[str, Any] | type) -> dict[str, Any]:
    """What a request says for a class: the class's JSON Schema, enforced as it is."""
    if isinstance(wanted, dict):
        return wanted
    function = convert_to_openai_function(wanted, strict=True)
    described = {"description": function["description"]} if function.get("description") else {}
    schema = {"name": function["name"], **described, "schema": function["parameters"], "strict": True}
    return {"type": "json_schema", "json_schema": schema}


def with_parsed(result: ChatResult, wanted: Any) -> ChatResult:
    """`result` with `additional_kwargs["parsed"]` where a class was asked for, and the answer is one."""
    for generation in result.generations:
        generation.message.additional_kwargs |= _parsed(generation.message.text, wanted)
    return result


def _parsed(text: str, wanted: Any) -> dict[str, Any]:
    if not (isinstance(wanted, type) and issubclass(wanted, BaseModel)):
        return {}
    try:
        return {"parsed": wanted.model_validate_json(text)}
    except ValidationError:  # calls instead, or cut off: whoever parses the answer says so
        return {}


class Joined:
    """The text of a stream as it comes, for what is read from the whole."""

    def __init__(self, wanted: Any) -> None:
        self._wanted = wanted
        self._texts: list[str] = []

    def take(self, chunk: ChatGenerationChunk) -> ChatGenerationChunk:
        self._texts.append(chunk.text)
        return chunk

    def last(self) -> ChatGenerationChunk | None:
        """What follows the last chunk, if anything does."""
        parsed = _parsed("".join(self._texts), self._wanted)
        return ChatGenerationChunk(message=AIMessageChunk(content="", additional_kwargs=parsed)) if parsed else None

    def ended(self, chunks: Iterable[ChatGenerationChunk]) -> Iterator[ChatGenerationChunk]:
        yield from map(self.take, chunks)
        if (last := self.last()) is not None:
            yield last


def calls_apart() -> Callable[[ChatGenerationChunk], ChatGenerationChunk]:
    """For the chunks of one stream: each tool call has an index of its own, also where calls came under the same one.

    LangChain joins pieces of calls by their index. Servers are known that send every call under index 0.
    """
    ids: list[str | None] = []  # of the calls, by the index they are given
    newest: dict[Any, int] = {}  # the last call under each index of the server

    def numbered(index: Any, id_: str | None) -> int:
        if id_ and id_ in ids:
            number = ids.index(id_)
        elif index in newest and (not id_ or not ids[newest[index]]):
            number = newest[index]
            ids[number] = ids[number] or id_
        else:
            number = len(ids)
            ids.append(id_)
        newest[index] = number
        return number

    def apart(chunk: ChatGenerationChunk) -> ChatGenerationChunk:
        if isinstance(chunk.message, AIMessageChunk):
            for call in chunk.message.tool_call_chunks:
                call["index"] = numbered(call["index"], call["id"])
        return chunk

    return apart
