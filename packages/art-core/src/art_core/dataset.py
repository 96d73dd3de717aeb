"""A dataset in batches, the same in every process that asks for it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from art_core.errors import ConfigError
from art_core.moving import refuse_unknown
from art_core.options import check_value, whole

T = TypeVar("T")


@dataclass(frozen=True)
class DatasetBatch(Generic[T]):
    """The items of one step. `step` counts over all epochs, `epoch_step` within `epoch`; all begin at 0."""

    items: list[T]
    step: int
    epoch: int
    epoch_step: int


def iterate_dataset(
    dataset: Sequence[T],
    groups_per_step: int = 1,
    num_epochs: int = 1,
    initial_step: int = 0,
    *,
    seed: int = 0,
    shuffle: bool = True,
    **unknown: Any,
) -> Iterator[DatasetBatch[T]]:
    """`dataset` in batches of `groups_per_step`, `num_epochs` times over, from `initial_step` on.

    Each epoch has an order of its own, which depends on `seed`, the epoch and the size of the dataset only: a script
    that resumes with `initial_step=await model.get_num_batches()` sees exactly what one that never stopped would see,
    where each batch is given to `train` once. (`model.get_step()` is less by the batches that `train` skipped, which
    would come again.) The last batch of an epoch may be smaller. Nothing is left when `initial_step` is beyond the end.

    Raises:
        ConfigError: a number out of range, or an argument that does not exist.
    """
    refuse_unknown("iterate_dataset", unknown, iterate_dataset)
    if isinstance(dataset, Mapping) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ConfigError(f"dataset is a {type(dataset).__name__}; wanted a list, which has a length and an order")
    for name, value, least in (
        ("groups_per_step", groups_per_step, 1),
        ("num_epochs", num_epochs, 0),
        ("initial_step", initial_step, 0),
    ):
        check_value(name, value, whole(least))
    return _batches(dataset, groups_per_step, num_epochs, initial_step, seed, shuffle)


def _batches(
    dataset: Sequence[T], groups_per_step: int, num_epochs: int, initial_step: int, seed: int, shuffle: bool
) -> Iterator[DatasetBatch[T]]:
    steps_per_epoch = -(-len(dataset) // groups_per_step)
    if steps_per_epoch == 0:
        return
    first_epoch, first_step = divmod(initial_step, steps_per_epoch)
    for epoch in range(first_epoch, num_epochs):
        order = list(range(len(dataset)))
        if shuffle:
            random.Random(f"{seed}/{epoch}").shuffle(order)
        for epoch_step in range(first_step if epoch == first_epoch else 0, steps_per_epoch):
            chosen = order[epoch_step * groups_per_step : (epoch_step + 1) * groups_per_step]
            yield DatasetBatch(
                items=[dataset[index] for index in chosen],
                step=epoch * steps_per_epoch + epoch_step,
                epoch=epoch,
                epoch_step=epoch_step,
            )
