"""The body of `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from art_core.errors import DataError
from art_core.messages import normal_message, tool_function
from art_core.serve.requests import MAX_TOP_LOGPROBS, Request, shown
from art_core.serve.wire import invalid, unsupported
from art_core.types import ChatMessage, ToolSpec

_ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True)
class Calling:
    """What `tools`, `tool_choice` and `parallel_tool_calls` say together.

    The model is shown `offered` and has to call one of `callable`, at once, where that is not empty. `only_one`: the
    answer ends with its first call.
    """

    offered: tuple[ToolSpec, ...] = ()
    callable: tuple[ToolSpec, ...] = ()
    only_one: bool = False


class ChatRequest(Request):
    """A chat call; see `Request` for what it shares with others.

    `tool_choice`: "none" shows the model no tools; "required" and a named function restrict sampling to calls, in the
    model's own format and with arguments that follow the tool's schema: one call of the named function, one or more of
    any. `allowed_tools` is supported in the mode "required".

    `parallel_tool_calls: false`: sampling ends with the first whole call, or, where calls are required, the grammar
    permits one.

    `response_format`: sampling is restricted to JSON of that shape. With tools offered as well, the answer is either
    such JSON or calls.

    A last message of the assistant is the beginning of the answer: the model goes on from there, and the answer holds
    only what it adds. It cannot be combined with what restricts the whole answer.
    """

    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[ToolSpec] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: dict[str, Any] | None = None

    modalities: list[Literal["text"]] | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None

    def check(self) -> None:
        for index, message in enumerate(self.messages):
            _check_message(message, f"messages[{index}]")
        for index, tool in enumerate(self.tools or ()):
            _check_tool(tool, f"tools[{index}]")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise invalid("max_tokens and max_completion_tokens differ; give one of them", "max_tokens")
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs is given, but logprobs is not true", "top_logprobs")
        if self.begins_answer:
            self._check_beginning()
        _ = self.calling, self.answer_schema

    def _check_beginning(self) -> None:
        where = f"messages[{len(self.messages) - 1}]"
        if self.messages[-1].get("tool_calls"):
            raise invalid(
                f"{where}.tool_calls: the last message calls tools; add their results, one message of the role "
                "'tool' for each call",
                f"{where}.tool_calls",
            )
        if len(self.messages) == 1:
            raise invalid("the only message is the assistant's; wanted one that it answers before it", "messages")
        for name, restricts in (("response_format", self.answer_schema), ("tool_choice", self.calling.callable)):
            if restricts:
                raise unsupported(f"{name!r} restricts the whole answer, but {where} has already begun it", name)

    @property
    def begins_answer(self) -> bool:
        """Whether the last message is the assistant's: the beginning of the answer."""
        return self.messages[-1].get("role") == "assistant"

    @property
    def restricts_answer(self) -> bool:
        """Whether only some answers may be sampled."""
        return self.answer_schema is not None or bool(self.calling.callable)

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_alternatives(self) -> int:
        return self.top_logprobs or 0

    @property
    def calling(self) -> Calling:
        """Which tools the model is shown, and whether it has to call one.

        Raises:
            ApiError: 400, `tool_choice` has no such value, or names a tool that is not there.
        """
        tools = tuple(self.tools or ())
        only_one = self.parallel_tool_calls is False
        match self.tool_choice:
            case None | "auto":
                return Calling(tools, (), only_one and bool(tools))
            case "none":
                return Calling()
            case "required":
                return Calling(tools, _named(tools, None), only_one)
            case {"type": "function", "function": {"name": str(name)}}:
                return Calling(tools, _named(tools, [name]), only_one=True)
            case {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [*allowed]}} if allowed:
                return Calling(tools, _named(tools, [_allowed_name(tool) for tool in allowed]), only_one)
            case {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}:
                raise unsupported(
                    "'tool_choice' allows some tools in the mode 'auto'; this server supports only 'required' there: "
                    "offer only the tools that may be called",
                    "tool_choice",
                )
            case "any":
                raise invalid(f"'tool_choice' is {shown(self.tool_choice)}; did you mean 'required'?", "tool_choice")
        raise invalid(
            f"'tool_choice' is {shown(self.tool_choice)}; wanted 'auto', 'none', 'required', "
            "{'type': 'function', 'function': {'name': ...}} or {'type': 'allowed_tools', ...}",
            "tool_choice",
        )

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """The JSON Schema that the answer's text has to follow; None for any text.

        Raises:
            ApiError: 400, `response_format` is of no known shape.
        """
        match self.response_format:
            case None | {"type": "text"}:
                return None
            case {"type": "json_object"}:
                return _ANY_OBJECT
            case {"type": "json_schema", "json_schema": {"name": str(), "schema": dict() as schema}}:
                return schema
            case {"type": "json_schema"}:
                raise invalid(
                    "'response_format' wants {'type': 'json_schema', 'json_schema': {'name': ..., 'schema': {...}}}",
                    "response_format.json_schema",
                )
        raise invalid(
            f"'response_format' is {shown(self.response_format)}; wanted the type 'text', 'json_object' or "
            "'json_schema'",
            "response_format.type",
        )


