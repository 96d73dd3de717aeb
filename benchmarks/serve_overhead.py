"""What the server adds to a model call, and whether it holds many open streams at once.

    python benchmarks/serve_overhead.py [--engine scripted|embedded] [--model smollm2-135m] [--client openai|http] \
        [--streams 1 64] [--calls 20] [--tokens 32] [--delay 0.01] [--open 512]

The same prompt is answered with the same number of tokens twice: by the engine called in this process, and through the
server, as a streamed chat call of the `openai` client over a socket, recorded in a trajectory. In each case `--streams`
callers make `--calls` calls one after another, and the overhead is the difference of the percentiles of a call's time.
The scripted engine waits `--delay` seconds before each token; the embedded one computes. The client runs in the
process of the server, so what it costs counts as overhead; `--client http` reads the events without the `openai`
library, which shows how much of it that is. At the end `--open` streams are open at once on one server;
an error or a missing token ends the program with code 1.

The last line is `ratio serve_overhead VALUE` (with `--engine embedded`, `serve_overhead_embedded`): the median time of
a call at the last number of streams, in process over through the server: 1 is no overhead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from openai import AsyncOpenAI

from art_core.protocols import Engine
from art_core.render import ChatRenderer, load_renderer
from art_core.serve.server import ModelServer
from art_core.testing import ScriptedEngine, write_tiny_model
from art_core.types import Sampling

QUESTION: Any = [{"role": "user", "content": "Name the capitals of Europe, one after another, with a word on each."}]


def percentile(times: list[float], share: float) -> float:
    """The smallest of `times` that at least `share` of them do not exceed."""
    return sorted(times)[max(0, math.ceil(share * len(times)) - 1)]


async def times_of(call: Callable[[], Awaitable[int]], *, streams: int, calls: int, tokens: int) -> list[float]:
    """Seconds of each call, made by `streams` callers side by side; each begins with one that is not counted."""

    async def caller() -> list[float]:
        taken = []
        for _ in range(calls + 1):
            start = time.perf_counter()
            got = await call()
            taken.append(time.perf_counter() - start)
            if got != tokens:
                raise RuntimeError(f"a call brought {got} tokens; wanted {tokens}")
        return taken[1:]

    return [seconds for taken in await asyncio.gather(*(caller() for _ in range(streams))) for seconds in taken]


def in_process(engine: Engine, renderer: ChatRenderer, tokens: int) -> Callable[[], Awaitable[int]]:
    """A call of the engine itself. Nothing stops it early, as nothing stops the one through the server."""
    prompt = renderer.render_ids(QUESTION, add_generation_prompt=True)

    async def call() -> int:
        return sum([len(chunk.token_ids) async for chunk in engine.stream(prompt, Sampling(max_tokens=tokens))])

    return call


async def tokens_in(stream: Any) -> int:
    """How many tokens the events of a streamed answer carry; the first and the last of them carry none."""
    return sum([len(getattr(choice, "token_ids", None) or ()) async for event in stream for choice in event.choices])


def through_server(client: AsyncOpenAI, tokens: int) -> Callable[[], Awaitable[int]]:
    """A streamed call of the client."""

    async def call() -> int:
        stream = await client.chat.completions.create(model="m", messages=QUESTION, max_tokens=tokens, stream=True)
        return await tokens_in(stream)

    return call


def over_http(client: AsyncOpenAI, tokens: int) -> Callable[[], Awaitable[int]]:
    """The same call without the `openai` library: what is left is the server, and reading JSON."""
    body = {"model": "m", "messages": QUESTION, "max_tokens": tokens, "stream": True}
    http, url = client._client, f"{str(client.base_url).rstrip('/')}/chat/completions"

    async def call() -> int:
        got = 0
        async with http.stream("POST", url, json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    got += sum(len(choice.get("token_ids", ())) for choice in json.loads(line[6:])["choices"])
        return got

    return call


class Endless:
    """An engine without stop tokens: every call brings as many tokens as it asks for, through the server as well."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.max_context_tokens = engine.max_context_tokens
        self.policy_version = 0

    def stream(self, prompt_ids: Any, sampling: Sampling) -> Any:
        return self._engine.stream(prompt_ids, sampling.model_copy(update={"stop_token_ids": ()}))


CLIENTS = {"openai": through_server, "http": over_http}


