"""The embedded engine at many concurrent rollouts against `transformers.generate` with the same requests in one batch.

    python benchmarks/engine_throughput.py [--model smollm2-135m] [--rollouts 32] [--prompt 256] [--shared 128] \
        [--new 64] [--repeats 3] [--threads N]

Each rollout is a prompt of its own whose beginning all of them share, and samples exactly `--new` tokens at
temperature 1. `generate` gets all prompts as one left-padded batch and samples with plain torch; the engine gets them
as concurrent requests, and every repeat has prompts that its cache has not seen. Both work in bfloat16 and with the
same threads; they take turns, and each has one round before the measured ones. `--model` is a name as `art-mcp train`
takes it, or a folder. Goal: 2.5.

The last line is `ratio engine_throughput VALUE`: sampled tokens per second, the engine's median over generate's.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from art_core.engines.embedded import EmbeddedEngine, EmbeddedEngineConfig
from art_core.errors import ArtError
from art_core.types import Sampling
from art_core.weights.loading import load_causal_lm
from art_core.weights.source import resolve_model


@dataclass(frozen=True)
class Load:
    """`rollouts` requests with prompts of `prompt` tokens, the first `shared` of them common, that sample `new`."""

    rollouts: int
    prompt: int
    shared: int
    new: int

    def prompts(self, seed: int, vocabulary: int) -> list[list[int]]:
        """The prompts differ a little in length, as those of real rollouts do; none is seen twice."""
        rng = np.random.default_rng(seed)
        common = rng.integers(100, vocabulary, self.shared)
        own = [self.prompt - self.shared - index % 8 for index in range(self.rollouts)]
        return [[*common.tolist(), *rng.integers(100, vocabulary, max(1, size)).tolist()] for size in own]


async def with_engine(engine: EmbeddedEngine, prompts: list[list[int]], load: Load) -> float:
    """Sampled tokens per second."""

    async def one(index: int) -> int:
        sampling = Sampling(max_tokens=load.new, seed=index)
        return sum([len(chunk.token_ids) async for chunk in engine.stream(prompts[index], sampling)])

    start = time.perf_counter()
    counts = await asyncio.gather(*(one(index) for index in range(load.rollouts)))
    elapsed = time.perf_counter() - start
    if set(counts) != {load.new}:
        raise RuntimeError(f"requests sampled {sorted(set(counts))} tokens; wanted {load.new} each")
    return sum(counts) / elapsed


@torch.inference_mode()
def with_generate(model: Any, prompts: list[list[int]], load: Load) -> float:
    """Sampled tokens per second."""
    length = max(map(len, prompts))
    ids = torch.tensor([[0] * (length - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "eos_token_id": None, "pad_token_id": 0}
    start = time.perf_counter()
    out = model.generate(
        input_ids=ids, attention_mask=mask, min_new_tokens=load.new, max_new_tokens=load.new, **options
    )
    elapsed = time.perf_counter() - start
    if out.shape[1] != length + load.new:
        raise RuntimeError(f"generate sampled {out.shape[1] - length} tokens; wanted {load.new}")
    return load.rollouts * load.new / elapsed


async def measure(folder: Path, load: Load, *, repeats: int, threads: int | None, dtype: str) -> list[list[float]]:
    """Tokens per second of each measured round: the engine's, and generate's."""
    if threads is not None:
        torch.set_num_threads(threads)
    config = EmbeddedEngineConfig(
        model_folder=folder,
        dtype=dtype,
        max_concurrency=load.rollouts,
        max_context_tokens=load.prompt + load.new + 8,
        num_threads=threads,
    )
    engine = await asyncio.to_thread(EmbeddedEngine, config)
    try:
        model: Any = load_causal_lm(folder, dtype=getattr(torch, dtype), device=torch.device("cpu"))
        vocabulary = int(model.config.vocab_size)
        rounds: list[list[float]] = [[], []]
        for repeat in range(repeats + 1):
            prompts = load.prompts(repeat, vocabulary)
            speeds = (await with_engine(engine, prompts, load), with_generate(model, prompts, load))
            if repeat > 0:
                for kept, speed in zip(rounds, speeds, strict=True):
                    kept.append(speed)
        return rounds
    finally:
        await engine.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rollouts", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prompt, at most")
    parser.add_argument("--shared", type=int, default=128, help="tokens at its beginning that all prompts share")
    parser.add_argument("--new", type=int, default=64, help="tokens to sample for each")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None, help="torch's threads, for both; default: torch's choice")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    options = parser.parse_args()
    if not 0 <= options.shared < options.prompt - 8 or min(options.rollouts, options.new, options.repeats) < 1:
        parser.error("wanted --prompt more than 8 tokens longer than --shared, and all counts 1 or more")
    load = Load(options.rollouts, options.prompt, options.shared, options.new)
    try:
        folder = resolve_model(options.model).folder
        rounds = asyncio.run(
            measure(folder, load, repeats=options.repeats, threads=options.threads, dtype=options.dtype)
        )
    except (ArtError, RuntimeError) as error:
        sys.exit(f"engine_throughput: {error}")
    ours, theirs = (statistics.median(speeds) for speeds in rounds)
    print(
        f"{load.rollouts} rollouts, prompts of {load.prompt} tokens ({load.shared} shared), {load.new} new tokens each"
    )
    for name, speeds, median in zip(("engine", "generate"), rounds, (ours, theirs), strict=True):
        print(f"{name}: median {median:.1f} tokens/s, rounds {' '.join(f'{speed:.1f}' for speed in speeds)}")
    print(f"ratio engine_throughput {ours / theirs:.3f}")


if __name__ == "__main__":
    main()
