"""The one place that knows litellm, which is imported when a judge is first asked."""

from __future__ import annotations

import asyncio
import email.utils
import hashlib
import importlib
import json
import logging
import os
import re
import sys
import threading
import time
import urllib.parse
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from art_ruler._secrets import keep_out_of_logs, scrubbed, secrets_in
from art_ruler.errors import ConfigError, JudgeUnavailableError, RequestRefusedError
from art_ruler.types import JudgeReply, JudgeRequest

logger = logging.getLogger("art_ruler")

_FORMATS = ("json_schema", "json_object", "text")
OWN_OPTIONS = {
    "api_base": "api_base",
    "api_key": "api_key",
    "base_url": "api_base",
    "extra_headers": "extra_headers",
    "headers": "extra_headers",
    "max_retries": "max_retries",
    "num_retries": "max_retries",
    "request_timeout": "timeout_s",
    "timeout": "timeout_s",
    "timeout_s": "timeout_s",
}
"""What litellm calls the options that a `Ruler` has itself."""
ASSUMED_CONTEXT_TOKENS = 32_768
"""What a model that litellm does not know is taken to read: less than any that is much in use as a judge."""
_NOT_OPTIONS = ("client", "messages", "model", "n", "response_format", "stream", "tool_choice", "tools")
_RETRYABLE = (408, 409, 425, 429)
# What a provider says of an option that it does not take, and what may stand between that and the option's name.
_REFUSED = (
    r"(unsupported|(is|are|does|do)(n't| not) (currently )?(support|allow|permit|accept)\w*"
    r"|not (supported|allowed|permitted|accepted)|unknown|unexpected|unrecogni[sz]ed|unavailable|not available"
    r"|extra inputs|enabled only|invalid schema|failed to \w+)"
)
_BETWEEN = (
    r"\W+((the|a|any|parameters?|arguments?|args?|fields?|options?|values?|propert(y|ies)|keys?|keyword|name|input|type"
    r"|format|is|are|of|for|as|request|at|supplied)\W+){0,4}"
)
_FORMAT = (
    r"(response[_ ]?(format|schema|mime_?type)|json[_ ](schema|object|mode)|structured[_ ]outputs?|grammar"
    r"|guided[_ ]\w+|output[_ ](format|config))"
)
# What libraries of providers say, without asking anybody, when there is no key for them or they are not installed;
# litellm reports it as a failure of the server.
_NOT_SET_UP = re.compile(
    r"missing credentials|missing \S+ api[ _]key|api_key client option|No module named", re.IGNORECASE
)
_NOT_JSON = re.compile(r"expecting value|unable to get json response|invalid response from llm|<html|<!doctype", re.I)
_NO_COMPLETION = "Invalid response object"
_NO_CONNECTION = re.compile(r"connection error|cannot connect|/chat/completions$", re.IGNORECASE)
_BAD_GATEWAY = (502, 503, 504)
_NO_KEY = "none"
_LOOPBACK = re.compile(r"localhost|127(?:\.\d+){3}|::1|0\.0\.0\.0")
_import_lock = threading.Lock()


@dataclass(frozen=True)
class _Form:
    """How a request is made: which of the formats, and which parameters are left out."""

    format: int = 0
    dropped: frozenset[str] = frozenset()

    def __or__(self, other: _Form) -> _Form:
        return _Form(max(self.format, other.format), self.dropped | other.dropped)


