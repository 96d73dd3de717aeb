"""The log of a model's recorded calls: survives the server, is bounded, and is looked up by exchange id.

<folder>/exchanges/00000001.jsonl    one exchange per line; besides, lines {"opened": id} and {"closed": id}
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]  # documented nowhere, and never changed
from pathlib import Path
from typing import BinaryIO, NamedTuple

from art_core.errors import DataError, StorageError
from art_core.storage import drop_torn_tail
from art_core.types import Exchange

_log = logging.getLogger(__name__)
_HEAD = '{"id":"'
_THEN = ',"trajectory_id":"'


class _Place(NamedTuple):
    segment: int
    offset: int
    size_bytes: int


class _Line(NamedTuple):
    kind: str  # "exchange", "opened" or "closed"
    id: str
    trajectory_id: str
    place: _Place


class ExchangeLog:
    """The `Recorder` of one model: every call it answered, and which trajectories are open.

    What was recorded before the process died is there again when the log is opened. It is written in segments of an
    eighth of `max_bytes`, the oldest of which is deleted when there are more than eight; at most `max_records` calls
    are indexed. `num_dropped` counts the calls that can no longer be found.
    """

    def __init__(self, folder: Path, *, max_bytes: int = 1 << 30, max_records: int = 200_000) -> None:
        self.folder = folder / "exchanges"
        self.num_dropped = 0
        self._max_records = max_records
        self._segment_bytes = max(1, max_bytes // 8)
        self._index: dict[str, _Place] = {}
        self._open: dict[str, list[_Place]] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            segments = _segments(self.folder)
            if segments:
                drop_torn_tail(_path(self.folder, segments[-1]))
            for line in _lines(self.folder):
                self._take(line)
            self._segment = segments[-1] if segments else 1
            self._file: BinaryIO = _path(self.folder, self._segment).open("ab", buffering=0)
        except OSError as error:
            raise StorageError(f"could not open the log of calls {self.folder}: {error.strerror or error}") from error

    def close(self) -> None:
        """May be called twice."""
        self._file.close()

    def record(self, *exchanges: Exchange) -> None:
        """Keep `exchanges`.

        Raises:
            StorageError: the disk is full or the folder not writable; the log is as it was before.
        """
        lines = [exchange.model_dump_json() for exchange in exchanges]
        place = self._append("\n".join(lines))
        for exchange, line in zip(exchanges, lines, strict=True):
            place = place._replace(size_bytes=len(_encoded(line)))
            self._take(_Line("exchange", exchange.id, exchange.trajectory_id, place))
            place = place._replace(offset=place.offset + place.size_bytes)

    def known(self, ids: Iterable[str]) -> list[str]:
        """Those of `ids` that are of calls which can be found."""
        return [id for id in ids if id in self._index]

    def opened(self, trajectory_id: str) -> None:
        """From now on the calls of `trajectory_id` belong to an open trajectory."""
        self._take(_Line("opened", trajectory_id, trajectory_id, self._append(json.dumps({"opened": trajectory_id}))))

    def closed(self, trajectory_id: str) -> None:
        """`trajectory_id` is open no more; its calls can still be found."""
        self._take(_Line("closed", trajectory_id, trajectory_id, self._append(json.dumps({"closed": trajectory_id}))))

    def find(self, ids: Sequence[str], *, missing_ok: bool = False) -> list[Exchange]:
        """The recorded calls of `ids`, in their order. May be called from another thread than `record`.

        Raises:
            DataError: an id of no recorded call, which with `missing_ok` is left out.
        """
        places = [self._index.get(id) for id in ids]
        missing = [id for id, place in zip(ids, places, strict=True) if place is None]
        found = [self._read(place) for place in places if place is not None]
        missing += [id for id, exchange in zip(ids, found, strict=False) if not missing and exchange is None]
        if missing and not missing_ok:
            shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            raise DataError(
                f"{len(missing)} of {len(ids)} exchange ids are of no recorded call ({shown}); use the ids of this "
                f"model's answers. {self.num_dropped} old calls were dropped from the log since it was opened: where "
                "they are among them, train sooner, or raise exchange_log_bytes and exchange_log_records"
            )
        return [exchange for exchange in found if exchange is not None]

    def open_trajectories(self) -> dict[str, list[Exchange]]:
        """The trajectories that are open, each with its calls in the order in which they finished."""
        result = {}
        for trajectory_id, places in self._open.items():
            exchanges = [self._read(place) for place in places]
            result[trajectory_id] = [exchange for exchange in exchanges if exchange is not None]
            if len(result[trajectory_id]) < len(places):
                _log.warning("the log of calls no longer holds all of trajectory %r", trajectory_id)
        return result

    def _take(self, line: _Line) -> None:
        if line.kind == "opened":
            self._open[line.id] = []
        elif line.kind == "closed":
            self._open.pop(line.id, None)
        else:
            self._index[line.id] = line.place
            if line.trajectory_id in self._open:
                self._open[line.trajectory_id].append(line.place)
            if len(self._index) > self._max_records:
                del self._index[next(iter(self._index))]
                self.num_dropped += 1

    def _append(self, text: str) -> _Place:
        data = _encoded(text)
        try:
            before = self._file.seek(0, os.SEEK_END)
            if before and before + len(data) > self._segment_bytes:
                self._next_segment()
                before = 0
            written = 0
            try:
                while written < len(data):
                    written += self._file.write(data[written:])
            except OSError:
                self._file.truncate(before)
                raise
        except OSError as error:
            raise StorageError(
                f"could not record a call in {self.folder}: {error.strerror or error}; free some space and go on"
            ) from error
        return _Place(self._segment, before, len(data))

    def _next_segment(self) -> None:
        self._file.close()
        self._segment += 1
        self._file = _path(self.folder, self._segment).open("ab", buffering=0)
        for old in _segments(self.folder)[:-8]:
            _path(self.folder, old).unlink()
            lost = [id for id, place in self._index.items() if place.segment == old]
            for id in lost:
                del self._index[id]
            self.num_dropped += len(lost)

    def _read(self, place: _Place) -> Exchange | None:
        try:
            with _path(self.folder, place.segment).open("rb") as file:
                file.seek(place.offset)
                return Exchange.model_validate_json(file.read(place.size_bytes))
        except FileNotFoundError:
            return None


def open_trajectory_ids(folder: Path) -> set[str]:
    """The trajectories that the log of the model in `folder` leaves open. Only reads, also while another writes."""
    result: set[str] = set()
    for line in _lines(folder / "exchanges"):
        if line.kind == "opened":
            result.add(line.id)
        elif line.kind == "closed":
            result.discard(line.id)
    return result


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace") + b"\n"


def _path(folder: Path, segment: int) -> Path:
    return folder / f"{segment:08d}.jsonl"


def _segments(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.jsonl") if path.stem.isdecimal())


def _lines(folder: Path) -> Iterator[_Line]:
    """All whole lines of the log; of an exchange only its head is read."""
    for segment in _segments(folder):
        offset = 0
        with _path(folder, segment).open("rb") as file:
            for number, data in enumerate(file, start=1):
                place = _Place(segment, offset, len(data))
                offset += len(data)
                if not data.endswith(b"\n"):
                    return
                try:
                    yield _parsed(data.decode(), place)
                except (ValueError, UnicodeDecodeError) as error:
                    raise DataError(
                        f"{_path(folder, segment)}:{number}: not a line of a log of calls ({error}); remove it to go on"
                    ) from error


def _parsed(text: str, place: _Place) -> _Line:
    if text.startswith(_HEAD):
        id, end = scanstring(text, len(_HEAD))
        if not text.startswith(_THEN, end):
            raise ValueError("no trajectory_id after the id")
        trajectory_id, _ = scanstring(text, end + len(_THEN))
        return _Line("exchange", id, trajectory_id, place)
    ((kind, id),) = json.loads(text).items()
    if kind not in ("opened", "closed"):
        raise ValueError(f"unknown record {kind!r}")
    return _Line(kind, id, id, place)
