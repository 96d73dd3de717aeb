"""Open what one model needs: weights, renderer, engine, trainer, and the probe that compares the two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from art_core.canary import ProbeAnswer, WeightSyncCanary, tolerance_of
from art_core.errors import ArtError, ConfigError
from art_core.hosting.options import ModelOptions
from art_core.moving import hint
from art_core.options import made_from
from art_core.protocols import Engine, Trainer
from art_core.registry import open_engine, open_trainer
from art_core.render import ChatRenderer, load_renderer
from art_core.types import Checkpoint
from art_core.values import is_number
from art_core.weights.source import ModelSource, resolve_model

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

    def dtype(self) -> str:
        """The number format that engine and trainer compute in."""
        from art_core.weights.loading import best_device, compute_dtype

        return str(compute_dtype(self.options.dtype, best_device())).removeprefix("torch.")

    def canary(
        self, renderer: ChatRenderer, on_answer: Callable[[int, ProbeAnswer], None] | None = None
    ) -> WeightSyncCanary:
        probe = renderer.render_ids(_PROBE, add_generation_prompt=True)
        return WeightSyncCanary(probe, tolerance_of(self.dtype()), on_answer=on_answer)

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
        if is_number(given.get("rank")):
            given.setdefault("alpha", 2.0 * given["rank"])
        if isinstance(given.get("target_modules"), list):
            given["target_modules"] = tuple(given["target_modules"])
        try:
            return made_from(LoraConfig, None, given, of="lora", instead=partial(hint, "lora"))
        except ConfigError as error:
            raise ConfigError(str(error) if str(error).startswith("lora ") else f"lora: {error}") from error
