"""Keeps keys and headers out of what other libraries say."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

HIDDEN = "[hidden]"
_MIN_LENGTH = 6  # anything shorter would tear holes into ordinary text
_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_PLAIN_WORD = re.compile(r"[a-z]+([_-][a-z]+)*")
_SHAPES = (
    (re.compile(r"\b(sk|pk|rk|gsk|xai|hf)[-_][\w\-*]{6,}"), HIDDEN),
    (re.compile(r"\b(AIza[\w-]{8,}|AKIA[0-9A-Z]{12,}|gh[pousr]_\w{8,})"), HIDDEN),
    (re.compile(r"\b(Bearer|Basic)\s+[\w\-.~+/=*]{4,}", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"//[^/@\s]+@"), f"//{HIDDEN}@"),
    (re.compile(r"([?&](?:api[-_]?key|key|token|access_token)=)[^&\s\"']+", re.IGNORECASE), rf"\1{HIDDEN}"),
)
_LIBRARIES = ("LiteLLM", "aiohttp", "anthropic", "asyncio", "httpcore", "httpx", "litellm", "openai")
_known: set[str] = set()


def scrubbed(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without `secrets`, without the values of variables of the environment that are named like secrets, and
    without what looks like a key."""
    environment = (value for name, value in os.environ.items() if _NAME.search(name))
    found = {value for value in (*secrets, *_known, *environment) if len(value) >= _MIN_LENGTH}
    for value in sorted(found, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    for shape, replacement in _SHAPES:
        text = shape.sub(replacement, text)
    return text


def secrets_in(params: Any, name: str = "") -> Iterator[str]:
    """Every text in `params`, however deep, that may be a secret: all but plain words under an ordinary name."""
    if isinstance(params, str):
        if _NAME.search(name) or not _PLAIN_WORD.fullmatch(params):
            yield params
    elif isinstance(params, Mapping):
        for key, value in params.items():
            yield from secrets_in(value, str(key))
    elif isinstance(params, list | tuple | set):
        for value in params:
            yield from secrets_in(value, name)


def keep_out_of_logs(secrets: Iterable[str]) -> None:
    """Hide `secrets` from now on in what the libraries that send requests log, at every level.

    Records are scrubbed as they are made, so that it does not matter which logger of theirs, or which handler of the
    host's, they go through.
    """
    global _factory
    _known.update(secret for secret in secrets if len(secret) >= _MIN_LENGTH)
    with _lock:
        if (made_before := logging.getLogRecordFactory()) is not _factory:
            _factory = _scrubbing(made_before)
            logging.setLogRecordFactory(_factory)
    logging.getLogger("LiteLLM").addFilter(_is_worth_saying)  # adding it again changes nothing


_lock = threading.Lock()
_factory: Callable[..., logging.LogRecord] | None = None


def _scrubbing(make: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
    def made(name: str, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(name, *args, **kwargs)
        if name.startswith(_LIBRARIES):
            _scrub(record)
        return record

    return made


def _scrub(record: logging.LogRecord) -> None:
    try:
        message = record.getMessage()
    except Exception:  # noqa: BLE001 - a malformed call, which is not to break the program that logs
        message = f"{record.msg} {record.args!r}"
        record.msg, record.args = message, ()
    if (clean := scrubbed(message)) != message:
        record.msg, record.args = clean, ()
    if record.exc_info and record.exc_info[1] is not None:
        traceback = logging.Formatter().formatException(record.exc_info)
        if (clean := scrubbed(traceback)) != traceback:
            # Handlers format the exception themselves, so it is replaced where it tells a secret, and only there.
            stand_in = RuntimeError(scrubbed(f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"))
            record.exc_info, record.exc_text = (RuntimeError, stand_in, None), clean


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """litellm says so each time a program calls asyncio.run; it concerns only its own logging."""
    return "LoggingWorker: event loop changed" not in str(record.msg)
