"""Train a LangGraph agent that answers questions from a mailbox: it searches, reads, and answers.

    python examples/langgraph_mail_agent.py [--model smollm2-135m | a folder | a hub id] [--steps 6]

Before and after, it is tried on people whom it never meets in training. Started again, the script goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import sqlite3
from typing import Any, Literal

from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware, wrap_model_call
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

import art_core as art
import art_langgraph

NAMES = ["Boris", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas", "Katja", "Louis", "Maria"]
NAMES += ["Nils", "Olga", "Paul", "Rosa", "Simon", "Tara", "Ulla", "Viktor", "Wanda", "Yara", "Zeno", "Anna"]
ABOUT = {  # the question, and what the mail says
    "room": ("In which room does {} meet us?", "We meet in room {}."),
    "locker": ("Which locker does {} use?", "My locker is number {}."),
    "gate": ("From which gate does {} fly?", "My flight leaves from gate {}."),
}
PROMPT = "One call at a time: search for the mail, read it by its id, then answer with the number in it."
Task = tuple[str, int, int]  # a question, the id of the mail that answers it, and the answer

DRAW, TASKS = random.Random(0), list[Task]()
MAILS = sqlite3.connect(":memory:", check_same_thread=False)
MAILS.execute("create table mail (id integer primary key, sender text, subject text, body text)")
PAIRS = [(name, about) for name in NAMES for about in ABOUT]
for mail_id, (name, about) in zip(DRAW.sample(range(10, 90), k=len(PAIRS)), PAIRS, strict=True):
    (question, body), number = ABOUT[about], DRAW.randint(100, 999)
    MAILS.execute("insert into mail values (?, ?, ?, ?)", (mail_id, name, about, body.format(number)))
    TASKS.append((question.format(name), mail_id, number))
TRAIN, HELD_OUT = TASKS[:-24], TASKS[-24:]  # of the last eight people


@tool
def search(sender: str, about: Literal["room", "locker", "gate"]) -> str:
    """Find mails by sender and subject."""
    found = MAILS.execute("select id from mail where sender = ? and subject = ?", (sender, about)).fetchall()
    return ", ".join(f"mail id {id}" for (id,) in found) or "nothing found"


@tool
def read(id: int) -> str:
    """Read a mail by its id."""
    return str(*MAILS.execute("select body from mail where id = ?", (id % 10**6,)).fetchone() or ["no such mail"])


@tool(return_direct=True)
def answer(number: int) -> str:
    """Answer the question, which ends the work."""
    return str(number)


SHOWN: list[Any] = []  # a small model needs to be shown how it is done
for name, about, mail_id, number in [("Mark", "locker", 95, 555), ("Nora", "gate", 91, 208), ("Otto", "room", 98, 731)]:
    SHOWN.append(HumanMessage(ABOUT[about][0].format(name)))
    for called, arguments, result in [
        ("search", {"sender": name, "about": about}, f"mail id {mail_id}"),
        ("read", {"id": mail_id}, ABOUT[about][1].format(number)),
        ("answer", {"number": number}, str(number)),
    ]:
        SHOWN.append(AIMessage("", tool_calls=[{"name": called, "args": arguments, "id": called}]))
        SHOWN.append(ToolMessage(result, tool_call_id=called))


@wrap_model_call
async def one_call(request: Any, handler: Any) -> Any:
    settings = {"parallel_tool_calls": False, "strict": True}
    return await handler(request.override(tool_choice="any", model_settings=settings))


def grade(task: Task, messages: list[Any]) -> float:
    """0.3 for finding the mail, 0.3 for reading it then, 0.4 for the right answer."""
    _, mail_id, number = task
    calls = [(call["name"], call["args"]) for m in messages if isinstance(m, AIMessage) for call in m.tool_calls]
    found = any(isinstance(m, ToolMessage) and m.content == f"mail id {mail_id}" for m in messages)
    has_read = found and ("read", {"id": mail_id}) in calls
    return 0.3 * found + 0.3 * has_read + 0.4 * (("answer", {"number": number}) in calls)


async def main(args: argparse.Namespace) -> None:
    model = art.TrainableModel(name="mail-agent", project="examples", base_model=args.model)
    llm = art_langgraph.ArtChatModel(model, max_tokens=40)
    limits: list[Any] = [ModelCallLimitMiddleware(run_limit=4, exit_behavior="end"), one_call]
    agent = create_agent(llm, [search, read, answer], system_prompt=PROMPT, middleware=limits)

    async def attempt(task: Task) -> float:
        state = await agent.ainvoke({"messages": [*SHOWN, HumanMessage(task[0])]})
        return grade(task, state["messages"][len(SHOWN) :])

    async with contextlib.AsyncExitStack() as stack:
        if args.url:
            backend = art.RemoteBackend(args.url, os.environ.get("ART_API_KEY"))
            await model.register(await stack.enter_async_context(backend))
        held_out = HELD_OUT[: args.held_out]
        options: dict[str, Any] = {"learning_rate": 3e-4, "eval_samples": 2, "max_concurrent": 32, "path": args.path}
        print(await art_langgraph.train(model, attempt, TRAIN, steps=args.steps, validation=held_out, **options))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train an agent that answers questions from a mailbox.")
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id of the base model")
    parser.add_argument("--steps", type=int, default=6, help="training steps, with those made before")
    parser.add_argument("--held-out", type=int, default=24, help="questions to try the agent on, at most 24")
    parser.add_argument("--url", help="of a running `art serve`, with its key in ART_API_KEY; default: start a server")
    parser.add_argument("--path", default=".art", help="where the server that is started keeps its runs")
    asyncio.run(main(parser.parse_args()))