def _named(tools: Sequence[ToolSpec], names: Sequence[str] | None) -> tuple[ToolSpec, ...]:
    """The tools of these names, or all."""
    if not tools:
        raise invalid("'tool_choice' asks for a call, but there are no tools; give them in 'tools'", "tool_choice")
    if names is None:
        return tuple(tools)
    by_name = {tool_function(tool)["name"]: tool for tool in tools}
    for name in names:
        if name not in by_name:
            raise invalid(f"'tool_choice' names {name!r}, which is not one of {sorted(by_name)}", "tool_choice")
    return tuple(by_name[name] for name in dict.fromkeys(names))


def _allowed_name(tool: Any) -> str:
    match tool:
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return name
    raise invalid(f"'tool_choice' allows {shown(tool)}, which is not a function", "tool_choice")


def _check_message(message: ChatMessage, where: str) -> None:
    for key in ("audio", "function_call", "refusal"):
        if message.get(key):
            raise unsupported(f"{where}.{key} is not supported by this server; leave it out", f"{where}.{key}")
    role = message.get("role")
    if not isinstance(role, str):
        raise invalid(f"{where}.role is {shown(role)}; wanted a string", f"{where}.role")
    for key in ("name", "tool_call_id"):
        if not isinstance(message.get(key), str | None):
            raise invalid(f"{where}.{key} is {shown(message[key])}; wanted a string", f"{where}.{key}")
    if not isinstance(message.get("tool_calls"), list | None):
        raise invalid(f"{where}.tool_calls is not a list", f"{where}.tool_calls")
    if message.get("tool_calls") and role != "assistant":
        raise invalid(f"{where}.tool_calls: only an assistant calls tools", f"{where}.tool_calls")
    try:
        normal_message(message)
    except DataError as error:
        raise invalid(f"{where}: {error}", where) from error


def _check_tool(tool: ToolSpec, where: str) -> None:
    if tool.get("type") != "function" or "function" not in tool:
        raise invalid(f"{where} is not a function tool: {{'type': 'function', 'function': ...}}", where)
    try:
        function = tool_function(tool)
    except DataError as error:
        raise invalid(f"{where}: {error}", where) from error
    if not isinstance(function.get("description"), str | None):
        param = f"{where}.function.description"
        raise invalid(f"{param} is {shown(function['description'])}; wanted a string", param)
    parameters = function.get("parameters")
    if not isinstance(parameters, dict | None) or (parameters or {}).get("type", "object") != "object":
        param = f"{where}.function.parameters"
        raise invalid(
            f"{param} is {shown(parameters)}; wanted a JSON Schema of the type 'object'",
            param,
            code="invalid_function_parameters",
        )
