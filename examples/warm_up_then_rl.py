"""Show a model a few demonstrations, then let it get better by reinforcement: one script, one run, which goes on.

    python examples/warm_up_then_rl.py [--model smollm2-135m | a folder | a hub id] [--steps 3]

The task: a greeting as JSON of exactly two fields. An untrained small model never writes it, so that all rewards would
be 0 and nothing be learned; a few demonstrations change that. Started again, the script does not repeat the warm-up,
nor the steps it has made.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics

import art_core as art

NAMES = ("Ada", "Bo", "Chen", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo", "June", "Kofi", "Lena")
LANGUAGES = {"German": "Hallo", "French": "Bonjour", "Spanish": "Hola", "Italian": "Ciao"}
SYSTEM = {"role": "system", "content": 'Greet as JSON: {"greeting": ..., "name": ...}'}
TASKS = [(name, language) for name in NAMES for language in LANGUAGES]
SHOWN, PRACTISED = TASKS[::4], [task for index, task in enumerate(TASKS) if index % 4]


def question(task: tuple[str, str]) -> list[dict[str, str]]:
    name, language = task
    return [SYSTEM, {"role": "user", "content": f"Greet {name} in {language}."}]


def demonstration(task: tuple[str, str]) -> art.Trajectory:
    name, language = task
    answer = json.dumps({"greeting": LANGUAGES[language], "name": name})
    return art.Trajectory(messages_and_choices=[*question(task), {"role": "assistant", "content": answer}])


async def rollout(model: art.TrainableModel, task: tuple[str, str]) -> art.Trajectory:
    name, language = task
    trajectory = art.Trajectory(messages_and_choices=list(question(task)))
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(),
        messages=trajectory.messages(),  # type: ignore[arg-type]  # dicts, where the client declares typed ones
        max_tokens=40,
    )
    trajectory.messages_and_choices.append(completion.choices[0])
    try:
        said = json.loads(completion.choices[0].message.content or "")
        fields = said if isinstance(said, dict) else {}
    except ValueError:
        fields = {}
    right = [fields.get("greeting") == LANGUAGES[language], fields.get("name") == name]
    trajectory.reward = 0.2 * (set(fields) == {"greeting", "name"}) + 0.4 * sum(right)
    trajectory.metrics["success"] = all(right)
    return trajectory


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name="greeter", project="examples", base_model=options.model)
    key = os.environ.get("ART_API_KEY")
    backend = art.RemoteBackend(options.url, key) if options.url else art.LocalBackend(options.path)
    async with backend:
        await model.register(backend)
        warm = await model.train_sft([demonstration(task) for task in SHOWN], epochs=options.epochs, batch_size=4)
        loss = "loss {sft/loss_first:.2f} to {sft/loss_last:.2f}".format(**warm.metrics)
        print(f"warm-up  {loss}  {warm.skipped or ''}".rstrip())
        batches = art.iterate_dataset(
            PRACTISED, groups_per_step=2, num_epochs=100, initial_step=await model.get_num_batches()
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
    parser = argparse.ArgumentParser(description="Warm up on demonstrations, then train by reinforcement.")
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id of the base model")
    parser.add_argument("--epochs", type=int, default=4, help="of the warm-up")
    parser.add_argument("--steps", type=int, default=3, help="training steps to make now")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--url", help="of a running `art serve`, with its key in ART_API_KEY; default: start a server")
    parser.add_argument("--path", default=".art", help="where the server that is started keeps its runs")
    asyncio.run(main(parser.parse_args()))
