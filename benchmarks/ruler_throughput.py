"""How close judging many groups comes to what the judge's latency allows, and whether memory stays flat.

    python benchmarks/ruler_throughput.py [--groups 1000] [--concurrency 64] [--latency 0.05] [--server]

The ideal wall time is `latency × ceil(groups / concurrency)`: the judge answers all calls in flight at once. With
`--server` the judge is a server on loopback, asked through litellm; else it answers in this process. The last line is
`ratio NAME VALUE`, the ideal wall time over ours: 1 is ideal.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from art_ruler import Ruler
from art_ruler.batch import for_each
from art_ruler.fakes import verdict_json
from art_ruler.testing_server import FakeJudgeServer
from art_ruler.types import JudgeReply, JudgeRequest

GROUP_SIZE = 6


def groups(count: int) -> Iterator[list[list[dict[str, Any]]]]:
    """Groups of six attempts with a tool call each, made when they are asked for."""
    for number in range(count):
        task = [
            {"role": "system", "content": "You book trains. Use the timetable, then answer in one sentence."},
            {"role": "user", "content": f"When does train {number} leave, and from which platform?"},
        ]
        yield [
            [
                *task,
                {"role": "assistant", "content": None, "tool_calls": [_call(number)]},
                {"role": "tool", "tool_call_id": "c", "content": f"departure 1{attempt}:42, platform {number % 20}"},
                {"role": "assistant", "content": f"It leaves at 1{attempt}:42 from platform {number % 20}."},
            ]
            for attempt in range(GROUP_SIZE)
        ]


def _call(number: int) -> dict[str, Any]:
    arguments = f'{{"train": {number}}}'
    return {"id": "c", "type": "function", "function": {"name": "timetable", "arguments": arguments}}


def answer(request: JudgeRequest) -> str:
    return verdict_json({blind_id: 1 / (1 + place) for place, blind_id in enumerate(request.ids)})


def resident_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass(frozen=True)
class Figures:
    """Seconds of wall and processor time for all groups, and by how many bytes the peak of memory grew."""

    wall_s: float
    processor_s: float
    grown_bytes: int


async def judge_all(ruler: Ruler, count: int, concurrency: int) -> float:
    """Seconds for `count` groups."""
    scored = 0

    async def judge(group: list[list[dict[str, Any]]]) -> None:
        nonlocal scored
        result = await ruler.score(group)
        if None in result.scores:
            raise RuntimeError(f"a trajectory got no score: {result.verdicts}")
        scored += 1

    start = time.perf_counter()
    await for_each(groups(count), judge, concurrency=concurrency)
    elapsed = time.perf_counter() - start
    if scored != count:
        raise RuntimeError(f"{scored} of {count} groups were scored")
    return elapsed


async def measure(ruler: Ruler, options: argparse.Namespace) -> Figures:
    """The figures for all groups, after a tenth of them so that imports and first-use costs are not part of it."""
    await judge_all(ruler, max(options.concurrency, options.groups // 10), options.concurrency)
    gc.collect()
    peak, processor = resident_bytes(), time.process_time()
    wall = await judge_all(ruler, options.groups, options.concurrency)
    return Figures(wall, time.process_time() - processor, resident_bytes() - peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds the judge takes")
    parser.add_argument("--server", action="store_true", help="a server in this process, through litellm and a socket")
    options = parser.parse_args()
    ideal = options.latency * math.ceil(options.groups / options.concurrency)
    figures = asyncio.run(_with_judge(options))
    print(f"{options.groups} groups of {GROUP_SIZE}, {options.concurrency} at a time, latency {options.latency} s")
    print(f"wall {figures.wall_s:.2f} s, ideal {ideal:.2f} s, {options.groups / figures.wall_s:.0f} groups/s")
    print(f"processor {figures.processor_s:.2f} s, {figures.processor_s / options.groups * 1e3:.2f} ms per group")
    print(f"peak memory grew by {figures.grown_bytes / 1e6:.1f} MB while judging {options.groups} groups")
    print(f"ratio {'ruler_throughput_server' if options.server else 'ruler_throughput'} {ideal / figures.wall_s:.3f}")


class SleepingJudge:
    """Answers after `latency_s` and, unlike a fake made for tests, keeps nothing of what it was asked."""

    def __init__(self, latency_s: float) -> None:
        self.name = "sleeping"
        self._latency_s = latency_s

    async def complete(self, request: JudgeRequest) -> JudgeReply:
        await asyncio.sleep(self._latency_s)
        return JudgeReply(answer(request))


async def _with_judge(options: argparse.Namespace) -> Figures:
    if not options.server:
        return await measure(Ruler(SleepingJudge(options.latency), max_concurrency=options.concurrency), options)
    with FakeJudgeServer(lambda request: answer(request.judge_request), latency_s=options.latency) as server:
        ruler = Ruler(
            "openai/judge", api_base=server.api_base, api_key="none", max_concurrency=options.concurrency, max_retries=0
        )
        return await measure(ruler, options)


if __name__ == "__main__":
    main()
