"""Keeps keys and headers out of what other libraries say."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable

HIDDEN = "[hidden]"
_MIN_LENGTH = 6  # anything shorter would tear holes into ordinary text
_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_SHAPES = (
    (re.compile(r"\b(sk|pk|rk|gsk|xai|hf|AIza)[-_][\w\-*]{6,}"), HIDDEN),
    (re.compile(r"\b(Bearer|Basic)\s+[\w\-.~+/=*]{4,}", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"//[^/@\s]+@"), f"//{HIDDEN}@"),
    (re.compile(r"([?&](?:api[-_]?key|key|token|access_token)=)[^&\s\"']+", re.IGNORECASE), rf"\1{HIDDEN}"),
)
_LOGGERS = ("LiteLLM", "LiteLLM Proxy", "LiteLLM Router", "httpx", "httpcore", "openai", "openai._base_client")
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


class _Scrubber(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        clean = scrubbed(message)
        if clean != message:
            record.msg, record.args = clean, ()
        if record.exc_info:
            record.exc_text = scrubbed(logging.Formatter().formatException(record.exc_info))
            record.exc_info = None
        # litellm says so each time a program calls asyncio.run; it concerns only its own logging.
        return "LoggingWorker: event loop changed" not in message


_scrubber = _Scrubber()


def keep_out_of_logs(secrets: Iterable[str]) -> None:
    """Hide `secrets` from now on in what the libraries that send requests log, at every level."""
    _known.update(secret for secret in secrets if len(secret) >= _MIN_LENGTH)
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_scrubber)  # adding it again changes nothing
