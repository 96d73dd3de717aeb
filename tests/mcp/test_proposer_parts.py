"""The proposer's parts: kinds of values, examples in words, what answers offer, patterns, spelling, schemas."""

from __future__ import annotations

import random
import re
import zoneinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_mcp.harvest import Harvest, quoted_examples, singular
from art_mcp.informative import facts_of, label_of
from art_mcp.kinds import is_paging, number_range, text_kind, words_of
from art_mcp.patterns import make_matching
from art_mcp.phrasing import actions, spell
from art_mcp.schema import ArgumentSchema, properties, resolve, variants
from art_mcp.types import McpTool, ToolResult
from art_mcp.values import Sides
from art_mcp.vocabulary import make_expression, time_zones


@pytest.mark.parametrize(
    ("name", "schema", "kind"),
    [
        ("source_timezone", {}, "time_zone"),
        ("tz", {}, "time_zone"),
        ("where", {"description": "An IANA name"}, "time_zone"),
        ("time", {"description": "24-hour format (HH:MM)"}, "clock_time"),
        ("startTime", {"description": "ISO 8601 instant"}, "datetime"),
        ("date", {}, "date"),
        ("when", {"format": "date-time"}, "datetime"),
        ("expression", {}, "expression"),
        ("file_path", {}, "file"),
        ("path", {"description": "The directory to list"}, "folder"),
        ("repo_path", {}, "folder"),
        ("from_currency", {}, "currency"),
        ("city", {}, "city"),
        ("countryCode", {}, "country_code"),
        ("target_lang", {}, "language_code"),
        ("homepage_url", {}, "url"),
        ("query", {}, "word"),
        ("blob", {}, None),
    ],
)
def test_the_kind_of_a_text_is_told_by_name_description_or_format(
    name: str, schema: dict[str, Any], kind: str | None
) -> None:
    assert text_kind(name, schema) == kind


def test_a_query_may_be_sql_and_a_path_a_folder_by_what_the_tool_is() -> None:
    assert text_kind("query", {}, tool_description="Run a SQL query") == "sql"
    assert text_kind("path", {}, tool_name="list_directory") == "folder"
    assert text_kind("path", {}, tool_name="read_file", tool_description="within allowed directories") == "file"


def test_numbers_have_a_sensible_range_by_name() -> None:
    assert number_range("latitude") == (-60, 60)
    assert number_range("maxCount") == (1, 20)
    assert number_range("a") == (2, 99)


def test_identifiers_fall_into_words() -> None:
    assert words_of("sourceTimezone") == ["source", "timezone"]
    assert words_of("get-HTTPStatus_code2") == ["get", "http", "status", "code2"]
    assert is_paging("nextCursor")
    assert is_paging("page_token")
    assert not is_paging("page")


@pytest.mark.parametrize(
    ("description", "examples"),
    [
        ("IANA name (e.g., 'America/New_York', 'Europe/London')", ["America/New_York", "Europe/London"]),
        ('Use "abc" or `def`', ["abc", "def"]),
        ("A city, e.g. Berlin, Paris or Oslo.", ["Berlin", "Paris", "Oslo"]),
        ("Don't use the server's name", []),
        ("Format 'YYYY-MM-DD', type 'string'", []),
        ("", []),
    ],
)
def test_examples_are_read_from_descriptions(description: str, examples: list[str]) -> None:
    assert quoted_examples(description) == examples


@pytest.mark.parametrize(
    ("answer", "name", "found"),
    [
        (ToolResult("", {"users": [{"id": "u1"}, {"id": "u2"}]}), "user_id", ["u1", "u2"]),
        (ToolResult("", {"tables": ["cars", "boats"]}), "table_name", ["cars", "boats"]),
        (ToolResult("", {"next": {"city": "Oslo"}}), "city", ["Oslo"]),
        (ToolResult("- alpha\n- beta"), "project", ["alpha", "beta"]),
        (ToolResult("[{'name': 'cars'}]"), "project_name", ["cars"]),
        (ToolResult("Ticket: T-1\nOwner: Ann"), "ticket", ["T-1"]),
        (ToolResult("", {"users": [{"id": "u1"}]}), "order_id", []),
    ],
)
def test_answers_offer_values_for_arguments_of_like_names(answer: ToolResult, name: str, found: list[str]) -> None:
    harvest = Harvest()
    harvest.add("list_projects", answer)
    assert harvest.matching(name, "get_thing") == found


def test_a_bare_id_prefers_what_the_tool_is_about() -> None:
    harvest = Harvest()
    harvest.add("overview", ToolResult("", {"users": [{"id": 1}], "orders": [{"id": 7}]}))
    assert harvest.matching("id", "get_order") == [7]
    assert harvest.matching("id", "get_thing") == [1, 7]


def test_words_become_singular() -> None:
    assert [singular(word) for word in ("users", "cities", "boxes", "class", "status", "id")] == [
        "user",
        "city",
        "box",
        "class",
        "status",
        "id",
    ]


