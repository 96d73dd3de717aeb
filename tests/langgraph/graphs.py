"""A model whose answers are a function of its prompt, behind a real server, and what tests of graphs share."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import art_core as art
from art_core.testing import InProcessBackend


def call(name: str, **arguments: Any) -> str:
    """A tool call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def last(prompt: str) -> tuple[str, str]:
    """Who said the last message of the prompt (`user` or `tool`), and what."""
    text = prompt.removesuffix("<|im_start|>assistant\n").rstrip()
    head, _, body = text.rpartition("<|im_start|>")[2].removesuffix("<|im_end|>").partition("\n")
    if "<tool_response>" in body:
        return "tool", body.rpartition("<tool_response>")[2].partition("</tool_response>")[0].strip()
    return head, body.strip()


@asynccontextmanager
async def serving(say: Callable[[str], str]) -> AsyncIterator[tuple[art.TrainableModel, InProcessBackend]]:
    async with InProcessBackend(lambda prompt: "ok" if prompt == "probe" else say(prompt)) as backend:
        model = art.TrainableModel(name="agent", project="graphs", base_model="scripted")
        await model.register(backend)
        yield model, backend


def said(trajectory: art.Trajectory) -> list[Any]:
    """The answers in the order of the calls: text, or the names and arguments of calls."""
    answers: list[Any] = []
    for exchange in sorted(trajectory.exchanges, key=lambda exchange: exchange.started_at):
        calls = exchange.response.get("tool_calls")
        answers.append(
            [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]
            if calls
            else exchange.response["content"]
        )
    return answers
