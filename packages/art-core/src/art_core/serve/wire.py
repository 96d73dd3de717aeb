"""The OpenAI wire format: what a request may say, what an answer looks like, and how an error is told.

A field that would change the answer and is not supported is refused by name. Accepted without any effect are the
fields that only concern OpenAI's own service (`metadata`, `prompt_cache_key`, `prompt_cache_retention`,
`safety_identifier`, `service_tier`, `store`, `user`), the neutral values of unsupported ones (`n: 1`, `stop: []`,
`parallel_tool_calls: true`, ...), `strict` of a tool, and unknown fields of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from art_core.errors import ArtError, ContextLengthError, DataError, EngineClosedError, UnknownTrajectoryError
from art_core.render.messages import STRICT_DECODER, compact_json, normal_message, tool_function
from art_core.types import ChatMessage, FinishReason, Sampling, ToolSpec

MIN_LOGPROB = -9999.0
"""What stands for minus infinity in an answer, as at OpenAI: JSON has no infinity."""

_SEED_BITS = 63
_MAX_DEPTH = 64
_ONLY = {
    "n": "1",
    "tool_choice": "'auto' and 'none'",
    "parallel_tool_calls": "true",
    "top_logprobs": "0",
    "stop": "null and []",
    "frequency_penalty": "0",
    "presence_penalty": "0",
    "logit_bias": "{}",
    "response_format": "{'type': 'text'}",
}


class ApiError(ArtError):
    """A request that is answered with an error: HTTP status and the fields of OpenAI's error object.

    `retry_after_s` tells when the same request may succeed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def as_api_error(error: Exception) -> ApiError:
    """How `error` is told to a client."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextLengthError):
        return ApiError(400, str(error), code="context_length_exceeded", param="messages")
    if isinstance(error, UnknownTrajectoryError):
        return ApiError(404, str(error), code="unknown_trajectory")
    if isinstance(error, DataError):
        return ApiError(400, str(error))
    if isinstance(error, EngineClosedError):
        return ApiError(503, str(error), code="engine_closed")
    if isinstance(error, RecursionError):
        return ApiError(400, "the arguments of a tool call are nested too deeply", param="messages")
    return ApiError(500, f"{type(error).__name__}: {error}", code="internal_error")


class StreamOptions(BaseModel):
    """`include_usage` asks for a last chunk with the token counts. Obfuscation is accepted and has no effect."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatRequest(BaseModel):
    """The body of `POST /v1/chat/completions`. Null stands for a missing field, as at OpenAI.

    `top_k` is an extension. Fields in `_ONLY` are accepted with a neutral value alone.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[ToolSpec] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: Literal[True] | None = None
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    top_k: int | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=-(2**_SEED_BITS), lt=2**_SEED_BITS)
    n: Literal[1] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Literal[0] | None = None

    stop: list[str] | None = Field(default=None, max_length=0)
    frequency_penalty: float | None = Field(default=None, ge=0.0, le=0.0)
    presence_penalty: float | None = Field(default=None, ge=0.0, le=0.0)
    logit_bias: dict[str, float] | None = Field(default=None, max_length=0)
    response_format: dict[Literal["type"], Literal["text"]] | None = None

    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None

    @classmethod
    def parse(cls, body: bytes) -> ChatRequest:
        """The request in `body`.

        Raises:
            ApiError: 400, naming the field, when it is not JSON, not of this shape, or asks for what is not supported.
        """
        request = cls._validated(_json_object(body))
        for index, message in enumerate(request.messages):
            _check_message(message, f"messages[{index}]")
        for index, tool in enumerate(request.tools or ()):
            _check_tool(tool, f"tools[{index}]")
        limits = {request.max_tokens, request.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise ApiError(400, "max_tokens and max_completion_tokens differ; give one of them", param="max_tokens")
        return request

    @classmethod
    def _validated(cls, value: dict[str, Any]) -> ChatRequest:
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            param = ".".join(str(part) for part in problem["loc"])
            if problem["type"] == "extra_forbidden":
                message = f"{param!r} is not supported by this server; leave it out"
            elif (name := str(problem["loc"][0])) in _ONLY:
                message = f"{name!r} is {_shown(value[name])}; this server supports only {_ONLY[name]}"
            else:
                raise ApiError(
                    400, f"{param!r}: {problem['msg']}; got {_shown(problem['input'])}", param=param
                ) from error
            raise ApiError(400, message, code="unsupported_parameter", param=param) from error

    @property
    def offered_tools(self) -> list[ToolSpec]:
        """The tools the model is shown: none at all with `tool_choice: "none"`, so that it cannot call any."""
        return list(self.tools or ()) if self.tool_choice != "none" else []

    def sampling(self, *, num_prompt_tokens: int, max_context_tokens: int, stop_token_ids: Sequence[int]) -> Sampling:
        """How to draw the answer. Without a limit, the answer may fill what the prompt leaves of the context.

        Raises:
            ContextLengthError: the prompt alone, or with the answer asked for, does not fit.
        """
        rest = max_context_tokens - num_prompt_tokens
        wanted = self.max_completion_tokens or self.max_tokens
        if rest < (wanted or 1):
            asked = f" and {wanted} tokens were asked for" if wanted else ""
            raise ContextLengthError(
                f"the prompt has {num_prompt_tokens} tokens{asked}, but the context of this model holds "
                f"{max_context_tokens}; shorten the messages or lower max_tokens"
            )
        return Sampling(
            max_tokens=wanted or rest,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            stop_token_ids=tuple(stop_token_ids),
            seed=self.seed,
        )


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        text = body.decode().strip()
        value, end = STRICT_DECODER.raw_decode(text)
        if end < len(text):
            raise ValueError(f"something follows the JSON value, at character {end}")
        _check_depth(value)
        if "\\u" in text:
            compact_json(value).encode()  # half a surrogate pair cannot be passed on as text
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ApiError(400, f"the body is a JSON {type(value).__name__}; wanted an object")
    return value


def _check_depth(value: Any) -> None:
    """Refuse what later code, which recurses, could not write out again."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return
        level = [child for item in containers for child in (item.values() if isinstance(item, dict) else item)]
    raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")


