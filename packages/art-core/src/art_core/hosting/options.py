"""What a host and its models can be told, checked once, at the door."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from art_core.checkpoints.keeping import KeepCheckpoints
from art_core.errors import ConfigError
from art_core.moving import hint
from art_core.options import validated
from art_core.registry import check_sinks
from art_core.serve.guard import DEFAULT_MAX_BODY_BYTES
from art_core.types import DtypeName

_NOT_TRAINED = ("dtype", "num_threads", "engine_args", "sinks", "keep_checkpoints")


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def made(cls, values: dict[str, Any], *, of: str) -> Self:
        """The options in `values`.

        Raises:
            ConfigError: an option of `of` that there is not, or that is of the wrong kind.
        """
        return validated(cls, values, of=of, instead=partial(hint, "config"))


class ModelOptions(_Options):
    """How one model is served and trained.

    `dtype`, `num_threads`: for engine and trainer both. `seed`: where the adapter starts. `lora`: `rank` (16), `alpha`
    (twice the rank), `target_modules`. `engine_args` and `trainer_args` go to the config class of the engine and the
    trainer that the host was opened with, which refuse what they do not know. `sinks`: where metrics are shown besides
    the run folder, "tensorboard" or "wandb" or both. `keep_checkpoints`: which of them stay after each step (`last`,
    `best`, `lowest`, `every`: see `art_core.checkpoints.keeping`); None keeps all.
    """

    dtype: DtypeName = "auto"
    seed: int = 0
    num_threads: int | None = Field(default=None, ge=1)
    lora: dict[str, Any] = Field(default_factory=dict)
    engine_args: dict[str, Any] = Field(default_factory=dict)
    trainer_args: dict[str, Any] = Field(default_factory=dict)
    sinks: list[str] = Field(default_factory=list)
    keep_checkpoints: KeepCheckpoints | None = None

    def differences(self, other: ModelOptions, *, trained_only: bool = False) -> list[str]:
        """Where the two differ, in words. `trained_only` leaves out what a run may change between two starts."""
        names = [name for name in type(self).model_fields if not (trained_only and name in _NOT_TRAINED)]
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return [f"{name} was {ours!r}, now {theirs!r}" for name, ours, theirs in pairs if ours != theirs]


class HostOptions(ModelOptions):
    """How a host behaves, and in the fields of `ModelOptions` the defaults of its models.

    max_wait_s: longest wait of a request while weights are swapped or loaded; then it is answered with 503.
    max_pinned: engines for older steps (`name@step`) that are open at a time, over all models.
    pinned_idle_s: an engine of an older step is closed after so long without a request.
    exchange_log_bytes: disk that a model's log of recorded calls may take; the oldest are dropped first.
    exchange_log_records: calls of that log that can be looked up by their id.
    trajectory_ttl_s: an open trajectory without a call for so long is closed.
    max_body_bytes: largest request, which is one that trains or logs; other routes take less.
    """

    max_wait_s: float = Field(default=120.0, gt=0.0, allow_inf_nan=False)
    max_pinned: int = Field(default=1, ge=0)
    pinned_idle_s: float = Field(default=300.0, gt=0.0)
    exchange_log_bytes: int = Field(default=1 << 30, ge=1)
    exchange_log_records: int = Field(default=200_000, ge=1)
    trajectory_ttl_s: float = Field(default=86_400.0, gt=0.0)
    max_body_bytes: int = Field(default=DEFAULT_MAX_BODY_BYTES, ge=1)

    def of_model(self, config: dict[str, Any]) -> ModelOptions:
        """The options of a model that is registered with `config`."""
        defaults = {name: getattr(self, name) for name in ModelOptions.model_fields}
        made = ModelOptions.made({**defaults, **config}, of="a model's config")
        check_sinks(made.sinks)
        try:
            return ModelOptions.model_validate_json(made.model_dump_json())  # as it will be read back
        except ValueError as error:
            raise ConfigError(f"a model's config holds what JSON cannot: {error}; give plain data") from error
