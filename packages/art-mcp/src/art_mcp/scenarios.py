"""Scenarios: one task each, with the call that answers it. Kept as JSON lines that a person can read and edit."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from art_core.errors import DataError, StorageError
from art_mcp.facts import Fact

Split = Literal["train", "held_out"]
WORKDIR_PLACEHOLDER = "{workdir}"


class Scenario(BaseModel):
    """One task, the call a perfect agent makes, and what its answer must carry.

    `reference` is what the tool answered when the scenario was made. It informs a reader; rewards are computed from
    the result that a rollout itself got. `{workdir}` in the task or the arguments stands for the folder of a session.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1, pattern=r"^[^\x00-\x1f\x7f]*$")
    split: Split
    tool: str = Field(min_length=1)
    arguments: dict[str, JsonValue]
    task: str = Field(min_length=1)
    facts: tuple[Fact, ...] = ()
    reference: str | None = None

    def in_workdir(self, workdir: Path | None) -> Scenario:
        """The same scenario for a session whose working folder is `workdir`."""
        if workdir is None:
            return self
        update = {
            "task": self.task.replace(WORKDIR_PLACEHOLDER, str(workdir)),
            "arguments": replace_text(self.arguments, WORKDIR_PLACEHOLDER, str(workdir)),
        }
        return self.model_copy(update=update)


def replace_text(value: JsonValue, old: str, new: str) -> JsonValue:
    """`value` with `old` replaced in every string of it, keys excepted."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, list):
        return [replace_text(item, old, new) for item in value]
    if isinstance(value, dict):
        return {key: replace_text(item, old, new) for key, item in value.items()}
    return value


def call_key(tool: str, arguments: JsonValue) -> str:
    """One text for equal calls: key order and the spelling of whole numbers play no part."""
    return f"{tool} {json.dumps(_canonical(arguments), sort_keys=True, ensure_ascii=False)}"


def _canonical(value: JsonValue) -> JsonValue:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    return value


def read_scenarios(path: Path) -> list[Scenario]:
    """The scenarios of a JSON lines file, in order; blank lines are skipped.

    Raises:
        DataError: the file cannot be read, a line is not a scenario, an id occurs twice, the same call is in both
            splits, or a split is empty. One line, with file and line number.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DataError(f"{path}: cannot read scenarios: {reason}; `art-mcp scenarios` writes such a file") from error
    scenarios: list[Scenario] = []
    ids: dict[str, int] = {}
    calls: dict[str, tuple[int, Split]] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        scenario = _parse(f"{path}:{number}", line)
        if scenario.id in ids:
            raise DataError(
                f"{path}:{number}: id {scenario.id!r} is also in line {ids[scenario.id]}; give each its own"
            )
        ids[scenario.id] = number
        key = call_key(scenario.tool, scenario.arguments)
        first, split = calls.setdefault(key, (number, scenario.split))
        if split != scenario.split:
            raise DataError(
                f"{path}:{number}: the same call of {scenario.tool!r} is in line {first} as {split!r}; held-out "
                "scenarios must not be trained on: change its arguments or remove one of the two"
            )
        scenarios.append(scenario)
    for wanted in ("train", "held_out"):
        if not any(scenario.split == wanted for scenario in scenarios):
            raise DataError(
                f"{path}: none of its {len(scenarios)} scenarios has split {wanted!r}; wanted at least one 'train' and "
                "one 'held_out'"
            )
    return scenarios


def _parse(place: str, line: str) -> Scenario:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not valid JSON ({error}); wanted one scenario object per line") from error
    if not isinstance(record, dict):
        raise DataError(f"{place}: a JSON {type(record).__name__}; wanted one scenario object per line")
    try:
        return Scenario.model_validate(record)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in problem["loc"])
        got = "" if problem["type"] == "missing" else f", got {problem['input']!r}"[:120]
        fields = ", ".join(Scenario.model_fields)
        raise DataError(f"{place}: field {field!r}: {problem['msg']}{got}; the fields are {fields}") from error


def write_scenarios(path: Path, scenarios: Sequence[Scenario]) -> None:
    """Write `scenarios` as JSON lines; the file appears whole or not at all.

    Raises:
        StorageError: the folder is missing, full or not writable.
    """
    text = "".join(json.dumps(s.model_dump(mode="json"), ensure_ascii=False) + "\n" for s in scenarios)
    staging: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", newline="\n", dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False
        ) as file:
            staging = Path(file.name)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        staging.chmod(0o644)
        staging.replace(path)
    except OSError as error:
        if staging is not None:
            staging.unlink(missing_ok=True)
        raise StorageError(f"{path}: cannot write scenarios: {error.strerror}; give a writable place") from error