class LiteLLMJudge:
    """A model of any provider that litellm knows, or behind any OpenAI-compatible server.

    With `api_base` and without `api_key` no key of the environment is sent to an OpenAI-compatible server: it would be
    that of another provider. `judge_params` go to the provider as they are. One that it refuses by name is dropped,
    with a warning, for as long as this object lives, once a request without it has succeeded. So is the JSON schema,
    in favour of JSON mode, and that in favour of words alone.

    `context_tokens` is the longest request the model reads; by default what litellm knows of it, and for a model that
    it does not know `ASSUMED_CONTEXT_TOKENS`, with a warning once that makes a difference.
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
        self._is_context_assumed = False
        self._form = _Form()
        self._trials: dict[int, _Form] = {}  # by the identity of a request that is to be made again in another form
        self._litellm: Any = None
        self._model = model
        passwords = re.findall(r"//[^/@\s:]*:([^/@\s]+)@", api_base or "")
        self._secrets = [api_key or "", *passwords, *self._headers.values(), *secrets_in(self._params)]
        keep_out_of_logs(self._secrets)

    def __repr__(self) -> str:
        return f"LiteLLMJudge({self.name!r})"

    @property
    def fingerprint(self) -> str:
        """Tells judges apart that may answer differently; holds no key and no header."""
        asked = [self.name, server_of(self.name, self._api_base), self._params]
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
            if self.context_tokens is None:
                self.context_tokens, self._is_context_assumed = ASSUMED_CONTEXT_TOKENS, True
            self.usd_per_token = _known_price(known)
            self._litellm = litellm

    def warn_if_context_is_assumed(self) -> None:
        """Say so once; called when attempts are cut or judged apart to fit what the model is taken to read."""
        if self._is_context_assumed:
            self._is_context_assumed = False
            logger.warning(
                "judge %r: how much it reads is unknown, so %d tokens are assumed, and a group is cut or split to fit; "
                "tell the true number with context_tokens",
                self.name,
                ASSUMED_CONTEXT_TOKENS,
            )

    async def complete(self, request: JudgeRequest) -> JudgeReply:
        """Make one HTTP request.

        Raises:
            RequestRefusedError: an option was refused; the same request, asked again, is made without it.
            JudgeUnavailableError: there was no answer.
        """
        await self.prepare()
        form = self._trials.pop(id(request), self._form)
        params = {name: value for name, value in self._params.items() if name not in form.dropped}
        failure: Exception
        try:
            response = await self._litellm.acompletion(
                model=self._model,
                messages=[dict(message) for message in request.messages],
                timeout=self._timeout_s,
                num_retries=0,  # retries are counted and timed one level up, and happen there only
                max_retries=0,
                **self._address(),
                **_response_format(form.format, request.schema),
                **params,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, its text may quote a key
            failure = self._translated(error, form, request)
        else:
            self._keep(form)
            return _reply(response)
        # Raised outside of the handler, so that the original is not chained to it.
        raise failure

    def _address(self) -> dict[str, Any]:
        address: dict[str, Any] = {}
        if self._api_base:
            address["api_base"] = self._api_base
        if self._api_key:
            address["api_key"] = self._api_key
        elif self._sends_no_key:
            address["api_key"] = _NO_KEY
        if self._headers:
            address["extra_headers"] = dict(self._headers)
        return address

    @property
    def _sends_no_key(self) -> bool:
        return not self._api_key and bool(self._api_base) and self._model.startswith("openai/")

    def _translated(self, error: Exception, form: _Form, request: JudgeRequest) -> JudgeUnavailableError:
        status = getattr(error, "status_code", None)
        status = status if isinstance(status, int) else None
        kind, said = type(error).__name__, str(error).partition("Traceback (most recent call last)")[0].strip()
        message = f"judge {self.name!r}: {kind}: {scrubbed(said, self._secrets)[:1000]}"
        if kind == "ContextWindowExceededError":
            return JudgeUnavailableError(f"{message}; tell how much it reads with context_tokens", status=status)
        if status in (400, 422) and kind != "ContentPolicyViolationError" and (other := self._without(said, form)):
            self._trials[id(request)] = other
            weakref.finalize(request, self._trials.pop, id(request), None)
            return RequestRefusedError(message, status=status)
        retryable = status in _RETRYABLE or (status or 0) >= 500 or kind == "APIConnectionError"
        retryable = retryable and not (status == 429 and "insufficient_quota" in said)
        if _NOT_SET_UP.search(said) or _NO_COMPLETION in said:
            retryable = False
        if hint := self._hint(said, status):
            message += f"; {hint}"
        return JudgeUnavailableError(message, retryable=retryable, retry_after_s=_retry_after(error), status=status)

    def _hint(self, said: str, status: int | None) -> str | None:
        """What to do about an error that does not say it itself."""
        where = scrubbed(self._api_base or "the provider", self._secrets)
        if status in (401, 403) or _NOT_SET_UP.search(said):
            if self._sends_no_key:
                return (
                    "no key was sent, since keys of the environment are not meant for every api_base; pass the one of "
                    "this server with api_key"
                )
            return "pass the key of this provider with api_key, or in its environment variable"
        if status == 404:
            return "check the name of the model and api_base"
        if "LLM Provider NOT provided" in said:
            return (
                "name the provider first, as in openai/gpt-5-mini, or give the api_base of an OpenAI-compatible server"
            )
        if _NO_COMPLETION in said:
            return "the server's answer is no chat completion with a text in it"
        if _NOT_JSON.search(said) and status not in _BAD_GATEWAY:
            return f"what {where} answered is not JSON; is that the API's base URL, such as http://host:8000/v1?"
        if _NO_CONNECTION.search(said):
            return f"{where} cannot be reached; is the address right, and does the server run?"
        return None

    def _without(self, said: str, form: _Form) -> _Form | None:
        """The form without what the provider's words refuse: parameters, else the format. None if they refuse neither.

        Words that only quote the request do no lasting harm: a form is kept when a request in it has succeeded.
        """
        named = {name for name in self._params if name not in form.dropped and _refuses(said, re.escape(name))}
        if named:
            return _Form(form.format, form.dropped | named)
        if form | self._form != form:  # another call has found out meanwhile
            return form | self._form
        if form.format < len(_FORMATS) - 1 and _refuses(said, _FORMAT):
            return _Form(form.format + 1, form.dropped)
        return None

    def _keep(self, form: _Form) -> None:
        for name in sorted(form.dropped - self._form.dropped):
            logger.warning("judge %r refuses %s; it is left out from now on", self.name, name)
        self._form |= form


def _refuses(said: str, name: str) -> bool:
    """Whether `said` has `name` (a pattern) in quotes, or within a few words of one that refuses it."""
    quoted = rf"""(?<!\w)['"`]{name}([.\[][\w.\[\]]*)?['"`]"""
    near = rf"\b{name}\b{_BETWEEN}{_REFUSED}|{_REFUSED}{_BETWEEN}{name}\b"
    return re.search(f"{quoted}|{near}", said, re.IGNORECASE) is not None


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
        for name in ("litellm._logging", "litellm.main", "litellm.utils"):
            # With litellm.set_verbose these print requests whole, past every logger.
            sys.modules[name].print = _print_scrubbed  # type: ignore[attr-defined]
        # It makes the coroutine on another thread; a call that is cancelled meanwhile never awaits it.
        warnings.filterwarnings("ignore", r"coroutine '\w+\.a?completion' was never awaited", RuntimeWarning)
        keep_out_of_logs([])
        return litellm


def _print_scrubbed(*values: object, **options: Any) -> None:
    print(*(scrubbed(str(value)) for value in values), **options)  # noqa: T201 - what litellm was told to do


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


def server_of(model: str, api_base: str | None) -> str:
    """What tells the server apart that a model of this name is asked at, without what may be secret in its address.

    `api_base`, else what litellm reads from the environment. A server on this machine gets another port each time it
    is started: there the port does not count.
    """
    provider = model.partition("/")[0].upper() if "/" in model else "OPENAI"
    names = (f"{provider}_BASE_URL", f"{provider}_API_BASE")
    base = api_base or next((os.environ[name] for name in names if os.environ.get(name)), "")
    parts = urllib.parse.urlsplit(re.sub(r"//[^/@]*@", "//", base))
    if _LOOPBACK.fullmatch(parts.hostname or ""):
        parts = parts._replace(netloc="localhost")
    query = hashlib.sha256(parts.query.encode()).hexdigest()[:8] if parts.query else ""
    return parts._replace(path=parts.path.rstrip("/"), query=query, fragment="").geturl()


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
        if name in OWN_OPTIONS:
            raise ConfigError(f"judge_params holds {name!r}; pass it as {OWN_OPTIONS[name]}=")
        if name in _NOT_OPTIONS:
            raise ConfigError(f"judge_params holds {name!r}, which is not for callers to set; remove it")
    return dict(params)
