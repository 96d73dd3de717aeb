"""Distil a teacher behind any OpenAI-compatible URL into a small model: collect, filter by reward, train.

    TEACHER_API_KEY=... python examples/distill_from_teacher.py https://api.openai.com/v1 gpt-5-mini [--path .art]

The task: which weekday comes so many days after another one. What the teacher got right is kept in a file, and the
student is asked questions that no example shows, before and after. Started again, the script asks the teacher nothing
again and goes on where its training was; `--data` names another file to begin anew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
from pathlib import Path

import art_core as art

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
TASKS = [(day, after) for after in range(1, 11) for day in DAYS]
HELD_OUT = TASKS[::5]
LEARNED = [task for task in TASKS if task not in HELD_OUT]


async def attempt(model: art.Model | art.TrainableModel, task: tuple[str, int]) -> art.Trajectory:
    day, after = task
    question = f"Which weekday comes {after} days after {day}? Answer with the day alone."
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": question}])
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(),
        messages=trajectory.messages(),  # type: ignore[arg-type]  # dicts, where the client declares typed ones
        max_tokens=16,
    )
    trajectory.messages_and_choices.append(completion.choices[0])
    right = DAYS[(DAYS.index(day) + after) % len(DAYS)]
    trajectory.reward = float((completion.choices[0].message.content or "").strip().rstrip(".") == right)
    return trajectory


async def collected(teacher: art.Model, samples: int) -> list[str]:
    """What the teacher got right, each answer once for each question, as lines of a file of examples."""
    attempts = await art.gather_trajectories(
        (attempt(teacher, task) for task in LEARNED for _ in range(samples)), max_concurrent=16, timeout_s=120
    )
    right = [trajectory.messages() for trajectory in attempts if trajectory.reward == 1.0]
    kept = {json.dumps({"messages": [{k: m[k] for k in ("role", "content")} for m in turn]}): None for turn in right}
    print(f"teacher: {len(right)} of {len(attempts)} right, {len(kept)} examples")
    return list(kept)


def examples(data: Path, teacher: art.Model, samples: int) -> Path:
    """`data`, written whole or not at all where it is not there yet."""
    if not data.exists() and (lines := asyncio.run(collected(teacher, samples))):
        data.parent.mkdir(parents=True, exist_ok=True)
        staging = data.with_suffix(".tmp")
        staging.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        staging.replace(data)
    return data


async def accuracy(model: art.TrainableModel, split: str) -> float:
    attempts = await art.gather_trajectories((attempt(model, task) for task in HELD_OUT), max_concurrent=16)
    await model.log(attempts, split=split)
    return statistics.mean(trajectory.reward or 0.0 for trajectory in attempts)


async def distil(options: argparse.Namespace, data: Path) -> None:
    model = art.TrainableModel(name="weekdays", project="examples", base_model=options.model)
    key = os.environ.get("ART_API_KEY")
    backend = art.RemoteBackend(options.url, key) if options.url else art.LocalBackend(options.path)
    async with backend:
        await model.register(backend)
        before = await accuracy(model, "before") if await model.get_step() == 0 else None
        result = await model.train_sft(data, epochs=options.epochs, learning_rate=options.learning_rate)
        loss = "loss {sft/loss_first:.2f} to {sft/loss_last:.2f}".format(**result.metrics)
        print(f"step {result.step}  {loss}  {result.skipped or ''}".rstrip())
        after = await accuracy(model, "after")
        print(f"right: {after:.2f} after" + ("" if before is None else f", {before:.2f} before"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Distil a teacher into a small model.")
    parser.add_argument("teacher_url", help="an OpenAI-compatible URL that ends in /v1; its key is in TEACHER_API_KEY")
    parser.add_argument("teacher", help="what the teacher is called there")
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id of the base model")
    parser.add_argument("--samples", type=int, default=2, help="answers of the teacher to each question")
    parser.add_argument("--data", help="the file of examples; default: weekdays.jsonl in --path")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--url", help="of a running `art serve`, with its key in ART_API_KEY; default: start a server")
    parser.add_argument("--path", default=".art", help="where the server that is started keeps its runs")
    given = parser.parse_args()
    asked = art.Model(
        name=given.teacher, inference_base_url=given.teacher_url, inference_api_key=os.getenv("TEACHER_API_KEY")
    )
    file = Path(given.data or f"{given.path}/weekdays.jsonl")
    asyncio.run(distil(given, examples(file, asked, given.samples)))
