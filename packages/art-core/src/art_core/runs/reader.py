"""Reading run folders: without their lock, while they are written, and without holding them in memory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from art_core.errors import DataError, StorageError
from art_core.runs.records import LogLine, StepSummary, StoredTrajectory, Tally, in_groups, step_report
from art_core.saved import STEP_NAME
from art_core.storage import read_records
from art_core.trajectories import Trajectory, TrajectoryGroup
from art_core.types import Exchange, StepReport

DEFAULT_PATH = Path(".art")
MODEL_FILE = "model.json"
T = TypeVar("T")


@dataclass(frozen=True)
class RunSummary:
    """One line about a run. `fault` says what cannot be read of it; the figures are then those that could be.

    `step` is the newest that anything was logged for, trained or committed. `reward` is the mean reward of the newest
    step of each split. `updated_at` is in seconds since the epoch.
    """

    project: str
    name: str
    folder: Path
    base_model: str = ""
    step: int = 0
    num_trajectories: dict[str, int] = field(default_factory=dict)
    reward: dict[str, float] = field(default_factory=dict)
    checkpoint_steps: list[int] = field(default_factory=list)
    size_bytes: int = 0
    updated_at: float = 0.0
    fault: str = ""


class Run:
    """What a run folder holds. Every method reads the folder as it is at that moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def identity(self) -> dict[str, Any]:
        """`model.json`: `project`, `name`, `base_model`, and what else the run was begun with.

        Raises:
            DataError: it is missing or damaged.
        """
        path = self.folder / MODEL_FILE
        try:
            identity: dict[str, Any] = json.loads(path.read_bytes())
            if not isinstance(identity["project"], str) or not isinstance(identity["name"], str):
                raise TypeError("project and name are no text")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} does not say which model this is ({type(error).__name__}: {error})") from error
        return identity

    @property
    def splits(self) -> list[str]:
        """Splits that trajectories were logged for."""
        return sorted({split for split, _, _ in self._files()})

    @property
    def checkpoint_steps(self) -> list[int]:
        """Steps whose checkpoint is there. It is not checked for damage, unlike in `RunStore.checkpoints`."""
        named = [STEP_NAME.fullmatch(path.name) for path in _listed(self.folder / "checkpoints")]
        return sorted(int(name[1]) for name in named if name)

    def trajectories(self, split: str | None = None, step: int | None = None) -> Iterator[Trajectory]:
        """Trajectories in the order of split, step and logging, exchanges included.

        Raises:
            DataError: a split or step that nothing was logged for, or (while iterating) a damaged line, as `file:line`.
        """
        return (stored.trajectory for stored in self.stored(split, step))

    def stored(self, split: str | None = None, step: int | None = None) -> Iterator[StoredTrajectory]:
        """As `trajectories`, each with its place in the run."""
        files = self._chosen(split, step)
        return (stored for _, _, path in files for stored in read_records(path, StoredTrajectory.parse))

    def groups(self, split: str | None = None, step: int | None = None) -> Iterator[TrajectoryGroup]:
        """As `trajectories`, in the groups they were logged in."""
        files = self._chosen(split, step)
        return (group for _, _, path in files for group in in_groups(read_records(path, StoredTrajectory.parse)))

    def records(self, split: str | None = None, step: int | None = None) -> Iterator[dict[str, Any]]:
        """As `trajectories`, as plain data: what stands in the lines, not checked further."""
        return (
            record for _, _, path in self._chosen(split, step) for record in read_records(path, lambda record: record)
        )

    def find(self, trajectory_id: str, *, split: str | None = None, step: int | None = None) -> StoredTrajectory:
        """The trajectory of that id; the one logged last where there are several.

        Raises:
            DataError: there is none.
        """
        found = None
        needle = json.dumps(trajectory_id, ensure_ascii=False).encode(errors="backslashreplace")
        for _, _, path in self._chosen(split, step):
            for stored in read_records(path, StoredTrajectory.parse, containing=needle):
                found = stored if stored.trajectory.id == trajectory_id else found
        if found is None:
            raise DataError(
                f"no trajectory {trajectory_id!r} in {self.folder}; "
                "the ids of a step are listed by `art runs show NAME --step N`"
            )
        return found

    def steps(self) -> Iterator[StepReport]:
        """What the training steps reported, in the order in which they were made."""
        return _records(self.folder / "steps.jsonl", step_report)

    def exchanges(self) -> Iterator[Exchange]:
        """The calls that the server's own log still holds, oldest first, those of no trajectory included."""
        for path in sorted(path for path in _listed(self.folder / "exchanges") if path.suffix == ".jsonl"):
            yield from (e for e in read_records(path, _exchange, containing=b'"completion_ids"') if e is not None)

    def log_lines(self) -> Iterator[LogLine]:
        """Every call of `log_groups`, in order."""
        return _records(self.folder / "metrics.jsonl", LogLine.parse)

    def summaries(self, step: int | None = None) -> list[StepSummary]:
        """What was logged, by split and step, in that order; only of `step`, where it is given.

        Read from metrics.jsonl. Trajectories that it does not count yet, because they are just being written or
        because their writer was killed, are counted from their own file.
        """
        tallies: dict[tuple[str, int], Tally] = {}
        given: dict[tuple[str, int], dict[str, float]] = {}
        counted: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for line in self.log_lines():
            if step not in (None, line.step):
                continue
            key = line.split, line.step
            tallies[key] = tallies.get(key, Tally()) + line.tally
            own = {name.removeprefix(f"{line.split}/"): value for name, value in line.metrics.items()}
            given.setdefault(key, {}).update(own)
            counted.setdefault(key, []).append(line.place)
        for split, number, path in self._files():
            if step not in (None, number):
                continue
            for start, end in _gaps(counted.get((split, number), []), path.stat().st_size):
                edited = start > 0 and _byte(path, start - 1) != b"\n"  # by hand: then all is counted anew
                place = (0, None) if edited else (start, end)
                rest = read_records(path, StoredTrajectory.parse, start=place[0], end=place[1])
                tally = Tally.of(in_groups(rest))
                if edited:
                    tallies[split, number] = tally
                    break
                if tally.counts.trajectories:
                    tallies[split, number] = tallies.get((split, number), Tally()) + tally
        return [
            StepSummary(
                *key,
                tally.counts,
                {**{name: mean for name, (mean, _) in tally.averages.items()}, **given.get(key, {})},
            )
            for key, tally in sorted(tallies.items())
        ]

    def summary(self) -> RunSummary:
        """One line about the run.

        Raises:
            DataError: something cannot be read; see `runs`, which goes on.
        """
        identity = self.identity
        summaries = self.summaries()
        trained = max((report.step for report in self.steps()), default=0)
        checkpoints = self.checkpoint_steps
        counts: dict[str, int] = {}
        for one in summaries:
            counts[one.split] = counts.get(one.split, 0) + one.counts.trajectories
        return RunSummary(
            project=identity["project"],
            name=identity["name"],
            folder=self.folder,
            base_model=str(identity.get("base_model", "")),
            step=max([trained, *checkpoints, *(one.step for one in summaries)]),
            num_trajectories=counts,
            reward={one.split: one.reward for one in summaries if one.reward is not None},
            checkpoint_steps=checkpoints,
            size_bytes=_size_bytes(self.folder),
            updated_at=_updated_at(self.folder),
        )

    def _files(self) -> list[tuple[str, int, Path]]:
        """The files of trajectories with their split and step, in that order."""
        return sorted(
            (folder.name, int(name[1]), path)
            for folder in _listed(self.folder / "trajectories")
            for path in _listed(folder)
            if path.suffix == ".jsonl" and (name := STEP_NAME.fullmatch(path.stem))
        )

    def _chosen(self, split: str | None, step: int | None) -> list[tuple[str, int, Path]]:
        files = self._files()
        if split is not None and split not in {name for name, _, _ in files}:
            raise DataError(f"no trajectories of split {split!r} in {self.folder}; its splits: {_names(self.splits)}")
        files = [file for file in files if split in (None, file[0])]
        if step is not None and step not in {number for _, number, _ in files}:
            there = sorted({number for _, number, _ in files})
            raise DataError(f"no trajectories of step {step} in {self.folder}; its steps: {_names(there)}")
        return [file for file in files if step in (None, file[1])]


