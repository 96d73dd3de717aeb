"""Train the model behind an agent that is another program: JavaScript, run by Node.

    python examples/agent_elsewhere.py [--model smollm2-135m | a folder | a hub id] [--steps 3]

All that the agent gets of art is a URL. On another machine it would be the same, with `art serve --host` and a key.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
from pathlib import Path

import art_core as art

AGENT = Path(__file__).with_name("agent_elsewhere.mjs")
TASKS = ["umbrellas", "shoes", "cheese", "bicycles", "lamps", "carpets", "tea", "maps", "clocks", "boats"]


async def run_agent(base_url: str, api_key: str, model: str, goods: str) -> str:
    """What the agent prints."""
    environment = {**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": api_key, "MODEL": model}
    process = await asyncio.create_subprocess_exec(
        "node", AGENT, goods, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        output, problem = await process.communicate()
    finally:
        if process.returncode is None:  # the rollout is cancelled, or takes too long
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(f"the agent failed: {problem.decode(errors='replace')}")
    return output.decode(errors="replace")


async def rollout(model: art.TrainableModel, goods: str) -> art.Trajectory:
    async with art.capture(model, metadata={"goods": goods}) as trajectory:
        slogan = await run_agent(trajectory.base_url, trajectory.api_key, model.get_inference_name(), goods)
        letters = [character for character in slogan if character.isalpha()]
        trajectory.reward = sum(map(str.isupper, letters)) / len(letters) if letters else 0.0
    return trajectory


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name="sloganeer", project="examples", base_model=options.model)
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
    parser = argparse.ArgumentParser(description="Train an agent that is another program.")
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id of the base model")
    parser.add_argument("--steps", type=int, default=3, help="training steps to make now")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--url", help="of a running `art serve`, with its key in ART_API_KEY; default: start a server")
    parser.add_argument("--path", default=".art", help="where the server that is started keeps its runs")
    asyncio.run(main(parser.parse_args()))
