"""A run with real checkpoints: of the native trainer, on a tiny model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import torch

from art_core.objective import Objective
from art_core.trainers.native import NativeTrainer, NativeTrainerConfig
from art_core.types import TokenSample
from art_core.weights.lora import LoraConfig
from art_core.weights.source import resolve_model
from tests.core.runs.building import open_run

IDS = [1, 20, 30, 40, 50, 60]


def row(version: int) -> TokenSample:
    trained = (False, False, False, True, True, True)
    return TokenSample(
        token_ids=tuple(IDS),
        trained=trained,
        logprobs=tuple(-5.0 if own else 0.0 for own in trained),
        advantage=1.0,
        policy_version=version,
        trajectory_id="t",
    )


def open_trainer(base_model: Path, **options: Any) -> NativeTrainer:
    config = {"lora": LoraConfig(rank=2, alpha=4.0, target_modules=("q_proj", "down_proj")), "seed": 0, **options}
    return NativeTrainer(
        NativeTrainerConfig(model_folder=base_model, base_model="tiny", dtype="float32", num_threads=1, **config)
    )


async def trained_run(path: Path, base_model: Path, steps: int) -> list[list[float]]:
    """Write the run `shop/clerk` with a checkpoint for each of `steps`; return our logprobs of `IDS` after each."""
    identity = {"base_model": str(base_model), "sha256": resolve_model(str(base_model)).sha256, "trainer": "native"}
    trainer = open_trainer(base_model)
    logprobs = []
    try:
        with open_run(path, "shop", "clerk", identity=identity) as run:
            for step in range(steps):
                await trainer.step([row(step)], Objective(learning_rate=1e-2))
                await asyncio.to_thread(run.store.commit, trainer, {"metrics": {"train/loss": 0.5}})
                logprobs.append(await trainer.logprobs(IDS, num_completion=len(IDS) - 1))
    finally:
        await trainer.aclose()
    return logprobs


@torch.no_grad()
def logprobs_of(model: Any) -> list[float]:
    """What `model`, of transformers or PEFT, says of `IDS`."""
    ids = torch.tensor([IDS])
    logp = torch.log_softmax(model.eval()(ids).logits[0, :-1].float(), -1)
    return [float(logp[position, token]) for position, token in enumerate(IDS[1:])]
