"""The one place that knows litellm, which is imported when a judge is first asked."""

from __future__ import annotations

import asyncio
import email.utils
import importlib
import json
import logging
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from art_ruler._secrets import keep_out_of_logs, scrubbed
from art_ruler.errors import ConfigError, JudgeUnavailableError, RequestRefusedError
from art_ruler.types import JudgeReply, JudgeRequest

logger = logging.getLogger("art_ruler")

_FORMATS = ("json_schema", "json_object", "text")
_OWN_OPTIONS = {
    "api_base": "api_base",
    "api_key": "api_key",
    "base_url": "api_base",
    "extra_headers": "extra_headers",
    "headers": "extra_headers",
    "max_retries": "max_retries",
    "num_retries": "max_retries",
    "request_timeout": "timeout_s",
    "timeout": "timeout_s",
}
_NOT_OPTIONS = ("client", "messages", "model", "n", "response_format", "stream", "tool_choice", "tools")
_RETRYABLE = (408, 409, 425, 429)
_FORMAT_WORDS = re.compile(r"response_format|json|schema|structured|grammar|guided", re.IGNORECASE)
_NO_KEY = "none"
# What libraries of providers say, without asking anybody, when there is no key for them or they are not installed;
# litellm reports it as a failure of the server.
_NOT_SET_UP = re.compile(
    r"missing credentials|missing \S+ api[ _]key|api_key client option|No module named", re.IGNORECASE
)
_LOOPBACK = re.compile(r"localhost|127(?:\.\d+){3}|::1|0\.0\.0\.0")
_import_lock = threading.Lock()