def runs(path: Path) -> list[RunSummary]:
    """The runs below `path`, by project and name. One that is damaged is there with its `fault`.

    Raises:
        DataError: `path` is no folder.
    """
    summaries = []
    for folder in _run_folders_of(path).values():
        try:
            summaries.append(Run(folder).summary())
        except (DataError, StorageError) as error:
            summaries.append(RunSummary(folder.parent.name, folder.name, folder, fault=str(error)))
    return summaries


def run(path: Path, name: str) -> Run:
    """The run below `path` of the model `name`, as `project/name`, or only the name where no other project has it.

    Raises:
        DataError: there is none, or more than one; the message lists the candidates.
    """
    there = _run_folders_of(path)
    wanted = name.strip("/")
    fitting = [full for full in there if wanted in (full, full.split("/")[1])]
    if len(fitting) == 1:
        return Run(there[fitting[0]])
    if fitting:
        raise DataError(f"{name!r} is in several projects of {path}; give one of: {_names(fitting)}")
    for folder in (path / wanted, Path(name)):
        if kind := foreign_kind(folder):
            raise DataError(f"{folder} is {kind}, not the run folder of a model served by art")
    raise DataError(f"no run {name!r} in {path}; there are: {_names(list(there))}. Another folder is given with --path")


def run_folders(path: Path) -> dict[str, Path]:
    """The run folders below `path`, sorted, by the inference names of their models; none where there is no `path`."""
    folders = [file.parent for file in sorted(path.glob(f"*/*/{MODEL_FILE}"))]
    return {f"{folder.parent.name}/{folder.name}": folder for folder in folders}


