"""Options of supervised training, checked once."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from art_core.errors import ConfigError, unknown_option
from art_core.moving import hint
from art_core.values import is_number

Schedule = Literal["constant", "linear", "cosine"]
Overlong = Literal["refuse", "cut", "drop"]
TrainOn = Literal["all", "last"]

_WITHOUT_EFFECT_ON_THE_RESULT = ("save_every", "restart")


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """How `train_sft` learns from demonstrations.

    learning_rate: the highest, reached behind the warm-up.
    epochs: how often each example is trained on.
    batch_size: examples of one optimiser update; the last update of an epoch may have fewer.
    schedule: what follows the warm-up, over all updates of all epochs: "constant", or falling towards 0 as a line
        ("linear") or half a cosine ("cosine"), which would be reached one update after the last.
    warmup_ratio: share of all updates in which the learning rate rises, from 0 to below 1.
    shuffle, seed: whether each epoch has an order of its own, which depends on seed, epoch and number of examples only.
    max_row_tokens: longest row; None is the longest that the model can read.
    overlong: what becomes of an example with a longer one: "refuse" all before anything begins, "cut" the row's end, or
        "drop" the example. What is cut or dropped is counted.
    train_on: "all" answers of an example, or only its "last".
    save_every: updates between two checkpoints. The last update always makes one. A run that was killed goes on from
        the newest.
    restart: begin anew, on the weights that there are now, also where the same training was finished before, or
        another one was interrupted.
    """

    learning_rate: float = 2e-4
    epochs: int = 1
    batch_size: int = 8
    schedule: Schedule = "linear"
    warmup_ratio: float = 0.1
    shuffle: bool = True
    seed: int = 0
    max_row_tokens: int | None = None
    overlong: Overlong = "refuse"
    train_on: TrainOn = "all"
    save_every: int = 50
    restart: bool = False

    def __post_init__(self) -> None:
        if not is_number(self.learning_rate) or not 0.0 < self.learning_rate <= sys.float_info.max:
            raise ConfigError(f"learning_rate is {self.learning_rate!r}; wanted a finite number above 0")
        if not is_number(self.warmup_ratio) or not 0.0 <= self.warmup_ratio < 1.0:
            raise ConfigError(f"warmup_ratio is {self.warmup_ratio!r}; wanted a number from 0 to below 1")
        for name in ("epochs", "batch_size", "save_every", "max_row_tokens"):
            value = getattr(self, name)
            if not (name == "max_row_tokens" and value is None) and (not is_number(value, whole=True) or value < 1):
                raise ConfigError(f"{name} is {value!r}; wanted a whole number, 1 or more")
        if not is_number(self.seed, whole=True):
            raise ConfigError(f"seed is {self.seed!r}; wanted a whole number")
        for name in ("shuffle", "restart"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; wanted True or False")
        for name, kind in (("schedule", Schedule), ("overlong", Overlong), ("train_on", TrainOn)):
            known = kind.__args__  # type: ignore[attr-defined]
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; wanted one of {', '.join(map(repr, known))}")

    @property
    def identity(self) -> dict[str, Any]:
        """The options that the result depends on, as plain data."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in _WITHOUT_EFFECT_ON_THE_RESULT}

    @classmethod
    def made(cls, config: Self | None, options: Mapping[str, Any]) -> Self:
        """`config`, or the defaults, with `options` in place of its values.

        Raises:
            ConfigError: an option that does not exist, or an impossible value.
        """
        if config is not None and not isinstance(config, cls):
            raise ConfigError(f"config is a {type(config).__name__}; wanted an SftConfig, or options by their names")
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(options) - set(names))
        if unknown:
            raise unknown_option("train_sft", unknown[0], names, instead=hint("train_sft", unknown[0]))
        return dataclasses.replace(config or cls(), **options)
