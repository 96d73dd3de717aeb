"""How close judging many groups comes to what the judge's latency allows, and whether memory stays flat.

    python benchmarks/ruler_throughput.py [--groups 1000] [--concurrency 64] [--latency 0.05] [--server]

The ideal wall time is `latency × ceil(groups / concurrency)`: the judge answers all calls in flight at once. With
`--server` the judge is a server on loopback, asked through litellm; else it answers in this process. The last line is
`ratio NAME VALUE`, the wall time over the ideal one.
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
from typing import Any

from art_ruler import Ruler
from art_ruler.batch import for_each
from art_ruler.fakes import HeuristicJudge, ScriptedJudge, shown_to, verdict_json
from art_ruler.types import JudgeRequest

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
    return verdict_json({blind_id: 1 / (1 + place) for place, blind_id in enumerate(sorted(shown_to(request)))})


def resident_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


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


def measure(ruler: Ruler, options: argparse.Namespace) -> tuple[float, int]:
    """Seconds for all groups, and by how many bytes the peak of memory grew over that of the first tenth."""
    # HeuristicJudge is asked first so that imports and first-use costs are not part of the figure.
    HeuristicJudge()
    asyncio.run(judge_all(ruler, options.concurrency, options.concurrency))
    asyncio.run(judge_all(ruler, max(1, options.groups // 10), options.concurrency))
    gc.collect()
    before = resident_bytes()
    elapsed = asyncio.run(judge_all(ruler, options.groups, options.concurrency))
    return elapsed, resident_bytes() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds the judge takes")
    parser.add_argument("--server", action="store_true", help="a server on loopback, through litellm")
    options = parser.parse_args()
    ideal = options.latency * math.ceil(options.groups / options.concurrency)
    elapsed, grown = _with_judge(options)
    print(f"{options.groups} groups of {GROUP_SIZE}, {options.concurrency} at a time, judge {options.latency * 1e3:.0f} ms")
    print(f"wall {elapsed:.2f} s, ideal {ideal:.2f} s, {options.groups / elapsed:.0f} groups/s")
    print(f"peak memory grew by {grown / 1e6:.1f} MB while judging {options.groups} groups")
    print(f"ratio {'ruler_throughput_server' if options.server else 'ruler_throughput'} {elapsed / ideal:.3f}")


def _with_judge(options: argparse.Namespace) -> tuple[float, int]:
    judge = ScriptedJudge([answer], latency_s=options.latency)
    return measure(Ruler(judge, max_concurrency=options.concurrency), options)


if __name__ == "__main__":
    main()
