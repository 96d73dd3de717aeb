"""The output of `art-ruler score`: written as groups are scored, gone on with after a stop.

A line of it is that of the input, letter by letter, behind one more field:
`{"ruler": {"line": 3, "scores": [...], ...}, "trajectories": [...]}`. That field stands first, so that also what a kill
left of a line can be told from a file of somebody else's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

from art_ruler.errors import ConfigError, DataError
from art_ruler.files import SCORED_KEY, GroupLine
from art_ruler.locking import lock

_BEGINNING = f'{{"{SCORED_KEY}": {{"line": '.encode()
HASHED = ("judge_params", "rubric")
"""Settings of which a file holds a hash: they may be long, or hold what is nobody's business."""
_NUMBER = re.compile(re.escape(_BEGINNING) + rb"(?:null|\d+)")
# Windows would turn line ends into its own; elsewhere a process that is started would inherit the file and its lock.
_AS_IT_IS: int = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class Scored(Protocol):
    """Where scored groups go."""

    def take(self, group: GroupLine) -> int | None:
        """The number of trajectories without a score, if this group need not be judged; None if it has to be."""

    def append(self, group: GroupLine, scored: Mapping[str, Any]) -> int | None:
        """Write the group with its scores, and None. What was there before stays where that has scores that these have
        not: then nothing is written, and it is the number of trajectories without a score in that."""

    def finish(self) -> int:
        """To be called when `take` was asked about every group; the number of lines that belong to none of them."""


@dataclass(frozen=True)
class _Line:
    """What is known of a line of the output: where it begins, which line of the input it is, who has no score."""

    offset: int
    number: int | None
    missing: frozenset[int]

    @property
    def unscored(self) -> int:
        return len(self.missing)


class ScoredFile:
    """The output in a file, opened to be appended to.

    Lines stand in the order in which groups were finished; `ruler.line` is the line of the input. A line is handed to
    the system whole, as soon as it is there; what a kill left of a line is removed when the file is opened again. One
    process at a time may hold the file. A file that was made here and got no line is removed.

    `settings` is all that decides the scores: a file that was begun with others is refused with `ConfigError` that
    names them, one that this class did not write with `DataError`, and left as it is. With `retry_unscored`, groups
    with a trajectory without a score are judged again, and `finish` replaces their lines. A line is replaced only by
    one that scores everybody whom it scores. Behind a symbolic link, it is the file that is written and replaced.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, retry_unscored: bool = False) -> None:
        self.path = path
        self._file_path = Path(os.path.realpath(path))
        self._settings = {name: value for name, value in settings.items() if value is not None}
        self._retry_unscored = retry_unscored
        self._left: defaultdict[str, list[_Line]] = defaultdict(list)
        self._numbers: dict[int, int | None] = {}  # by offset: lines of the output whose `line` is out of date
        self._in_input: set[str] = set()
        self._retried: dict[int, _Line] = {}  # by line of the input: what was there of groups that are judged again
        self._removed: set[int] = set()  # offsets of lines that others have replaced
        try:
            is_new = not path.exists()
            if not is_new and not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode):
                raise ConfigError(f"--out {path} is no regular file; give a file, or - for standard output")
            self._file = os.open(self._file_path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _AS_IT_IS, 0o666)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}; give another --out") from error
        self._is_open, self._remove_if_empty = True, is_new
        try:
            self._lock()
            self._read_what_is_there()
        except BaseException:
            self._close()
            raise

    def _lock(self) -> None:
        try:
            # A file without a name was removed, empty, by the process that made it.
            is_ours = lock(self._file) and os.fstat(self._file).st_nlink > 0
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be locked against other processes: {error.strerror}; give an --out on a local disk"
            ) from error
        if not is_ours:
            self._remove_if_empty = False
            raise ConfigError(f"{self.path} is being written by another process; wait for it, or give another --out")

    def _read_what_is_there(self) -> None:
        for number, offset, raw in self._lines():
            if not raw.endswith(b"\n"):  # the process was killed, or the disk was full, in the middle of this line
                if number == 1 and not raw.startswith(_BEGINNING):
                    raise DataError(f"{self.path}:1: is no line that `art-ruler score` wrote; give another --out")
                os.ftruncate(self._file, offset)
                return
            digest, line = self._line(raw, number, offset)
            self._left[digest].append(line)

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Number, offset and content of each line."""
        offset = 0
        with self._file_path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                yield number, offset, raw
                offset += len(raw)

    def _line(self, raw: bytes, number: int, offset: int) -> tuple[str, _Line]:
        where = f"{self.path}:{number}"
        try:
            scored = json.loads(raw)[SCORED_KEY]
            digest, settings, line = str(scored["digest"]), dict(scored["settings"]), scored["line"]
            missing = _missing(scored)
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{where}: is no line that `art-ruler score` wrote; give another --out") from None
        if differences := _differences(settings, self._settings):
            raise ConfigError(
                f"{where}: was scored with other settings ({differences}); give the same options as then to go on, or "
                "another --out"
            )
        return digest, _Line(offset, line, missing)

    def take(self, group: GroupLine) -> int | None:
        """The number of trajectories without a score in this group's line, if it has one that need not be made again.

        Each line of the file answers once, so that equal groups in the input have a line each.
        """
        self._in_input.add(group.digest)
        lines = sorted(self._left[group.digest], key=lambda line: (line.unscored, line.number != group.number))
        if not lines:
            return None
        self._left[group.digest].remove(lines[0])
        if lines[0].number != group.number:
            self._numbers[lines[0].offset] = group.number
        if self._retry_unscored and lines[0].unscored:
            self._retried[group.number] = lines[0]
            return None
        return lines[0].unscored

    def append(self, group: GroupLine, scored: Mapping[str, Any]) -> int | None:
        """Write the group with its scores. A line that it has, and that scores somebody whom these do not, stays.

        Raises `ConfigError` when the system refuses, with the file left as it was.
        """
        before = self._retried.get(group.number)
        if before is not None and not _missing(scored) <= before.missing:
            return before.unscored
        data = line_of(group, scored, self._settings)
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
        if before is not None:
            self._removed.add(before.offset)
        return None

    def finish(self) -> int:
        """To be called when `take` was asked about every group of the input; the number of lines that belong to none.

        Those have null as their `line` from now on, and lines of groups that have moved get the new one. Lines without
        all scores are removed where the group was judged again. Nothing can be appended after this.
        """
        stale = 0
        for digest, lines in self._left.items():
            for line in lines:
                if line.unscored and digest in self._in_input:  # a kill came before it was removed
                    self._removed.add(line.offset)
                    continue
                stale += 1
                if line.number is not None:
                    self._numbers[line.offset] = None
        if self._removed or self._numbers:
            self._rewrite()
        return stale

    def _rewrite(self) -> None:
        """Put a file in the place of this one, at once, with the new numbers and without the lines to be removed."""
        new: Path | None = None
        try:
            handle, name = tempfile.mkstemp(dir=self._file_path.parent, prefix=".art-ruler-", suffix=".jsonl")
            new = Path(name)
            with os.fdopen(handle, "wb") as file:
                for _, offset, raw in self._lines():
                    if offset in self._numbers:
                        number = json.dumps(self._numbers[offset]).encode()
                        raw = _NUMBER.sub(_BEGINNING + number, raw, count=1)
                    if offset not in self._removed:
                        file.write(raw)
                file.flush()
                os.fsync(file.fileno())
                new.chmod(stat.S_IMODE(os.fstat(self._file).st_mode))
            if os.name == "nt":  # where no open file can be replaced
                self._close()
            new.replace(self._file_path)
        except OSError as error:
            if new is not None:
                new.unlink(missing_ok=True)
            raise ConfigError(
                f"{self.path} cannot be brought up to date: {error.strerror}; make room and run the same command again"
            ) from error

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            if self._remove_if_empty and os.fstat(self._file).st_size == 0:
                with contextlib.suppress(OSError):  # Windows removes no open file
                    self._file_path.unlink()
            os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()