class LiteLLMJudge:
    """A model of any provider that litellm knows, or behind any OpenAI-compatible server.

    With `api_base` and without `api_key` no key of the environment is sent to an OpenAI-compatible server: it would be
    that of another provider. `judge_params` go to the provider as they are; one that it refuses is dropped, with a
    warning, for as long as this object lives. So is the JSON schema, in favour of JSON mode, and that in favour of
    words alone.
    """

    def __init__(
        self,
        model: str,
        *,
        api_base: str | None = None,
        api_key: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        judge_params: Mapping[str, Any] | None = None,
        context_tokens: int | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        if not isinstance(model, str) or not model.strip():
            raise ConfigError(f"judge {model!r}: wanted the name of a model, such as 'openai/gpt-5-mini'")
        if api_base is not None and not re.match(r"https?://[^/\s]+", api_base):
            shown = scrubbed(str(api_base), [api_key or ""])
            raise ConfigError(f"api_base is {shown!r}; wanted a URL, such as 'http://127.0.0.1:8000/v1'")
        self.name = model
        self.context_tokens = context_tokens
        self.usd_per_token: tuple[float, float] | None = None
        self._api_base, self._api_key = api_base, api_key
        self._headers, self._params = dict(extra_headers or {}), _checked_params(judge_params or {})
        self._timeout_s = timeout_s
        self._format = 0
        self._works: int | None = None
        self._dropped: set[str] = set()
        self._litellm: Any = None
        self._model = model
        keep_out_of_logs([api_key or "", *self._headers.values()])

    def __repr__(self) -> str:
        return f"LiteLLMJudge({self.name!r})"

    @property
    def fingerprint(self) -> str:
        """Tells judges apart that may answer differently; holds no key and no header."""
        asked = [self.name, _server(self.name, self._api_base), self._params]
        return json.dumps(asked, sort_keys=True, default=str)

    async def prepare(self) -> None:
        """Import litellm (seconds, on a thread of its own) and look up what it knows of the model.

        Raises:
            ConfigError: litellm knows no provider for the model, so that every call would fail.
        """
        if self._litellm is None:
            litellm = await asyncio.to_thread(_import_litellm)
            self._model = _with_provider(litellm, self.name, self._api_base)
            known = _known_facts(litellm, self._model)
            if self.context_tokens is None:
                self.context_tokens = _known_context(known)
            self.usd_per_token = _known_price(known)
            self._litellm = litellm

    async def complete(self, request: JudgeRequest) -> JudgeReply:
        """Make one HTTP request.

        Raises:
            RequestRefusedError: an option was refused and has been dropped; ask again at once.
            JudgeUnavailableError: there was no answer.
        """
        await self.prepare()
        used, params = self._format, {k: v for k, v in self._params.items() if k not in self._dropped}
        failure: Exception
        try:
            response = await self._litellm.acompletion(
                model=self._model,
                messages=[dict(message) for message in request.messages],
                timeout=self._timeout_s,
                num_retries=0,  # retries are counted and timed one level up, and happen there only
                max_retries=0,
                **self._address(),
                **_response_format(used, request.schema),
                **params,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, its text may quote a key
            failure = self._translated(error, used, params)
        else:
            self._works = used
            return _reply(response)
        # Raised outside of the handler, so that the original is not chained to it.
        raise failure

    def _address(self) -> dict[str, Any]:
        address: dict[str, Any] = {}
        if self._api_base:
            address["api_base"] = self._api_base
        if self._api_key:
            address["api_key"] = self._api_key
        elif self._api_base and self._model.startswith("openai/"):
            address["api_key"] = _NO_KEY
        if self._headers:
            address["extra_headers"] = dict(self._headers)
        return address

    def _translated(self, error: Exception, used: int, params: Mapping[str, Any]) -> JudgeUnavailableError:
        status = getattr(error, "status_code", None)
        status = status if isinstance(status, int) else None
        kind = type(error).__name__
        text = scrubbed(str(error), [self._api_key or "", *self._headers.values()])
        message = f"judge {self.name!r}: {kind}: {text[:1000]}"
        if kind == "ContextWindowExceededError":
            return JudgeUnavailableError(f"{message}; tell how much it reads with context_tokens", status=status)
        if status in (400, 422) and kind != "ContentPolicyViolationError" and self._drop(text, used, params):
            return RequestRefusedError(message, status=status)
        if _NOT_SET_UP.search(text) and kind in ("APIConnectionError", "APIError", "InternalServerError"):
            return JudgeUnavailableError(
                f"judge {self.name!r}: {_first_line(text)}; set up this provider as its page on "
                "https://docs.litellm.ai/docs/providers says, or pass its key with api_key"
            )
        if status in (401, 403):
            message += "; pass the key of this provider with api_key, or in its environment variable"
        if status == 404:
            message += "; check the name of the model and api_base"
        quota = status == 429 and "insufficient_quota" in text
        retryable = not quota and (status in _RETRYABLE or (status or 0) >= 500 or kind == "APIConnectionError")
        return JudgeUnavailableError(message, retryable=retryable, retry_after_s=_retry_after(error), status=status)

    def _drop(self, text: str, used: int, params: Mapping[str, Any]) -> bool:
        """Drop what the provider's words name: a parameter, else the format, unless it has worked before."""
        named = [name for name in params if re.search(rf"\b{re.escape(name)}\b", text)]
        for name in named:
            if name not in self._dropped:
                logger.warning("judge %r refuses %s=%r; it is left out from now on", self.name, name, params[name])
            self._dropped.add(name)
        if named:
            return True
        if self._format > used:  # another call has found out meanwhile
            return True
        if used == len(_FORMATS) - 1 or (self._works == used and not _FORMAT_WORDS.search(text)):
            if self._works is None:
                self._format = 0  # the format was not what it minded
            return False
        self._format = used + 1
        return True


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0].rstrip(" .")


def _import_litellm() -> Any:
    """litellm, without its look-up of prices on the net and without its advertisements on stdout."""
    with _import_lock:
        name = "LITELLM_LOCAL_MODEL_COST_MAP"
        before = os.environ.get(name)
        os.environ[name] = before or "True"
        try:
            litellm = importlib.import_module("litellm")
        finally:
            if before is None:
                del os.environ[name]
        litellm.suppress_debug_info = True  # type: ignore[attr-defined]
        keep_out_of_logs([])
        return litellm


def _with_provider(litellm: Any, model: str, api_base: str | None) -> str:
    """The name as litellm wants it: a bare name with an `api_base` is a model of an OpenAI-compatible server.

    Raises:
        ConfigError: the name has no model in it, or no provider and there is no `api_base`.
    """
    try:
        name, provider = litellm.get_llm_provider(model, api_base=api_base)[:2]
    except Exception:  # noqa: BLE001 - it says in several ways that it knows no provider
        name, provider = model, None
    if not name.strip():
        raise ConfigError(f"judge {model!r} names no model; wanted PROVIDER/MODEL, such as 'openai/gpt-5-mini'")
    if api_base is None:
        if provider is None:
            raise ConfigError(
                f"judge {model!r}: litellm knows no provider for this name; wanted PROVIDER/MODEL, such as "
                "'openai/gpt-5-mini' (https://docs.litellm.ai/docs/providers lists them), or give the api_base of an "
                "OpenAI-compatible server"
            )
        return model
    return f"openai/{model}" if provider in (None, "openai") and not model.startswith("openai/") else model


def _known_facts(litellm: Any, model: str) -> Mapping[str, Any]:
    try:
        return dict(litellm.get_model_info(model))
    except Exception:  # noqa: BLE001 - it has no entry for most models of private servers
        return {}


def _known_context(known: Mapping[str, Any]) -> int | None:
    found = known.get("max_input_tokens")
    return found if isinstance(found, int) and found > 0 else None


def _known_price(known: Mapping[str, Any]) -> tuple[float, float] | None:
    asked, answered = known.get("input_cost_per_token"), known.get("output_cost_per_token")
    return None if asked is None or answered is None else (float(asked), float(answered))


def _server(model: str, api_base: str | None) -> str:
    """What tells the server apart that a model of this name is asked at, without user and password.

    `api_base`, else what litellm reads from the environment. A server on this machine gets another port each time it
    is started: there the port does not count.
    """
    provider = model.partition("/")[0].upper() if "/" in model else "OPENAI"
    names = (f"{provider}_BASE_URL", f"{provider}_API_BASE")
    base = api_base or next((os.environ[name] for name in names if os.environ.get(name)), "")
    parts = urllib.parse.urlsplit(re.sub(r"//[^/@]*@", "//", base))
    if _LOOPBACK.fullmatch(parts.hostname or ""):
        parts = parts._replace(netloc="localhost")
    return parts.geturl()


def _response_format(used: int, schema: dict[str, Any]) -> dict[str, Any]:
    if _FORMATS[used] == "json_schema":
        made = {"name": "verdict", "strict": True, "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": made}}
    return {"response_format": {"type": "json_object"}} if _FORMATS[used] == "json_object" else {}


