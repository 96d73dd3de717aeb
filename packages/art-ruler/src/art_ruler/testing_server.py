"""An OpenAI-compatible judge on loopback, for tests of everything between a program and its judge."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from art_ruler.errors import JudgeUnavailableError
from art_ruler.fakes import HeuristicJudge, attempts_in
from art_ruler.types import JudgeModel, JudgeReply, JudgeRequest


@dataclass(frozen=True)
class ServedRequest:
    """One HTTP request as it arrived; names of headers are in lower case."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def judge_request(self) -> JudgeRequest:
        """What the request asks a judge."""
        messages = tuple(self.body["messages"])
        prompt = next(message["content"] for message in messages if message["role"] == "user")
        return JudgeRequest(messages, {}, tuple(attempts_in(prompt)), 0)


@dataclass(frozen=True)
class Answer:
    """One HTTP answer: a verdict's text, or with another status an error message; or `body` as it is."""

    text: str | None = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    finish_reason: str = "stop"
    message: Mapping[str, Any] = field(default_factory=dict)
    latency_s: float = 0.0


Handler = Callable[[ServedRequest], Answer | str]


class FakeJudgeServer:
    """Serves `judge`, or whatever `handler` answers; a context manager that listens while it is open.

    `requests` holds everything that arrived. With `api_key`, requests without it get 401. Connections are closed after
    each answer. A `port` of 0 is any that is free.
    """

    def __init__(
        self,
        handler: Handler | None = None,
        *,
        judge: JudgeModel | None = None,
        api_key: str | None = None,
        latency_s: float = 0.0,
        port: int = 0,
    ) -> None:
        self.requests: list[ServedRequest] = []
        self._judge: JudgeModel = judge or HeuristicJudge()
        self._handler = handler or self._ask_judge
        self._api_key, self._latency_s, self._port = api_key, latency_s, port
        self._server: ThreadingHTTPServer | None = None

    @property
    def api_base(self) -> str:
        """What to give as `api_base`."""
        if self._server is None:
            raise RuntimeError("the server is not open; use it as a context manager")
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        fake = self

        class _Serving(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = ServedRequest(self.path, headers, json.loads(self.rfile.read(length)))
                fake.requests.append(request)
                answer = fake._answer(request)
                time.sleep(fake._latency_s + answer.latency_s)
                body = _body(request, answer)
                try:
                    self.send_response(answer.status)
                    sent = {"Content-Type": "application/json", "Content-Length": str(len(body)), **answer.headers}
                    for name, value in sent.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)
                except ConnectionError:
                    pass  # the client has stopped waiting

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        class _Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = _Server(("127.0.0.1", self._port), _Serving)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), name="fake-judge", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _answer(self, request: ServedRequest) -> Answer:
        if self._api_key and request.headers.get("authorization") != f"Bearer {self._api_key}":
            return Answer(f"Incorrect API key provided: {request.headers.get('authorization')}", status=401)
        answer = self._handler(request)
        return answer if isinstance(answer, Answer) else Answer(answer)

    def _ask_judge(self, request: ServedRequest) -> Answer:
        async def ask() -> JudgeReply:
            return await self._judge.complete(request.judge_request)

        try:
            reply = asyncio.run(ask())
        except JudgeUnavailableError as error:
            return Answer(str(error), status=error.status or 500)
        return Answer(reply.text, finish_reason="length" if reply.cut else "stop")


def _body(request: ServedRequest, answer: Answer) -> bytes:
    if answer.body is not None:
        return answer.body
    if answer.status != 200:
        return json.dumps({"error": {"message": answer.text, "type": "fake", "code": None}}).encode()
    asked = sum(len(str(message["content"])) for message in request.body["messages"]) // 4
    written = len(answer.text or "") // 4
    message = {"role": "assistant", "content": answer.text, **answer.message}
    return json.dumps(
        {
            "id": "chatcmpl-fake",
            "object": "chat.completion",
            "created": 0,
            "model": request.body.get("model"),
            "choices": [{"index": 0, "message": message, "finish_reason": answer.finish_reason}],
            "usage": {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written},
        }
    ).encode()


def main() -> None:
    """Serve a `HeuristicJudge` until interrupted: `python -m art_ruler.testing_server --port 8123`."""
    parser = argparse.ArgumentParser(
        prog="python -m art_ruler.testing_server",
        description="An OpenAI-compatible judge without a model, on loopback.",
    )
    parser.add_argument("--port", type=int, default=8123, help="0 is any that is free")
    parser.add_argument("--latency", type=float, default=0.0, metavar="SECONDS", help="time that each answer takes")
    given = parser.parse_args()
    try:
        with (
            FakeJudgeServer(port=given.port, latency_s=given.latency) as server,
            contextlib.suppress(KeyboardInterrupt),
        ):
            print(f"judging on {server.api_base}; stop with Ctrl-C", flush=True)  # noqa: T201 - what a user waits for
            threading.Event().wait()
    except (OSError, OverflowError) as error:
        parser.error(f"port {given.port} cannot be listened on: {error}; give another --port")


if __name__ == "__main__":
    main()
