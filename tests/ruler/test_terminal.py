"""What the command makes of words that are meant for those who call the library."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from art_ruler import ConfigError, JudgeUnavailableError, LiteLLMJudge
from art_ruler.terminal import in_options, one_line_errors


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("pass the key of this provider with api_key, or", "pass the key of this provider with --api-key-env, or"),
        ("pass the one of this server with api_key", "pass the one of this server with --api-key-env"),
        ("allow more with timeout_s", "allow more with --timeout"),
        ("max_tokens is too large: 9, and so is api_key", "max_tokens is too large: 9, and so is api_key"),
    ],
)
def test_hints_name_options(message: str, shown: str) -> None:
    assert in_options(message) == shown


@pytest.mark.parametrize("api_base", [None, "http://127.0.0.1:1/v1"])
@pytest.mark.parametrize("status", [401, 403])
def test_the_hint_for_a_missing_key_names_one_option_in_either_place(api_base: str | None, status: int) -> None:
    judge = LiteLLMJudge("openai/m", api_base=api_base)
    judge._model = judge.name
    hint = judge._hint("no", status) or ""
    assert ("with api_key" in hint, "--" in hint) == (True, False)
    assert ("with --api-key-env" in in_options(hint), "api_key" in in_options(hint)) == (True, False)


def test_warnings_name_options(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("art_ruler")
    with one_line_errors():
        logger.warning("judge %r: tell the true number with context_tokens", "m")
        logger.info("quiet")
    assert capsys.readouterr().err == "art-ruler: judge 'm': tell the true number with --context-tokens\n"
    assert not logger.handlers


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (ConfigError("judge_params holds 'api_key'; pass it as api_key="), 2, "--judge-param holds '--api-key-env'"),
        (ConfigError("api_key is given, but no judge"), 2, "--api-key-env is given, but no judge"),
        (JudgeUnavailableError("api_key is wrong"), 1, "api_key is wrong"),
    ],
)
def test_errors_name_options(error: Exception, code: int, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(raised: Exception) -> None:
        raise raised

    failing: Callable[[Exception], None] = fail
    with pytest.raises(SystemExit) as caught, one_line_errors():
        failing(error)
    assert caught.value.code == code
    assert shown in capsys.readouterr().err
