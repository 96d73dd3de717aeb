"""Train the model behind an agent that is a plain `openai` client with two tools.

    python examples/two_tools_agent.py [--model smollm2-135m | a folder | a hub id] [--steps 3]

The agent knows nothing of art: it is recorded because of the URL it talks to. Started again, the script goes on where
it was; `art runs show shop-clerk --path .art` shows what happened.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
from typing import Any

from openai import AsyncOpenAI

import art_core as art

PRICES = {"lamp": 30, "chair": 45, "table": 120, "shelf": 70}
STOCK = {"lamp": 7, "chair": 12, "table": 3, "shelf": 9}
ITEM = {"type": "object", "properties": {"item": {"enum": list(PRICES)}}, "required": ["item"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": "price", "description": "What an item costs", "parameters": ITEM}},
    {"type": "function", "function": {"name": "stock", "description": "How many are left", "parameters": ITEM}},
]
QUESTIONS = [("price", "How much is one {}?"), ("stock", "How many {}s do you have?")]
TASKS = [(text.format(item), tool, item) for tool, text in QUESTIONS for item in PRICES]


async def agent(base_url: str, api_key: str, model: str, question: str) -> tuple[list[tuple[str, str]], str]:
    """Look something up, then answer. Returns the calls of tools, and the answer."""
    messages: Any = [{"role": "user", "content": question}]
    calls = []
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        asked = await client.chat.completions.create(
            model=model,
            messages=messages,
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=128,
        )
        messages.append(asked.choices[0].message)
        for call in asked.choices[0].message.tool_calls or []:
            assert call.type == "function"
            name, item = call.function.name, json.loads(call.function.arguments)["item"]
            calls.append((name, item))
            result = (PRICES if name == "price" else STOCK)[item]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
        # With the same tools, this prompt extends the recorded one. `tool_choice="none"` would hide them: a new row.
        answered = await client.chat.completions.create(model=model, messages=messages, tools=TOOLS, max_tokens=32)
    return calls, answered.choices[0].message.content or ""


async def rollout(model: art.TrainableModel, task: tuple[str, str, str]) -> art.Trajectory:
    question, tool, item = task
    async with art.capture(model) as trajectory:
        name = model.get_inference_name()
        calls, answer = await agent(trajectory.base_url, trajectory.api_key, name, question)
        right_tool = any(called == tool for called, _ in calls)
        right_item = any(asked == item for _, asked in calls)
        right_answer = str((PRICES if tool == "price" else STOCK)[item]) in answer
        trajectory.reward = 0.4 * right_tool + 0.4 * right_item + 0.2 * right_answer
        trajectory.metrics["success"] = right_tool and right_item and right_answer
    return trajectory


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name="shop-clerk", project="examples", base_model=options.model)
    key = os.environ.get("ART_API_KEY")
    backend = art.RemoteBackend(options.url, key) if options.url else art.LocalBackend(options.path)
    async with backend:
        await model.register(backend)
        batches = art.iterate_dataset(
            TASKS, groups_per_step=2, num_epochs=100, initial_step=await model.get_num_batches()
        )
        for batch, _ in zip(batches, range(options.steps), strict=False):
            groups = await art.gather_trajectory_groups(
                (art.TrajectoryGroup(rollout(model, task) for _ in range(8)) for task in batch.items),
                max_concurrent=16,
                timeout_s=300,
            )
            result = await model.train(groups, learning_rate=options.learning_rate)
            await model.log(groups, split="train")
            rewards = [member.reward for group in groups for member in group if member.reward is not None]
            print(f"step {result.step}  reward {statistics.mean(rewards):.2f}  {result.skipped or ''}".rstrip())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train an agent that has two tools.")
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id of the base model")
    parser.add_argument("--steps", type=int, default=3, help="training steps to make now")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--url", help="of a running `art serve`, with its key in ART_API_KEY; default: start a server")
    parser.add_argument("--path", default=".art", help="where the server that is started keeps its runs")
    asyncio.run(main(parser.parse_args()))
