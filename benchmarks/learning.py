"""Whether training makes an agent better: held-out success before, during and after, of each loss and seed.

    python benchmarks/learning.py [--losses ppo,cispo,gspo] [--seeds 0,1,2] [--steps 32] [--model small] \
        [--out runs/learning] [--json]

The task: a clerk with three tools answers a question about an item of a shop. `find` gives the number of an item,
`price` and `stock` take a number. A question that gives the number needs one call, one that gives the name two, the
second with what the first returned. An attempt succeeds, reward 1, when the answer is right and was looked up; else
its reward is 0. The agent is a plain loop around an `openai` client and never helps the model: no grammar, no example,
nothing repaired. Items are split into those of the training tasks and those of the held-out tasks before anything else.

The model: `small`, a Llama of 0.4 million parameters made on the spot, is first taught by plain supervised training
of all its weights: by a good clerk to speak and copy, then by a bad one, who makes up numbers and takes wrong tools
(`CLERKS` in learning_task.py). That is the start of every run. Another name or folder (`smollm2-135m`) is taught the
same way. Then each run trains a LoRA adapter with GRPO through the public API, on a server of this machine. Everything
is seeded.

Started again with the same `--out`, it goes on where it was; finished runs are read back. `learning.json` there holds
all figures; `scripts/learning_page.py` makes the curve and table of docs/learning.md from it. For each loss the program
prints a line `ratio learning_LOSS VALUE`: the mean final success over the target; the exit code is 1 if one is below 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from learning_task import HELD_OUT, TRAIN, attempt, start_model

import art_core as art
from art_mcp.stats import Estimate, student_t_975, success_rate

TARGET, START_AT_MOST = 0.9, 0.4
"""Held-out success that each loss must reach, and what the untrained model must not exceed."""
EVERY = 4
"""Steps between measurements on held-out tasks."""
GROUP_SIZE, GROUPS_PER_STEP, CONCURRENCY = 8, 8, 32
COMMON: dict[str, Any] = {"learning_rate": 1.2e-3, "minibatches": 4}
OPTIONS: dict[str, dict[str, Any]] = {  # 4 updates per step, so that ratios and clips have something to do
    "ppo": COMMON,
    "cispo": COMMON,
    "gspo": {**COMMON, "clip_low": 0.01, "clip_high": 0.014},  # ppo's, over the 20 tokens that an attempt samples
    "dapo": COMMON,
    "dr_grpo": COMMON,
    "reinforce": {**COMMON, "minibatches": 1},
}
MODEL_CONFIG: dict[str, Any] = {
    "lora": {"rank": 16, "alpha": 32},
    "dtype": "float32",
    "num_threads": 1,  # the agent needs the other core, and products this small gain nothing from a second thread
    "engine_args": {"max_concurrency": CONCURRENCY, "prefix_cache_bytes": 1 << 26},
    "trainer_args": {"micro_batch_tokens": 4096},
}


# The runs


class Clock:
    """Progress lines with the time left, of `units` of work that take about as long as each other."""

    def __init__(self, units: int) -> None:
        self._units, self._done, self._began = units, 0, time.monotonic()

    def skip(self, units: int) -> None:
        self._units -= units

    def line(self, text: str, units: int = 0) -> None:
        self._done += units
        passed = time.monotonic() - self._began
        left = f"{passed / self._done * (self._units - self._done) / 60:4.1f} min left" if self._done else ""
        print(f"[{passed / 60:5.1f} min] {text}  {left}".rstrip(), file=sys.stderr, flush=True)


@dataclass
class Run:
    """What one run has measured so far: held-out outcomes by step, per task one or more attempts; kept in `file`."""

    file: Path
    settings: dict[str, Any]
    points: dict[int, list[list[bool]]] = field(default_factory=dict)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def opened(cls, file: Path, settings: dict[str, Any]) -> Run:
        if not file.is_file():
            return cls(file, settings)
        kept = json.loads(file.read_text())
        if kept["settings"] != settings:
            raise SystemExit(
                f"learning: {file} is of a run with {kept['settings']}, not {settings}; give another --out"
            )
        points, metrics = ({int(step): value for step, value in kept[name].items()} for name in ("points", "metrics"))
        return cls(file, settings, points, metrics, kept["seconds"])

    @property
    def is_whole(self) -> bool:
        return self.settings["steps"] in self.points

    def mean(self, metric: str) -> float:
        """Over the steps that were made; 0 where none was."""
        found = [metrics[metric] for metrics in self.metrics.values() if metric in metrics]
        return statistics.mean(found) if found else 0.0

    def keep(self) -> None:
        kept = {name: getattr(self, name) for name in ("settings", "seconds", "points", "metrics")}
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(kept))
        part.replace(self.file)


async def measure(model: art.TrainableModel, client: Any, seed: str, samples: int) -> list[list[bool]]:
    """Whether attempts at each held-out task succeed, sampled as in training."""
    groups = await art.gather_trajectory_groups(
        (
            art.TrajectoryGroup(attempt(model, client, task, f"{seed}/{index}/{n}") for n in range(samples))
            for index, task in enumerate(HELD_OUT)
        ),
        max_concurrent=CONCURRENCY,
        pbar_desc=None,
    )
    if errors := [error for group in groups for error in group.errors]:
        raise RuntimeError(f"{len(errors)} attempts failed, the first with {errors[0].kind}: {errors[0].message}")
    return [[member.reward == 1.0 for member in group] for group in groups]


async def train(backend: art.LocalBackend, base: Path, run: Run, clock: Clock) -> None:
    """Make `run` whole: its remaining steps, with measurements between them."""
    loss, seed, steps = (run.settings[name] for name in ("loss", "seed", "steps"))
    model = art.TrainableModel(
        name=f"{loss}-{seed}", project="learning", base_model=str(base), config={**MODEL_CONFIG, "seed": seed}
    )
    await model.register(backend)
    client, first = model.openai_client(), await model.get_num_batches()
    clock.skip(first)
    batches = art.iterate_dataset(TRAIN, GROUPS_PER_STEP, num_epochs=1 + steps, initial_step=first, seed=seed)
    for number in range(first, steps + 1):
        began, is_end = time.monotonic(), number in (0, steps)
        if number not in run.points and (number % EVERY == 0 or is_end):
            run.points[number] = await measure(model, client, f"{seed}/held-out/{number}", samples=2 if is_end else 1)
            clock.line(f"{model.name} step {number:3}: held-out success {success_rate(run.points[number])}")
        if number < steps:
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(
                        attempt(model, client, task, f"{seed}/{number}/{index}/{n}") for n in range(GROUP_SIZE)
                    )
                    for index, task in enumerate(next(batches).items)
                ),
                max_concurrent=CONCURRENCY,
                pbar_desc=None,
            )
            options = dict(run.settings["options"])
            options["learning_rate"] *= 1 - number / steps  # falls to 0, so that the end is not noise
            result = await model.train(groups, loss=loss, **options)
            run.metrics[number + 1] = result.metrics
            rewards = [member.reward for group in groups for member in group if member.reward is not None]
            clock.line(f"{model.name} step {number + 1:3}: reward {statistics.mean(rewards):.2f}", units=1)
        run.seconds += time.monotonic() - began
        run.keep()
    await backend.delete_checkpoints("learning", model.name, keep=[])
    model.unregister()


# What it comes to


def over_seeds(values: Sequence[float]) -> Estimate:
    """The mean of `values` with its t interval, as shares; nothing is known from a single one."""
    mean = statistics.mean(values)
    half = math.inf
    if len(values) > 1:
        half = student_t_975(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return Estimate(mean, max(0.0, mean - half), min(1.0, mean + half))


def summary(loss: str, runs: Sequence[Run]) -> dict[str, Any]:
    """The figures of one loss, in shares, steps and minutes."""
    curves = []
    for run in runs:
        rates = {step: success_rate(outcomes) for step, outcomes in sorted(run.points.items())}
        reached = [step for step, rate in rates.items() if rate.value >= TARGET]
        curves.append(
            {
                "seed": run.settings["seed"],
                "points": [{"step": step, **rate.as_json("success")} for step, rate in rates.items()],
                "steps_to_target": min(reached, default=None),
                "minutes": round(run.seconds / 60, 1),
                "skipped": sum(bool(found.get("step/skipped")) for found in run.metrics.values()),
                "clip_share": round(run.mean("train/clip_share"), 4),
                "mismatch_kl": run.mean("mismatch/kl"),
            }
        )
    starts, ends = ([curve["points"][at]["success"] for curve in curves] for at in (0, -1))
    return {
        "loss": loss,
        "options": runs[0].settings["options"],
        "start": over_seeds(starts).as_json("success"),
        "final": over_seeds(ends).as_json("success"),
        "runs": curves,
    }


def machine() -> str:
    """The processor, in words."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*:\s*(.*)", info.read_text()) if info.is_file() else []
    return f"{os.cpu_count()} cores of {names[0].strip() if names else platform.processor() or platform.machine()}"


