"""A new run that begins with a checkpoint of another."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from art_core.checkpoints.finding import checkpoint_of
from art_core.control import Origin
from art_core.errors import ConfigError, DataError, StorageError
from art_core.outcomes import num_skipped, num_supervised
from art_core.runs import Run
from art_core.runs.reader import MODEL_FILE
from art_core.runs.records import committed_reports
from art_core.saved import checkpoint_files, explained, held, read_cursor, remove
from art_core.storage import RunStore, read_records
from art_core.types import Checkpoint, StepReport
from art_core.values import check_name

ANSWERS = "canary"
"""The log of what each step answered the weight-sync canary."""


def fork_run(source: Run, step: int | None, path: Path, project: str, name: str, *, optimizer: bool = True) -> Origin:
    """Make the run `project/name` below `path`, whose only checkpoint is that of `step` (default: newest) of `source`.

    It counts on from there: the first step it makes is `step` + 1, and step 0 is the untrained model for it as well.
    Where that run is there already, made by the same fork, it is left as it is. Base model and options are those of
    the source. Without `optimizer`, the moments of AdamW begin anew. Neither run's
    lock is needed: the source may be served and trained meanwhile. Killed at any moment, the run is there or is not.

    Raises:
        ConfigError: there is a run of that name.
        DataError: no such checkpoint.
        StorageError: the disk is full, or the trainer of the source keeps no optimiser that could be left out.
    """
    check_name("project", project)
    check_name("name", name)
    identity = source.identity
    checkpoint = checkpoint_of(source, step)
    target = path / project / name
    cursor = read_cursor(checkpoint)
    unlogged = committed_reports(cursor, checkpoint.step)  # its process may have ended, or is about to log them
    origin = Origin(
        model=f"{identity['project']}/{identity['name']}",
        step=checkpoint.step,
        optimizer=optimizer,
        supervised_updates=supervised_updates(source, checkpoint.step, unlogged=unlogged),
        skipped_batches=skipped_batches(source, checkpoint.step, behind=False),
    )
    record = {
        **identity,
        **{"project": project, "name": name, "created": int(time.time()), "forked_from": origin.model_dump()},
    }
    made = origin_of(target)
    if made is not None and (made.model, made.optimizer) == (origin.model, optimizer) and step in (None, made.step):
        return made
    _refuse_existing(target)
    staging = path / f".fork-{project}@{name}"
    with explained(target, "make the run"), held(checkpoint), RunStore(staging) as store:
        for left in (staging / "checkpoints").iterdir():  # of an attempt that was killed
            remove(left)
        store.write(checkpoint.step, _copying(checkpoint, optimizer=optimizer), cursor)
        _copy_answers(source.folder, store, checkpoint.step)
        (staging / MODEL_FILE).write_text(json.dumps(record, indent=2) + "\n")
        target.parent.mkdir(parents=True, exist_ok=True)
        _refuse_existing(target)
        staging.rename(target)
    return origin


def supervised_updates(source: Run, step: int, *, unlogged: Iterable[StepReport] = ()) -> int:
    """How many of the first `step` steps of `source`, those before it was forked included, `train_sft` made.

    `unlogged` are reports that may not be logged yet.
    """
    origin = origin_of(source.folder)
    reports = itertools.chain(source.steps(), unlogged)
    if origin is None:
        return num_supervised(reports, step=step)
    own = (report for report in reports if report.step > origin.step)
    return origin.supervised_updates + num_supervised(own, step=step)


def skipped_batches(source: Run, step: int, *, behind: bool = True) -> int:
    """How many batches `train` made no step of on the way of `source` to `step`, forks included.

    Those skipped after that step was made count where `behind` says so: they are no part of a fork of it.
    """
    origin = origin_of(source.folder)
    reports = source.steps()
    own = num_skipped(reports, step=step) if behind else num_skipped(reports, step=step - 1)
    return own + (origin.skipped_batches if origin else 0)


def origin_of(folder: Path) -> Origin | None:
    """Where the run in `folder` comes from; None for one that is no fork, or is no run."""
    try:
        return Origin.model_validate(Run(folder).identity.get("forked_from"))
    except ValueError:  # also what a damaged record raises
        return None


def _refuse_existing(target: Path) -> None:
    if target.exists():
        raise ConfigError(f"{target} exists; give the fork another name")


def _copy_answers(source: Path, store: RunStore, step: int) -> None:
    """What the untrained model and `step` answered the canary, so that engines of the fork are checked as well."""
    log = source / f"{ANSWERS}.jsonl"
    try:
        records = list(read_records(log, lambda record: record)) if log.exists() else []
    except (DataError, StorageError):  # what is not known is not checked, and that is said when it is served
        return
    for record in records:
        if record.get("step") in (0, step):
            store.append(ANSWERS, record)


def _copying(checkpoint: Checkpoint, *, optimizer: bool) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        for file in checkpoint_files(checkpoint):
            shutil.copyfile(file, folder / file.name)
        if not optimizer:
            _forget_moments(folder)

    return save


def _forget_moments(folder: Path) -> None:
    from art_core.trainers.optimizer_state import OPTIMIZER_FILE, forget_moments

    if not (folder / OPTIMIZER_FILE).is_file():
        raise StorageError(
            f"the checkpoint has no {OPTIMIZER_FILE}: its trainer keeps no optimiser that could be left out; "
            "fork with the optimiser"
        )
    forget_moments(folder)
