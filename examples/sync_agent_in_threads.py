"""Train the model behind an agent that is not asynchronous: rollouts in threads, and threads inside a rollout.

    python examples/sync_agent_in_threads.py [--model smollm2-135m | a folder | a hub id] [--steps 3]

The agent adds two numbers by a vote: three answers at the same time, from a thread pool of its own. Whatever thread a
call is made in, its address says which rollout it belongs to.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

import art_core as art

TASKS = [(a, b) for a in range(1, 7) for b in range(1, 7)]


def agent(client: OpenAI, model: str, question: str) -> int | None:
    """The number that most of three answers name."""

    def vote(_: int) -> int | None:
        completion = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": question}], max_tokens=16
        )
        number = re.search(r"\d+", completion.choices[0].message.content or "")
        return int(number[0]) if number else None

    with ThreadPoolExecutor(max_workers=3) as pool:
        votes = [number for number in pool.map(vote, range(3)) if number is not None]
    return Counter(votes).most_common(1)[0][0] if votes else None


def rollout(model: art.TrainableModel, task: tuple[int, int]) -> art.Trajectory:
    a, b = task
    with art.capture(model) as trajectory:
        with OpenAI(base_url=trajectory.base_url, api_key=trajectory.api_key) as client:
            number = agent(client, model.get_inference_name(), f"What is {a} + {b}? Answer with the number only.")
        trajectory.reward = 0.0 if number is None else 1.0 / (1.0 + abs(number - (a + b)))
        trajectory.metrics["correct"] = number == a + b
    return trajectory


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name="adder", project="examples", base_model=options.model)
    key = os.environ.get("ART_API_KEY")
    backend = art.RemoteBackend(options.url, key) if options.url else art.LocalBackend(options.path)
    async with backend:
        await model.register(backend)
        batches = art.iterate_dataset(
            TASKS, groups_per_step=2, num_epochs=100, initial_step=await model.get_num_batches()
        )
        for batch, _ in zip(batches, range(options.steps), strict=False):
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(asyncio.to_thread(rollout, model, task) for _ in range(8))
                    for task in batch.items
                ),
                max_concurrent=16,
                timeout_s=300,
            )
            result = await model.train(groups, learning_rate=options.learning_rate)
            await model.log(groups, split="train")
            rewards = [member.reward for group in groups for member in group if member.reward is not None]
            print(f"step {result.step}  reward {statistics.mean(rewards):.2f}  {result.skipped or ''}".rstrip())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train an agent that is not asynchronous.")
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id of the base model")
    parser.add_argument("--steps", type=int, default=3, help="training steps to make now")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--url", help="of a running `art serve`, with its key in ART_API_KEY; default: start a server")
    parser.add_argument("--path", default=".art", help="where the server that is started keeps its runs")
    asyncio.run(main(parser.parse_args()))
