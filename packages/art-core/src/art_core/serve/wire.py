"""What both ends of the OpenAI wire share: how an error is told, and the parts that answers are made of."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from art_core.errors import (
    ArtError,
    ConfigError,
    ContextLengthError,
    DataError,
    EngineClosedError,
    StorageError,
    UnknownTrajectoryError,
)
from art_core.messages import compact_json
from art_core.types import ChatMessage, FinishReason

MIN_LOGPROB = -9999.0
"""What stands for minus infinity in an answer, as at OpenAI: JSON has no infinity."""

ERROR_CODES = {
    "WeightSyncError": "503: an engine serves other weights than were trained; register again, or call name@step again",
    "context_length_exceeded": "400: the prompt, or the prompt with the tokens asked for, does not fit",
    "engine_closed": "503: the engine was closed, or died, before the answer was finished",
    "foreign_request": "403: it names another host or comes from a web page, and the server has no key",
    "internal_error": "500: a fault of the server; its log has the traceback",
    "invalid_api_key": "401: no key was sent, or not the server's",
    "invalid_function_parameters": "400: the `parameters` of a tool are no usable schema of an object",
    "invalid_json": "400: the body is not a JSON object",
    "invalid_json_schema": "400: the schema of `response_format` is wrong, or uses a keyword that cannot be enforced",
    "invalid_value": "400: a known field has a value that it cannot have; `param` is the path to it",
    "loading": "503: the model was still being loaded after the longest wait",
    "missing_required_parameter": "400: a field that must be there is not",
    "model_not_found": "404: no model of that name is served",
    "request_timeout": "408: the body did not come to its end in time",
    "request_too_large": "413: the body has more bytes than the server takes",
    "shutting_down": "503: the server ends and takes no new calls",
    "storage_error": "507: the answer could not be recorded, so it is not given: the disk is full or not writable",
    "unknown_trajectory": "404: no trajectory of that id is open",
    "unknown_url": "404 or 405: no such address, or not with this method",
    "unsupported_parameter": "400: a field, or a value of one, that this server does not support; `param` names it",
    "unsupported_media_type": "415: a body below `/api` that is not sent as `application/json`",
    "weights_are_changing": "503: the weights asked for were not ready after the longest wait",
}
"""What `error.code` of a refused call can be, and what it means. Stable: programs may compare with them."""


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


def invalid(message: str, param: str, *, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, code=code, param=param)


def unsupported(message: str, param: str) -> ApiError:
    return ApiError(400, message, code="unsupported_parameter", param=param)


def as_api_error(error: Exception) -> ApiError:
    """How `error` is told to a client."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextLengthError):
        return ApiError(400, str(error), code="context_length_exceeded", param="messages")
    if isinstance(error, UnknownTrajectoryError):
        return ApiError(404, str(error), code="unknown_trajectory")
    if isinstance(error, (ConfigError, DataError)):  # an engine refuses a grammar with the former
        return ApiError(400, str(error), code="invalid_value")
    if isinstance(error, EngineClosedError):
        return ApiError(503, str(error), code="engine_closed")
    if isinstance(error, StorageError):
        return ApiError(507, str(error), code="storage_error")
    if isinstance(error, RecursionError):
        return invalid("the arguments of a tool call are nested too deeply", "messages")
    return ApiError(500, f"{type(error).__name__}: {error}", code="internal_error")


def usage(num_prompt_tokens: int, num_completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
    }


TopLogprobs = Sequence[Sequence[tuple[int, float]]]
"""For each token the likeliest alternatives, `(token id, logprob)`, or nothing at all."""


def logprobs_content(
    token_ids: Sequence[int], logprobs: Sequence[float], top: TopLogprobs, text_of: Callable[[int], str]
) -> dict[str, Any]:
    """The `logprobs` field of a chat choice. `bytes` is null for a token that is a part of a character."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        text = text_of(token_id)
        whole = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": max(logprob, MIN_LOGPROB), "bytes": whole}

    content = [
        {**entry(token_id, logprob), "top_logprobs": [entry(*pair) for pair in alternatives]}
        for token_id, logprob, alternatives in zip(token_ids, logprobs, top or [()] * len(token_ids), strict=True)
    ]
    return {"content": content, "refusal": None}


def text_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[float], top: TopLogprobs, text_of: Callable[[int], str], *, offset: int
) -> dict[str, Any]:
    """The `logprobs` field of a text choice. Offsets count characters of the answer from `offset` on.

    Alternatives whose texts are equal (parts of characters) share one entry, the likeliest.
    """
    texts = [text_of(token_id) for token_id in token_ids]
    *offsets, _ = itertools.accumulate(map(len, texts), initial=offset)
    alternatives = [
        {text_of(token_id): max(logprob, MIN_LOGPROB) for token_id, logprob in reversed(pairs)} for pairs in top
    ]
    return {
        "tokens": texts,
        "token_logprobs": [max(logprob, MIN_LOGPROB) for logprob in logprobs],
        "top_logprobs": alternatives or None,
        "text_offset": offsets,
    }


def wire_finish_reason(finish_reason: FinishReason, message: ChatMessage) -> str:
    """An answer that was cut off says `length`, whatever it holds; a whole one with calls says `tool_calls`."""
    return "tool_calls" if finish_reason == "stop" and message.get("tool_calls") else finish_reason


def sse(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + compact_json(data).encode() + b"\n\n"


SSE_DONE = b"data: [DONE]\n\n"