class ScoredStream:
    """The output as a stream of lines, which nothing can be gone on with from."""

    def __init__(self, stream: BinaryIO, settings: Mapping[str, Any]) -> None:
        self._stream, self._settings = stream, dict(settings)

    def take(self, group: GroupLine) -> int | None:  # noqa: ARG002 - a stream holds nothing
        return None

    def append(self, group: GroupLine, scored: Mapping[str, Any]) -> int | None:
        self._stream.write(line_of(group, scored, self._settings))
        self._stream.flush()
        return None

    def finish(self) -> int:
        return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the stream open, which is not ours."""


def line_of(group: GroupLine, scored: Mapping[str, Any], settings: Mapping[str, Any]) -> bytes:
    """A line of the output. What was in the input stays as it was written there, numbers of any length included."""
    entry = {
        "line": group.number,
        **scored,
        "judges": settings["judges"],
        "digest": group.digest,
        "settings": {name: value for name, value in settings.items() if value is not None},
    }
    text = json.dumps({SCORED_KEY: entry}, ensure_ascii=False)[:-1]
    is_object = group.text.startswith("{")
    text += ", " + (group.text[1:].lstrip() if is_object else f'"trajectories": {group.text}}}') + "\n"
    return text.encode("utf-8", "backslashreplace")  # half of a surrogate pair, in words of the judge, is escaped


def _missing(scored: Mapping[str, Any]) -> frozenset[int]:
    return frozenset(at for at, score in enumerate(scored.get("scores", ())) if score is None)


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs, in words. Of hashes only that they do."""

    def shown(value: Any) -> str:
        return "not given" if value is None else json.dumps(value, ensure_ascii=False)

    found = []
    for name in sorted(then.keys() | now.keys()):
        was, is_now = then.get(name), now.get(name)
        if was != is_now:
            found.append(name if name in HASHED else f"{name}: {shown(was)} then, {shown(is_now)} now")
    return "; ".join(found)
