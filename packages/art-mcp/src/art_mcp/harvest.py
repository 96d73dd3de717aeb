"""Values that a server's own words and answers offer for its arguments: quoted examples, and what other tools list."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from pydantic import JsonValue

from art_mcp.kinds import words_of
from art_mcp.types import ToolResult

_QUOTED = re.compile(
    r"(?<![A-Za-z0-9])(?:'([^'\n]{1,60})'|\"([^\"\n]{1,60})\"|`([^`\n]{1,60})`|“([^”\n]{1,60})”)(?![A-Za-z0-9])"
)
_EXAMPLES = re.compile(
    r"(?:\be\.?g\.?,?:?|\bfor example,?:?|\bsuch as|\bexamples?:|\bone of:?)\s+([^\n;)]{1,120})", re.IGNORECASE
)
_NO_EXAMPLE = re.compile(
    r"^(true|false|null|none|string|integer|number|boolean|object|array|etc|and|or|the|a|an)$|YYYY|HH:MM|[<>{}]",
    re.IGNORECASE,
)
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
_LABELLED = re.compile(r"^([A-Za-z][\w ]{0,30}?)\s*[:=]\s+(.+)$")
_IDENTIFIERS = frozenset({"id", "name", "key", "number", "slug", "code", "identifier"})
_VERBS = frozenset(
    {"get", "list", "find", "search", "read", "show", "fetch", "describe", "lookup", "query", "all", "by"}
)
_MAX_ENTRIES = 2000
_MAX_LENGTH = 80
_MAX_LITERAL = 10_000


def quoted_examples(description: str) -> list[str]:
    """Values that a description gives as examples: in quotes, or after "e.g.", "such as", "one of"."""
    found = [next(group for group in match.groups() if group is not None) for match in _QUOTED.finditer(description)]
    for match in [] if found else _EXAMPLES.finditer(description):
        for part in re.split(r",\s*|\s+or\s+|\s+and\s+", match[1]):
            value = part.strip().rstrip(".")
            if value and len(value.split()) <= 2:
                found.append(value)
    return list(dict.fromkeys(value for value in found if not _NO_EXAMPLE.search(value.strip())))


@dataclass(frozen=True)
class _Entry:
    words: frozenset[str]
    tail: str
    in_list: bool
    tool_words: frozenset[str]
    value: str | int | float


class Harvest:
    """What the server has answered so far, to be asked for by the name of an argument."""

    def __init__(self) -> None:
        self._entries: dict[_Entry, None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, tool_name: str, result: ToolResult, *, leave_out: Set[str] = frozenset()) -> None:
        """Remember the values in `result`, save those with a key in `leave_out`, under the names they have there."""
        tool_words = frozenset(singular(word) for word in words_of(tool_name)) - _VERBS
        if result.structured is None or isinstance(result.structured, str | int | float):
            leaves = list(_leaves(_literal(result.text), (), False)) or list(
                _text_leaves(result.text, sorted(tool_words))
            )
        else:
            leaves = list(_leaves(result.structured, (), False))
        for names, in_list, value in leaves:
            words = [singular(word) for name in names for word in words_of(name)]
            if len(self._entries) < _MAX_ENTRIES and words and value_key(value) not in leave_out:
                self._entries[_Entry(frozenset(words), words[-1], in_list, tool_words, value)] = None

    def matching(self, name: str, tool_name: str) -> list[str | int | float]:
        """Values seen under a name like that of argument `name` of tool `tool_name`, in the order seen."""
        words = [singular(word) for word in words_of(name)]
        if not words:
            return []
        core = frozenset(words) - _IDENTIFIERS
        tail = words[-1]
        topic = frozenset(singular(word) for word in words_of(tool_name)) - _VERBS
        if core:
            hits = [
                entry
                for entry in self._entries
                if core <= entry.words | entry.tool_words
                and (entry.tail == tail or (entry.in_list and entry.tail in core))
            ]
        else:
            hits = [entry for entry in self._entries if entry.tail == tail or entry.in_list]
            near = [entry for entry in hits if topic & (entry.words | entry.tool_words)]
            hits = near or [entry for entry in hits if entry.tail == tail]
        return list(dict.fromkeys(entry.value for entry in hits))


def value_key(value: JsonValue) -> str:
    """One text for values that a reader would take for the same."""
    if isinstance(value, str):
        return value.strip().casefold()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return json.dumps(value, sort_keys=True)


def singular(word: str) -> str:
    """`users` -> `user`, `cities` -> `city`; words in -ss, -us and -is stay."""
    if len(word) > 3 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith(("ses", "xes", "ches", "shes")):
        return word[:-2]
    if len(word) > 2 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _leaves(
    value: JsonValue, names: tuple[str, ...], in_list: bool
) -> Iterator[tuple[tuple[str, ...], bool, str | int | float]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*names, key), False)
    elif isinstance(value, list):
        for item in value[:100]:
            yield from _leaves(item, names, True)
    elif isinstance(value, str) and "\n" in value:
        yield from _text_leaves(value, names)
    elif isinstance(value, str | int | float) and not isinstance(value, bool) and 0 < len(str(value)) <= _MAX_LENGTH:
        yield names, in_list, value


def _literal(text: str) -> JsonValue:
    """What a Python server printed of a list or dict; None for other text."""
    if not text.lstrip().startswith(("[", "{")) or len(text) > _MAX_LITERAL:
        return None
    try:
        value: JsonValue = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, list | dict) else None


def _text_leaves(text: str, names: Sequence[str]) -> Iterator[tuple[tuple[str, ...], bool, str | int | float]]:
    """Lines of a plain list, and the values of `label: value` lines."""
    for line in text.splitlines()[:100]:
        value = _BULLET.sub("", line).strip().strip("'\"`")
        labelled = _LABELLED.match(value)
        if labelled:
            yield (labelled[1],), False, labelled[2].strip()[:_MAX_LENGTH]
        elif value and len(value) <= _MAX_LENGTH and len(value.split()) <= 3:
            yield tuple(names), True, value
