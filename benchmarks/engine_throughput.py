"""The embedded engine at many concurrent rollouts against `transformers.generate`, both on the same rollouts.

    python benchmarks/engine_throughput.py [--model smollm2-135m] [--rollouts 32] [--turns 3] [--shared 64] [--own 32] \
        [--new 32] [--result 16] [--repeats 2] [--threads N] [--dtype auto]

A rollout has a prompt whose beginning all rollouts share (the system message and the tools) and `--turns` turns: each
samples an answer at temperature 1, of a quarter of `--new` up to `--new` tokens as drawn beforehand, and appends a
result of `--result` tokens. Both sides get the same prompts, lengths and results, none of them seen before.

Each side is driven as its user would. The engine gets every rollout as a task of its own, which asks for its next turn
as soon as its last one is done. `generate` gets a turn of all rollouts as one left-padded batch with its whole history,
samples with plain torch until the longest answer of that turn is done, and then goes on to the next turn; tokens beyond
a rollout's length do not count. Both compute in the number type that the server takes on this machine (float32 where
bfloat16 is emulated) and with the same threads; they take turns, each after a short round that is not measured.
`--model` is a name as `art serve` takes it, or a folder. Goal: 2.5.

The last line is `ratio engine_throughput VALUE`: sampled tokens per second, the engine's median over generate's.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from art_core.engines.embedded import EmbeddedEngine, EmbeddedEngineConfig
from art_core.errors import ArtError
from art_core.types import DtypeName, Sampling
from art_core.weights.loading import compute_dtype, load_causal_lm
from art_core.weights.source import resolve_model


@dataclass(frozen=True)
class Load:
    """How many rollouts there are, and the tokens of their parts."""

    rollouts: int
    turns: int
    shared: int
    own: int
    new: int
    result: int

    @property
    def longest(self) -> int:
        return self.shared + self.own + self.turns * (self.new + self.result)


@dataclass(frozen=True)
class Rollout:
    """A prompt, how many tokens each answer has, and what follows each answer."""

    prompt: list[int]
    lengths: list[int]
    results: list[list[int]]


def rollouts_of(load: Load, seed: int, vocabulary: int) -> list[Rollout]:
    rng = np.random.default_rng(seed)

    def text(size: int) -> list[int]:
        ids: list[int] = rng.integers(100, vocabulary, size).tolist()
        return ids

    shared = text(load.shared)
    return [
        Rollout(
            shared + text(load.own),
            rng.integers(max(1, load.new // 4), load.new + 1, load.turns).tolist(),
            [text(load.result) for _ in range(load.turns)],
        )
        for _ in range(load.rollouts)
    ]


async def with_engine(engine: EmbeddedEngine, rollouts: list[Rollout]) -> float:
    """Sampled tokens per second."""

    async def one(index: int, rollout: Rollout) -> int:
        history, count = list(rollout.prompt), 0
        for length, result in zip(rollout.lengths, rollout.results, strict=True):
            answer: list[int] = []
            async for chunk in engine.stream(history, Sampling(max_tokens=length, seed=index)):
                answer += chunk.token_ids
            if len(answer) != length:
                raise RuntimeError(f"the engine sampled {len(answer)} tokens; wanted {length}")
            count += length
            history += answer + result
        return count

    start = time.perf_counter()
    counts = await asyncio.gather(*(one(index, rollout) for index, rollout in enumerate(rollouts)))
    return sum(counts) / (time.perf_counter() - start)


@torch.inference_mode()
def with_generate(model: Any, rollouts: list[Rollout]) -> float:
    """Sampled tokens per second."""
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "eos_token_id": None, "pad_token_id": 0}
    histories = [list(rollout.prompt) for rollout in rollouts]
    start = time.perf_counter()
    for turn in range(len(rollouts[0].lengths)):
        size = max(map(len, histories))
        ids = torch.tensor([[0] * (size - len(history)) + history for history in histories])
        mask = torch.tensor([[0] * (size - len(history)) + [1] * len(history) for history in histories])
        longest = max(rollout.lengths[turn] for rollout in rollouts)
        out = model.generate(
            input_ids=ids, attention_mask=mask, min_new_tokens=longest, max_new_tokens=longest, **options
        )
        if out.shape[1] != size + longest:
            raise RuntimeError(f"generate sampled {out.shape[1] - size} tokens; wanted {longest}")
        for history, rollout, row in zip(histories, rollouts, out[:, size:].tolist(), strict=True):
            history += row[: rollout.lengths[turn]] + rollout.results[turn]
    return sum(sum(rollout.lengths) for rollout in rollouts) / (time.perf_counter() - start)


async def measure(
    folder: Path, load: Load, *, repeats: int, threads: int | None, dtype: DtypeName
) -> list[list[float]]:
    """Tokens per second of each measured round: the engine's, and generate's."""
    if threads is not None:
        torch.set_num_threads(threads)
    config = EmbeddedEngineConfig(
        model_folder=folder,
        dtype=dtype,
        max_concurrency=load.rollouts,
        max_context_tokens=load.longest + 8,
        num_threads=threads,
    )
    engine = await asyncio.to_thread(EmbeddedEngine, config)
    try:
        cpu = torch.device("cpu")
        model: Any = load_causal_lm(folder, dtype=compute_dtype(dtype, cpu), device=cpu)
        rounds: list[list[float]] = [[], []]
        for repeat in range(repeats + 1):
            size = replace(load, rollouts=min(4, load.rollouts), turns=1) if repeat == 0 else load
            rollouts = rollouts_of(size, repeat, int(model.config.vocab_size))
            speeds = (await with_engine(engine, rollouts), with_generate(model, rollouts))
            if repeat > 0:
                for kept, speed in zip(rounds, speeds, strict=True):
                    kept.append(speed)
                print(f"round {repeat}: engine {speeds[0]:.1f}, generate {speeds[1]:.1f} tokens/s", flush=True)
        return rounds
    finally:
        await engine.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rollouts", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--shared", type=int, default=64, help="tokens at the beginning that all prompts share")
    parser.add_argument("--own", type=int, default=32, help="tokens of a prompt after these")
    parser.add_argument("--new", type=int, default=32, help="tokens of the longest answer")
    parser.add_argument("--result", type=int, default=16, help="tokens after each answer")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=None, help="torch's threads, for both; default: torch's choice")
    parser.add_argument("--dtype", choices=["auto", "bfloat16", "float32"], default="auto")
    options = parser.parse_args()
    counts = (options.rollouts, options.turns, options.own, options.new, options.repeats)
    if min(counts) < 1 or min(options.shared, options.result) < 0:
        parser.error("wanted counts of 1 or more, and --shared and --result of 0 or more")
    load = Load(options.rollouts, options.turns, options.shared, options.own, options.new, options.result)
    try:
        if torch.cuda.is_available():  # the engine would take the GPU, and generate would not
            raise RuntimeError("this compares the two on a CPU; hide the GPU with CUDA_VISIBLE_DEVICES=''")
        folder = resolve_model(options.model).folder
        rounds = asyncio.run(
            measure(folder, load, repeats=options.repeats, threads=options.threads, dtype=options.dtype)
        )
    except (ArtError, RuntimeError) as error:
        sys.exit(f"engine_throughput: {error}")
    ours, theirs = (statistics.median(speeds) for speeds in rounds)
    number = str(compute_dtype(options.dtype, torch.device("cpu"))).removeprefix("torch.")
    print(
        f"{load.rollouts} rollouts of {load.turns} turns in {number}, prompts of {load.shared + load.own} tokens "
        f"({load.shared} shared), answers of up to {load.new}, results of {load.result}"
    )
    for name, speeds, median in zip(("engine", "generate"), rounds, (ours, theirs), strict=True):
        print(f"{name}: median {median:.1f} tokens/s, rounds {' '.join(f'{speed:.1f}' for speed in speeds)}")
    print(f"ratio engine_throughput {ours / theirs:.3f}")


if __name__ == "__main__":
    main()
