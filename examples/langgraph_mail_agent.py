"""Train a LangGraph agent that answers questions from a mailbox: it searches, reads, and answers.

    python examples/langgraph_mail_agent.py [--model smollm2-135m | a folder | a hub id] [--steps 20]

The mailbox is made up. The agent is tried on people whom it never meets in training, before and after. Started again,
the script goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import sqlite3
from dataclasses import dataclass
from typing import Any, Literal

from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware, wrap_model_call
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

import art_core as art
import art_langgraph

NAMES = ["Boris", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas", "Katja", "Louis", "Maria"]
NAMES += ["Nils", "Olga", "Paul", "Rosa", "Simon", "Tara", "Ulla", "Viktor", "Wanda", "Yara", "Zeno", "Anna"]
FACTS = {"room": "We meet in room {}.", "locker": "My locker is number {}.", "gate": "My flight leaves from gate {}."}
QUESTIONS = {"room": "In which room does {} meet us?", "locker": "Which locker does {} use?"}
QUESTIONS["gate"] = "From which gate does {} fly?"
PROMPT = (
    """Answer with one call at a time: search for the mail, read it by its id, then answer with the number in it."""
)


@dataclass(frozen=True)
class Task:
    question: str
    mail_id: int
    answer: str


def make_mailbox() -> tuple[sqlite3.Connection, dict[str, list[Task]]]:
    """The mailbox, and the questions about each person."""
    draw = random.Random(0)
    mails = sqlite3.connect(":memory:", check_same_thread=False)
    mails.execute("create table mail (id integer primary key, sender text, subject text, body text)")
    tasks: dict[str, list[Task]] = {name: [] for name in NAMES}
    pairs = [(name, fact) for name in NAMES for fact in FACTS]
    draw.shuffle(pairs)
    for mail_id, (name, fact) in enumerate(pairs, start=1):
        number = str(draw.randint(100, 999))
        mails.execute("insert into mail values (?, ?, ?, ?)", (mail_id, name, fact, FACTS[fact].format(number)))
        tasks[name].append(Task(QUESTIONS[fact].format(name), mail_id, number))
    return mails, tasks


MAILS, TASKS = make_mailbox()
HELD_OUT = [task for name in NAMES[-8:] for task in TASKS[name]]
TRAIN = [task for name in NAMES[:-8] for task in TASKS[name]]


@tool
def search(sender: str, about: Literal["room", "locker", "gate"]) -> str:
    """Find mails by sender and subject."""
    found = MAILS.execute("select id from mail where sender = ? and subject = ?", (sender.strip(), about)).fetchall()
    return ", ".join(f"mail id {id}" for (id,) in found) or "nothing found"


@tool
def read(id: int) -> str:
    """Read a mail by its id."""
    found = MAILS.execute("select body from mail where id = ?", (min(id, 2**62),)).fetchone()
    return str(found[0]) if found else "no such mail"


@tool(return_direct=True)
def answer(number: int) -> str:
    """Answer the question, which ends the work."""
    return str(number)


def call(name: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": name}])


# A small model needs to be shown once how it is done.
SHOWN = [
    HumanMessage("Which locker does Mark use?"),
    call("search", sender="Mark", about="locker"),
    ToolMessage("mail id 90", tool_call_id="search"),
    call("read", id=90),
    ToolMessage("My locker is number 555.", tool_call_id="read"),
    call("answer", number=555),
    ToolMessage("555", tool_call_id="answer"),
]


@wrap_model_call  # type: ignore[arg-type]
async def one_call_at_a_time(request: Any, handler: Any) -> Any:
    return await handler(request.override(tool_choice="any", model_settings={"parallel_tool_calls": False}))


def build_agent(model: art.TrainableModel) -> Any:
    llm = art_langgraph.ArtChatModel(model, max_tokens=40)
    limit = ModelCallLimitMiddleware(run_limit=4, exit_behavior="end")
    return create_agent(llm, [search, read, answer], system_prompt=PROMPT, middleware=[limit, one_call_at_a_time])


def grade(task: Task, messages: list[Any]) -> float:
    """0.3 for finding the mail, 0.3 for reading it, 0.4 for the right answer."""
    calls = [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    found = any(m.content == f"mail id {task.mail_id}" for m in messages if m.type == "tool")
    has_read = any(call["name"] == "read" and call["args"].get("id") == task.mail_id for call in calls)
    answered = any(call["name"] == "answer" and str(call["args"].get("number")) == task.answer for call in calls)
    return 0.3 * found + 0.3 * (found and has_read) + 0.4 * answered


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name="mail-agent", project="examples", base_model=options.model)
    agent = build_agent(model)

    async def attempt(task: Task) -> float:
        state = await agent.ainvoke({"messages": [*SHOWN, HumanMessage(task.question)]})
        return grade(task, state["messages"][len(SHOWN) :])

    async with contextlib.AsyncExitStack() as stack:
        if options.url:
            backend = art.RemoteBackend(options.url, os.environ.get("ART_API_KEY"))
            await model.register(await stack.enter_async_context(backend))
        result = await art_langgraph.train(
            model,
            attempt,
            TRAIN,
            validation=HELD_OUT[: options.held_out],
            steps=options.steps,
            groups_per_step=options.groups,
            eval_samples=2,
            learning_rate=options.learning_rate,
            max_concurrent=32,
            path=options.path,
        )
    print(result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train an agent that answers questions from a mailbox.")
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id of the base model")
    parser.add_argument("--steps", type=int, default=20, help="training steps, with those made before")
    parser.add_argument("--groups", type=int, default=4, help="questions per step, each tried 8 times")
    parser.add_argument("--held-out", type=int, default=24, help="questions that the agent is tried on")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--url", help="of a running `art serve`, with its key in ART_API_KEY; default: start a server")
    parser.add_argument("--path", default=".art", help="where the server that is started keeps its runs")
    asyncio.run(main(parser.parse_args()))
