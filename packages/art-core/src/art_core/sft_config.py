"""Options of supervised training, checked once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

from art_core.errors import ConfigError
from art_core.moving import hint
from art_core.options import check_options, flag, made_from, number, one_of, whole

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
        check_options(self, _KINDS)
        if self.seed and not self.shuffle:
            raise ConfigError(f"seed={self.seed} has no effect with shuffle False; leave it out, or shuffle")

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
        return made_from(cls, config, options, of="train_sft", instead=partial(hint, "train_sft"))


_KINDS = {
    "learning_rate": number(0.0, above=True),
    "epochs": whole(1),
    "batch_size": whole(1),
    "schedule": one_of(Schedule),
    "warmup_ratio": number(0.0, 1.0),
    "shuffle": flag(),
    "seed": whole(),
    "max_row_tokens": whole(2).or_none("the longest that the model can read"),
    "overlong": one_of(Overlong),
    "train_on": one_of(TrainOn),
    "save_every": whole(1),
    "restart": flag(),
}
