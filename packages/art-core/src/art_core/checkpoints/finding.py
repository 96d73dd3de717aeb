"""`NAME@STEP` to a checkpoint."""

from __future__ import annotations

from pathlib import Path

from art_core.errors import DataError
from art_core.runs import Run, run
from art_core.saved import checkpoint_fault, step_name
from art_core.types import Checkpoint

_MOST_DIGITS = 12
"""Of a step; more are none, and Python refuses to read them from some thousands on."""


def find_checkpoint(path: Path, name: str) -> tuple[Run, Checkpoint]:
    """The checkpoint that `name` means below `path`: `project/name@step`, or without a step the newest that is whole.

    Raises:
        DataError: there is no such run, or no such checkpoint; or it is not whole.
    """
    base, at, step = name.partition("@")
    if at and not (step.isdecimal() and len(step) <= _MOST_DIGITS):
        raise DataError(
            f"{name[:200]!r}: {step[:20]!r} is no step; wanted NAME@STEP, such as {base}@7, or NAME for the newest"
        )
    chosen = run(path, base)
    return chosen, checkpoint_of(chosen, int(step) if at else None)


def checkpoint_of(chosen: Run, step: int | None) -> Checkpoint:
    """The whole checkpoint of `step`, or the newest.

    Raises:
        DataError: as `find_checkpoint`.
    """
    steps = chosen.checkpoint_steps
    if step == 0:
        raise DataError(
            f"step 0 of {chosen.folder} is the untrained model, which has no checkpoint; there are {_listed(steps)}"
        )
    if step is not None:
        checkpoint = _at(chosen, step)
        if step not in steps:
            raise DataError(f"{chosen.folder} has no checkpoint of step {step}; there are {_listed(steps)}")
        if fault := checkpoint_fault(checkpoint):
            raise DataError(f"checkpoint {checkpoint.path} cannot be used: {fault}; choose another step")
        return checkpoint
    for newest in reversed(steps):
        if not checkpoint_fault(_at(chosen, newest)):
            return _at(chosen, newest)
    if not steps:
        raise DataError(f"{chosen.folder} has no checkpoint yet; train it first")
    raise DataError(f"{chosen.folder} has no checkpoint that is whole; those of steps {_listed(steps)} are damaged")


def _at(chosen: Run, step: int) -> Checkpoint:
    return Checkpoint(step, chosen.folder / "checkpoints" / step_name(step))


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps)) if steps else "none"