def shown(record: dict[str, Any]) -> str:
    """One loss in a line."""
    start, final = (
        f"{record[name]['success']:.2f} [{record[name]['ci95'][0]:.2f}, {record[name]['ci95'][1]:.2f}]"
        for name in ("start", "final")
    )
    steps = ", ".join(str(run["steps_to_target"] or "not reached") for run in record["runs"])
    minutes = sum(run["minutes"] for run in record["runs"])
    return f"{record['loss']}: {start} -> {final}, steps to {TARGET}: {steps}; {minutes:.1f} min"


async def main(args: argparse.Namespace) -> int:
    out: Path = args.out
    (out / "runs").mkdir(parents=True, exist_ok=True)
    clock = Clock(len(args.losses) * len(args.seeds) * args.steps)
    base = start_model(out, args.model, {"good": args.taught[0], "bad": args.taught[1]}, clock.line)
    runs: dict[str, list[Run]] = {}
    for seed in args.seeds:  # seed by seed, so that an early end leaves whole comparisons
        for loss in args.losses:
            settings = {"loss": loss, "seed": seed, "steps": args.steps, "options": OPTIONS[loss]}
            runs.setdefault(loss, []).append(Run.opened(out / "runs" / f"{loss}-{seed}.json", settings))
    waiting = [run for at in range(len(args.seeds)) for loss in args.losses if not (run := runs[loss][at]).is_whole]
    for _ in range(len(args.losses) * len(args.seeds) - len(waiting)):
        clock.skip(args.steps)
    if waiting:
        async with art.LocalBackend(path=out / "art") as backend:
            for run in waiting:
                await train(backend, base, run, clock)
    report = {
        "target": TARGET,
        "model": args.model,
        "steps": args.steps,
        "group_size": GROUP_SIZE,
        "groups_per_step": GROUPS_PER_STEP,
        "lora": MODEL_CONFIG["lora"],
        "held_out_tasks": len(HELD_OUT),
        "train_tasks": len(TRAIN),
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "minutes": round(sum(run.seconds for of_loss in runs.values() for run in of_loss) / 60, 1),
        "losses": [summary(loss, runs[loss]) for loss in args.losses],
    }
    (out / "learning.json").write_text(json.dumps(report, indent=1) + "\n")
    if args.json:
        print(json.dumps(report))
        return 0 if all(record["final"]["success"] >= TARGET for record in report["losses"]) else 1
    for record in report["losses"]:
        if record["start"]["success"] > START_AT_MOST:
            print(f"{record['loss']}: the start, {record['start']['success']:.2f}, is above {START_AT_MOST}")
        print(shown(record))
    for record in report["losses"]:
        print(f"ratio learning_{record['loss']} {record['final']['success'] / TARGET:.3f}")
    return 0 if all(record["final"]["success"] >= TARGET for record in report["losses"]) else 1


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in OPTIONS]:
        raise argparse.ArgumentTypeError(f"loss {unknown[0]!r} is unknown; wanted some of {', '.join(OPTIONS)}")
    return names


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of seeds; wanted whole numbers, as 0,1,2") from None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train agents with several losses and seeds; show that they learn.")
    parser.add_argument("--losses", type=_names, default="ppo,cispo,gspo", help=f"of {', '.join(OPTIONS)}")
    parser.add_argument("--seeds", type=_seeds, default="0,1,2")
    parser.add_argument("--steps", type=int, default=32, help="training steps of each run")
    parser.add_argument("--model", default="small", help="small (made on the spot), smollm2-135m or a folder")
    parser.add_argument("--taught", type=int, nargs=2, default=(300, 80), help="updates of the start's teaching")
    parser.add_argument("--out", type=Path, default=Path("runs/learning"), help="folder of everything; gone on with")
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of lines")
    sys.exit(asyncio.run(main(parser.parse_args())))
