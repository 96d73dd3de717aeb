"""Messages of LangChain and of the OpenAI wire, each as the other, with everything that a model reads.

What LangChain keeps beside that is no part of a conversation and does not travel: ids of messages, `usage_metadata`,
`response_metadata`, the `artifact` and `status` of a tool's result, and notes on a text block such as citations.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolCall,
    ToolMessage,
    convert_to_openai_data_block,
    is_data_content_block,
)
from langchain_core.messages.tool import tool_call
from langchain_core.output_parsers.openai_tools import make_invalid_tool_call

from art_core.errors import DataError
from art_core.types import ChatMessage as WireMessage

_CALL_BLOCKS = ("tool_call", "invalid_tool_call", "tool_call_chunk", "tool_use", "function_call")
_REASONING_BLOCKS = ("reasoning", "thinking", "reasoning_content")
_OF_WIRE = ("image_url", "input_audio", "file")
_DEVELOPER = "__openai_role__"
_KEPT = ("audio", "function_call", "refusal")
_FIELDS = {
    "user": {"content", "name"},
    "system": {"content", "name"},
    "developer": {"content", "name"},
    "assistant": {"content", "name", "tool_calls", "reasoning_content", "reasoning", *_KEPT},
    "tool": {"content", "name", "tool_call_id"},
    "function": {"content", "name"},
}


def to_wire(messages: Iterable[BaseMessage]) -> list[WireMessage]:
    """LangChain messages in the OpenAI wire shape, as `ChatOpenAI` sends them, but with nothing dropped.

    Reasoning, which LangChain keeps as content blocks or in `additional_kwargs`, is sent as `reasoning_content`. The
    name of a tool's result is sent only where the conversation does not tell it: no call has that id. Calls that could
    not be read come after those that could.

    Raises:
        DataError: a message, or a part of one, that has no such shape; it is shown.
    """
    sent: list[WireMessage] = []
    called: dict[str, str] = {}
    for message in messages:
        wire = _to_wire(message)
        if not all(map(_is_text, _texts(wire))):
            raise _refused(message, "it holds half of a surrogate pair, which is not text and cannot be sent")
        for call in wire.get("tool_calls", ()):
            called[call.get("id", "")] = call["function"]["name"]
        if wire["role"] == "tool" and wire.get("name") == called.get(wire["tool_call_id"]):
            wire.pop("name", None)
        sent.append(wire)
    return sent


def from_wire(messages: Iterable[WireMessage]) -> list[BaseMessage]:
    """Messages in the OpenAI wire shape as LangChain messages: what `to_wire` turns back into the same.

    Reasoning becomes `additional_kwargs["reasoning_content"]`. A tool's result has the name of the call it answers. A
    role that LangChain has no class for becomes a `ChatMessage`.

    Raises:
        DataError: a message without a role, or with a field that LangChain has no place for; it is shown.
    """
    made: list[BaseMessage] = []
    called: dict[str, str] = {}
    for message in messages:
        langchain = _from_wire(message, called)
        if isinstance(langchain, AIMessage):
            for call in [*langchain.tool_calls, *langchain.invalid_tool_calls]:
                called[call["id"] or ""] = call["name"] or ""
        made.append(langchain)
    return made


def _to_wire(message: BaseMessage) -> WireMessage:
    if isinstance(message, AIMessage):
        return _answer_to_wire(message)
    if isinstance(message, ChatMessage) and message.role == "assistant":
        return _answer_to_wire(AIMessage(message.content, **message.model_dump(include={"additional_kwargs", "name"})))
    wire: WireMessage = {"role": _role(message), "content": _content(message)[0]}
    if wire["role"] == "tool":
        answered = (
            message.tool_call_id if isinstance(message, ToolMessage) else message.additional_kwargs.get("tool_call_id")
        )
        if answered is None:
            raise _refused(message, "it does not say which call it answers; use a ToolMessage")
        wire["tool_call_id"] = answered
    if name := message.name or message.additional_kwargs.get("name"):
        wire["name"] = name
    return wire


def _role(message: BaseMessage) -> str:
    if isinstance(message, ChatMessage):
        return message.role
    if isinstance(message, SystemMessage):
        return str(message.additional_kwargs.get(_DEVELOPER, "system"))
    for kind, role in ((HumanMessage, "user"), (ToolMessage, "tool"), (FunctionMessage, "function")):
        if isinstance(message, kind):
            return role
    raise _refused(message, f"a {type(message).__name__} is nothing that can be sent to a model")


def _answer_to_wire(message: AIMessage) -> WireMessage:
    content, reasoning = _content(message)
    wire: WireMessage = {"role": "assistant", "content": content}
    calls = [_call(message, call["name"], _arguments(message, call["args"]), call["id"]) for call in message.tool_calls]
    calls += [_call(message, call["name"], call["args"] or "", call["id"]) for call in message.invalid_tool_calls]
    raw = message.additional_kwargs.get("tool_calls") or ()
    if calls and {call.get("id") for call in raw} - {call.get("id") for call in calls}:
        raise _refused(message, "its additional_kwargs hold calls that are not among its tool_calls; put them there")
    if raw and not calls:
        calls = [{key: call[key] for key in ("id", "type", "function") if key in call} for call in raw]
    if calls:
        wire["tool_calls"] = calls
        wire["content"] = content or None
    if reasoning := message.additional_kwargs.get("reasoning_content") or reasoning:
        wire["reasoning_content"] = reasoning
    if message.name:
        wire["name"] = message.name
    for key in _KEPT:
        if kept := message.additional_kwargs.get(key):
            wire[key] = kept
    return wire


def _arguments(message: AIMessage, arguments: dict[str, Any]) -> str:
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(message, f"the arguments of one of its calls have no JSON form: {error}") from error


def _texts(wire: WireMessage) -> Iterator[str]:
    """The texts of a message that are somebody's words."""
    content = wire["content"]
    yield from [content] if isinstance(content, str) else (part.get("text") or "" for part in content or ())
    yield from (wire.get(key) or "" for key in ("name", "reasoning_content"))
    yield from (call.get("function", {}).get("arguments") or "" for call in wire.get("tool_calls", ()))


