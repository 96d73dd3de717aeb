"""What other libraries log is scrubbed, and their loggers stay usable."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from art_ruler import _secrets
from art_ruler._secrets import keep_out_of_logs, scrubbed, secrets_in

KEY = "plainsecretnoprefix99"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    monkeypatch.setattr(_secrets, "_known", set())  # what other tests hid may be a part of this one's text
    keep_out_of_logs([KEY])
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield text
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.mark.parametrize("name", ["httpx", "httpcore.http11", "httpcore.connection", "LiteLLM Router", "openai._x.y"])
def test_loggers_of_libraries_and_their_children_are_scrubbed(name: str, said: io.StringIO) -> None:
    logger = logging.getLogger(name)
    logger.error("sent %s with %d", KEY, 5)
    assert said.getvalue() == "sent [hidden] with 5\n"


def test_loggers_of_others_are_left_alone(said: io.StringIO) -> None:
    logging.getLogger("mine").error("sent %s", KEY)
    assert said.getvalue() == f"sent {KEY}\n"


def test_a_malformed_call_breaks_nothing(said: io.StringIO) -> None:
    logging.getLogger("httpx").error("a %s %s", KEY)
    assert said.getvalue() == "a %s %s ('[hidden]',)\n"


def test_an_exception_is_kept_for_other_handlers_unless_it_tells_a_secret(said: io.StringIO) -> None:
    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kinds.append(record.exc_info[0] if record.exc_info else None)

    kinds: list[type[BaseException] | None] = []
    logger = logging.getLogger("openai")
    handler = Kept()
    logger.addHandler(handler)
    for text in ("harmless", f"bad key {KEY}"):
        try:
            raise ValueError(text)
        except ValueError:
            logger.exception("failed")
    logger.removeHandler(handler)
    assert kinds == [ValueError, RuntimeError]
    assert "ValueError: harmless" in said.getvalue()
    assert "ValueError: bad key [hidden]" in said.getvalue()
    assert KEY not in said.getvalue()


def test_a_factory_that_another_sets_is_kept_and_wrapped(said: io.StringIO) -> None:
    before = logging.getLogRecordFactory()

    def theirs(*args: object, **kwargs: object) -> logging.LogRecord:
        record: logging.LogRecord = logging.LogRecord(*args, **kwargs)  # type: ignore[arg-type]
        record.theirs = True
        return record

    try:
        logging.setLogRecordFactory(theirs)
        keep_out_of_logs([KEY])
        keep_out_of_logs([KEY])
        record = logging.getLogger("httpx").makeRecord("httpx", 40, "f", 1, f"x {KEY}", (), None)
        assert record.theirs is True  # type: ignore[attr-defined]
        assert record.getMessage() == "x [hidden]"
    finally:
        logging.setLogRecordFactory(before)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("key AIzaSyA1234567890abcdefghijklmnopqrstuv.", "key [hidden]."),
        ("key sk-proj-abcdef123456", "key [hidden]"),
        ("http://me:word@host/v1", "http://[hidden]@host/v1"),
        ("Authorization: Bearer abcd.efgh", "Authorization: Bearer [hidden]"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_what_looks_like_a_key_is_hidden(text: str, wanted: str) -> None:
    assert scrubbed(text) == wanted


def test_texts_of_parameters_are_secrets_but_for_plain_words() -> None:
    params = {"reasoning_effort": "medium", "user": "Team-7", "extra_body": {"api_token": "word", "x": ["a1", 5]}}
    assert list(secrets_in(params)) == ["Team-7", "word", "a1"]
