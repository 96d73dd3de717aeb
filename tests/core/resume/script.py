"""The training script that is killed: three steps, seeded calls, rewards that follow from the answers.

python -m tests.core.resume.script PATH BASE_MODEL
"""

from __future__ import annotations

import asyncio
import functools
import sys
from typing import Any

import art_core as art
from art_core.backends import LocalBackend

OPTIONS: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "lora": {"rank": 2, "target_modules": ["q_proj"]}}
SCENARIOS = [f"Say word number {number}." for number in range(6)]
GROUPS, MEMBERS, TURNS, STEPS = 2, 2, 2, 3


async def rollout(model: art.TrainableModel, scenario: str, step: int, member: int) -> art.Trajectory:
    """A seed follows from where the call stands, so a rollout that is made again says the same."""
    client = model.openai_client()
    messages: list[Any] = [{"role": "user", "content": scenario}]
    async with art.capture(model, scenario_id=scenario) as trajectory:
        for turn in range(TURNS):
            seed = ((step * len(SCENARIOS) + SCENARIOS.index(scenario)) * MEMBERS + member) * TURNS + turn
            answer = await client.chat.completions.create(
                model=model.get_inference_name(), messages=messages, max_tokens=5, seed=seed
            )
            text = answer.choices[0].message.content or ""
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Again."}]
            trajectory.reward = (trajectory.reward or 0.0) + sum(text.encode()) % 101
    return trajectory


async def main(path: str, base_model: str, backend: LocalBackend) -> None:
    model = art.TrainableModel(name="m", project="p", base_model=base_model)
    async with backend:
        await model.register(backend)
        done = await model.get_num_batches()
        for batch in art.iterate_dataset(SCENARIOS, groups_per_step=GROUPS, initial_step=done):
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(functools.partial(rollout, model, item, batch.step, n) for n in range(MEMBERS))
                    for item in batch.items
                ),
                pbar_desc=None,
            )
            await model.train(groups, learning_rate=1e-2)
            await model.log(groups, split="train")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], LocalBackend(sys.argv[1], **OPTIONS)))
