"""Train a supervisor with two workers: three parts that one model plays, each with a history of its own.

    python examples/langgraph_supervisor.py [--model smollm2-135m | a folder | a hub id] [--role supervisor]

With `--role`, only what was said in that part is trained; the rest is context. Started again, it goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from pydantic import BaseModel, Field

import art_core as art
import art_langgraph

ANIMALS = {"cow": "milk", "hen": "eggs", "bee": "honey", "sheep": "wool"}


@dataclass(frozen=True)
class Task:
    question: str
    worker: str
    answer: str


TASKS = [Task(f"What is {a} + {b}?", "counter", str(a + b)) for a in range(1, 5) for b in range(1, 5)]
TASKS += [Task(f"What do we get from a {animal}?", "farmer", food) for animal, food in ANIMALS.items()] * 4


class Choice(BaseModel):
    """Which worker answers."""

    worker: Literal["counter", "farmer"]


class Sum(BaseModel):
    """The result of a sum."""

    number: int = Field(ge=0, le=99)


class Product(BaseModel):
    """What an animal gives."""

    product: Literal["milk", "eggs", "honey", "wool"]


class State(TypedDict, total=False):
    question: str
    worker: str
    answer: str


def build_graph(model: art.TrainableModel) -> Any:
    """A supervisor, who hands a question to one of two workers. Each part is a chat model with a role."""

    def speaker(role: str, schema: type[BaseModel]) -> Any:
        llm = art_langgraph.ArtChatModel(model, role=role, max_tokens=24)
        return llm.with_structured_output(schema, method="json_schema", include_raw=True)

    supervisor, counter, farmer = speaker("supervisor", Choice), speaker("counter", Sum), speaker("farmer", Product)

    async def supervise(state: State) -> Command[str]:
        rules = "The counter knows sums, the farmer knows animals. Choose who answers."
        made = (await supervisor.ainvoke([("system", rules), ("user", state["question"])]))["parsed"]
        return Command(goto=made.worker, update={"worker": made.worker}) if made else Command(goto=END)

    async def count(state: State) -> State:
        made = (await counter.ainvoke([("user", state["question"])]))["parsed"]
        return {"answer": str(made.number) if made else ""}

    async def farm(state: State) -> State:
        made = (await farmer.ainvoke([("user", state["question"])]))["parsed"]
        return {"answer": made.product if made else ""}

    graph = StateGraph(State)
    graph.add_node("supervisor", supervise, destinations=("counter", "farmer", END))
    graph.add_node("counter", count)
    graph.add_node("farmer", farm)
    graph.add_edge(START, "supervisor")
    return graph.compile()


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name="farm-office", project="examples", base_model=options.model)
    graph = build_graph(model)

    async def attempt(task: Task) -> float:
        state = await graph.ainvoke({"question": task.question})
        return 0.5 * bool(state.get("worker") == task.worker) + 0.5 * bool(state.get("answer") == task.answer)

    async with contextlib.AsyncExitStack() as stack:
        if options.url:
            backend = art.RemoteBackend(options.url, os.environ.get("ART_API_KEY"))
            await model.register(await stack.enter_async_context(backend))
        roles = (options.role,) if options.role else ()
        print(await art_langgraph.train(model, attempt, TASKS, steps=options.steps, roles=roles, path=options.path))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a supervisor with two workers.")
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id of the base model")
    parser.add_argument("--steps", type=int, default=10, help="training steps, with those made before")
    parser.add_argument("--role", choices=["supervisor", "counter", "farmer"], help="train this part only")
    parser.add_argument("--url", help="of a running `art serve`, with its key in ART_API_KEY; default: start a server")
    parser.add_argument("--path", default=".art", help="where the server that is started keeps its runs")
    asyncio.run(main(parser.parse_args()))
