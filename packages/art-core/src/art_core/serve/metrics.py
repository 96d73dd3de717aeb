"""What a server counts, in Prometheus' format."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from art_core.types import Exchange

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ROUTES = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/models", "/healthz", "/metrics")
_RATE_WINDOW_S = 30.0
_WAITS_S = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0)


class ServerMetrics:
    """The counters of one server. `text` is what `GET /metrics` answers."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        model = ["model"]
        self._requests = self._counter("art_requests", "Requests answered.", ["route", "code"])
        self._in_flight = Gauge("art_requests_in_flight", "Requests being answered.", registry=self._registry)
        self._tokens = self._counter("art_tokens", "Tokens of finished calls.", [*model, "kind"])
        self._rate = Gauge(
            "art_completion_tokens_per_second",
            f"Sampled tokens of calls finished in the last {_RATE_WINDOW_S:.0f} s.",
            model,
            registry=self._registry,
        )
        self._waits = Histogram(
            "art_queue_wait_seconds",
            "How long calls waited for weights that were being swapped or loaded, and steps for steps before them.",
            [*model, "queue"],
            buckets=_WAITS_S,
            registry=self._registry,
        )
        self._forks = self._counter("art_forks", "Calls whose prompt does not extend their trajectory's record.", model)
        self._malformed = self._counter("art_malformed_tool_calls", "Tool calls that could not be read.", model)
        self._steps = self._counter("art_training_steps", "Steps asked for.", [*model, "outcome"])
        self._version = Gauge("art_policy_version", "Step that is served.", model, registry=self._registry)
        self._dropped = Gauge(
            "art_exchanges_dropped", "Recorded calls that were dropped for newer ones.", model, registry=self._registry
        )
        self._expired = self._counter("art_trajectories_expired", "Open trajectories closed for want of calls.", [])
        self._finished: dict[str, deque[tuple[float, int]]] = {}

    def _counter(self, name: str, text: str, labels: Iterable[str]) -> Counter:
        return Counter(name, text, list(labels), registry=self._registry)

    def exchange(self, model: str, exchange: Exchange) -> None:
        """A call of `model` was finished."""
        sampled = len(exchange.completion_ids)
        self._tokens.labels(model, "prompt").inc(len(exchange.prompt_ids))
        self._tokens.labels(model, "completion").inc(sampled)
        self._forks.labels(model).inc(exchange.forked)
        self._malformed.labels(model).inc(exchange.num_malformed_calls)
        self._finished.setdefault(model, deque()).append((time.monotonic(), sampled))
        self._recent(model)

    def waited(self, model: str, queue: str, seconds: float) -> None:
        """A call or a step of `model` waited so long in `queue`."""
        self._waits.labels(model, queue).observe(seconds)

    def step(self, model: str, outcome: str) -> None:
        """A training step was "made" or "skipped", or it "failed"."""
        self._steps.labels(model, outcome).inc()

    def expired(self) -> None:
        """An open trajectory was given up."""
        self._expired.inc()

    def serving(self, model: str, *, policy_version: int, num_dropped: int) -> None:
        """What `model` is at."""
        self._version.labels(model).set(policy_version)
        self._dropped.labels(model).set(num_dropped)
        self._rate.labels(model).set(self._recent(model) / _RATE_WINDOW_S)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _recent(self, model: str) -> int:
        finished = self._finished.setdefault(model, deque())
        while finished and time.monotonic() - finished[0][0] > _RATE_WINDOW_S:
            finished.popleft()
        return sum(tokens for _, tokens in finished)

    def counting(self, app: ASGIApp) -> ASGIApp:
        """`app`, with its requests counted."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            code = "none"  # nothing was answered: the client hung up

            async def noting(message: Message) -> None:
                nonlocal code
                if message["type"] == "http.response.start":
                    code = str(message["status"])
                await send(message)

            with self._in_flight.track_inprogress():
                try:
                    await app(scope, receive, noting)
                finally:
                    self._requests.labels(_route(scope["path"]), code).inc()

        return counted


def _route(path: str) -> str:
    """`path` without names and ids, so that there are few."""
    if path.startswith("/api/"):
        return "/api/" + (path.rsplit("/", 1)[1] if path.endswith(_ACTIONS) else "models")
    return next((route for route in _ROUTES if path.endswith(route)), "other")


_ACTIONS = ("/trajectories", "/close", "/exchanges", "/train", "/log", "/metrics", "/delete")
