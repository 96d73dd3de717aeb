"""What `ArtChatModel` adds to a call of LangChain's plain `ChatOpenAI`, and to the time of its import.

    python benchmarks/langgraph_overhead.py [--calls 300] [--rollouts 64]

Both chat models ask the same server, in this process, which answers from a script; their calls alternate, in an order
that is drawn, so that what disturbs the machine disturbs both. Ours are made inside a capture and are recorded. At the
end `--rollouts` attempts of a graph with six calls run at once; a call in a trajectory that is not its own ends the
program with code 1. The last line is `ratio langgraph_overhead VALUE`: the median time of a plain call over ours; 1 is
no overhead.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import time
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import SecretStr

import art_core as art
import art_langgraph
from art_core.testing import InProcessBackend

CALLS_OF_A_GRAPH = 6


async def seconds_of(llm: Any) -> float:
    start = time.perf_counter()
    await llm.ainvoke("Name a capital of Europe, with a word on it.")
    return time.perf_counter() - start


async def compare_calls(model: art.TrainableModel, calls: int) -> float:
    """Prints the percentiles of a call's time, and returns the ratio of the medians."""
    plain = ChatOpenAI(
        base_url=model.inference_base_url,
        api_key=SecretStr(model.inference_api_key),
        model=model.get_inference_name(),
        cache=False,
    )
    times: dict[str, list[float]] = {"ArtChatModel": [], "ChatOpenAI": []}
    models = {"ArtChatModel": art_langgraph.ArtChatModel(model), "ChatOpenAI": plain}
    async with art.capture(model) as trajectory:
        for llm in models.values():
            await seconds_of(llm)
        for name in random.Random(0).sample([*models] * calls, k=2 * calls):
            times[name].append(await seconds_of(models[name]))
    if len(trajectory.exchanges) != calls + 1:
        raise SystemExit(f"{len(trajectory.exchanges)} of {calls + 1} calls were recorded")
    for name, taken in times.items():
        cuts = statistics.quantiles(taken, n=100)
        print(f"{name}: p50 {cuts[49] * 1e3:.2f} ms, p90 {cuts[89] * 1e3:.2f} ms")
    return statistics.median(times["ChatOpenAI"]) / statistics.median(times["ArtChatModel"])


async def check_mixing(model: art.TrainableModel, rollouts: int) -> None:
    """Raises SystemExit where a trajectory holds another's call, or not all of its own."""
    llm = art_langgraph.ArtChatModel(model)

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await llm.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    for number in range(CALLS_OF_A_GRAPH):
        builder.add_node(f"call{number}", ask)
        builder.add_edge(START if number == 0 else f"call{number - 1}", f"call{number}")
    builder.add_edge(f"call{CALLS_OF_A_GRAPH - 1}", END)
    graph = builder.compile()

    async def attempt(name: str) -> float:
        await graph.ainvoke(MessagesState(messages=[HumanMessage(name)]))
        return 0.0

    start = time.perf_counter()
    names = [f"attempt {number}." for number in range(rollouts)]
    made = await asyncio.gather(*(art_langgraph.rollout(attempt, model=model)(name) for name in names))
    taken = time.perf_counter() - start
    for name, trajectory in zip(names, made, strict=True):
        asked = [exchange.messages[0]["content"] for exchange in trajectory.exchanges]
        if asked != [name] * CALLS_OF_A_GRAPH:
            raise SystemExit(f"{name!r} has recorded calls of {asked}")
    print(f"{rollouts} attempts of {CALLS_OF_A_GRAPH} calls at once, none mixed: {taken:.2f} s")


def import_seconds(statement: str) -> float:
    """The least of five processes' time for `statement`, without the interpreter's start."""
    program = f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in range(5)
    ]
    return min(float(run.stdout) for run in runs)


async def main(args: argparse.Namespace) -> None:
    for statement in (
        "import art_langgraph",
        "from art_langgraph import ArtChatModel",
        "from langchain_openai import ChatOpenAI",
    ):
        print(f"{statement}: {import_seconds(statement):.2f} s")
    model = art.TrainableModel(name="clerk", project="bench", base_model="scripted")
    async with InProcessBackend(lambda _: "Lisbon, which lies at the mouth of a river.") as backend:
        await model.register(backend)
        ratio = await compare_calls(model, args.calls)
        await check_mixing(model, args.rollouts)
    print(f"ratio langgraph_overhead {ratio:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300, help="calls of each chat model")
    parser.add_argument("--rollouts", type=int, default=64, help="attempts at once")
    asyncio.run(main(parser.parse_args()))
