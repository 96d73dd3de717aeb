"""Groups in JSONL files: read one by one, written as soon as they are scored, gone on with after a stop.

A line is an object with `trajectories`, and optionally `tools` (the task's tools in OpenAI's form) and `labels` (the
true quality of each trajectory, higher is better, null for unknown); other fields are kept. A line may also be just the
array of trajectories. A trajectory is an array of messages, or an object that holds one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from art_ruler.errors import ConfigError, DataError
from art_ruler.locking import lock

SCORED_KEY = "ruler"
# Windows would turn line ends into its own; elsewhere a process that is started would inherit the file and its lock.
_AS_IT_IS: int = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_DIGEST_LENGTH = 16  # hexadecimal digits: 64 bits tell a billion lines apart


@dataclass(frozen=True)
class GroupLine:
    """One group as read. `where` is `file:line`; `digest` identifies the content of the line."""

    where: str
    number: int
    digest: str
    fields: Mapping[str, Any]
    trajectories: tuple[Any, ...]
    tools: tuple[Any, ...] | None
    labels: tuple[float | None, ...] | None


def read_groups(path: Path) -> Iterator[GroupLine]:
    """The groups of a file, one in memory at a time; empty lines are passed over.

    Raises `DataError` that names file and line at the first line that is no group, and for a file that cannot be read.
    """
    for number, text in _lines(path):
        yield _parse(text, f"{path}:{number}", number)


def check_groups(path: Path, *, labelled: bool = False) -> int:
    """The number of groups in a file in which every line can be judged.

    Reads the whole file, so that a bad line is found before anything is paid for. With `labelled`, each line must have
    labels. Raises `DataError` that names file and line.
    """
    from art_ruler.inputs import read_trajectories

    count = 0
    for group in read_groups(path):
        try:
            read_trajectories(group.trajectories, group.tools)
        except DataError as error:
            raise DataError(f"{group.where}: {error}") from error
        if labelled and group.labels is None:
            raise DataError(
                f'{group.where}: has no "labels"; add the true quality of each trajectory, as in "labels": [0.9, 0.2]'
            )
        count += 1
    if count == 0:
        raise DataError(f"{path}: holds no group; write one group per line")
    return count


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        if not path.is_file():
            what = "is a folder or a stream" if path.exists() else "does not exist"
            raise DataError(f"{path} {what}; give a JSONL file with one group per line (it is read twice)")
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(f"{path}:{number}: is not UTF-8 (byte {error.start + 1}); convert it") from error
                if text.strip():
                    yield number, text.rstrip("\r\n")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _parse(text: str, where: str, number: int) -> GroupLine:
    try:
        value = json.loads(text)
    except RecursionError:
        raise DataError(f"{where}: is nested too deeply to be read") from None
    except ValueError as error:
        at = f" (column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise DataError(f"{where}: is not JSON: {reason}{at}; write one group per line") from error
    fields = {"trajectories": value} if isinstance(value, list) else value
    if not isinstance(fields, dict) or not isinstance(fields.get("trajectories"), list):
        got = sorted(fields) if isinstance(fields, dict) else type(value).__name__
        raise DataError(f'{where}: is no group; wanted an object with an array "trajectories", got {got}')
    if SCORED_KEY in fields:
        raise DataError(f'{where}: is scored already (it has "{SCORED_KEY}"); give the file it was scored from')
    tools = fields.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise DataError(f'{where}: "tools" is {type(tools).__name__}; wanted an array of tools')
    return GroupLine(
        where=where,
        number=number,
        digest=_digest(fields),
        fields=fields,
        trajectories=tuple(fields["trajectories"]),
        tools=None if tools is None else tuple(tools),
        labels=_labels(fields.get("labels"), len(fields["trajectories"]), where),
    )


def _labels(value: Any, count: int, where: str) -> tuple[float | None, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != count:
        got = f"{len(value)} of them" if isinstance(value, list) else type(value).__name__
        raise DataError(f'{where}: "labels" must be an array with one number per trajectory ({count}); got {got}')
    for label in value:
        number = isinstance(label, int | float) and not isinstance(label, bool) and math.isfinite(label)
        if label is not None and not number:
            raise DataError(f'{where}: "labels" holds {label!r}; wanted numbers, higher is better, or null for unknown')
    return tuple(None if label is None else float(label) for label in value)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


class ScoredFile:
    """The output of `art-ruler score`, opened to be appended to.

    Each line is that of the input and, under `ruler`, what the judge said. Lines stand in the order in which groups
    were finished; `ruler.line` is the line of the input. A line is handed to the system whole, as soon as it is there;
    what a kill left of a line is removed when the file is opened again. One process at a time may hold the file.

    `settings` is all that decides the scores: a file that was begun with others is refused with `ConfigError`, one that
    this class did not write with `DataError`.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._settings = dict(settings)
        self._settings_digest = _digest(self._settings)
        self._done: Counter[str] = Counter()
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _AS_IT_IS, 0o666)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}; give another --out") from error
        try:
            self._lock()
            self._read_what_is_there()
        except BaseException:
            os.close(self._file)
            raise
        self.num_found = self._done.total()

    def _lock(self) -> None:
        try:
            is_ours = lock(self._file)
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be locked against other processes: {error.strerror}; give an --out on a local disk"
            ) from error
        if not is_ours:
            raise ConfigError(f"{self.path} is being written by another process; wait for it, or give another --out")

    def _read_what_is_there(self) -> None:
        end = 0
        with self.path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.endswith(b"\n"):  # the process was killed, or the disk was full, in the middle of this line
                    os.ftruncate(self._file, end)
                    return
                end += len(raw)
                self._done[self._digest_of(raw, number)] += 1

    def _digest_of(self, raw: bytes, number: int) -> str:
        where = f"{self.path}:{number}"
        try:
            scored = json.loads(raw)[SCORED_KEY]
            digest, settings, judges = str(scored["digest"]), scored["settings"], scored["judges"]
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{where}: is no line that `art-ruler score` wrote; give another --out") from None
        if settings != self._settings_digest:
            raise ConfigError(
                f"{where}: was scored with other settings (judges {', '.join(map(str, judges))}); "
                "give the same options as then to go on, or another --out"
            )
        return digest

    def take(self, group: GroupLine) -> bool:
        """Whether this group is in the file already.

        Each line of the file answers yes once, so that equal groups in the input have a line each.
        """
        if self._done[group.digest] == 0:
            return False
        self._done[group.digest] -= 1
        return True

    def append(self, group: GroupLine, scored: Mapping[str, Any]) -> None:
        """Write the group with its scores.

        Raises `ConfigError` when the system refuses, with the file left as it was.
        """
        entry = {
            "line": group.number,
            **scored,
            "judges": self._settings["judges"],
            "digest": group.digest,
            "settings": self._settings_digest,
        }
        data = (json.dumps({**group.fields, SCORED_KEY: entry}, ensure_ascii=False) + "\n").encode(
            "utf-8", "backslashreplace"
        )
        size = os.fstat(self._file).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            os.ftruncate(self._file, size)
            raise ConfigError(
                f"{self.path} cannot be written: {error.strerror}; make room and run the same command again"
            ) from error

    def __enter__(self) -> ScoredFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._file)
