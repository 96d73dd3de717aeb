"""Where argument values come from, and which split may use them.

An *open* value (a time zone, a number, an id) belongs to one split, whatever tool or property it is used for. Values of
a *closed* set (an enum, a boolean, a constant, the only value known) cannot be kept apart and serve both.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from art_mcp.harvest import Harvest, quoted_examples, value_key
from art_mcp.kinds import DEFAULT_RANGE, is_measure, is_root, number_range, text_kind, words_of
from art_mcp.patterns import make_matching
from art_mcp.scenarios import WORKDIR_PLACEHOLDER, Split, replace_text
from art_mcp.schema import ArgumentSchema, Schema, type_of
from art_mcp.types import McpTool, ToolResult
from art_mcp.vocabulary import make_expression, make_queries, make_sentences, make_values

SPLITS: tuple[Split, Split] = ("train", "held_out")
_STRICT_KINDS = frozenset({"time_zone", "clock_time", "date", "datetime", "expression", "currency"})
_MAX_FAILURES = 2
_MIN_TO_DROP = 4
_MAX_FILES = 100


class Sides:
    """Assigns every open value to one split, half and half within what is assigned together."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"{seed}/sides")
        self._sides: dict[str, Split] = {}

    def assign(self, values: Iterable[JsonValue]) -> None:
        """Give each of `values` a side that has none yet, so that the sides stay balanced over `values`."""
        keys = list(dict.fromkeys(value_key(value) for value in values))
        counts = {split: sum(self._sides.get(key) == split for key in keys) for split in SPLITS}
        fresh = [key for key in keys if key not in self._sides]
        self._rng.shuffle(fresh)
        for key in fresh:
            side: Split = "train" if counts["train"] <= counts["held_out"] else "held_out"
            self._sides[key] = side
            counts[side] += 1

    def put(self, value: JsonValue, side: Split) -> bool:
        """Assign one value; False if it belongs to the other side already."""
        return self._sides.setdefault(value_key(value), side) == side

    def of(self, value: JsonValue) -> Split | None:
        return self._sides.get(value_key(value))


@dataclass
class Slot:
    """One place for a value in the arguments of a tool, with the values it may take.

    `tiers` holds candidate lists, the most promising first; the next is used when calls with one keep failing. `fixed`
    values are the schema's own, whatever the server answers.
    """

    name: str
    closed: bool
    tiers: list[list[JsonValue]]
    kind: str
    fixed: bool = False
    failures: dict[str, int] = field(default_factory=dict)
    worked: set[str] = field(default_factory=set)

    def candidates(self, tier: int, side: Split, sides: Sides) -> list[JsonValue]:
        """What may be drawn for `side`, from list number `tier` or the first later one that has something.

        Values that failed repeatedly and never worked are left out, where there are enough others.
        """
        for values in self.tiers[min(tier, len(self.tiers) - 1) :] if self.tiers else ():
            mine = [value for value in values if self.closed or sides.of(value) == side]
            if len(values) >= _MIN_TO_DROP:
                mine = [value for value in mine if self._may_work(value)]
            if mine:
                return mine
        return []

    def _may_work(self, value: JsonValue) -> bool:
        key = value_key(value)
        return key in self.worked or self.failures.get(key, 0) < _MAX_FAILURES

    def note(self, value: JsonValue, *, worked: bool) -> None:
        """Learn from a call in which `value` was used here."""
        if worked:
            self.worked.add(value_key(value))
        else:
            self.failures[value_key(value)] = self.failures.get(value_key(value), 0) + 1


@dataclass
class _Known:
    """A slot, and what of the server's answers went into it."""

    slot: Slot
    checker: ArgumentSchema
    grows: bool
    num_harvested: int
    seen: list[str | int | float]


