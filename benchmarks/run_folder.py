"""What a run folder of many small trajectories costs: seconds and memory to write, list, show and export it.

    python benchmarks/run_folder.py [--trajectories 100000] [--tokens 40] [--path FOLDER]

Each line is one operation in a process of its own: `OPERATION seconds peak-MB`. With `--path`, the folder is kept and
used again.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from art_core.cli import app
from art_core.runs import ModelRun, Run
from art_core.storage import RunStore
from art_core.trajectories import Trajectory, TrajectoryGroup
from art_core.types import Exchange, Sampling

GROUP_SIZE, GROUPS_PER_STEP = 8, 32


def trajectory(number: int, tokens: int) -> Trajectory:
    """One call: a prompt of `tokens` tokens, an answer of as many."""
    name = f"trajectory-{number:08d}"
    exchange = Exchange(
        id=f"call-{number:08d}",
        trajectory_id=name,
        messages=({"role": "user", "content": f"What does item {number} cost?"},),
        response={"role": "assistant", "content": f"It costs {number % 97} euro."},
        prompt_ids=tuple(range(1000, 1000 + tokens)),
        completion_ids=tuple(range(2000, 2000 + tokens)),
        logprobs=tuple(-1 / (1 + place + number % 7) for place in range(tokens)),
        finish_reason="stop",
        sampling=Sampling(max_tokens=tokens),
        policy_version=0,
        started_at=float(number),
        ended_at=number + 0.5,
    )
    return Trajectory(id=name, scenario_id=f"item-{number}", exchanges=[exchange], reward=(number % 5) / 4)


def write(path: Path, count: int, tokens: int) -> None:
    store = RunStore(path / "benchmark" / "model")
    (store.folder / "model.json").write_text('{"project": "benchmark", "name": "model", "base_model": "none"}')
    run = ModelRun(store)
    with contextlib.closing(store):
        per_step = GROUP_SIZE * GROUPS_PER_STEP
        for step, first in enumerate(range(0, count, per_step)):
            numbers = range(first, min(first + per_step, count))
            members = [trajectory(number, tokens) for number in numbers]
            groups = [TrajectoryGroup(members[at : at + GROUP_SIZE]) for at in range(0, len(members), GROUP_SIZE)]
            run.log_groups("train", step, groups)


def command(*words: str) -> None:
    sys.stdout = Path("/dev/null").open("w")  # noqa: SIM115 - ends with the process
    app(list(words), standalone_mode=False)


def read(path: Path) -> None:
    for _ in Run(path / "benchmark" / "model").trajectories():
        pass


def _measure(
    work: Callable[..., None], arguments: tuple[object, ...], answer: multiprocessing.SimpleQueue[float]
) -> None:
    started = time.perf_counter()
    work(*arguments)
    answer.put(time.perf_counter() - started)
    answer.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3))


def measure(name: str, work: Callable[..., None], *arguments: object) -> None:
    context = multiprocessing.get_context("spawn")
    answer = context.SimpleQueue()
    process = context.Process(target=_measure, args=(work, arguments, answer))
    process.start()
    process.join()
    if process.exitcode != 0:
        raise SystemExit(f"{name} failed")
    print(f"{name:<22} {answer.get():8.2f} s {answer.get():8.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--path", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = options.path or Path(scratch) / "runs"
        if not path.exists():
            measure("write", write, path, options.trajectories, options.tokens)
        size = sum(file.stat().st_size for file in path.rglob("*.jsonl"))
        print(f"{options.trajectories} trajectories, {size / 1e6:.0f} MB on disk")
        last = (options.trajectories - 1) // (GROUP_SIZE * GROUPS_PER_STEP)
        where = ("--path", str(path))
        show = ("runs", "show", "model", *where)
        measure("import only", command, "export", "--help")
        measure("art runs", command, "runs", *where)
        measure("art runs show", command, *show)
        measure("... --step N", command, *show, "--step", str(last))
        measure("... --trajectory ID", command, *show, "--trajectory", f"trajectory-{options.trajectories - 1:08d}")
        measure("read every trajectory", read, path)
        for format in ("jsonl", "parquet"):
            out = str(Path(scratch) / f"out.{format}")
            measure(f"art export {format}", command, "export", "model", *where, "--format", format, "--out", out)


if __name__ == "__main__":
    main()
