"""Choose which part of a tool's result an answer must carry: short, telling, and not to be had from the question."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from pydantic import JsonValue

from art_mcp.facts import Fact, FactKind, FactValue, carries, fact_value, mentions, normalised, values_of
from art_mcp.harvest import singular
from art_mcp.kinds import words_of
from art_mcp.scenarios import WORKDIR_PLACEHOLDER
from art_mcp.types import ToolResult

_MAX_TEXT = 40
_MAX_DIGITS = 12
_MAX_LINES = 8
_MAX_VALUES_PER_LINE = 4
_MAX_CANDIDATES = 200
_MIN_CONSTANT = 3
_MIN_ECHO = 4
_TELLING = frozenset(
    {"result", "answer", "total", "value", "target", "output", "converted", "sum", "count", "price", "temperature"}
)
_DULL = frozenset(
    {"id", "uuid", "source", "input", "request", "created", "updated", "version", "timestamp", "page", "offset"}
) | frozenset({"limit", "status", "type", "url", "uri", "duration", "elapsed", "hash", "token", "cursor"})
_QUANTITY = re.compile(r"\s*[-+−]?[$€£]?\s?[\d,]*\.?\d+(?:e[-+]?\d+)?\s?[%°A-Za-z/]{0,8}\s*", re.IGNORECASE)
_LABELLED = re.compile(r"([A-Za-z][A-Za-z ]{1,30})\s*[:=]\s*\S*\s*$")


@dataclass(frozen=True)
class Sample:
    """One reference call of a tool and its result."""

    arguments: Mapping[str, JsonValue]
    result: ToolResult


def rank_facts(samples: Sequence[Sample], repeated: Sample | None = None) -> list[Fact]:
    """Facts that results of one tool offer, the best first.

    Good facts differ between calls with different arguments, are short, and are named like a result; one that is the
    same in all of three or more calls, or only repeats an argument, is no fact. `repeated` is a second call with the
    arguments of the last sample: a number that differs between the two measures the moment, not the question, and
    ranks low.
    """
    offered: dict[tuple[tuple[str | int, ...], FactKind], Fact] = {}
    for sample in samples:
        for fact in facts_of(sample.result):
            if len(offered) < _MAX_CANDIDATES:
                offered.setdefault((fact.path, fact.kind), fact)
    scored = []
    for position, fact in enumerate(offered.values()):
        score = _score(fact, samples, repeated)
        if score is not None:
            scored.append((-(score - 0.05 * position), position, fact))
    return [fact for _, _, fact in sorted(scored, key=lambda entry: entry[:2])]


def _score(fact: Fact, samples: Sequence[Sample], repeated: Sample | None) -> float | None:
    values = [fact_value(fact, sample.result) for sample in samples]
    present = [
        _without_arguments(value, sample.arguments)
        for value, sample in zip(values, samples, strict=True)
        if value is not None
    ]
    fits = sum(is_admissible(fact, sample.arguments, sample.result) for sample in samples)
    if not fits:
        return None
    distinct = len(set(present))
    repeats = distinct == 1 and fact.kind == "text" and "…" in str(present[0])
    if repeats or (distinct == 1 and len(present) >= _MIN_CONSTANT):
        return None
    words = {singular(word) for word in fact.label.split()}
    score = 3.0 if fact.kind in ("number", "clock_time") else 2.0
    score += 2.0 * bool(words & _TELLING) - 2.0 * bool(words & _DULL)
    score -= 0.3 * max(0, len(fact.path) - 1)
    score -= 0.4 * sum(isinstance(step, int) and step > 0 for step in fact.path)
    score += 2.0 * distinct / len(present) + 2.0 * fits / len(samples)
    if fact.kind == "text":
        score -= 0.5 * max(0.0, sum(len(str(value).split()) for value in present) / len(present) - 2)
        score -= 3.0 * any(re.search(r"[\[\]{}]", str(value)) for value in present)
    if any(isinstance(value, Decimal) and len(value.as_tuple().digits) > 8 for value in present):
        score -= 1.5
    if repeated is not None and fact.kind in ("number", "text"):
        score -= 4.0 * (fact_value(fact, repeated.result) != values[-1])
    return score


def _without_arguments(value: FactValue, arguments: Mapping[str, JsonValue]) -> FactValue:
    """`value` without what it merely repeats: "wrote a.txt" and "wrote b.txt" say the same of two files."""
    if isinstance(value, str):
        for text in sorted(_texts(dict(arguments)), key=len, reverse=True):
            value = value.replace(text, "…")
    return value


def is_admissible(fact: Fact, arguments: Mapping[str, JsonValue], result: ToolResult, task: str = "") -> bool:
    """Whether `result` states `fact` briefly, where the model reads it, and neither arguments nor task give it away."""
    value = fact_value(fact, result)
    if value is None or not carries(result.text, fact, value):
        return False
    if isinstance(value, str):
        if len(value) > _MAX_TEXT or not re.search(r"\w", value) or WORKDIR_PLACEHOLDER in value:
            return False
        if any(len(text) >= _MIN_ECHO and text in value for text in _texts(dict(arguments))):
            return False
        return not any(value in text for text in _texts([dict(arguments), task or None]))
    if isinstance(value, Decimal) and len(value.as_tuple().digits) > _MAX_DIGITS:
        return False
    given = mentions("\n".join([*_texts(dict(arguments)), task]))
    if isinstance(value, Decimal):
        return all(abs(number) != abs(value) for number in given.numbers)
    return value not in values_of(given, fact.kind)


def facts_of(result: ToolResult) -> Iterator[Fact]:
    """Every place in `result` that could be asked for."""
    if isinstance(result.structured, dict | list):
        yield from _facts_at(result.structured, ())
    else:
        yield from _facts_of_text(result.text, (), "result")


def _facts_at(value: JsonValue, path: tuple[str | int, ...]) -> Iterator[Fact]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _facts_at(item, (*path, key))
    elif isinstance(value, list):
        if value:
            yield from _facts_at(value[0], (*path, 0))
    elif isinstance(value, str):
        yield from _facts_of_text(value, path, label_of(path, "text"))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield Fact(path=path, label=label_of(path, "number"), kind="number")


def _facts_of_text(text: str, path: tuple[str | int, ...], label: str) -> Iterator[Fact]:
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return
    found = mentions(text)
    if len(lines) == 1 and len(text) <= _MAX_TEXT:
        if found.clock_times and len(found.clock_times) == 1:
            yield Fact(path=path, label=label_of(path, "clock_time"), kind="clock_time")
        if len(found.dates) == 1:
            yield Fact(path=path, label=label_of(path, "date"), kind="date")
        if _QUANTITY.fullmatch(text) and len(found.numbers) == 1 and not found.clock_times and not found.dates:
            yield Fact(path=path, label=label, kind="number")
            return
        if not found.clock_times and not found.dates:
            yield Fact(path=path, label=label, kind="text")
        if _is_one_value(text):
            return
    for number, line in enumerate(lines[:_MAX_LINES]):
        stated = mentions(line)
        where = label if len(lines) == 1 else f"{_ordinal(number)} line of the {label}"
        kinds: tuple[FactKind, ...] = ("number", "clock_time", "date")
        for kind in kinds:
            count = len(values_of(stated, kind))
            for occurrence in range(min(count, _MAX_VALUES_PER_LINE)):
                name = _line_label(line, occurrence) if count == len(stated.numbers) else None
                last = occurrence == count - 1 and len(lines) == 1
                which = f"{_ordinal(occurrence)} " if count > 1 else ""
                name = name or (label if last else f"{which}{kind.replace('_', ' ')} in the {where}")
                yield Fact(path=(*path, number, -1 if last else occurrence), label=name, kind=kind)
        if len(lines) > 1 and len(line) <= _MAX_TEXT and not stated.numbers:
            yield Fact(path=(*path, number), label=where, kind="text")


def _is_one_value(text: str) -> bool:
    return len(text.split()) == 1


def _line_label(line: str, occurrence: int) -> str | None:
    """The words before the colon or equals sign in front of a number: `Temperature: 21` is labelled "temperature"."""
    places = [match.start() for match in re.finditer(r"(?<![\w.])[-+]?[$€£]?\d[\d:.,-]*", line)]
    if occurrence >= len(places):
        return None
    before = _LABELLED.search(line[: places[occurrence]])
    return " ".join(before[1].lower().split()[-3:]) if before else None


def label_of(path: Sequence[str | int], kind: FactKind) -> str:
    """The keys of a path in words: `("target", "datetime")` is the "target time" where a clock time is meant."""
    words: list[str] = []
    for index, step in enumerate(path):
        if isinstance(step, int):
            if words and index and isinstance(path[index - 1], str):
                words = [*words[:-1], singular(words[-1])]
            words = [_ordinal(step), *words]
        else:
            words += [word for word in words_of(step) if word not in words]
    stamp = {"clock_time": "time", "date": "date"}.get(kind)
    if stamp:
        words = [stamp if word in ("datetime", "timestamp") else word for word in words]
        if words[-2:] == ["date", "time"]:
            words = [*words[:-2], stamp]
    return " ".join(dict.fromkeys(words)) or "result"


def _ordinal(index: int) -> str:
    return ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")[min(max(index, 0), 7)]


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, bool) or value is None:
        return
    else:
        text = normalised(str(value))
        if text:
            yield text
