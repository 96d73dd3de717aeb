"""Facts are found again by value, whatever their spelling."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_mcp.facts import Fact, FactKind, carries, fact_text, fact_value, mentions
from art_mcp.types import ToolResult

TIME_RESULT = ToolResult(
    text='{"target": {"datetime": "2026-11-30T06:30:00+01:00"}, "time_difference": "-8.0h"}',
    structured={"target": {"datetime": "2026-11-30T06:30:00+01:00"}, "time_difference": "-8.0h"},
)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("14", ["14"]),
        ("+14.0", ["14"]),
        ("1,234,567.50 items", ["1234567.5"]),
        ("-8.0h", ["-8"]),
        ("minus sign −3", ["-3"]),
        ("12-5 = 7", ["12", "5", "7"]),
        ("a .5 share and $3.20", ["0.5", "3.2"]),
        ("1.5e3", ["1500"]),
        ("(3, 4)", ["3", "4"]),
        ("[1,2]", ["1", "2"]),
        ("v1.2.3, 10.0.0.1, abc12 and x_9", []),
        ("Then 14.", ["14"]),
        ("", []),
    ],
)
def test_numbers_are_read_by_value(text: str, numbers: list[str]) -> None:
    assert list(mentions(text).numbers) == [Decimal(number) for number in numbers]


@pytest.mark.parametrize(
    ("text", "hour", "minute"),
    [
        ("06:30", 6, 30),
        ("6:30", 6, 30),
        ("06:30:59.5", 6, 30),
        ("6:30 am", 6, 30),
        ("6:30 p.m.", 18, 30),
        ("12:05 AM", 0, 5),
        ("12:05 pm", 12, 5),
        ("7pm", 19, 0),
        ("2026-11-30T06:30:00+09:00", 6, 30),
        ("2026-11-30 06:30:00Z", 6, 30),
    ],
)
def test_a_clock_time_has_many_spellings(text: str, hour: int, minute: int) -> None:
    assert mentions(f"It is {text}").clock_times == (dt.time(hour, minute),)
    assert mentions(f"It is {text}").numbers == ()


def test_offsets_and_impossible_times_are_no_clock_times() -> None:
    assert mentions("UTC+09:00, GMT-5").clock_times == ()
    assert mentions("25:10 and 12:75").clock_times == ()
    assert mentions("14:30-15:00").clock_times == (dt.time(14, 30), dt.time(15, 0))


@pytest.mark.parametrize(
    "text",
    ["2026-11-30", "2026/11/30", "30 November 2026", "30th of Nov 2026", "Nov. 30, 2026", "30/11/2026", "11/30/2026"],
)
def test_a_date_has_many_spellings(text: str) -> None:
    assert mentions(f"On {text}.").dates == (dt.date(2026, 11, 30),)
    assert mentions(f"On {text}.").numbers == ()


def test_a_date_that_means_two_days_is_none() -> None:
    assert mentions("05/06/2026").dates == ()
    assert mentions("2026-02-30").dates == ()


@pytest.mark.parametrize(
    ("path", "kind", "value", "text"),
    [
        (("target", "datetime"), "clock_time", dt.time(6, 30), "06:30"),
        (("target", "datetime"), "date", dt.date(2026, 11, 30), "2026-11-30"),
        (("time_difference",), "number", Decimal(-8), "-8.0h"),
        (("time_difference",), "text", "-8.0h", "-8.0h"),
        (("missing",), "text", None, None),
        (("target",), "number", None, None),
        (("target", "datetime", "more"), "date", None, None),
    ],
)
def test_a_path_leads_into_the_structured_result(
    path: tuple[str | int, ...], kind: FactKind, value: object, text: str | None
) -> None:
    fact = Fact(path=path, label="x", kind=kind)
    assert fact_value(fact, TIME_RESULT) == value
    assert fact_text(fact, TIME_RESULT) == text


def test_integers_after_a_string_pick_line_and_value() -> None:
    result = ToolResult("Report\n\nWind: 3 of 12\nTemperature: 21 C")
    assert fact_value(Fact(path=(1, 1), label="x", kind="number"), result) == 12
    assert fact_value(Fact(path=(1, -1), label="x", kind="number"), result) == 12
    assert fact_value(Fact(path=(2,), label="x", kind="number"), result) == 21
    assert fact_value(Fact(path=(2,), label="x", kind="text"), result) == "temperature: 21 c"
    assert fact_value(Fact(path=(9,), label="x", kind="text"), result) is None
    assert fact_value(Fact(path=(1, 7), label="x", kind="number"), result) is None


def test_the_empty_path_is_the_whole_result() -> None:
    assert fact_value(Fact(label="x", kind="number"), ToolResult("14", 14)) == 14
    assert fact_value(Fact(label="x", kind="text"), ToolResult("  Hello  World. ")) == "hello world"


def test_booleans_and_containers_are_no_values() -> None:
    result = ToolResult("", {"flag": True, "list": [1]})
    assert fact_value(Fact(path=("flag",), label="x", kind="number"), result) is None
    assert fact_value(Fact(path=("list",), label="x", kind="number"), result) is None
    assert fact_value(Fact(path=("list", 0), label="x", kind="number"), result) == 1


@pytest.mark.parametrize(
    ("answer", "carried"),
    [
        ("The result is 3.3333333333333335.", True),
        ("About 3.3333.", True),
        ("About 3.333", True),
        ("About 3.33", False),
        ("About 3.3334", False),
        ("33.3333", False),
    ],
)
def test_a_long_number_may_be_rounded_to_four_digits_or_more(answer: str, carried: bool) -> None:
    assert carries(answer, Fact(label="x", kind="number"), Decimal("3.3333333333333335")) is carried


def test_a_short_number_may_not_be_rounded() -> None:
    assert not carries("2.718", Fact(label="x", kind="number"), Decimal("2.7184"))


def test_text_is_carried_as_whole_words() -> None:
    fact = Fact(label="x", kind="text")
    assert carries("They said  HELLO\nworld!", fact, "hello world")
    assert not carries("Othello world", fact, "hello world")
    assert carries("The path is [a.txt]", fact, "[a.txt]")


def test_the_sign_counts() -> None:
    assert not carries("8 hours", Fact(label="x", kind="number"), Decimal(-8))


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=3))
def test_every_number_is_carried_by_its_own_spellings(value: Decimal) -> None:
    fact = Fact(label="x", kind="number")
    for text in (str(value), f"{value:,}", f"= {value:.5f}!", f"about {value}kg"):
        assert carries(f"It is {text} now", fact, value)


@given(st.times())
def test_every_time_is_carried_by_both_clocks(value: dt.time) -> None:
    minute = value.replace(second=0, microsecond=0)
    fact = Fact(label="x", kind="clock_time")
    for text in (f"{value:%H:%M}", f"{value:%H:%M:%S}", f"{value:%I:%M %p}", value.isoformat()):
        assert carries(f"It is {text} there", fact, minute)


@given(st.text(max_size=200))
def test_reading_any_text_never_fails(text: str) -> None:
    assert mentions(text) == mentions(text)