@pytest.mark.parametrize(
    "pattern", ["^[A-Z]{3}-\\d{2,4}$", "^(foo|bar)[0-9a-f]+$", "^v\\d+\\.\\d+$", "^a?b*c$", "x", "^.{3}$"]
)
def test_simple_patterns_are_matched(pattern: str) -> None:
    made = make_matching(pattern, random.Random(0), 5)
    assert made
    assert all(re.search(pattern, text) for text in made)


@pytest.mark.parametrize("pattern", ["^(?=a)b$", "[^a]", "(a", "a{9999}", "\\p{L}", "*"])
def test_other_patterns_give_nothing(pattern: str) -> None:
    assert make_matching(pattern, random.Random(0), 5) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Asia/Tokyo", "Asia/Tokyo"),
        ("(1+2)*3", "(1+2)*3"),
        ("New York", '"New York"'),
        ("ends.", '"ends."'),
        ("", '""'),
        ('say "hi"', '"say \\"hi\\""'),
        (3, "3"),
        (2.5, "2.5"),
        (True, "true"),
        (None, "null"),
        ([1, {"a": "é"}], '[1, {"a": "é"}]'),
    ],
)
def test_values_are_spelled_so_that_their_end_is_clear(value: Any, text: str) -> None:
    assert spell(value) == text


def test_the_action_is_the_name_or_a_short_commanding_description() -> None:
    assert actions(McpTool("convert_time", "Convert time between timezones", {})) == [
        "convert time",
        "convert time between timezones",
    ]
    assert actions(McpTool("weather", "The weather. Long story.", {})) == ["use weather"]


def test_labels_are_the_keys_in_words() -> None:
    assert label_of(("target", "datetime"), "clock_time") == "target time"
    assert label_of(("users", 0, "email"), "text") == "first user email"
    assert label_of((), "number") == "result"


def test_a_line_names_its_number() -> None:
    labels = {fact.path: fact.label for fact in facts_of(ToolResult("Report\nMax temp: 21 C"))}
    assert labels[1, 0] == "max temp"


@given(st.integers(0, 10_000), st.sets(st.integers(2, 99), min_size=1, max_size=50))
def test_expressions_are_valid_short_and_made_of_their_operands(seed: int, operands: set[int]) -> None:
    text = make_expression(random.Random(seed), sorted(operands))
    assert re.fullmatch(r"[\d.+\-*/()]+", text)
    value = eval(text, {"__builtins__": {}})
    assert round(value, 1) == value


def test_the_time_zones_exist_and_are_many() -> None:
    assert len(time_zones()) >= 100
    assert set(time_zones()) <= zoneinfo.available_timezones()


@given(st.lists(st.integers(0, 300), min_size=1, max_size=80), st.lists(st.integers(0, 300), max_size=80))
def test_a_value_keeps_its_side_and_the_sides_are_balanced(first: list[int], second: list[int]) -> None:
    sides = Sides(0)
    sides.assign(list(first))
    before = {value: sides.of(value) for value in first}
    counts = [list({v: sides.of(v) for v in first}.values()).count(side) for side in ("train", "held_out")]
    assert 0 <= counts[0] - counts[1] <= 1
    sides.assign([*second, *first])
    assert {value: sides.of(value) for value in first} == before


def test_references_are_followed_and_properties_keep_their_names() -> None:
    root = {
        "$defs": {"a/b": {"type": "object", "properties": {"$ref": {"type": "string"}, "allOf": {"type": "integer"}}}},
        "properties": {"x": {"$ref": "#/$defs/a~1b", "description": "here"}, "y": {"$ref": "#/nowhere"}},
    }
    found = {each.name: each.schema for each in properties(root, root)}
    assert found["x"]["description"] == "here"
    assert [each.name for each in properties(found["x"], root)] == ["$ref", "allOf"]
    assert found["y"] == {}


def test_endless_references_end() -> None:
    root = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}, "c": {"allOf": [{"$ref": "#/$defs/c"}]}}}
    assert resolve({"$ref": "#/$defs/a"}, root) == {}
    assert resolve({"$ref": "#/$defs/c"}, root) == {}
    loop = {"anyOf": [{"$ref": "#"}, {"type": "integer"}]}
    assert {"type": "integer"} in [dict(variant) for variant in variants(loop, loop)]


def test_null_comes_last_among_the_alternatives() -> None:
    schema = {"anyOf": [{"type": "null"}, {"type": ["integer", "null"]}]}
    assert [variant["type"] for variant in variants(schema, schema)] == ["integer", "null", "null"]


def test_the_first_problem_of_arguments_is_told_in_one_line() -> None:
    checker = ArgumentSchema({"type": "object", "properties": {"a": {"type": "integer"}}})
    assert checker.problem({"a": 1}) is None
    assert checker.problem({"a": "x"}) == "a: 'x' is not of type 'integer'"