class ValueSource:
    """Slots of all tools. What is known about a slot grows with the server's answers."""

    def __init__(self, seed: int, num_wanted: int, workdir: Path | None, hints: Sequence[str] = ()) -> None:
        self.sides = Sides(seed)
        self.harvest = Harvest()
        self._seed = seed
        self._num_wanted = num_wanted
        self._workdir = workdir
        self._folders = [] if workdir is None else [(workdir, WORKDIR_PLACEHOLDER)]
        self._folders += [(Path(hint), hint.rstrip("/")) for hint in hints if _is_folder(hint)]
        self._slots: dict[tuple[str, tuple[str, ...], str], _Known] = {}
        self._operands_assigned = False

    def learn(self, tool: McpTool, arguments: Mapping[str, JsonValue], result: ToolResult) -> None:
        """Offer the values of a result, save those that only repeat an argument, to arguments of like names."""
        if self._workdir is not None:
            folder = str(self._workdir)
            structured = replace_text(result.structured, folder, WORKDIR_PLACEHOLDER)
            result = ToolResult(result.text.replace(folder, WORKDIR_PLACEHOLDER), structured)
        self.harvest.add(tool.name, result, leave_out={value_key(value) for value in _leaves_of(dict(arguments))})

    def slot(self, tool: McpTool, path: tuple[str, ...], schema: Schema, *, required: bool) -> Slot:
        """The slot for the leaf `schema` (resolved, without alternatives) at `path` of the arguments."""
        key = (tool.name, path, json.dumps(schema, sort_keys=True, default=str))
        known = self._slots.get(key)
        if known is not None and (known.num_harvested == len(self.harvest) or not known.grows):
            return known.slot
        seen = list(self.harvest.matching(path[-1], tool.name)) if path else []
        if known is None:
            checker = ArgumentSchema(schema, tool.input_schema)
            slot = self._make(tool, path, schema, checker, seen, required=required)
            grows = type_of(schema) in ("string", "any", "integer", "number") and not slot.fixed
            self._slots[key] = _Known(slot, checker, grows, len(self.harvest), seen)
            return slot
        known.num_harvested = len(self.harvest)
        if seen != known.seen or known.slot.kind == "sql":
            known.seen = seen
            slot = self._make(tool, path, schema, known.checker, seen, required=required)
            slot.failures, slot.worked = known.slot.failures, known.slot.worked
            known.slot = slot
        return known.slot

    def _make(
        self,
        tool: McpTool,
        path: tuple[str, ...],
        schema: Schema,
        checker: ArgumentSchema,
        seen: Sequence[JsonValue],
        *,
        required: bool,
    ) -> Slot:
        name = path[-1] if path else "value"
        default = [] if required or "default" not in schema else [value_key(schema["default"])]

        def usable(values: Sequence[JsonValue]) -> list[JsonValue]:
            unique = {value_key(value): value for value in reversed(values) if checker.problem(value) is None}
            return [value for value in reversed(unique.values()) if value_key(value) not in default]

        kind = type_of(schema)
        fixed = _closed_values(schema, kind)
        if fixed is not None:
            return Slot(name, True, [usable(fixed)], kind, fixed=True)
        if kind in ("integer", "number"):
            tiers = self._numbers(tool, path, schema, kind, seen)
        elif kind in ("string", "any"):
            kind, tiers = self._texts(tool, path, schema, seen)
        else:
            tiers = []
        tiers = [values for tier in tiers if (values := usable(tier))]
        if not tiers and required and "default" in schema:
            tiers = [[schema["default"]]]
        if len(tiers) == 1 and len(tiers[0]) == 1:
            return Slot(name, True, tiers, kind)
        for values in tiers:
            self.sides.assign(values)
        return Slot(name, False, tiers, kind)

    def _offered(self, tool: McpTool, schema: Schema) -> list[JsonValue]:
        """Values that the schema and its description give as examples."""
        given = schema.get("examples")
        single = schema.get("example")
        values: list[JsonValue] = list(given) if isinstance(given, list) else []
        values += [single] if isinstance(single, str | int | float) else []
        values += quoted_examples(str(schema.get("description", "")))
        if not values and len(tool.input_schema.get("properties", ())) == 1:
            values += quoted_examples(tool.description or "")
        names = set(tool.input_schema.get("properties", ()))
        return [value for value in values if not isinstance(value, str) or value not in names]

    def _numbers(
        self, tool: McpTool, path: tuple[str, ...], schema: Schema, kind: str, seen: Sequence[JsonValue]
    ) -> list[list[JsonValue]]:
        name = path[-1] if path else "value"
        offered = [_as_number(value, kind) for value in self._offered(tool, schema)]
        known: list[JsonValue] = [value for value in offered if value is not None]
        if words_of(name)[-1:] in (["id"], ["number"], ["index"], ["key"]):
            known += [value for value in seen if not isinstance(value, str)]
        self._assign_operands()
        made = _numbers_in_range(
            name, schema, kind, self._num_wanted, random.Random(f"{self._seed}/{tool.name}/{path}")
        )
        return [known, made] if known and words_of(name)[-1:] == ["id"] else [[*known, *made]]

    def _texts(
        self, tool: McpTool, path: tuple[str, ...], schema: Schema, seen: Sequence[JsonValue]
    ) -> tuple[str, list[list[JsonValue]]]:
        rng = random.Random(f"{self._seed}/{tool.name}/{path}")
        name = path[-1] if path else "value"
        size = max(60, 4 * self._num_wanted)
        kind = text_kind(name, schema, tool_name=tool.name, tool_description=tool.description or "") or ""
        offered = [value for value in self._offered(tool, schema) if isinstance(value, str)]
        if kind == "time_zone":
            return kind, [make_values(kind, rng, size)]
        if kind == "expression":
            return kind, [[*offered, *self._expressions(rng, size)]]
        vocabulary = make_values(kind, rng, size)
        if kind in _STRICT_KINDS:
            return kind, [[*vocabulary], [*offered]]
        listed = [str(value) for value in seen]
        if kind in ("file", "folder"):
            return kind, [*self._paths(name, kind), [*offered, *listed]]
        if kind == "sql":
            return kind, [[*offered, *self._queries(tool)], [*make_queries(rng, size)]]
        if "pattern" in schema:
            vocabulary = [*vocabulary, *make_matching(str(schema["pattern"]), rng, size)]
        known = [*offered, *listed]
        few = len(known) < _MIN_TO_DROP and vocabulary
        tiers: list[list[JsonValue]] = [[*known, *vocabulary]] if few else [[*known], vocabulary]
        if kind in ("word", "text", ""):
            tiers.append([*make_queries(rng, size)] if kind != "text" else [*make_sentences(rng, size)])
        return kind or "word", tiers

    def _expressions(self, rng: random.Random, size: int) -> list[JsonValue]:
        """Expressions of both sides, each made of the operands of its side alone."""
        self._assign_operands()
        made: list[JsonValue] = []
        for side in SPLITS:
            operands = [value for value in _small_integers() if self.sides.of(value) == side]
            for _ in range(size):
                expression = make_expression(rng, operands)
                if expression not in made and self.sides.put(expression, side):
                    made.append(expression)
        return made

    def _queries(self, tool: McpTool) -> list[JsonValue]:
        """SQL that reads from the tables that the server listed; a query belongs to the side of its table."""
        tables = [table for table in self.harvest.matching("table_name", tool.name) if isinstance(table, str)]
        self.sides.assign(tables)
        made: list[JsonValue] = []
        for table in tables:
            side = self.sides.of(table)
            for query in (f"SELECT COUNT(*) FROM {table}", f"SELECT * FROM {table} LIMIT 1"):
                if side is not None and table.isidentifier() and self.sides.put(query, side):
                    made.append(query)
        return made

    def _paths(self, name: str, kind: str) -> list[list[JsonValue]]:
        """Paths in the folders at hand: of the wanted kind, then of the other; relative ones, then absolute ones."""
        if kind == "folder" and is_root(name):
            return [[shown for _, shown in self._folders]]
        tiers: list[list[JsonValue]] = []
        for wanted in (kind, "folder" if kind == "file" else "file"):
            relative: list[JsonValue] = []
            absolute: list[JsonValue] = []
            for folder, shown in self._folders:
                inside = _entries(folder, wanted)
                relative += inside
                absolute += [shown] if wanted == "folder" else []
                absolute += [f"{shown}/{path}" for path in inside]
            tiers += [relative, absolute]
        return tiers

    def _assign_operands(self) -> None:
        """Small integers get their sides first and once, smallest ones apart, so that each side has one-digit ones."""
        if not self._operands_assigned:
            self._operands_assigned = True
            small = _small_integers()
            self.sides.assign(small[:11])
            self.sides.assign(small)


