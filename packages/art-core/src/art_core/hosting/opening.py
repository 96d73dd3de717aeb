"""Open what one model needs: weights, renderer, engine, trainer, and the probe that compares the two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from art_core.canary import WeightSyncCanary
from art_core.errors import ArtError, ConfigError, unknown_option
from art_core.hosting.options import ModelOptions
from art_core.moving import hint
from art_core.protocols import Engine, Trainer
from art_core.registry import open_engine, open_trainer
from art_core.render import ChatRenderer, load_renderer
from art_core.types import Checkpoint
from art_core.weights.source import ModelSource, resolve_model

_TOLERANCE = {"float32": 2e-3, "bfloat16": 0.25}
"""Largest logprob difference (nats) between engine and trainer that number formats explain: they add up the same
products in another order."""
_PROBE = [{"role": "user", "content": "The canary sings when the weights are those that were trained."}]


@dataclass(frozen=True)
class Parts:
    """How to open what serves and trains one model. All methods block for seconds: they run in threads."""

    source: ModelSource
    options: ModelOptions
    engine: str
    trainer: str

    @classmethod
    async def resolve(cls, base_model: str, options: ModelOptions, *, engine: str, trainer: str) -> Parts:
        """Find the weights of `base_model`, which may download them."""
        source = await asyncio.to_thread(resolve_model, base_model)
        return cls(source, options, engine, trainer)

    async def open_renderer(self) -> ChatRenderer:
        return await asyncio.to_thread(load_renderer, self.source.folder)

    async def open_engine(self, checkpoint: Checkpoint | None = None) -> Engine:
        """An engine that serves `checkpoint`, or the base weights."""
        engine: Engine = await self._opened("engine", open_engine, self.engine, self.options.engine_args, {})
        try:
            if checkpoint is not None:
                await engine.load(checkpoint)
        except BaseException:
            await engine.aclose()
            raise
        return engine

    async def open_trainer(self) -> Trainer:
        own = {"base_model": self.source.name, "seed": self.options.seed, "lora": await self._lora()}
        trainer: Trainer = await self._opened("trainer", open_trainer, self.trainer, self.options.trainer_args, own)
        return trainer

    def canary(self, renderer: ChatRenderer) -> WeightSyncCanary:
        from art_core.weights.loading import best_device, compute_dtype

        dtype = str(compute_dtype(self.options.dtype, best_device())).removeprefix("torch.")
        return WeightSyncCanary(renderer.render_ids(_PROBE, add_generation_prompt=True), _TOLERANCE.get(dtype, 0.25))

    async def _opened(
        self, seam: str, opener: Callable[..., Any], adapter: str, given: Mapping[str, Any], own: Mapping[str, Any]
    ) -> Any:
        common = {"model_folder": self.source.folder, "dtype": self.options.dtype, **own}
        if self.options.num_threads is not None:
            common["num_threads"] = self.options.num_threads
        clash = sorted(set(common) & set(given))
        if clash:
            raise ConfigError(f"{seam}_args holds {clash[0]!r}, which the host sets itself; leave it out there")
        try:
            return await asyncio.to_thread(opener, adapter, **common, **given)
        except ArtError:
            raise
        except TypeError as error:
            raise ConfigError(
                f"{seam} {adapter!r} cannot take {seam}_args {dict(given)!r}: {error}; "
                "give each option in the type that its config class says"
            ) from error

    async def _lora(self) -> Any:
        from art_core.weights.lora import LoraConfig

        given = dict(self.options.lora)
        unknown = sorted(set(given) - set(LoraConfig.__dataclass_fields__))
        if unknown:
            instead = hint("lora", unknown[0])
            raise unknown_option("lora", unknown[0], LoraConfig.__dataclass_fields__, instead=instead)
        given.setdefault("alpha", 2.0 * given.get("rank", LoraConfig.rank))
        if "target_modules" in given:
            given["target_modules"] = tuple(given["target_modules"])
        try:
            return LoraConfig(**given)
        except TypeError as error:
            raise ConfigError(f"lora is {self.options.lora!r}: {error}; wanted numbers and a list of names") from error
