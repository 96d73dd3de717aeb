"""Facts: what an answer must carry, read from a tool's result and found again in free text by value, not by spelling.

`14`, `14.0` and `+14` are one number; `6:30 PM` and `18:30:00` one clock time; `30 November 2026` and `2026-11-30` one
date. Text is compared case-folded with its white space collapsed.
"""

from __future__ import annotations

import datetime as dt
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from art_mcp.types import ToolResult

FactKind = Literal["number", "clock_time", "date", "text"]
FactValue = Decimal | dt.time | dt.date | str
_Reader = Callable[[re.Match[str]], dt.time | dt.date | bool | None]


class Fact(BaseModel):
    """One part of a tool's result that the final answer must carry.

    `path` leads into the structured result: keys of objects, positions in arrays. Inside a string, one further integer
    picks its line (blank lines not counted) and a second one picks among the values of `kind` on that line. The empty
    path is the whole result; a result that is only text counts as one string. `label` says in words what it is.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: tuple[str | int, ...] = ()
    label: str
    kind: FactKind


@dataclass(frozen=True)
class Mentions:
    """The values that a text states, in order of appearance. Clock times are to the minute."""

    numbers: tuple[Decimal, ...] = ()
    clock_times: tuple[dt.time, ...] = ()
    dates: tuple[dt.date, ...] = ()
    weekdays: tuple[str, ...] = ()

    @classmethod
    def joined(cls, parts: Iterable[Mentions]) -> Mentions:
        """All values of several texts."""
        every = tuple(parts)
        return cls(
            tuple(value for part in every for value in part.numbers),
            tuple(value for part in every for value in part.clock_times),
            tuple(value for part in every for value in part.dates),
            tuple(value for part in every for value in part.weekdays),
        )


_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_YMD = re.compile(r"(?<!\d)(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?:(?=T\d)T|(?!\d))", re.IGNORECASE)
_DMY_WORDS = re.compile(
    rf"(?<!\d)(\d{{1,2}})(?:st|nd|rd|th)?(?:\s+of)?[\s-]+{_MONTH},?[\s-]+(\d{{4}})(?!\d)", re.IGNORECASE
)
_MDY_WORDS = re.compile(rf"\b{_MONTH}\s+(\d{{1,2}})(?:st|nd|rd|th)?,?\s+(\d{{4}})(?!\d)", re.IGNORECASE)
_DMY_NUMBERS = re.compile(r"(?<![\d/.])(\d{1,2})([/.])(\d{1,2})\2(\d{4})(?!\d)")
_CLOCK = re.compile(
    r"(?<![\d:.+])(\d{1,2}):([0-5]\d)(?::[0-5]\d(?:[.,]\d+)?(?:[+-]\d{2}:?\d{2})?)?(?:\s*([ap])\.?m\b\.?)?(?![\d:])",
    re.IGNORECASE,
)
_CLOCK_HOUR = re.compile(r"(?<![\d:.])(\d{1,2})\s*([ap])\.?m\b\.?", re.IGNORECASE)
_OFFSET = re.compile(r"\b(?:UTC|GMT)\s?[+-]\d{1,2}(?::?\d{2})?(?!\d)")
_NUMBER = re.compile(
    r"(?<![\w.])(?:(?<![\w)\]])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,40})(?:\.\d{1,40})?(?:e[-+]?\d{1,3}\b)?(?!\.?\d)"
    r"|(?<![\w.)\]])[-+]?\.\d{1,40}(?!\.?\d)",
    re.IGNORECASE,
)
_WEEKDAY = re.compile(r"\b(monday|tuesday|wednesday|thursday|friday|saturday|sunday)\b", re.IGNORECASE)
_PUNCTUATION = str.maketrans("−–‘’“”", "--''\"\"")
_LONG_DIGITS = 6
_MIN_ROUNDED_DIGITS = 4


def mentions(text: str) -> Mentions:
    """Every number, clock time, date and weekday in `text`. Digits of a date or time are no numbers of their own."""
    rest = _plain(text)
    dates: list[tuple[int, dt.date]] = []
    clocks: list[tuple[int, dt.time]] = []

    def take(pattern: re.Pattern[str], read: _Reader) -> None:
        nonlocal rest

        def blank(match: re.Match[str]) -> str:
            value = read(match)
            if value is None:
                return match.group()
            if isinstance(value, dt.time):
                clocks.append((match.start(), value))
            elif isinstance(value, dt.date):
                dates.append((match.start(), value))
            return " " * len(match.group())

        rest = pattern.sub(blank, rest)

    take(_OFFSET, lambda _: True)
    take(_YMD, lambda m: _date(m[1], m[3], m[4]))
    take(_DMY_WORDS, lambda m: _date(m[3], m[2], m[1]))
    take(_MDY_WORDS, lambda m: _date(m[3], m[1], m[2]))
    take(_DMY_NUMBERS, _unambiguous_date)
    take(_CLOCK, lambda m: _clock(int(m[1]), int(m[2]), m[3]))
    take(_CLOCK_HOUR, lambda m: _clock(int(m[1]), 0, m[2]) if 1 <= int(m[1]) <= 12 else None)
    return Mentions(
        numbers=tuple(Decimal(match.group().replace(",", "")) for match in _NUMBER.finditer(rest)),
        clock_times=tuple(value for _, value in sorted(clocks)),
        dates=tuple(value for _, value in sorted(dates)),
        weekdays=tuple(match.group().lower() for match in _WEEKDAY.finditer(rest)),
    )


def fact_value(fact: Fact, result: ToolResult) -> FactValue | None:
    """What `result` says at the place of `fact`; None where it says nothing of that kind there."""
    leaf, occurrence = _leaf(fact, result)
    if leaf is None or isinstance(leaf, bool | list | dict):
        return None
    if fact.kind == "text":
        return normalised(str(leaf)) or None
    if fact.kind == "number" and isinstance(leaf, int | float):
        return Decimal(str(leaf)) if leaf - leaf == 0 else None
    found = values_of(mentions(str(leaf)), fact.kind)
    return found[occurrence] if -len(found) <= occurrence < len(found) else None


def fact_text(fact: Fact, result: ToolResult) -> str | None:
    """The value of `fact` as a person would write it; None where the result has none."""
    value = fact_value(fact, result)
    if value is None:
        return None
    if fact.kind == "text":
        return " ".join(str(_leaf(fact, result)[0]).split())
    if isinstance(value, dt.time):
        return f"{value:%H:%M}"
    if isinstance(value, Decimal):
        leaf, _ = _leaf(fact, result)
        text = str(leaf).strip()
        if isinstance(leaf, str) and len(text) <= 16 and mentions(text).numbers == (value,) and " " not in text:
            return text
        return f"{value:f}" if abs(value.adjusted()) < 20 else str(value)
    return str(value)


def carries(answer: str, fact: Fact, value: FactValue) -> bool:
    """Whether `answer` states `value`.

    Numbers are equal by value; one with more than six significant digits may be rounded to four or more. Text must
    occur as whole words.
    """
    if isinstance(value, Decimal):
        return any(same_number(stated, value) for stated in mentions(answer).numbers)
    if isinstance(value, str):
        start = r"(?<!\w)" if re.match(r"\w", value) else ""
        end = r"(?!\w)" if re.search(r"\w$", value) else ""
        return re.search(start + re.escape(value) + end, normalised(answer)) is not None
    return value in values_of(mentions(answer), fact.kind)


def values_of(found: Mentions, kind: FactKind) -> tuple[Decimal, ...] | tuple[dt.time, ...] | tuple[dt.date, ...]:
    """The values of one kind; text has none."""
    if kind == "number":
        return found.numbers
    if kind == "clock_time":
        return found.clock_times
    return found.dates if kind == "date" else ()


def same_number(stated: Decimal, value: Decimal) -> bool:
    """Whether `stated` is `value`, or a long `value` correctly rounded."""
    if stated == value:
        return True
    exponent = stated.as_tuple().exponent
    if not isinstance(exponent, int) or len(value.normalize().as_tuple().digits) <= _LONG_DIGITS:
        return False
    if len(stated.as_tuple().digits) < _MIN_ROUNDED_DIGITS or abs(value.adjusted() - stated.adjusted()) > 1:
        return False
    return abs(stated - value) <= Decimal(5).scaleb(exponent - 1)


def normalised(text: str) -> str:
    """Case-folded, in one Unicode form, white space collapsed, without enclosing quotes or trailing full stops."""
    return " ".join(_plain(text).casefold().split()).strip("\"'` ").rstrip(".").strip()


def _leaf(fact: Fact, result: ToolResult) -> tuple[JsonValue, int]:
    """The value at the path, and which of its mentions is meant."""
    node: JsonValue = result.text if result.structured is None or not fact.path else result.structured
    if not fact.path and isinstance(result.structured, str | int | float):
        node = result.structured
    steps = list(fact.path)
    while steps and not isinstance(node, str):
        step = steps.pop(0)
        if isinstance(node, dict) and isinstance(step, str):
            node = node.get(step)
        elif isinstance(node, list) and isinstance(step, int):
            node = node[step] if -len(node) <= step < len(node) else None
        else:
            return None, 0
    if not steps or not isinstance(node, str):
        return node, 0
    lines = [line for line in node.splitlines() if line.strip()]
    line = steps[0]
    if not isinstance(line, int) or not -len(lines) <= line < len(lines) or len(steps) > 2:
        return None, 0
    occurrence = steps[1] if len(steps) == 2 else 0
    return (lines[line], occurrence) if isinstance(occurrence, int) else (None, 0)


def _plain(text: str) -> str:
    text = unicodedata.normalize("NFKC", text)
    return text.translate(_PUNCTUATION)


def _date(year: str, month: str, day: str) -> dt.date | None:
    number = int(month) if month.isdigit() else _MONTHS.index(month[:3].lower()) + 1
    try:
        return dt.date(int(year), number, int(day))
    except ValueError:
        return None


def _unambiguous_date(match: re.Match[str]) -> dt.date | None:
    """`30/11/2026` and `11/30/2026`; nothing for `05/06/2026`, which means two things."""
    first, second = int(match[1]), int(match[3])
    if first > 12:
        return _date(match[4], match[3], match[1])
    return _date(match[4], match[1], match[3]) if second > 12 or first == second else None


def _clock(hour: int, minute: int, half: str | None) -> dt.time | None:
    if half is not None and 1 <= hour <= 12:
        hour = hour % 12 + (12 if half.lower() == "p" else 0)
    return dt.time(hour, minute) if hour < 24 else None
