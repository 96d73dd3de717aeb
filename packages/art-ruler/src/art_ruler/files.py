"""Groups in JSONL files, read one by one.

A line is an object with `trajectories`, and optionally `tools` (the task's tools in OpenAI's form) and `labels` (the
true quality of each trajectory, higher is better, null for unknown); other fields are kept. A line may also be just the
array of trajectories. A trajectory is an array of messages, or an object that holds one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from art_ruler.errors import DataError

SCORED_KEY = "ruler"
_DIGEST_LENGTH = 16  # hexadecimal digits: 64 bits tell a billion lines apart


@dataclass(frozen=True)
class GroupLine:
    """One group as read. `where` is `file:line`; `digest` identifies the content of the line, which `text` holds."""

    where: str
    number: int
    digest: str
    text: str
    trajectories: tuple[Any, ...]
    tools: tuple[Any, ...] | None
    labels: tuple[float | None, ...] | None


def read_groups(path: Path, name: str | None = None) -> Iterator[GroupLine]:
    """The groups of a file, one in memory at a time; empty lines are passed over. Messages call the file `name`.

    Raises `DataError` that names file and line at the first line that is no group, and for a file that cannot be read.
    """
    for number, text in _lines(path, name or str(path)):
        yield _parse(text, f"{name or path}:{number}", number)


def check_groups(path: Path, *, labelled: bool = False, name: str | None = None) -> int:
    """The number of groups in a file in which every line can be judged.

    Reads the whole file, so that a bad line is found before anything is paid for. With `labelled`, each line must have
    labels, and in one at least they must tell two trajectories apart. Raises `DataError` that names file and line.
    """
    from art_ruler.inputs import read_trajectories

    count, tells_apart = 0, False
    for group in read_groups(path, name):
        try:
            read_trajectories(group.trajectories, group.tools)
        except DataError as error:
            raise DataError(f"{group.where}: {error}") from error
        if labelled and group.labels is None:
            raise DataError(
                f'{group.where}: has no "labels"; add the true quality of each trajectory, as in "labels": [0.9, 0.2]'
            )
        count += 1
        tells_apart |= len({label for label in group.labels or () if label is not None}) > 1
    if count == 0:
        raise DataError(f"{name or path}: holds no group; write one group per line")
    if labelled and not tells_apart:
        raise DataError(
            f'{name or path}: in no group do the "labels" differ, so there is no order to compare with; give better '
            "trajectories a higher label than worse ones"
        )
    return count


def _lines(path: Path, name: str) -> Iterator[tuple[int, str]]:
    try:
        if not path.is_file():
            what = "is a folder or a stream" if path.exists() else "does not exist"
            raise DataError(f"{name} {what}; give a JSONL file with one group per line (it is read twice)")
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(f"{name}:{number}: is not UTF-8 (byte {error.start + 1}); convert it") from error
                if text.strip():
                    yield number, text.rstrip("\r\n")
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror}") from error


def _parse(text: str, where: str, number: int) -> GroupLine:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
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
        digest=content_digest(fields),
        text=text.strip(),
        trajectories=tuple(fields["trajectories"]),
        tools=None if tools is None else tuple(tools),
        labels=_labels(fields.get("labels"), len(fields["trajectories"]), where),
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


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


def content_digest(value: Any) -> str:
    """A short hash of a JSON value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]
