"""Draw the arguments of one call from a tool's schema."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from art_mcp.harvest import value_key
from art_mcp.kinds import is_paging
from art_mcp.scenarios import Split
from art_mcp.schema import Property, Schema, properties, resolve, tool_properties, type_of, variants
from art_mcp.types import McpTool
from art_mcp.values import Slot, ValueSource
from art_mcp.vocabulary import TEXT_KINDS

_OPTIONAL_SHARE = 0.3
_MAX_OPTIONAL = 2
_MAX_DEPTH = 5


@dataclass
class Drawn:
    """Arguments of one call, and which slot gave which of their values."""

    arguments: dict[str, JsonValue] = field(default_factory=dict)
    uses: list[tuple[Slot, JsonValue]] = field(default_factory=list)


class NoValueError(Exception):
    """No value is known for a required argument. The message names it."""


def draw(tool: McpTool, source: ValueSource, side: Split, rng: random.Random, *, tier: int = 0) -> Drawn:
    """Arguments for one call of `tool`, their open values all from `side`.

    Every required argument, and now and then an optional one whose values are known. `tier` says how far down each
    slot's list of candidate sources to go.

    Raises:
        NoValueError: a required argument has no candidate on this side.
    """
    drawer = _Drawer(tool, source, side, rng, tier)
    arguments = drawer.object(tool_properties(tool), (), 0)
    return Drawn(arguments, drawer.uses)


class _Drawer:
    def __init__(self, tool: McpTool, source: ValueSource, side: Split, rng: random.Random, tier: int) -> None:
        self._tool, self._source, self._side, self._rng, self._tier = tool, source, side, rng, tier
        self._optional_left = _MAX_OPTIONAL
        self.uses: list[tuple[Slot, JsonValue]] = []

    def object(self, known: list[Property], path: tuple[str, ...], depth: int) -> dict[str, JsonValue]:
        value: dict[str, JsonValue] = {}
        for each in known:
            if each.required:
                value[each.name] = self.value(each.schema, (*path, each.name), depth, required=True)
            elif self._wants(each, depth):
                num_uses = len(self.uses)
                try:
                    value[each.name] = self.value(each.schema, (*path, each.name), depth, required=False)
                    self._optional_left -= 1
                except NoValueError:
                    del self.uses[num_uses:]
        return value

    def _wants(self, each: Property, depth: int) -> bool:
        return (
            self._optional_left > 0 and depth <= 1 and not is_paging(each.name) and self._rng.random() < _OPTIONAL_SHARE
        )

    def value(self, schema: Schema, path: tuple[str, ...], depth: int, *, required: bool) -> JsonValue:
        """A value for `schema`: from the first of its alternatives that has one."""
        reason = NoValueError(f"no value known for argument {'.'.join(path)!r}")
        if depth > _MAX_DEPTH:
            raise reason
        choices = list(variants(schema, self._tool.input_schema))
        if all("const" in choice or "enum" in choice for choice in choices):
            self._rng.shuffle(choices)
        for variant in choices:
            if type_of(variant) == "null" and not required:
                continue
            try:
                return self._of_variant(variant, path, depth, required=required)
            except NoValueError as error:
                reason = error
        raise reason

    def _of_variant(self, schema: Schema, path: tuple[str, ...], depth: int, *, required: bool) -> JsonValue:
        kind = type_of(schema)
        if "const" not in schema and "enum" not in schema:
            if kind == "object":
                return self._object(schema, path, depth)
            if kind == "array":
                return self._array(schema, path, depth)
        slot = self._source.slot(self._tool, path, schema, required=required)
        values = slot.candidates(self._tier, self._side, self._source.sides)
        if not values or (not required and slot.kind == "word" and not slot.closed and not slot.worked):
            raise NoValueError(f"no value known for argument {'.'.join(path)!r}")
        used = {value_key(value) for other, value in self.uses if other.closed == slot.closed is False}
        fresh = [value for value in values if value_key(value) not in used] if _keeps_apart(slot) else values
        value = self._rng.choice(fresh or values)
        self.uses.append((slot, value))
        return value

    def _object(self, schema: Schema, path: tuple[str, ...], depth: int) -> JsonValue:
        known = properties(schema, self._tool.input_schema)
        if known:
            return self.object(known, path, depth + 1)
        if not isinstance(schema.get("additionalProperties"), Mapping):
            return {}
        item = resolve(schema["additionalProperties"], self._tool.input_schema)
        name = self._rng.choice(["first", "second", "third"])
        return {name: self.value(item, (*path, name), depth + 1, required=True)}

    def _array(self, schema: Schema, path: tuple[str, ...], depth: int) -> JsonValue:
        places = schema.get("prefixItems")
        if isinstance(places, list):
            shapes = [resolve(place, self._tool.input_schema) for place in places]
            return [self.value(shape, (*path, str(at)), depth + 1, required=True) for at, shape in enumerate(shapes)]
        item = resolve(schema.get("items"), self._tool.input_schema)
        lowest = schema.get("minItems", 0)
        lowest = max(lowest if isinstance(lowest, int) else 0, 2 if type_of(item) in ("number", "integer") else 1)
        highest = schema.get("maxItems", lowest + 2)
        highest = highest if isinstance(highest, int) else lowest + 2
        length = self._rng.randint(min(lowest, highest), max(min(highest, lowest + 2), min(lowest, highest)))
        items: list[JsonValue] = []
        for _ in range(length):
            value = self.value(item, path, depth + 1, required=True)
            if value not in items or not schema.get("uniqueItems"):
                items.append(value)
        return items


def _keeps_apart(slot: Slot) -> bool:
    """Whether repeating a value within one call would make a pointless task (a time zone converted into itself)."""
    return slot.kind in TEXT_KINDS or slot.kind in ("integer", "number")
