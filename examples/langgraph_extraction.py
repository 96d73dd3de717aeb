"""Train a graph that reads orders out of messages, as objects of a schema, and checks them.

    python examples/langgraph_extraction.py [--model smollm2-135m | a folder | a hub id] [--steps 10]

The answer follows the schema from the first step on, since the server samples nothing else; what is learnt is to fill
it in rightly. An order that cannot be true is asked for once more. Started again, it goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
from typing import Any, Literal, TypedDict

from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel, Field

import art_core as art
import art_langgraph

GOODS = ("lamp", "chair", "table", "shelf")
CITIES = ("Lyon", "Porto", "Turin", "Ghent")


class Order(BaseModel):
    """An order of one kind of furniture."""

    item: Literal["lamp", "chair", "table", "shelf"]
    count: int = Field(ge=0, le=99)
    city: Literal["Lyon", "Porto", "Turin", "Ghent"]


def make_tasks(number: int) -> list[tuple[str, Order]]:
    draw = random.Random(0)
    tasks = []
    for _ in range(number):
        order = Order(item=draw.choice(GOODS), count=draw.randint(2, 9), city=draw.choice(CITIES))  # type: ignore[arg-type]
        text = draw.choice(["Please send {n} {i}s to {c}.", "Our shop in {c} needs {n} {i}s.", "{n} {i}s, for {c}!"])
        tasks.append((text.format(n=order.count, i=order.item, c=order.city), order))
    return tasks


class State(TypedDict, total=False):
    text: str
    order: Order | None
    tries: int


def build_graph(model: art.TrainableModel) -> Any:
    llm = art_langgraph.ArtChatModel(model, max_tokens=40)
    reader = llm.with_structured_output(Order, method="json_schema", include_raw=True)

    async def extract(state: State) -> State:
        asked = "Read the order." if not state.get("tries") else "Read the order. The number ordered is above 0."
        made = await reader.ainvoke([("system", asked), ("user", state["text"])])
        return {"order": made["parsed"], "tries": state.get("tries", 0) + 1}

    def checked(state: State) -> str:
        order = state.get("order")
        return END if (order is not None and order.count > 0) or state["tries"] > 1 else "extract"

    graph = StateGraph(State)
    graph.add_node("extract", extract)
    graph.add_edge(START, "extract")
    graph.add_conditional_edges("extract", checked, ["extract", END])
    return graph.compile()


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name="order-reader", project="examples", base_model=options.model)
    graph = build_graph(model)

    async def attempt(task: tuple[str, Order]) -> float:
        text, wanted = task
        order = (await graph.ainvoke({"text": text}))["order"]
        right = [bool(order and getattr(order, name) == getattr(wanted, name)) for name in Order.model_fields]
        art_langgraph.current_trajectory().metrics["all_right"] = all(right)
        return sum(right) / len(right)

    async with contextlib.AsyncExitStack() as stack:
        if options.url:
            backend = art.RemoteBackend(options.url, os.environ.get("ART_API_KEY"))
            await model.register(await stack.enter_async_context(backend))
        tasks = make_tasks(60)
        result = await art_langgraph.train(
            model,
            attempt,
            tasks[:40],
            validation=tasks[40 : 40 + options.held_out],
            steps=options.steps,
            learning_rate=1e-4,
            path=options.path,
        )
    print(result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a graph that reads orders out of messages.")
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id of the base model")
    parser.add_argument("--steps", type=int, default=10, help="training steps, with those made before")
    parser.add_argument("--held-out", type=int, default=20, help="messages that the graph is tried on, at most 20")
    parser.add_argument("--url", help="of a running `art serve`, with its key in ART_API_KEY; default: start a server")
    parser.add_argument("--path", default=".art", help="where the server that is started keeps its runs")
    asyncio.run(main(parser.parse_args()))