def _check_message(message: ChatMessage, where: str) -> None:
    for key in ("audio", "function_call", "refusal"):
        if message.get(key):
            raise ApiError(400, f"{where}.{key} is not supported by this server; leave it out", param=f"{where}.{key}")
    role = message.get("role")
    if not isinstance(role, str):
        raise ApiError(400, f"{where}.role is {_shown(role)}; wanted a string", param=f"{where}.role")
    for key in ("name", "tool_call_id"):
        if not isinstance(message.get(key), str | None):
            raise ApiError(400, f"{where}.{key} is {_shown(message[key])}; wanted a string", param=f"{where}.{key}")
    if not isinstance(message.get("tool_calls"), list | None):
        raise ApiError(400, f"{where}.tool_calls is not a list", param=f"{where}.tool_calls")
    if message.get("tool_calls") and role != "assistant":
        raise ApiError(400, f"{where}.tool_calls: only an assistant calls tools", param=f"{where}.tool_calls")
    try:
        normal_message(message)
    except DataError as error:
        raise ApiError(400, f"{where}: {error}", param=where) from error


def _check_tool(tool: ToolSpec, where: str) -> None:
    if tool.get("type") != "function" or "function" not in tool:
        raise ApiError(400, f"{where} is not a function tool: {{'type': 'function', 'function': ...}}", param=where)
    try:
        function = tool_function(tool)
    except DataError as error:
        raise ApiError(400, f"{where}: {error}", param=where) from error
    for key, kind in (("description", str), ("parameters", dict)):
        if not isinstance(function.get(key), kind | None):
            raise ApiError(400, f"{where}.function.{key} is {_shown(function[key])}", param=f"{where}.function.{key}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def usage(num_prompt_tokens: int, num_completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
    }


def logprobs_content(texts: Sequence[str], logprobs: Sequence[float]) -> dict[str, Any]:
    """The `logprobs` field of a choice. `bytes` is null for a token that is a part of a character."""
    return {
        "content": [
            {
                "token": text,
                "logprob": max(logprob, MIN_LOGPROB),
                "bytes": None if "\ufffd" in text else list(text.encode()),
                "top_logprobs": [],
            }
            for text, logprob in zip(texts, logprobs, strict=True)
        ],
        "refusal": None,
    }


def wire_finish_reason(finish_reason: FinishReason, message: ChatMessage) -> str:
    """An answer that was cut off says `length`, whatever it holds; a whole one with calls says `tool_calls`."""
    return "tool_calls" if finish_reason == "stop" and message.get("tool_calls") else finish_reason


def sse(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + compact_json(data).encode() + b"\n\n"


SSE_DONE = b"data: [DONE]\n\n"
