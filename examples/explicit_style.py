"""Train in ART's explicit style: the rollout keeps the conversation itself, and appends what the model answered.

    python examples/explicit_style.py [--model smollm2-135m | a folder | a hub id] [--steps 3]

The task: a sentence of exactly as many words as asked for. A choice that is appended carries the id of its recorded
call, so what is trained are the tokens that were sampled, not text that is encoded again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics

import art_core as art

SUBJECTS = ("the sea", "a train", "bread", "winter", "a library", "the moon", "an orchestra", "chess")
TASKS = [(subject, num_words) for subject in SUBJECTS for num_words in (5, 8)]


async def rollout(model: art.TrainableModel, task: tuple[str, int]) -> art.Trajectory:
    subject, num_words = task
    trajectory = art.Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "You write exactly as many words as you are asked for."},
            {"role": "user", "content": f"Write one sentence about {subject} in {num_words} words."},
        ],
        metadata={"subject": subject, "num_words": num_words},
    )
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(),
        messages=trajectory.messages(),  # type: ignore[arg-type]  # dicts, where the client declares typed ones
        max_tokens=48,
    )
    trajectory.messages_and_choices.append(completion.choices[0])
    written = len((completion.choices[0].message.content or "").split())
    trajectory.reward = max(0.0, 1.0 - abs(written - num_words) / num_words)
    trajectory.metrics["exact"] = written == num_words
    return trajectory


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name="word-counter", project="examples", base_model=options.model)
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
    parser = argparse.ArgumentParser(description="Train in ART's explicit style.")
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id of the base model")
    parser.add_argument("--steps", type=int, default=3, help="training steps to make now")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--url", help="of a running `art serve`, with its key in ART_API_KEY; default: start a server")
    parser.add_argument("--path", default=".art", help="where the server that is started keeps its runs")
    asyncio.run(main(parser.parse_args()))
