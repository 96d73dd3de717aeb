from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from art_core.decorators import limit_concurrency, retry
from art_core.errors import ConfigError


class Flaky:
    def __init__(self, num_failures: int) -> None:
        self.num_failures = num_failures
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.num_failures:
            raise ValueError(f"failure {self.calls}")
        return self.calls

    async def later(self) -> int:
        return self()


async def test_both_kinds_of_function_are_called_again_until_they_succeed() -> None:
    heard: list[tuple[str, int]] = []
    decorate = retry(max_attempts=3, delay=0, on_retry=lambda error, attempt: heard.append((str(error), attempt)))
    assert decorate(Flaky(2).__call__)() == 3
    assert await decorate(Flaky(2).later)() == 3
    assert heard == [("failure 1", 1), ("failure 2", 2)] * 2


async def test_the_last_failure_is_raised_and_other_kinds_at_once() -> None:
    flaky = Flaky(5)
    with pytest.raises(ValueError, match="failure 2"):
        retry(max_attempts=2, delay=0, on_retry=lambda *_: None)(flaky.__call__)()
    with pytest.raises(ValueError, match="failure 3"):
        await retry(exceptions=(OSError,))(flaky.later)()


async def test_pauses_grow_by_the_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("art_core.decorators.asyncio.sleep", sleep)
    await retry(max_attempts=4, delay=0.5, backoff_factor=3, on_retry=lambda *_: None)(Flaky(3).later)()
    assert pauses == [0.5, 1.5, 4.5]


def test_without_a_listener_a_warning_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        retry(delay=0)(Flaky(1).__call__)()
    assert "attempt 1 of 3" in caplog.text
    assert "ValueError: failure 1" in caplog.text


async def test_cancelling_is_no_failure() -> None:
    calls = 0

    @retry(delay=0)
    async def wait() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(60)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls == 1


def test_use_without_parentheses_and_impossible_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"@retry\(\)"):
        retry(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_attempts of retry is 0; wanted a whole number, 1 or more"):
        retry(max_attempts=0)
    with pytest.raises(ConfigError, match="limit_concurrency"):
        limit_concurrency(0)


def test_coroutines_are_limited_by_key_also_in_a_second_event_loop() -> None:
    running: dict[str, int] = {}
    peak: dict[str, int] = {}

    @limit_concurrency(2, derive_key=lambda key: key)
    async def work(key: str) -> None:
        running[key] = running.get(key, 0) + 1
        peak[key] = max(peak.get(key, 0), running[key])
        await asyncio.sleep(0.002)
        running[key] -= 1

    async def run() -> None:
        await asyncio.gather(*(work(key) for key in "ab" * 5))

    asyncio.run(run())
    asyncio.run(run())
    assert peak == {"a": 2, "b": 2}


def test_functions_are_limited_over_all_threads() -> None:
    lock = threading.Lock()
    gate = threading.Barrier(2, timeout=10)
    running = peak = 0

    @limit_concurrency(2)
    def work() -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        gate.wait()
        with lock:
            running -= 1

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work) for _ in range(6)]:
            done.result()
    assert peak == 2


class FlakyAgent:
    """An object that is called like a coroutine function."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self) -> int:
        self.calls += 1
        if self.calls < 3:
            raise ValueError("not yet")
        return self.calls


async def test_an_object_with_an_asynchronous_call_is_a_coroutine_function() -> None:
    assert await retry(delay=0)(FlakyAgent())() == 3
    limited = limit_concurrency(1)(FlakyAgent())
    with pytest.raises(ValueError, match="not yet"):
        await limited()


async def test_what_the_decorator_would_not_see_is_refused() -> None:
    agent = FlakyAgent()
    for decorated in (retry()(lambda: agent()), limit_concurrency(1)(lambda: agent())):
        with pytest.raises(ConfigError, match="is no coroutine function and returns a coroutine"):
            _ = decorated()
    assert agent.calls == 0

    def numbers() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    for function in (numbers, later):
        with pytest.raises(ConfigError, match="retry cannot decorate a generator"):
            retry()(function)
        with pytest.raises(ConfigError, match="limit_concurrency cannot decorate a generator"):
            limit_concurrency(1)(function)


@pytest.mark.parametrize("wrong", ["3", True, float("nan"), None])
def test_numbers_of_another_kind_are_refused(wrong: Any) -> None:
    for arguments in ({"max_attempts": wrong}, {"delay": wrong}, {"backoff_factor": wrong}):
        with pytest.raises(ConfigError, match=f"{next(iter(arguments))} of retry is .*; wanted a"):
            retry(**arguments)
    with pytest.raises(ConfigError, match="limit_concurrency"):
        limit_concurrency(wrong)
