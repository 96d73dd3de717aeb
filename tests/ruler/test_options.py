"""The options that the commands share: what `Ruler` takes, each declared once; no header where it could be read."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from art_ruler import ConfigError, LiteLLMJudge, Ruler
from art_ruler.cli import audit, score
from art_ruler.options import JudgeOptions

# What each argument of `Ruler` is called on the command line.
OPTIONS = {
    "judge": "judge",
    "rubric": "rubric",
    "passes": "passes",
    "seed": "seed",
    "weights": "weight",
    "fallbacks": "fallback",
    "reward": "reward",
    "on_format_error": "on_format_error",
    "max_group": "max_group",
    "context_tokens": "context_tokens",
    "max_concurrency": "concurrency",
    "timeout_s": "timeout",
    "total_timeout_s": "total_timeout",
    "max_retries": "max_retries",
    "cache": "cache",
    "max_cost_usd": "max_cost",
    "max_tokens": "max_tokens",
    "api_base": "api_base",
    "api_key": "api_key_env",
    "extra_headers": "header",
    "judge_params": "judge_param",
}
# Figures of an audit are those of one judge, from its scores.
NOT_IN_AUDIT = {"weight", "fallback", "reward", "on_format_error"}
SECRET = "header-secret-0123456789"


def test_whatever_a_ruler_takes_is_an_option() -> None:
    assert set(OPTIONS) == set(inspect.signature(Ruler).parameters)
    assert set(OPTIONS.values()) <= set(inspect.signature(score).parameters)
    assert set(OPTIONS.values()) - NOT_IN_AUDIT <= set(inspect.signature(audit).parameters)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each `Ruler` that is made."""
    seen: list[dict[str, Any]] = []

    class Seen(Ruler):
        def __init__(self, judge: Any, **options: Any) -> None:
            seen.append({"judge": judge, **options})
            super().__init__(judge, **options)

    monkeypatch.setattr("art_ruler.Ruler", Seen, raising=False)
    return seen


def test_options_reach_the_ruler(given: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MY_KEY", "sk-0123456789")
    monkeypatch.setenv("MY_ORG", SECRET)
    (tmp_path / "rubric").write_text("- short")
    options = JudgeOptions(
        rubric_file=tmp_path / "rubric",
        seed=3,
        context_tokens=["9000"],
        total_timeout=2.5,
        api_base="http://127.0.0.1:1/v1",
        api_key_env="MY_KEY",
        header=["X-Team: blue: 7", "X-Org:env:MY_ORG"],
        judge_param=["temperature=0", "user=me"],
    )
    options.ruler(["m"], ["n"], on_format_error="raise")
    (arguments,) = given
    assert (arguments["judge"], arguments["fallbacks"]) == (["m"], ["n"])
    assert (arguments["rubric"], arguments["seed"], arguments["context_tokens"]) == ("- short", 3, 9000)
    assert (arguments["total_timeout_s"], arguments["on_format_error"]) == (2.5, "raise")
    assert arguments["extra_headers"] == {"X-Team": "blue: 7", "X-Org": SECRET}
    assert arguments["judge_params"] == {"temperature": 0, "user": "me"}
    assert SECRET not in str(options.decisive())


def test_each_judge_may_have_its_own_context(given: list[dict[str, Any]]) -> None:
    options = JudgeOptions(context_tokens=["a/m=9000", "b/m=7000"])
    options.ruler(["a/m", "b/m"])
    options.rulers(["a/m", "b/m", "c/m"])
    assert [arguments["context_tokens"] for arguments in given] == [{"a/m": 9000, "b/m": 7000}, 9000, 7000, None]


FOR_MODELS: dict[str, Any] = {
    "api_base": "http://127.0.0.1:1/v1",
    "header": ["X-Team: blue"],
    "judge_param": ["top_p=1"],
}


@pytest.mark.parametrize("option", FOR_MODELS)
def test_what_is_for_models_is_for_those_among_the_judges(given: list[dict[str, Any]], option: str) -> None:
    argument = {"header": "extra_headers", "judge_param": "judge_params"}.get(option, option)
    options = JudgeOptions(**{option: FOR_MODELS[option]})
    assert list(options.rulers(["openai/m", "heuristic", "noisy"])) == ["openai/m", "heuristic", "noisy"]
    assert [bool(arguments[argument]) for arguments in given] == [True, False, False]
    with pytest.raises(ConfigError, match=f"{argument} is given, but no judge by the name of a model"):
        options.rulers(["heuristic", "noisy"])


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("http://127.0.0.1:8000/v1", "http://localhost:9000/v1/", True),
        ("https://me:secret@example.org/v1", "https://example.org/v1", True),
        ("https://example.org:1/v1", "https://example.org:2/v1", False),
        ("https://example.org/v1?tenant=secret", "https://example.org/v1?tenant=b", False),
    ],
)
@pytest.mark.parametrize("is_environment", [False, True])
def test_an_output_tells_servers_apart_as_the_cache_does(
    first: str, second: str, is_same: bool, is_environment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(address: str) -> tuple[Any, str]:
        if is_environment:
            monkeypatch.setenv("OPENAI_BASE_URL", address)
        api_base = None if is_environment else address
        settings = JudgeOptions(api_base=api_base).settings(["openai/m", "heuristic"])
        return settings["api_base"], LiteLLMJudge("openai/m", api_base=api_base).fingerprint

    one, other = seen(first), seen(second)
    assert [a == b for a, b in zip(one, other, strict=True)] == [is_same, is_same]
    assert one[0].startswith("http")
    assert "secret" not in str(one)


def test_judges_at_several_servers_are_told_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://example.org/v1")
    assert JudgeOptions().settings(["heuristic", "openai/m"])["api_base"] == "https://example.org/v1"
    both = {"openai/m": "https://example.org/v1", "anthropic/m": ""}
    assert JudgeOptions().settings(list(both))["api_base"] == both
    assert JudgeOptions().settings(["heuristic"])["api_base"] is None
    assert JudgeOptions().settings(["anthropic/m"])["api_base"] is None


@pytest.mark.parametrize("given_twice", [["9000", "7000"], ["9000", "m=7000"]])
def test_a_context_for_all_stands_alone(given_twice: list[str]) -> None:
    with pytest.raises(ConfigError, match="for all judges and again"):
        JudgeOptions(context_tokens=given_twice).ruler(["openai/m"])


@pytest.mark.parametrize(
    ("headers", "fault"),
    [
        ([SECRET], "has no name"),
        ([f": {SECRET}"], "has no name"),
        ([f"X Y: {SECRET}"], "has no name"),
        ([f"{SECRET} x:"], "has no name"),
        (["X-A:"], "X-A has no value"),
        ([f"X-A: {SECRET}\n"], None),
        ([f"X-A: {SECRET}\r\nX-B: 1"], "X-A has no value that can be sent"),
        ([f"X-A: {SECRET}é"], "X-A has no value that can be sent"),
        ([f"X-A: {SECRET}", f"x-a: {SECRET}"], "x-a is given twice"),
        (["X-A: env:"], "which is not set"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused_and_not_quoted(headers: list[str], fault: str | None) -> None:
    options = JudgeOptions(header=headers)
    if fault is None:
        options.ruler(["openai/m"])
        return
    with pytest.raises(ConfigError, match=fault) as caught:
        options.ruler(["openai/m"])
    assert SECRET not in str(caught.value)