def _is_folder(text: str) -> bool:
    return "/" in text.strip("/") and "\0" not in text and len(text) < 1000 and Path(text).is_dir()


def _leaves_of(value: JsonValue) -> Iterator[JsonValue]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves_of(item)
    else:
        yield value


def _small_integers() -> list[int]:
    return list(range(DEFAULT_RANGE[0], DEFAULT_RANGE[1] + 1))


def _closed_values(schema: Schema, kind: str) -> list[JsonValue] | None:
    if "const" in schema:
        return [schema["const"]]
    if isinstance(schema.get("enum"), list):
        return [value for value in schema["enum"] if value is not None]
    if kind == "boolean":
        return [True, False]
    return [None] if kind == "null" else None


def _as_number(value: JsonValue, kind: str) -> JsonValue:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if number - number != 0:
        return None
    return int(number) if number.is_integer() else (None if kind == "integer" else number)


def _numbers_in_range(
    name: str, schema: Mapping[str, Any], kind: str, num_wanted: int, rng: random.Random
) -> list[JsonValue]:
    """Numbers within the bounds of the schema and of good sense; whole ones, and for "number" some halves."""
    low, high = map(float, number_range(name))
    usual = number_range(name) == DEFAULT_RANGE
    lowest, highest = _bound(schema, "minimum", "exclusiveMinimum"), _bound(schema, "maximum", "exclusiveMaximum")
    step = schema.get("multipleOf")
    step = float(step) if isinstance(step, int | float) and step > 0 else 1.0
    if usual and num_wanted > 40:
        high = 999
    if lowest is not None:
        width = high - low
        low = max(low, lowest) if lowest <= high else lowest
        high = max(high, low + width) if low > high else high
    if highest is not None:
        width = max(high - low, 0)
        high = min(high, highest)
        low = min(low, high) if lowest is not None else (low if low <= high else high - width)
    span = max(0, int((high - low) // step))
    first = -(-low // step) * step
    every = range(span + 1)
    chosen = list(every) if span < 400 else sorted(rng.sample(every, 400))
    values: list[JsonValue] = []
    for index in chosen:
        number = first + index * step
        values.append(int(number) if float(number).is_integer() else round(number, 6))
        if kind == "number" and step == 1.0 and index % 3 == 0 and is_measure(name):
            values.append(number + 0.5)
    return values


def _bound(schema: Mapping[str, Any], inclusive: str, exclusive: str) -> float | None:
    value = schema.get(inclusive, schema.get(exclusive))
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _entries(folder: Path, kind: str) -> list[str]:
    """Files or folders below `folder`, relative to it, hidden ones left out."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_dir() == (kind == "folder"))
    relative = (path.relative_to(folder) for path in found)
    return [path.as_posix() for path in relative if not any(part.startswith(".") for part in path.parts)][:_MAX_FILES]