def foreign_kind(folder: Path) -> str:
    """What `folder` is, where it is known and not the run folder of a model; else nothing."""
    if (folder / MODEL_FILE).is_file():
        return ""
    if (folder / "run.json").is_file():
        return "a run of art-mcp (its outcome is in report.md, its rollouts in trajectories.jsonl)"
    if (folder / "state.json").is_file():
        return "a checkpoint"
    return ""


def _run_folders_of(path: Path) -> dict[str, Path]:
    if not path.is_dir():
        raise DataError(f"{path} is no folder; give --path the folder that `art serve` or the backend writes to")
    return run_folders(path)


def _records(path: Path, parse: Callable[[dict[str, Any]], T]) -> Iterator[T]:
    return read_records(path, parse) if path.exists() else iter(())


def _exchange(record: dict[str, Any]) -> Exchange | None:
    """The call of a line; None for the lines in which the log's writer notes something else."""
    return Exchange.model_validate(record) if "completion_ids" in record else None


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _gaps(places: Sequence[tuple[int, int]], size_bytes: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that lie in none of `places`."""
    end = 0
    for first, last in sorted(places):
        if first > end:
            yield end, first
        end = max(end, last)
    if size_bytes > end:
        yield end, size_bytes


def _byte(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(1)


def _size_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a checkpoint that is deleted meanwhile
            total += path.lstat().st_size
    return total


def _updated_at(folder: Path) -> float:
    files = [folder / name for name in (MODEL_FILE, "metrics.jsonl", "steps.jsonl")]
    return max((path.stat().st_mtime for path in files if path.exists()), default=0.0)


def _names(names: Sequence[object], limit: int = 20) -> str:
    shown = ", ".join(str(name) for name in names[:limit])
    return shown + (f", ... ({len(names)} in all)" if len(names) > limit else "") if names else "none"