def _reply(response: Any) -> JudgeReply:
    choice = response.choices[0] if response.choices else None
    message = getattr(choice, "message", None)
    usage = getattr(response, "usage", None)
    hidden = getattr(response, "_hidden_params", None) or {}
    cost = hidden.get("response_cost")
    prompt_tokens = getattr(usage, "prompt_tokens", 0) or 0
    completion_tokens = getattr(usage, "completion_tokens", 0) or 0
    reason = getattr(choice, "finish_reason", None)
    refusal = getattr(message, "refusal", None)
    if not refusal and reason == "content_filter":
        refusal = "the provider's content filter stopped it"
    return JudgeReply(
        text=getattr(message, "content", None) or "",
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cost_usd=float(cost) if isinstance(cost, int | float) and (prompt_tokens or completion_tokens) else None,
        cut=reason == "length",
        refusal=refusal or None,
    )


def _retry_after(error: Exception) -> float | None:
    """Seconds to wait, from a header that holds seconds or an HTTP date (RFC 9110, 10.2.3)."""
    response = getattr(error, "response", None)
    for headers in (getattr(error, "litellm_response_headers", None), getattr(response, "headers", None)):
        value = str((headers or {}).get("retry-after") or "").strip()
        if not value:
            continue
        try:
            seconds = float(value)
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
            except (ValueError, OverflowError):  # a year that no calendar has
                continue
        if seconds == seconds and seconds < float("inf"):
            return max(0.0, seconds)
    return None


def _checked_params(params: Mapping[str, Any]) -> dict[str, Any]:
    for name in params:
        if name in _OWN_OPTIONS:
            raise ConfigError(f"judge_params holds {name!r}; pass it as {_OWN_OPTIONS[name]}=")
        if name in _NOT_OPTIONS:
            raise ConfigError(f"judge_params holds {name!r}, which is not for callers to set; remove it")
    return dict(params)
