"""Train a LangGraph agent by the taste of a judge, who compares the attempts at a task with each other.

    python examples/langgraph_judged.py openai/gpt-5-mini [--model smollm2-135m] [--steps 10]

The judge is a model that litellm knows, with its key in the environment; `--judge-url` is the address of one of your
own. It is shown the messages that the graph ended with. `heuristic` stands in for a judge, without a model: it only
looks for words of failure. Started again, the script goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
from typing import Any

from langgraph.graph import END, START, MessagesState, StateGraph

import art_core as art
import art_langgraph
from art_ruler import Ruler

RUBRIC = """\
- The reply is polite, and at most two sentences long.
- It says what happens next, and promises nothing that the facts do not hold.
"""
FACTS = "Facts: deliveries take three days; repairs take a week; the shop closes at six."
COMPLAINTS = [
    "Where is my lamp? I ordered it on Monday.",
    "The chair you sent has a broken leg.",
    "I stood before a closed door yesterday.",
    "Can you repair my grandmother's table?",
    "I want my shelf tomorrow.",
    "Nobody answers your telephone.",
]


def build_graph(model: art.TrainableModel) -> Any:
    """A draft, then the same model looks at it once more."""
    llm = art_langgraph.ArtChatModel(model, max_tokens=60)

    async def draft(state: MessagesState) -> Any:
        return {"messages": [await llm.ainvoke(state["messages"])]}

    async def improve(state: MessagesState) -> Any:
        asked = ("user", "Make this reply shorter and more polite.")
        return {"messages": [asked, await llm.ainvoke([*state["messages"], asked])]}

    graph = StateGraph(MessagesState)
    graph.add_node("draft", draft)
    graph.add_node("improve", improve)
    graph.add_edge(START, "draft")
    graph.add_edge("draft", "improve")
    graph.add_edge("improve", END)
    return graph.compile()


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name="shop-replies", project="examples", base_model=options.model)
    graph = build_graph(model)
    judge = Ruler(options.judge, rubric=RUBRIC, passes=options.passes, api_base=options.judge_url)

    async def attempt(complaint: str) -> Any:
        return await graph.ainvoke({"messages": [("system", FACTS), ("user", complaint)]})

    async with contextlib.AsyncExitStack() as stack:
        if options.url:
            backend = art.RemoteBackend(options.url, os.environ.get("ART_API_KEY"))
            await model.register(await stack.enter_async_context(backend))
        result = await art_langgraph.train(
            model, attempt, COMPLAINTS, judge=judge, steps=options.steps, groups_per_step=2, path=options.path
        )
    print(result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train an agent by the taste of a judge.")
    parser.add_argument("judge", help="the model that judges, as litellm knows it, or `heuristic`")
    parser.add_argument("--judge-url", help="address of a judge of your own")
    parser.add_argument(
        "--passes", type=int, default=2, help="how often the judge is shown a group, each time shuffled"
    )
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id of the base model")
    parser.add_argument("--steps", type=int, default=10, help="training steps, with those made before")
    parser.add_argument("--url", help="of a running `art serve`, with its key in ART_API_KEY; default: start a server")
    parser.add_argument("--path", default=".art", help="where the server that is started keeps its runs")
    asyncio.run(main(parser.parse_args()))
