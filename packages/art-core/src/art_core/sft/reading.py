"""Files of conversations and trajectories -> examples. Everything is checked before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_core.control import SftExample
from art_core.errors import DataError
from art_core.messages import STRICT_DECODER
from art_core.sft.checking import check_conversation, check_keys
from art_core.trajectories import History, Trajectory, TrajectoryGroup

_LINE_KEYS = {"messages", "tools", "parallel_tool_calls", "id", "metadata"}
_SHOWN = 5


@dataclass(frozen=True)
class Examples:
    """What can be trained on, and how many trajectories are left out because their rollout failed."""

    examples: list[SftExample]
    num_failed: int = 0


def examples_of_file(path: Path) -> Examples:
    """The conversations of a file of JSON lines.

    Each line is an object with `messages` and, where it has them, `tools`, `parallel_tool_calls`, `id` and `metadata`
    (the last two are not read), as OpenAI's fine-tuning takes it. Empty lines are passed over.

    Raises:
        DataError: the file cannot be read or has no conversation, or some lines cannot be trained on: each is named as
            `file:line` with what is wrong.
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except (OSError, ValueError) as error:  # the second is of a name that no file can have
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        shown = str(path).encode(errors="backslashreplace").decode()
        raise DataError(f"{shown} cannot be read: {reason}; wanted a file of JSON lines") from error
    examples: list[SftExample] = []
    faults: list[str] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                examples.append(_example_of_line(line, f"{path.name}:{number}"))
            except DataError as error:
                faults.append(f"{path}:{number}: {error}")
    refuse_faulty(faults, len(examples) + len(faults), "lines")
    if not examples:
        raise DataError(f'{path} has no line; wanted one conversation in each, as {{"messages": [...]}}')
    return Examples(examples)


def examples_of_trajectories(items: Sequence[Trajectory]) -> Examples:
    """Each trajectory that did not fail: its recorded calls where it has any, else its conversations as they are.

    Raises:
        DataError: a trajectory that did not fail cannot be trained on.
    """
    examples: list[SftExample] = []
    faults: list[str] = []
    for number, trajectory in enumerate(items):
        if trajectory.error is None:
            try:
                examples += _examples_of_one(trajectory)
            except DataError as error:
                faults.append(f"trajectory {number} (id {trajectory.id!r}): {error}")
    num_failed = sum(trajectory.error is not None for trajectory in items)
    refuse_faulty(faults, len(items), "trajectories")
    if not examples:
        failed = f"; the rollouts of all {num_failed} trajectories failed" if num_failed else ""
        raise DataError(f"there is nothing to train on{failed}: wanted one trajectory at least")
    return Examples(examples, num_failed)


def flattened(data: Any) -> list[Trajectory]:
    """The trajectories in `data`, those of groups included.

    Raises:
        DataError: something else is in it.
    """
    items = [data] if isinstance(data, Trajectory | TrajectoryGroup) else data
    if not isinstance(items, Iterable) or isinstance(items, dict):
        raise DataError(
            f"the data is a {type(data).__name__}; wanted trajectories, or the path of a file of JSON lines"
        )
    trajectories: list[Trajectory] = []
    for number, item in enumerate(items):
        if isinstance(item, Trajectory):
            trajectories.append(item)
        elif isinstance(item, TrajectoryGroup):
            trajectories += item.trajectories
        else:
            raise DataError(
                f"item {number} of the data is a {type(item).__name__}; wanted a Trajectory, such as "
                "art_core.Trajectory(messages_and_choices=messages, tools=tools)"
            )
    return trajectories


def refuse_faulty(faults: Sequence[str], total: int, what: str) -> None:
    """Raise where there are `faults`, of `total` items that are called `what`."""
    if faults:
        shown = "; ".join(faults[:_SHOWN]) + ("; ..." if len(faults) > _SHOWN else "")
        raise DataError(f"{len(faults)} of {total} {what} cannot be trained on, and nothing was begun: {shown}")


def _example_of_line(line: bytes, source: str) -> SftExample:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start} is no UTF-8; write the file as UTF-8") from None
    try:
        record = STRICT_DECODER.decode(text.strip())
    except (ValueError, RecursionError) as error:
        raise DataError(f"no JSON ({error}); wanted one whole object in each line") from None
    if not isinstance(record, dict) or "messages" not in record:
        found = f"an object with {sorted(record)}" if isinstance(record, dict) else f"a JSON {type(record).__name__}"
        raise DataError(f"{found}; wanted an object with 'messages'")
    if unknown := sorted(set(record) - _LINE_KEYS):
        older = "; functions are of an older format, give 'tools'" if unknown[0] == "functions" else ""
        raise DataError(f"the field {unknown[0]!r} is unknown; known are {sorted(_LINE_KEYS)}{older}")
    if not isinstance(parallel := record.get("parallel_tool_calls", True), bool):
        raise DataError(f"'parallel_tool_calls' is {parallel!r}; wanted true or false")
    messages, tools = record["messages"], record.get("tools") or []
    _check_text([messages, tools])
    check_conversation(messages, tools, one_call=not parallel)
    check_keys(messages)
    return SftExample(source=source, messages=messages, tools=tools)


def _examples_of_one(trajectory: Trajectory) -> Iterator[SftExample]:
    source = f"trajectory {trajectory.id}"
    if trajectory.exchanges:
        yield SftExample(source=source, exchanges=trajectory.exchanges)
        return
    histories: list[History] = [trajectory, *trajectory.additional_histories]
    for history in histories:
        if history is trajectory and not history.messages_and_choices and len(histories) > 1:
            continue
        messages, tools = _plain(history.messages()), _plain(list(history.tools or []))
        check_conversation(messages, tools)
        yield SftExample(source=source, messages=messages, tools=tools)


def _plain(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages or tools as data that can be sent."""
    try:
        data: list[dict[str, Any]] = json.loads(json.dumps(items, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"its messages or tools cannot be written as JSON: {error}") from error
    _check_text(data)
    return data


def _check_text(data: Any) -> None:
    """Refuse what is no text: half of a surrogate pair, which JSON can say and no tokenizer reads."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"it holds {error.object[error.start]!a}, half of a surrogate pair, which is no text; remove it"
        ) from None
