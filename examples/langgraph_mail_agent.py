"""Train a LangGraph agent that answers questions from a mailbox: it searches, reads, and answers.

    python examples/langgraph_mail_agent.py [--model smollm2-135m | a folder | a hub id] [--steps 12]

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
ABOUT = {  # what a mail is about: the question, and what the mail says
    "room": ("In which room does {} meet us?", "We meet in room {}."),
    "locker": ("Which locker does {} use?", "My locker is number {}."),
    "gate": ("From which gate does {} fly?", "My flight leaves from gate {}."),
}
PROMPT = "One call at a time: search for the mail, read it by its id, then answer with the number in it."
SETTINGS = {"parallel_tool_calls": False, "strict": True}
Task = tuple[str, int, int]  # a question, the id of the mail that answers it, and the answer

DRAW, TASKS = random.Random(0), list[Task]()
MAILS = sqlite3.connect(":memory:", check_same_thread=False)
MAILS.execute("create table mail (id integer primary key, sender text, subject text, body text)")
PAIRS = [(name, about) for name in NAMES for about in ABOUT]
for mail_id, (name, about) in zip(DRAW.sample(range(10, 99), k=len(PAIRS)), PAIRS, strict=True):
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


SHOWN: list[Any] = [HumanMessage("Which locker does Mark use?")]  # a small model needs to be shown once how it is done
for name, arguments, result in [
    ("search", {"sender": "Mark", "about": "locker"}, "mail id 90"),
    ("read", {"id": 90}, "My locker is number 555."),
    ("answer", {"number": 555}, "555"),
]:
    calls = [{"name": name, "args": arguments, "id": name}]
    SHOWN += [AIMessage("", tool_calls=calls), ToolMessage(result, tool_call_id=name)]


@wrap_model_call  # type: ignore[arg-type]
async def one_call(request: Any, handler: Any) -> Any:
    return await handler(request.override(tool_choice="any", model_settings=SETTINGS))


def grade(task: Task, messages: list[Any]) -> float:
    """0.1 for a search to begin with, 0.2 for finding the mail, 0.3 for reading it, 0.4 for the right answer."""
    _, mail_id, number = task
    calls = [(call["name"], call["args"]) for m in messages if isinstance(m, AIMessage) for call in m.tool_calls]
    found = any(isinstance(m, ToolMessage) and m.content == f"mail id {mail_id}" for m in messages)
    has_read = found and ("read", {"id": mail_id}) in calls
    has_searched = bool(calls) and calls[0][0] == "search"
    return 0.1 * has_searched + 0.2 * found + 0.3 * has_read + 0.4 * (("answer", {"number": number}) in calls)


async def main(args: argparse.Namespace) -> None:
    model = art.TrainableModel(name="mail-agent", project="examples", base_model=args.model)
    llm = art_langgraph.ArtChatModel(model, max_tokens=40)
    middleware = [ModelCallLimitMiddleware(run_limit=4, exit_behavior="end"), one_call]
    agent = create_agent(llm, [search, read, answer], system_prompt=PROMPT, middleware=middleware)

    async def attempt(task: Task) -> float:
        state = await agent.ainvoke({"messages": [*SHOWN, HumanMessage(task[0])]})
        return grade(task, state["messages"][len(SHOWN) :])

    async with contextlib.AsyncExitStack() as stack:
        if args.url:
            backend = art.RemoteBackend(args.url, os.environ.get("ART_API_KEY"))
            await model.register(await stack.enter_async_context(backend))
        numbers: dict[str, Any] = {"steps": args.steps, "groups_per_step": args.groups, "eval_samples": 2}
        options = {"learning_rate": 5e-4, "max_concurrent": 32, "path": args.path, **numbers}
        print(await art_langgraph.train(model, attempt, TRAIN, validation=HELD_OUT[: args.held_out], **options))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train an agent that answers questions from a mailbox.")
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id of the base model")
    parser.add_argument("--steps", type=int, default=12, help="training steps, with those made before")
    parser.add_argument("--groups", type=int, default=4, help="questions per step, each tried 8 times")
    parser.add_argument("--held-out", type=int, default=24, help="questions to try the agent on, at most 24")
    parser.add_argument("--url", help="of a running `art serve`, with its key in ART_API_KEY; default: start a server")
    parser.add_argument("--path", default=".art", help="where the server that is started keeps its runs")
    asyncio.run(main(parser.parse_args()))
