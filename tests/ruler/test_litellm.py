"""Everything between a `Ruler` and its provider: real litellm over a real socket to a fake judge server."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from art_ruler import (
    ConfigError,
    JudgeReply,
    JudgeRequest,
    JudgeUnavailableError,
    LiteLLMJudge,
    Ruler,
    RulerError,
)
from art_ruler._litellm import _import_litellm
from art_ruler.fakes import HeuristicJudge, verdict_json
from art_ruler.testing_server import Answer, FakeJudgeServer, Handler, ServedRequest

# Importing litellm takes seconds. aiohttp, which it uses, leaves transports to the garbage collector when their loop is
# gone.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

KEY = "sk-test-0123456789abcdef"
HEADER = "header-secret-0123456789"


def group(*answers: str) -> list[list[dict[str, Any]]]:
    return [[{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": answer}] for answer in answers]


def half(request: ServedRequest) -> str:
    return verdict_json(dict.fromkeys(request.judge_request.ids, 0.5))


class InTurn:
    """Answers by number of the request; the last one again for ever."""

    def __init__(self, *handlers: Handler | Answer) -> None:
        self._handlers, self._at = handlers, 0

    def __call__(self, request: ServedRequest) -> Answer | str:
        handler = self._handlers[min(self._at, len(self._handlers) - 1)]
        self._at += 1
        return handler if isinstance(handler, Answer) else handler(request)


def texts_in(folder: Path) -> list[str]:
    return [file.read_text() for file in folder.rglob("*.json")]


def ruler(server: FakeJudgeServer, model: str = "openai/m", **options: Any) -> Ruler:
    return Ruler(model, api_base=server.api_base, api_key=KEY, **options)


@pytest.fixture
def server() -> Iterator[FakeJudgeServer]:
    with FakeJudgeServer(half, api_key=KEY) as opened:
        yield opened


@pytest.mark.parametrize("model", ["openai/m", "hosted_vllm/m", "litellm_proxy/m", "m", "org/m"])
async def test_any_openai_compatible_server_with_its_own_key(server: FakeJudgeServer, model: str) -> None:
    result = await ruler(server, model, extra_headers={"X-Team": HEADER}).score(group("4", "5"))
    assert result.scores == (0.5, 0.5)
    (request,) = server.requests
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["x-team"] == HEADER
    assert request.body["model"] == model.removeprefix("openai/").removeprefix("hosted_vllm/").removeprefix(
        "litellm_proxy/"
    )
    assert set(request.body) == {"model", "messages", "response_format"}  # nothing that a provider could refuse
    assert request.body["response_format"]["json_schema"]["schema"]["required"] == ["scores"]
    assert (result.usage.calls, result.usage.prompt_tokens > 0, result.usage.completion_tokens > 0) == (1, True, True)
    assert (result.usage.cost_usd, result.usage.unpriced_calls) == (None, 1)


async def test_no_key_of_the_environment_goes_to_a_server_it_is_not_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    with FakeJudgeServer(half) as server:
        await Ruler("m", api_base=server.api_base).score(group("4", "5"))
        assert server.requests[0].headers["authorization"] == "Bearer none"


async def test_a_price_that_litellm_knows_is_counted(server: FakeJudgeServer) -> None:
    result = await ruler(server, "openai/gpt-4o").score(group("4", "5"))
    assert result.usage.cost_usd is not None
    assert result.usage.cost_usd > 0
    assert result.usage.unpriced_calls == 0


async def test_a_limit_in_money_needs_a_price(server: FakeJudgeServer) -> None:
    judge = ruler(server, max_cost_usd=1.0)
    with pytest.raises(ConfigError, match="price of 'openai/m' is unknown") as caught:
        await judge.score(group("4", "5"))
    assert caught.value.usage == judge.usage
    assert judge.usage.calls == len(server.requests) == 0


def without_usage(request: ServedRequest) -> Answer:
    message = {"role": "assistant", "content": half(request)}
    body = {"id": "x", "object": "chat.completion", "created": 0, "model": request.body["model"]}
    return Answer(body=json.dumps({**body, "choices": [{"index": 0, "message": message}]}).encode())


@pytest.mark.parametrize(
    ("model", "limit"), [("openai/m", {"max_tokens": 2000}), ("openai/gpt-4o", {"max_cost_usd": 0.01})]
)
async def test_a_server_that_tells_no_usage_does_not_get_round_a_budget(model: str, limit: dict[str, Any]) -> None:
    with FakeJudgeServer(without_usage) as server:
        judge = ruler(server, model, **limit)
        for number in range(20):
            await judge.score(group("4", str(number)))
        assert 2 <= len(server.requests) < 20
        assert judge.usage.estimated_calls == judge.usage.calls == len(server.requests)
        assert judge.usage.total_tokens > 500
        if "max_tokens" in limit:
            assert (judge.usage.cost_usd, judge.usage.unpriced_calls) == (None, len(server.requests))
        else:
            assert judge.usage.cost_usd is not None
            assert 0.005 < judge.usage.cost_usd <= 0.01


async def test_calls_side_by_side_do_not_exceed_the_price_that_litellm_knows() -> None:
    with FakeJudgeServer(half, latency_s=0.1) as server:
        judge = ruler(server, "openai/gpt-4o", max_cost_usd=0.01, passes=16, max_concurrency=16)
        await judge.score(group("4", "5"))
        assert 2 <= len(server.requests) < 16
        assert judge.usage.cost_usd is not None
        assert 0.0 < judge.usage.cost_usd <= 0.01


async def test_the_server_of_the_environment_is_part_of_the_key_of_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with FakeJudgeServer(half) as server:
        for name, path in (("OPENAI_BASE_URL", "v1"), ("OPENAI_API_BASE", "v1"), ("OPENAI_BASE_URL", "other/v1")):
            with monkeypatch.context() as patch:
                patch.delenv("OPENAI_BASE_URL", raising=False)
                patch.delenv("OPENAI_API_BASE", raising=False)
                patch.setenv(name, server.api_base.replace("v1", path))
                await Ruler("openai/m", cache=tmp_path).score(group("4", "5"))
        assert [request.path for request in server.requests] == ["/v1/chat/completions", "/other/v1/chat/completions"]
    with FakeJudgeServer(half) as server:  # on another port
        again = ruler(server, cache=tmp_path)
        await again.score(group("4", "5"))
        assert (server.requests, again.usage.cache_hits) == ([], 1)


async def test_time_that_the_import_takes_is_not_judging_time() -> None:
    class Slow(LiteLLMJudge):
        async def prepare(self) -> None:
            await asyncio.sleep(0.5)

        async def complete(self, request: JudgeRequest) -> JudgeReply:
            return JudgeReply(verdict_json(dict.fromkeys(request.ids, 0.5)))

    assert (await Ruler(Slow("openai/m"), total_timeout_s=0.4).score(group("4", "5"))).scores == (0.5, 0.5)


def refuses(*formats: str) -> Handler:
    def handler(request: ServedRequest) -> Answer | str:
        used = request.body.get("response_format", {}).get("type", "text")
        if used in formats:
            return Answer(f"response_format {used} is not supported", status=400)
        return half(request)

    return handler


@pytest.mark.parametrize(
    ("refused", "sent"),
    [
        (["json_schema"], ["json_schema", "json_object"]),
        (["json_schema", "json_object"], [*["json_schema"], "json_object", None]),
    ],
)
async def test_the_format_falls_back_as_the_provider_answers_and_is_remembered(
    refused: list[str], sent: list[str | None]
) -> None:
    with FakeJudgeServer(refuses(*refused)) as server:
        judge = ruler(server)
        assert (await judge.score(group("4", "5"))).scores == (0.5, 0.5)
        assert [r.body.get("response_format", {}).get("type") for r in server.requests] == sent
        assert judge.usage.downgrades == judge.usage.failed_calls == len(refused)
        assert judge.usage.calls == len(sent)
        assert judge.usage.retries == 0
        await judge.score(group("4", "6"))
        assert server.requests[-1].body.get("response_format", {}).get("type") == sent[-1]
        assert len(server.requests) == len(sent) + 1


async def test_a_bad_request_for_another_reason_is_not_blamed_on_the_format() -> None:
    bad = Answer("no such thing", status=400)
    with FakeJudgeServer(InTurn(bad, half)) as server:
        judge = ruler(server)
        with pytest.raises(JudgeUnavailableError, match="no such thing"):
            await judge.score(group("4", "5"))
        assert len(server.requests) == 1
        await judge.score(group("4", "5"))
        assert server.requests[-1].body["response_format"]["type"] == "json_schema"


async def test_a_parameter_the_server_refuses_is_dropped_and_remembered(caplog: pytest.LogCaptureFixture) -> None:
    def strict(request: ServedRequest) -> Answer | str:
        if request.body.get("temperature", 1) != 1:
            return Answer("Unsupported value: 'temperature' does not support 0, only 1", status=400)
        return half(request)

    with FakeJudgeServer(strict) as server:
        judge = ruler(server, judge_params={"temperature": 0, "top_p": 0.5})
        for answer in ("5", "6"):
            assert (await judge.score(group("4", answer))).scores == (0.5, 0.5)
        assert ["temperature" in r.body for r in server.requests] == [True, False, False]
        assert all(r.body["top_p"] == 0.5 for r in server.requests)
        assert all(r.body["response_format"]["type"] == "json_schema" for r in server.requests)
    assert "refuses temperature; it is left out" in caplog.text


def poisoned(words: str) -> Handler:
    """Refuses requests that contain POISON, with an error that quotes them."""

    def handler(request: ServedRequest) -> Answer | str:
        if "POISON" in request.body["messages"][-1]["content"]:
            return Answer(f"Input rejected: the prompt contains {words}", status=400)
        return half(request)

    return handler


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        ("'POISON my temperature json'", 1),
        ('{"temperature": 17} POISON', 2),
        ("'response_format' POISON", 3),
        ("unsupported temperature, json_schema is not supported: POISON", 4),
    ],
)
async def test_an_error_that_quotes_the_group_changes_nothing_for_others(words: str, sent: int) -> None:
    with FakeJudgeServer(poisoned(words)) as server:
        judge = ruler(server, judge_params={"temperature": 0.5}, max_retries=0)
        with pytest.raises(JudgeUnavailableError, match="Input rejected"):
            await judge.score(group("POISON", "5"))
        assert len(server.requests) == sent
        await judge.score(group("4", "5"))
        assert server.requests[-1].body["temperature"] == 0.5
        assert server.requests[-1].body["response_format"]["type"] == "json_schema"
        (model,) = judge._judges
        assert isinstance(model, LiteLLMJudge)
        assert model._trials == {}


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ("Unsupported parameter: 'top_k' is not supported with this model.", True),
        ("unknown field top_k", True),
        ("top_k is not supported", True),
        ("Unrecognized request argument supplied: top_k", True),
        ("m does not support parameters: ['top_k'], for model=m", True),
        ('{"detail":[{"type":"extra_forbidden","loc":["body","top_k"],"msg":"Extra inputs are not permitted"}]}', True),
        ("invalid top_k message: text is not allowed", False),
        ("the text about top_k and json was blocked", False),
        ("unknown model; the prompt was: top_k", False),
        ("'top_knot' is not supported", False),
    ],
)
async def test_a_parameter_is_dropped_on_clear_words_only(said: str, refused: bool) -> None:
    def handler(request: ServedRequest) -> Answer | str:
        return Answer(said, status=400) if "top_k" in request.body else half(request)

    with FakeJudgeServer(handler) as server:
        judge = ruler(server, judge_params={"top_k": 5})
        if not refused:
            with pytest.raises(JudgeUnavailableError):
                await judge.score(group("4", "5"))
            assert len(server.requests) == 1
            return
        assert (await judge.score(group("4", "5"))).scores == (0.5, 0.5)


@pytest.mark.parametrize(
    "said",
    [
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
        "This response_format type is unavailable now",
        "This model does not support response format `json_schema`.",
        "response_format value as json_schema is enabled only for api versions 2024-08-01-preview and later",
        "Invalid schema for response_format 'verdict': ...",
        "'response_format.type' must be 'text' or 'json_object'",
        "failed to parse grammar",
    ],
)
async def test_words_by_which_providers_refuse_a_schema(said: str) -> None:
    def handler(request: ServedRequest) -> Answer | str:
        used = request.body.get("response_format", {}).get("type")
        return Answer(said, status=400) if used == "json_schema" else half(request)

    with FakeJudgeServer(handler) as server:
        assert (await ruler(server).score(group("4", "5"))).scores == (0.5, 0.5)
        assert len(server.requests) == 2


async def test_a_parameter_litellm_itself_refuses_is_dropped(server: FakeJudgeServer) -> None:
    judge = ruler(server, "openai/gpt-5-mini", judge_params={"temperature": 0.2})
    assert (await judge.score(group("4", "5"))).scores == (0.5, 0.5)
    assert "temperature" not in server.requests[0].body


async def test_an_ignored_format_is_no_fault_while_the_answer_can_be_read() -> None:
    with FakeJudgeServer(lambda r: f"Well:\n```json\n{half(r)}\n```\nHope this helps") as server:
        assert (await ruler(server).score(group("4", "5"))).scores == (0.5, 0.5)
        assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 529])
async def test_what_can_succeed_again_is_retried_and_not_multiplied(status: int) -> None:
    down = Answer("down", status=status, headers={"Retry-After": "0"})
    with FakeJudgeServer(InTurn(down, down, half)) as server:
        judge = ruler(server, max_retries=2)
        assert (await judge.score(group("4", "5"))).scores == (0.5, 0.5)
        assert len(server.requests) == 3
        assert (judge.usage.calls, judge.usage.failed_calls, judge.usage.retries) == (3, 2, 2)
    with FakeJudgeServer(lambda r: down) as server:
        judge = ruler(server, max_retries=2)
        with pytest.raises(JudgeUnavailableError) as caught:
            await judge.score(group("4", "5"))
        assert len(server.requests) == 3
        assert caught.value.usage is not None
        assert caught.value.usage.failed_calls == 3


@pytest.mark.parametrize(("status", "text"), [(401, "no"), (403, "no"), (404, "no"), (429, "insufficient_quota")])
async def test_what_cannot_succeed_is_not_retried(status: int, text: str) -> None:
    with FakeJudgeServer(lambda r: Answer(text, status=status)) as server:
        with pytest.raises(JudgeUnavailableError) as caught:
            await ruler(server).score(group("4", "5"))
        assert not caught.value.retryable
        assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"<html>proxy</html>", b'{"choices": []}', b"{}"])
async def test_an_answer_that_is_no_completion_is_no_score(body: bytes) -> None:
    with FakeJudgeServer(lambda r: Answer(body=body)) as server:
        try:
            result = await ruler(server, max_retries=0).score(group("4", "5"))
        except JudgeUnavailableError:
            return
        assert result.scores == (None, None)


async def test_a_refused_connection_is_an_error_that_names_the_judge() -> None:
    with FakeJudgeServer(half) as server:
        address = server.api_base
    with pytest.raises(JudgeUnavailableError, match=f"'openai/m'.*{address} cannot be reached"):
        await Ruler("openai/m", api_base=address, api_key=KEY, max_retries=0).score(group("4", "5"))


async def test_retry_after_is_honoured() -> None:
    with FakeJudgeServer(InTurn(Answer("wait", status=429, headers={"Retry-After": "1"}), half)) as server:
        judge = ruler(server)
        await judge.score(group("0", "1"))  # not to time the import of litellm
    with FakeJudgeServer(InTurn(Answer("wait", status=429, headers={"Retry-After": "1"}), half)) as server:
        started = time.monotonic()
        await ruler(server).score(group("4", "5"))
        assert time.monotonic() - started >= 1.0


@pytest.mark.parametrize(
    "value",
    [
        "Wed, 21 Oct 99999999999999999999 07:28:00 GMT",
        "Wed, 21 Oct 2015 99999999999999999999:28:00 GMT",
        "Wed, 21 Oct 9999 07:28:00 -9999",
        "Mon, 01 Jan 0001 00:00:00 +2359",
        "nan",
        "inf",
        "soon",
    ],
)
async def test_a_date_that_no_calendar_has_is_no_date(value: str) -> None:
    with FakeJudgeServer(lambda r: Answer("wait", status=429, headers={"Retry-After": value})) as server:
        with pytest.raises(JudgeUnavailableError) as caught:
            await ruler(server, max_retries=0).score(group("4", "5"))
        assert caught.value.__context__ is None
        assert caught.value.retry_after_s in (None, 0.0) or caught.value.retry_after_s > 10**9
        assert KEY not in "".join(traceback.format_exception(caught.value))


async def test_nobody_waits_for_an_hour() -> None:
    with FakeJudgeServer(lambda r: Answer("wait", status=429, headers={"Retry-After": "3600"})) as server:
        with pytest.raises(JudgeUnavailableError) as caught:
            await ruler(server).score(group("4", "5"))
        assert caught.value.retry_after_s == 3600
        assert len(server.requests) == 1


async def test_a_call_that_takes_too_long_is_given_up_and_counted() -> None:
    with FakeJudgeServer(lambda r: Answer(half(r), latency_s=1.0)) as server:
        judge = ruler(server, timeout_s=0.2, max_retries=0)
        with pytest.raises(JudgeUnavailableError) as caught:
            await judge.score(group("4", "5"))
        assert caught.value.retryable
        assert judge.usage.failed_calls == 1


@pytest.mark.parametrize(
    "answer",
    [
        Answer("", finish_reason="length"),
        Answer(None, message={"reasoning_content": "I think and think"}, finish_reason="length"),
        Answer('{"scores": [{"id": "BCD", "explanation": "", "score": 0.5}, {"id": "B', finish_reason="length"),
        Answer(None, message={"refusal": "I cannot judge this"}),
    ],
)
async def test_a_judge_that_never_comes_to_its_verdict_scores_nobody(answer: Answer) -> None:
    with FakeJudgeServer(lambda r: answer) as server:
        result = await ruler(server).score(group("4", "5"))
        assert result.scores == (None, None)
        assert len(server.requests) == 2  # asked to repair it, once
        wanted = "I cannot judge this" if answer.message.get("refusal") else "token limit"
        assert all(wanted in (verdict.problem or "") for verdict in result.verdicts)
        assert wanted in server.requests[1].body["messages"][-1]["content"]


async def test_what_is_asked_a_second_time_is_downgraded_as_at_first(tmp_path: Path) -> None:
    def handler(request: ServedRequest) -> Answer | str:
        if "response_format" in request.body or "top_p" in request.body:
            return Answer("response_format is not supported, and top_p is not supported", status=400)
        return half(request)

    with FakeJudgeServer(handler) as server:
        options: dict[str, Any] = {"cache": tmp_path, "judge_params": {"top_p": 1}, "max_group": 2}
        await ruler(server, **options).score(group("4", "5"))
        server.requests.clear()
        again = ruler(server, **options)  # has the first answer from the cache, and knows nothing of the server
        assert (await again.score(group("4", "5"))).usage.calls == 0
        result = await again.repeating().score(group("4", "5"))
        assert result.scores == (0.5, 0.5)
        assert (result.usage.downgrades, len(server.requests)) == (3, 4)
        assert (await again.repeating().score(group("4", "5", "6"))).usage.downgrades == 0


@pytest.mark.parametrize("refusal", ["no \ud83d", None])
async def test_whatever_a_faulty_answer_holds_it_can_be_repaired(refusal: Any) -> None:
    faulty = Answer("half a pair: \ud83d\0", message={} if refusal is None else {"refusal": refusal})
    with FakeJudgeServer(InTurn(faulty, half)) as server:
        result = await ruler(server, max_retries=0).score(group("4", "5"))
        assert result.scores == (0.5, 0.5)
        assert (len(server.requests), result.usage.repairs) == (2, 1)


@pytest.mark.parametrize(
    ("model", "status", "text"),
    [("openai/m", 401, "no"), ("m", 403, "no"), ("hosted_vllm/m", 401, "no"), ("openai/gpt-4o", 404, "no")],
)
async def test_every_request_is_counted_and_none_is_made_behind_our_back(model: str, status: int, text: str) -> None:
    with FakeJudgeServer(lambda r: Answer(text, status=status, headers={"x-should-retry": "true"})) as server:
        judge = ruler(server, model)
        with pytest.raises(JudgeUnavailableError) as caught:
            await judge.score(group("4", "5"))
        assert caught.value.usage is not None
        assert caught.value.usage.calls == judge.usage.calls == len(server.requests) == 1


@pytest.mark.parametrize("model", ["openai/gpt-4o", "azure/gpt-4o", "gemini/gemini-2.0-flash", "anthropic/claude-x"])
async def test_without_any_key_it_is_asked_once_and_told_what_is_missing(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if "_KEY" in name or "_TOKEN" in name:
            monkeypatch.delenv(name)
    judge = Ruler(model)
    with pytest.raises(JudgeUnavailableError, match="with api_key") as caught:
        await judge.score(group("4", "5"))
    assert "Traceback" not in str(caught.value)
    assert judge.usage.calls == 1


async def test_a_key_that_was_not_sent_is_what_the_error_speaks_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    with FakeJudgeServer(half, api_key=KEY) as server:
        judge = Ruler("openai/m", api_base=server.api_base)
        with pytest.raises(JudgeUnavailableError, match=r"no key was sent.*with api_key$"):
            await judge.score(group("4", "5"))


@pytest.mark.parametrize("kind", ["application/json", "text/html"])
@pytest.mark.parametrize("model", ["openai/m", "hosted_vllm/m"])
async def test_a_web_page_is_no_answer_of_an_api(model: str, kind: str) -> None:
    page = Answer(body=b"<html>hi</html>", headers={"Content-Type": kind})
    with FakeJudgeServer(lambda r: page) as server:
        judge = ruler(server, model, max_retries=0)
        with pytest.raises(JudgeUnavailableError, match=f"{server.api_base} answered is not JSON; is that the API's"):
            await judge.score(group("4", "5"))


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_an_answer_that_litellm_cannot_read_is_not_asked_for_again() -> None:
    parts = Answer("", message={"content": [{"type": "text", "text": "{}"}]})
    with FakeJudgeServer(lambda r: parts) as server:
        with pytest.raises(JudgeUnavailableError, match="no chat completion with a text") as caught:
            await ruler(server).score(group("4", "5"))
        assert len(server.requests) == 1
        assert "Traceback" not in str(caught.value)


async def test_a_retry_after_that_no_calendar_has_is_none() -> None:
    date = "Wed, 21 Oct 99999999999999999999 07:28:00 GMT"
    with FakeJudgeServer(lambda r: Answer("wait", status=429, headers={"Retry-After": date})) as server:
        with pytest.raises(JudgeUnavailableError) as caught:
            await ruler(server, max_retries=0).score(group("4", "5"))
        assert caught.value.retry_after_s is None


async def test_calls_given_up_before_they_are_sent_leave_no_warning() -> None:
    for _ in range(5):
        judge = Ruler("openai/m", api_base="http://127.0.0.1:9/v1", api_key=KEY, timeout_s=0.002, max_retries=0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.filterwarnings("ignore", r"coroutine '\w+\.a?completion' was never awaited", RuntimeWarning)
            with pytest.raises(JudgeUnavailableError):
                await judge.score(group("4", "5"))
            gc.collect()
        assert [str(warning.message) for warning in caught] == []


def test_litellm_brings_the_filter_for_its_own_warning() -> None:
    code = (
        "import warnings; from art_ruler._litellm import _import_litellm; _import_litellm()\n"
        "print([f[0] for f in warnings.filters if f[1] and "
        "f[1].match(\"coroutine 'A.acompletion' was never awaited\")])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['ignore']"


PARAM = "paramsecret-445566"
PASSWORD = "basicpassw0rd"


@pytest.mark.parametrize(("status", "said"), [(400, "unknown field access_code"), (404, "no"), (400, "no")])
async def test_secrets_in_parameters_and_addresses_are_hidden_as_well(
    status: int, said: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    litellm: Any = _import_litellm()

    def handler(request: ServedRequest) -> Answer | str:
        if "access_code" in request.body:
            return Answer(f"{said} {request.body['access_code']} {request.headers['authorization']}", status=status)
        return half(request)

    said_by_errors = []
    with FakeJudgeServer(handler) as server:
        # litellm's client takes no password in an address that has a key as well, so the second one fails
        for address in (server.api_base, server.api_base.replace("//", f"//me:{PASSWORD}@")):
            params = {"access_code": PARAM, "extra_body": {"deep": [PARAM]}}
            judge = Ruler("m", api_base=address, extra_headers={"X-Team": HEADER}, judge_params=params, max_retries=0)
            litellm.set_verbose = True
            try:
                await judge.score(group("4", "5"))
            except JudgeUnavailableError as error:
                said_by_errors += traceback.format_exception(error)
            finally:
                litellm.set_verbose = False
        assert server.requests
    printed = capfd.readouterr()
    assert said_by_errors
    assert "litellm" in printed.out
    for text in (*said_by_errors, caplog.text, printed.out, printed.err):
        assert not [secret for secret in (PARAM, PASSWORD, HEADER) if secret in text]


async def test_what_an_unknown_model_reads_is_assumed_and_said_when_it_matters(
    server: FakeJudgeServer, caplog: pytest.LogCaptureFixture
) -> None:
    judge = ruler(server)
    await judge.score(group("4", "5"))
    assert "context_tokens" not in caplog.text
    for end in "ab":
        result = await judge.score(group("word " * 50_000 + end, "5"))
        assert result.usage.cut_trajectories == 1
        assert len(json.dumps(server.requests[-1].body)) < 3 * 32_768
    assert caplog.text.count("tell the true number with context_tokens") == 1
    caplog.clear()
    told = ruler(server, context_tokens=8_000)
    await told.score(group("word " * 50_000, "5"))
    assert "context_tokens" not in caplog.text


@pytest.mark.parametrize("status", [400, 401, 429, 500])
async def test_keys_and_headers_are_in_no_error_log_cache_or_repr(
    status: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("LiteLLM", "httpx", "openai"):
        caplog.set_level(logging.DEBUG, logger=name)

    def quotes(request: ServedRequest) -> Answer:
        return Answer(f"you sent {dict(request.headers)} and {KEY} {HEADER}", status=status)

    options: dict[str, Any] = {"extra_headers": {"X-Team": HEADER}, "cache": tmp_path, "max_retries": 0}
    with FakeJudgeServer(InTurn(half, quotes)) as server:
        judge = ruler(server, **options)
        await judge.score(group("4", "5"))
        with pytest.raises(RulerError) as caught:
            await judge.score(group("4", "6"))
    shown = capfd.readouterr()
    said = [
        *traceback.format_exception(caught.value),
        repr(caught.value.__context__),
        repr(judge),
        repr(judge._judges),
        caplog.text,
        shown.out,
        shown.err,
        *texts_in(tmp_path),
    ]
    assert caught.value.__context__ is None
    assert "you sent" in str(caught.value)
    assert len(texts_in(tmp_path)) == 1
    for secret in (KEY, HEADER):
        assert not [text for text in said if secret in text]


def test_several_event_loops_one_after_another(server: FakeJudgeServer) -> None:
    judge = ruler(server, max_concurrency=1, passes=3)  # passes have to wait for each other
    for answer in "567":
        assert asyncio.run(judge.score(group("4", answer))).scores == (0.5, 0.5)
    assert judge.usage.calls == 9
    assert judge.usage.failed_calls == 0


def test_from_sync_code_and_from_inside_a_running_loop(server: FakeJudgeServer) -> None:
    judge = ruler(server)
    assert judge.score_sync(group("4", "5")).scores == (0.5, 0.5)

    async def notebook() -> tuple[float | None, ...]:
        return judge.score_sync(group("4", "6")).scores

    assert asyncio.run(notebook()) == (0.5, 0.5)


async def test_what_is_in_flight_is_cancelled_with_the_caller() -> None:
    arrived = threading.Event()

    def slow(request: ServedRequest) -> Answer:
        arrived.set()
        return Answer(half(request), latency_s=5.0)

    with FakeJudgeServer(slow) as server:
        judge = ruler(server)
        task = asyncio.create_task(judge.score(group("4", "5")))
        assert await asyncio.to_thread(arrived.wait, 60)
        task.cancel()
        started = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - started < 2.0
        assert judge.usage.failed_calls == 1


async def test_what_a_known_model_reads_is_its_budget() -> None:
    judge = LiteLLMJudge("openai/gpt-4o", api_base="http://127.0.0.1:9/v1", api_key=KEY)
    await judge.prepare()
    assert judge.context_tokens == 128_000
    assert KEY not in judge.fingerprint
    assert json.loads(judge.fingerprint)[0] == "openai/gpt-4o"


@pytest.mark.parametrize("name", ["api_key", "timeout", "stream", "messages", "response_format", "num_retries"])
def test_what_is_an_option_of_its_own_is_no_judge_parameter(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Ruler("openai/m", judge_params={name: "x"})


# What can never be asked


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        ("gpt-foo", "'gpt-foo': litellm knows no provider for this name; wanted PROVIDER/MODEL"),
        ("foo/bar", "'foo/bar': litellm knows no provider"),
        ("openai/", "'openai/' names no model"),
    ],
)
async def test_a_name_without_a_provider_is_refused_before_any_call(
    model: str, fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    judge = Ruler(model)
    with pytest.raises(ConfigError, match=fault):
        await judge.prepare()
    with pytest.raises(ConfigError, match=fault):
        await judge.score(group("4", "5"))
    assert judge.usage.calls == 0
    assert capfd.readouterr() == ("", "")


async def test_a_fall_back_without_a_provider_is_refused_before_it_is_needed(server: FakeJudgeServer) -> None:
    judge = LiteLLMJudge("openai/m", api_base=server.api_base, api_key=KEY)
    with pytest.raises(ConfigError, match="'gpt-foo'"):
        await Ruler(judge, fallbacks=["gpt-foo"]).score(group("4", "5"))
    assert server.requests == []


def test_an_address_that_is_no_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="api_base is 'localhost:8000'; wanted a URL"):
        Ruler("m", api_base="localhost:8000")


@pytest.mark.parametrize("model", ["openai/gpt-5-mini", "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash"])
async def test_a_missing_key_is_not_tried_again(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    judge = Ruler(model)
    with pytest.raises(JudgeUnavailableError, match=r"(?s)(Missing|credentials).*with api_key") as caught:
        await judge.score(group("4", "5"))
    assert not caught.value.retryable
    assert (judge.usage.calls, judge.usage.retries) == (1, 0)


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_an_answer_that_will_not_change_is_not_asked_for_again(status: int) -> None:
    with FakeJudgeServer(lambda request: Answer("no", status=status)) as server:
        with pytest.raises(JudgeUnavailableError) as caught:
            await ruler(server).score(group("4", "5"))
        assert (caught.value.status, caught.value.retryable, len(server.requests)) == (status, False, 1)


@pytest.mark.parametrize("option", [{"api_key": "x"}, {"api_base": "http://x"}, {"judge_params": {"top_k": 1}}])
def test_options_for_models_are_refused_where_no_model_is_named(option: dict[str, Any]) -> None:
    judges: list[Any] = [HeuristicJudge(), "heuristic", [HeuristicJudge(), "noisy"]]
    for judge in judges:
        with pytest.raises(ConfigError, match=next(iter(option))):
            Ruler(judge, **option)
        Ruler(judge, fallbacks=["openai/m"], **option)


def test_fakes_are_known_by_name() -> None:
    assert Ruler("heuristic").score_sync(group("four", "sorry")).scores == (1.0, 0.5)
    assert repr(Ruler(["heuristic", "noisy", "m"])) == "Ruler(['heuristic', 'noisy', 'm'], passes=1, seed=0)"


def test_a_rubric_that_no_request_can_carry_is_cleaned(server: FakeJudgeServer) -> None:
    assert ruler(server, rubric="a\ud800b").score_sync(group("4", "5")).scores == (0.5, 0.5)
    assert "a\ufffdb" in server.requests[0].body["messages"][0]["content"]