def _is_text(text: Any) -> bool:
    if isinstance(text, str) and not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True


def _call(message: AIMessage, name: str | None, arguments: str, id_: str | None) -> dict[str, Any]:
    if not name:
        raise _refused(message, "one of its calls has no name")
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": id_, **call} if id_ else call


def _content(message: BaseMessage) -> tuple[str | list[Any], str]:
    """The content as it is sent, and the reasoning that was among it."""
    if isinstance(message.content, str):
        return message.content, ""
    parts: list[Any] = []
    reasoning: list[str] = []
    for block in message.content:
        if isinstance(block, str):
            parts.append({"type": "text", "text": block})
        elif isinstance(message, AIMessage) and block.get("type") in _REASONING_BLOCKS:
            reasoning.append(_reasoning(block))
        elif isinstance(message, AIMessage) and block.get("type") in _CALL_BLOCKS:
            known = {call["id"] for call in (*message.tool_calls, *message.invalid_tool_calls)}
            if (block.get("call_id") or block.get("id")) not in known:
                raise _refused(message, f"its block {block!r} is not among its tool_calls; put the call there")
        else:
            parts.append(_part(block, message))
    return parts or "", "".join(reasoning)


def _part(block: dict[str, Any], message: BaseMessage) -> dict[str, Any]:
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    if kind in _OF_WIRE and kind in block:
        return {"type": kind, kind: block[kind]}
    if kind == "image" and isinstance(source := block.get("source"), Mapping):
        if source.get("type") == "base64":
            return _image(f"data:{source.get('media_type')};base64,{source.get('data')}")
        return _image(str(source.get("url")))
    if is_data_content_block(block):
        try:
            return dict(convert_to_openai_data_block(block))
        except (ValueError, KeyError) as error:
            raise _refused(message, f"its {kind} block cannot be sent: {error}") from error
    raise _refused(message, f"its content has a block of type {kind!r}, which cannot be sent; leave it out")


def _image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def _reasoning(block: Mapping[str, Any]) -> str:
    """The text of a reasoning block in any of the spellings of those who make them."""
    inner = block.get("reasoning_content")
    text = (
        block.get("reasoning") or block.get("thinking") or (inner.get("text") if isinstance(inner, Mapping) else inner)
    )
    if text is None:
        text = "\n\n".join(part.get("text", "") for part in block.get("summary") or ())
    return str(text)


def _from_wire(message: WireMessage, called: Mapping[str, str]) -> BaseMessage:
    role = message.get("role")
    if not isinstance(role, str):
        raise _refused(message, "it has no role")
    said = {key for key, value in message.items() if value not in (None, [], {}, "")}
    unknown = said - _FIELDS.get(role, {"content"}) - {"role"}
    if unknown:
        raise _refused(message, f"a LangChain message has no place for its {sorted(unknown)}")
    content: Any = message.get("content") or ""
    name = message.get("name")
    match role:
        case "user":
            return HumanMessage(content=content, name=name)
        case "system":
            return SystemMessage(content=content, name=name)
        case "developer":
            return SystemMessage(content=content, name=name, additional_kwargs={_DEVELOPER: role})
        case "assistant":
            return _answer_from_wire(message, content)
        case "tool":
            answered = str(message.get("tool_call_id") or "")
            return ToolMessage(content=content, tool_call_id=answered, name=name or called.get(answered) or None)
        case "function":
            return FunctionMessage(content=content, name=str(name))
    return ChatMessage(content=content, role=role)


def _answer_from_wire(message: WireMessage, content: Any) -> AIMessage:
    for call in message.get("tool_calls") or ():
        if not isinstance(call.get("function"), Mapping) or not call["function"].get("name"):
            raise _refused(message, f"its call {call!r} is none of a function with a name")
    calls, unread = read_calls(message)
    kept = {key: message[key] for key in _KEPT if message.get(key)}
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        kept["reasoning_content"] = reasoning
    return AIMessage(
        content=content, name=message.get("name"), tool_calls=calls, invalid_tool_calls=unread, additional_kwargs=kept
    )


def read_calls(message: Mapping[str, Any]) -> tuple[list[ToolCall], list[InvalidToolCall]]:
    """The tool calls of an answer in the wire shape: those whose arguments are an object, and the others."""
    calls: list[ToolCall] = []
    unread: list[InvalidToolCall] = []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        try:
            arguments = function.get("arguments") or "{}"
            if isinstance(arguments, str):
                arguments = json.loads(arguments)
            if not isinstance(arguments, dict):
                raise ValueError(f"the arguments are {type(arguments).__name__}; wanted an object")
        except ValueError as error:
            unread.append(make_invalid_tool_call(call, str(error)))
        else:
            calls.append(tool_call(name=function["name"], args=arguments, id=call.get("id")))
    return calls, unread


def _refused(message: Any, why: str) -> DataError:
    shown = repr(message)
    return DataError(f"a message cannot be converted: {why}: {shown if len(shown) <= 500 else shown[:497] + '...'}")