@asynccontextmanager
async def engine_of(options: argparse.Namespace) -> AsyncIterator[tuple[Engine, ChatRenderer]]:
    """The engine to measure, and the renderer of its model."""
    if options.engine == "scripted":
        with tempfile.TemporaryDirectory() as folder:
            renderer = load_renderer(write_tiny_model(Path(folder)))
        text = renderer.encode("abcdefgh")
        script = ScriptedEngine(
            lambda _, sampling: (text * sampling.max_tokens)[: sampling.max_tokens], delay_s=options.delay
        )
        yield script, renderer
        return
    from art_core.engines.embedded import EmbeddedEngine, EmbeddedEngineConfig
    from art_core.weights.source import resolve_model

    folder_path = resolve_model(options.model).folder
    config = EmbeddedEngineConfig(model_folder=folder_path, max_concurrency=max(options.streams))
    embedded = await asyncio.to_thread(EmbeddedEngine, config)
    try:
        yield embedded, load_renderer(folder_path)
    finally:
        await embedded.aclose()


def client_of(base_url: str, connections: int) -> AsyncOpenAI:
    """A client that opens as many connections as there are streams and never tries again."""
    limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
    http = httpx2.AsyncClient(limits=limits, timeout=600)
    return AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=600, http_client=http)


async def measure(options: argparse.Namespace) -> float:
    """Print the figures; returns the ratio."""
    ratio = 1.0
    async with engine_of(options) as (bare, renderer):
        engine: Any = Endless(bare)
        for streams in options.streams:
            load = {"streams": streams, "calls": options.calls, "tokens": options.tokens}
            direct = await times_of(in_process(engine, renderer, options.tokens), **load)
            async with ModelServer(engine, renderer, model_name="m") as server:
                async with client_of(server.open_trajectory("t"), streams) as client:
                    served = await times_of(CLIENTS[options.client](client, options.tokens), **load)
                num_recorded = len(server.close_trajectory("t"))
            if num_recorded != streams * (options.calls + 1):
                raise RuntimeError(f"{num_recorded} calls were recorded; wanted {streams * (options.calls + 1)}")
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                before, after = percentile(direct, share), percentile(served, share)
                print(
                    f"{streams} streams, {name}: in process {before * 1e3:.2f} ms, served {after * 1e3:.2f} ms, "
                    f"overhead {(after - before) * 1e3:.2f} ms a call, "
                    f"{(after - before) / options.tokens / streams * 1e6:.0f} us a token"
                )
            ratio = percentile(direct, 0.5) / percentile(served, 0.5)
        await hold_open(renderer, options)
    return ratio


async def hold_open(renderer: ChatRenderer, options: argparse.Namespace) -> None:
    """Open `--open` streams on one server, and see each to its end only when all have begun."""
    if options.open == 0:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # both ends of every stream are in this process
    if hard == resource.RLIM_INFINITY or soft < hard:
        enough = 2 * options.open + 256
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough if hard < 0 else min(enough, hard)), hard))
    text = renderer.encode("abcdefgh")
    engine: Any = ScriptedEngine(lambda *_: text, delay_s=options.delay)
    async with (
        ModelServer(engine, renderer, model_name="m") as server,
        client_of(server.base_url(), options.open) as client,
    ):
        all_begun, num_begun = asyncio.Event(), 0

        async def one() -> int:
            nonlocal num_begun
            stream = await client.chat.completions.create(model="m", messages=QUESTION, max_tokens=99, stream=True)
            num_begun += 1
            if num_begun == options.open:
                all_begun.set()
            await all_begun.wait()
            return await tokens_in(stream)

        start = time.perf_counter()
        async with asyncio.timeout(600):
            counts = await asyncio.gather(*(one() for _ in range(options.open)))
    if set(counts) != {len(text)}:
        raise RuntimeError(f"streams brought {sorted(set(counts))} tokens; wanted {len(text)} each")
    print(f"{options.open} streams open at once on one server: no error, {time.perf_counter() - start:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=["scripted", "embedded"], default="scripted")
    parser.add_argument("--model", default="smollm2-135m", help="for the embedded engine: a name, or a folder")
    parser.add_argument("--client", choices=list(CLIENTS), default="openai")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--calls", type=int, default=20, help="by each stream, after one that is not counted")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--delay", type=float, default=0.01, help="of the scripted engine, before each token")
    parser.add_argument("--open", type=int, default=512, help="streams to hold open at once; 0: leave that out")
    options = parser.parse_args()
    if min(*options.streams, options.calls, options.tokens) < 1 or options.open < 0 or options.delay < 0:
        parser.error("wanted counts of 1 or more, and --open and --delay of 0 or more")
    try:
        ratio = asyncio.run(measure(options))
    except Exception as error:  # noqa: BLE001 - the one line that a command owes its user
        sys.exit(f"serve_overhead: {type(error).__name__}: {error}")
    print(f"ratio serve_overhead{'_embedded' if options.engine == 'embedded' else ''} {ratio:.3f}")


if __name__ == "__main__":
    main()
