"""Scenarios come from the server alone: its schemas, its words, its answers. Replicas stand in for known servers."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import re
import zoneinfo
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from art_core.errors import InfrastructureError
from art_mcp.phrasing import spell
from art_mcp.proposer import Proposal, propose
from art_mcp.scenarios import Scenario, call_key, read_scenarios, write_scenarios
from art_mcp.types import AttemptedCall, McpTool, ToolResult
from art_mcp.verify import demonstration, validate_scenarios, verify

Answer = Callable[[dict[str, Any]], Any]


class RefusalError(Exception):
    pass


class FakeServer:
    """Tools as plain functions; what a function raises as `RefusalError` becomes an error result."""

    def __init__(self) -> None:
        self.tools: list[McpTool] = []
        self.answers: dict[str, Answer] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def add(self, name: str, description: str, properties: Mapping[str, Any], answer: Answer, **schema: Any) -> None:
        required = schema.pop("required", list(properties))
        document = {"type": "object", "properties": dict(properties), "required": required, **schema}
        self.tools.append(McpTool(name, description, document))
        self.answers[name] = answer

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        self.calls.append((name, dict(arguments)))
        try:
            answer = self.answers[name](dict(arguments))
        except RefusalError as refusal:
            return ToolResult(str(refusal), is_error=True)
        return result_of(answer)


def result_of(answer: Any) -> ToolResult:
    if isinstance(answer, str):
        try:
            return ToolResult(answer, json.loads(answer))
        except ValueError:
            return ToolResult(answer)
    return ToolResult(json.dumps(answer), answer)


def run(server: FakeServer, num_train: int = 16, num_held_out: int = 8, seed: int = 0, **options: Any) -> Proposal:
    return asyncio.run(
        propose(server, server.tools, seed=seed, num_train=num_train, num_held_out=num_held_out, **options)
    )


def zone_time(name: str, moment: dt.datetime) -> dict[str, Any]:
    try:
        zone = zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
        raise RefusalError(f"unknown zone {name}") from error
    local = moment.astimezone(zone)
    return {"timezone": name, "datetime": local.isoformat(timespec="seconds"), "is_dst": bool(local.dst())}


def time_server() -> FakeServer:
    server = FakeServer()
    zone = {
        "description": "IANA timezone name (e.g., 'America/New_York', 'Europe/London'). Use 'Etc/UTC' as local "
        "timezone if no timezone provided by the user.",
        "type": "string",
    }
    now = dt.datetime(2026, 11, 30, 9, 47, 12, tzinfo=dt.UTC)

    def convert(arguments: dict[str, Any]) -> Any:
        try:
            clock = dt.datetime.strptime(arguments["time"], "%H:%M")
        except ValueError as error:
            raise RefusalError("Invalid time format") from error
        zone_time(arguments["source_timezone"], now)
        source = now.astimezone(zoneinfo.ZoneInfo(arguments["source_timezone"]))
        moment = source.replace(hour=clock.hour, minute=clock.minute, second=0)
        target = zone_time(arguments["target_timezone"], moment)
        there = dt.datetime.fromisoformat(target["datetime"]).utcoffset()
        here = moment.utcoffset()
        assert there is not None
        assert here is not None
        hours = (there - here).total_seconds() / 3600
        source_time = zone_time(arguments["source_timezone"], moment)
        return {"source": source_time, "target": target, "time_difference": f"{hours:+.1f}h"}

    server.add(
        "get_current_time",
        "Get current time in a specific timezone",
        {"timezone": zone},
        lambda arguments: zone_time(arguments["timezone"], now),
    )
    server.add(
        "convert_time",
        "Convert time between timezones",
        {
            "source_timezone": zone,
            "time": {"description": "Time to convert in 24-hour format (HH:MM)", "type": "string"},
            "target_timezone": zone,
        },
        convert,
    )
    return server


def calculator() -> FakeServer:
    def calculate(arguments: dict[str, Any]) -> Any:
        text = arguments["expression"]
        if not re.fullmatch(r"[\d+\-*/(). ]+", text):
            raise RefusalError("not an expression")
        return {"result": str(eval(text, {"__builtins__": {}}))}

    server = FakeServer()
    server.add(
        "calculate",
        "Calculates/evaluates the given expression.",
        {"expression": {"title": "Expression", "type": "string"}},
        calculate,
    )
    return server


def database() -> FakeServer:
    users = {f"u-{index}{letter}": f"{letter}{letter}son" for index, letter in enumerate("abcdefghijkl")}
    server = FakeServer()
    server.add("list_users", "", {}, lambda _: {"users": [{"id": key} for key in users]})

    def get_user(arguments: dict[str, Any]) -> Any:
        if arguments["user_id"] not in users:
            raise RefusalError("no such user")
        place = list(users).index(arguments["user_id"])
        return {
            "user": {"id": arguments["user_id"], "surname": users[arguments["user_id"]], "balance": place * 11.5 + 3}
        }

    server.add("get_user", "Fetch one user", {"user_id": {"type": "string"}}, get_user)
    return server


def weather(arguments: dict[str, Any]) -> str:
    city = arguments["city"]
    return f"City: {city}\nTemperature: {len(city) * 3 + ord(city[0])} degrees\nWind: {len(city)} km/h"


def plain_text() -> FakeServer:
    server = FakeServer()
    number = {"type": "integer", "minimum": 1, "maximum": 50}
    server.add(
        "get_sum",
        "Returns the sum",
        {"a": number, "b": number},
        lambda v: f"The sum of {v['a']} and {v['b']} is {v['a'] + v['b']}.",
    )
    server.add(
        "get_weather",
        "Weather of a city",
        {"city": {"type": "string"}, "units": {"enum": ["metric", "imperial"]}},
        weather,
        required=["city"],
    )
    return server


def file_server(folder: Path) -> FakeServer:
    server = FakeServer()

    def read(arguments: dict[str, Any]) -> Any:
        path = Path(arguments["path"])
        if not path.is_absolute() or not path.is_file():
            raise RefusalError("no such file")
        return {"content": path.read_text(), "size": path.stat().st_size}

    def listing(arguments: dict[str, Any]) -> Any:
        path = Path(arguments["path"])
        if not path.is_dir():
            raise RefusalError("no such directory")
        return {"entries": sorted(entry.name for entry in path.iterdir()), "count": len(list(path.iterdir()))}

    server.add("read_file", "Read a file", {"path": {"type": "string", "description": "Path to a file"}}, read)
    server.add("list_directory", "List a directory", {"path": {"type": "string"}}, listing)
    return server


SERVERS: dict[str, Callable[[], FakeServer]] = {
    "time": time_server,
    "calculator": calculator,
    "database": database,
    "text": plain_text,
}


def leaves(value: JsonValue) -> Iterator[JsonValue]:
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def placed(value: JsonValue, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], JsonValue]]:
    """The leaves of `value`, each with the names of the properties that lead to it."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from placed(item, (*path, name))
    elif isinstance(value, list):
        for item in value:
            yield from placed(item, path)
    else:
        yield path, value


def values_in(scenarios: tuple[Scenario, ...], split: str, *, closed: frozenset[str] = frozenset()) -> set[JsonValue]:
    return {
        value
        for scenario in scenarios
        if scenario.split == split
        for name, argument in scenario.arguments.items()
        if name not in closed
        for value in leaves(argument)
    }


@pytest.mark.parametrize("name", SERVERS)
def test_train_and_held_out_share_no_argument_value(name: str) -> None:
    scenarios = run(SERVERS[name]()).scenarios
    closed = frozenset({"units"})
    train, held_out = values_in(scenarios, "train", closed=closed), values_in(scenarios, "held_out", closed=closed)
    assert train
    assert held_out
    assert not train & held_out


@pytest.mark.parametrize("name", ["time", "calculator", "text"])
def test_exactly_as_many_as_asked_for_all_different(name: str) -> None:
    proposal = run(SERVERS[name](), num_train=20, num_held_out=10)
    assert [scenario.split for scenario in proposal.scenarios] == ["train"] * 20 + ["held_out"] * 10
    assert len({scenario.id for scenario in proposal.scenarios}) == 30
    assert len({call_key(scenario.tool, scenario.arguments) for scenario in proposal.scenarios}) == 30
    assert proposal.counters["train_missing"] == proposal.counters["held_out_missing"] == 0
    assert proposal.uncovered == {}


def test_tools_get_equal_shares() -> None:
    proposal = run(time_server(), num_train=20, num_held_out=10)
    shares = [
        sum(s.tool == tool and s.split == split for s in proposal.scenarios)
        for tool in ("get_current_time", "convert_time")
        for split in ("train", "held_out")
    ]
    assert shares == [10, 5, 10, 5]


def test_the_same_seed_gives_the_same_and_another_seed_others() -> None:
    first, second, other = run(time_server()), run(time_server()), run(time_server(), seed=1)
    assert first == second
    assert {s.task for s in first.scenarios} != {s.task for s in other.scenarios}


@pytest.mark.parametrize("name", SERVERS)
def test_every_reference_demonstration_is_a_success_and_any_corruption_is_none(name: str) -> None:
    server = SERVERS[name]()
    tools = {tool.name: tool for tool in server.tools}
    scenarios = run(server).scenarios
    validate_scenarios(scenarios, server.tools)
    for scenario in scenarios:
        result = asyncio.run(server.call(scenario.tool, scenario.arguments))
        good = AttemptedCall(scenario.tool, scenario.arguments, "", result)
        answer = demonstration(scenario, result)
        assert verify(scenario, tools, [good], answer).success, scenario
        for argument in scenario.arguments:
            for changed in (
                {**scenario.arguments, argument: "zzz"},
                {k: v for k, v in scenario.arguments.items() if k != argument},
            ):
                verdict = verify(scenario, tools, [AttemptedCall(scenario.tool, changed, "", result)], answer)
                assert not verdict.success
                assert verdict.reward < 0.6
        for spoiled in (re.sub(r"\d", "", answer).replace("son", ""), scenario.task, "", f"{answer} Or is it 987654?"):
            verdict = verify(scenario, tools, [good], spoiled)
            assert not verdict.success, (scenario, spoiled)
            assert verdict.reward < 1.0


@pytest.mark.parametrize("name", SERVERS)
def test_every_value_stands_verbatim_in_the_task_and_the_answer_does_not(name: str) -> None:
    server = SERVERS[name]()
    for scenario in run(server).scenarios:
        for value in scenario.arguments.values():
            assert spell(value) in scenario.task
        result = asyncio.run(server.call(scenario.tool, scenario.arguments))
        call = AttemptedCall(scenario.tool, scenario.arguments, "", result)
        assert (
            verify(
                scenario,
                server.tools[0] if scenario.tool == server.tools[0].name else server.tools[1],
                [call],
                scenario.task,
            ).parts["answer"]
            == 0.0
        )
        assert len(scenario.task.split()) <= 40


def test_tasks_are_phrased_in_at_least_six_ways() -> None:
    scenarios = run(calculator(), num_train=24).scenarios
    shapes = {s.task.replace(str(s.arguments["expression"]), "X") for s in scenarios if s.split == "train"}
    assert len(shapes) >= 6


def test_facts_name_what_the_question_is_about() -> None:
    facts = {(s.tool, s.facts[0].path, s.facts[0].label, s.facts[0].kind) for s in run(time_server()).scenarios}
    assert facts == {
        ("get_current_time", ("datetime",), "time", "clock_time"),
        ("convert_time", ("target", "datetime"), "target time", "clock_time"),
    }
    assert {s.facts[0].label for s in run(calculator()).scenarios} == {"result"}
    text_facts = {(s.tool, s.facts[0].path, s.facts[0].label) for s in run(plain_text()).scenarios}
    assert text_facts == {("get_sum", (0, -1), "result"), ("get_weather", (1, 0), "temperature")}


def test_answers_of_one_tool_feed_the_arguments_of_another() -> None:
    proposal = run(database(), num_train=5, num_held_out=4)
    assert sum(scenario.tool == "get_user" for scenario in proposal.scenarios) == 8
    assert {s.facts[0].label for s in proposal.scenarios if s.tool == "get_user"} <= {"user surname", "user balance"}


def test_fewer_than_asked_for_are_counted_honestly() -> None:
    proposal = run(database(), num_train=20, num_held_out=20)
    counts = {split: sum(s.split == split for s in proposal.scenarios) for split in ("train", "held_out")}
    assert proposal.counters["train_missing"] == 20 - counts["train"] > 0
    assert proposal.counters["held_out_missing"] == 20 - counts["held_out"] > 0
    assert counts["train"] >= 6
    assert counts["held_out"] >= 6


def test_closed_values_are_shared_and_counted() -> None:
    server = FakeServer()
    server.add(
        "rate",
        "Rate a number",
        {
            "number": {"type": "integer"},
            "mode": {"enum": ["up", "down"]},
            "strict": {"type": "boolean"},
            "v": {"const": 7},
        },
        lambda v: {"score": v["number"] * 3 + (v["mode"] == "up") + 1000 * v["strict"]},
    )
    proposal = run(server, num_train=20, num_held_out=20)
    assert len(proposal.scenarios) == 40
    assert proposal.counters["closed_values_shared"] == 5


def test_a_tool_without_candidates_is_named_with_the_remedy() -> None:
    def refuse(_: dict[str, Any]) -> Any:
        raise RefusalError("no such ticket")

    server = time_server()
    server.add("get_ticket", "Get a ticket", {"ticket_ref": {"type": "string"}}, refuse)
    proposal = run(server)
    assert set(proposal.uncovered) == {"get_ticket"}
    assert "no such ticket" in proposal.uncovered["get_ticket"]
    assert "--scenarios" in proposal.uncovered["get_ticket"]
    assert len(proposal.scenarios) == 24


@pytest.mark.parametrize(
    "answer", ["", "Error: nope", "No results found", {"error": "nope"}, [], "x" * 5000, {"ok": True}, "saved"]
)
def test_answers_that_teach_nothing_make_no_scenario(answer: Any) -> None:
    server = FakeServer()
    server.add("look", "Look", {"n": {"type": "integer"}}, lambda _: answer)
    proposal = run(server)
    assert proposal.scenarios == ()
    assert set(proposal.uncovered) == {"look"}


def test_an_answer_that_only_echoes_is_no_fact() -> None:
    server = FakeServer()
    server.add("echo", "Echo", {"message": {"type": "string"}}, lambda v: f"Echo: {v['message']}")
    assert run(server).scenarios == ()


def test_what_changes_by_itself_is_not_asked_for() -> None:
    ticks = iter(range(10_000, 90_000, 7))
    server = FakeServer()
    server.add(
        "double", "Double", {"n": {"type": "integer"}}, lambda v: {"total_ms": next(ticks), "doubled": v["n"] * 2}
    )
    assert {scenario.facts[0].label for scenario in run(server).scenarios} == {"doubled"}


def test_the_number_of_calls_is_bounded() -> None:
    server = time_server()
    proposal = run(server, num_train=200, num_held_out=200, max_calls=30)
    assert len(server.calls) == proposal.counters["calls"] == 30
    assert proposal.counters["budget_exhausted"] == 1
    assert proposal.counters["train_missing"] > 150


def test_a_tool_that_kills_the_server_is_left_alone() -> None:
    def die(_: dict[str, Any]) -> Any:
        raise InfrastructureError("the server died")

    server = time_server()
    server.add("crash", "Crash", {}, die)
    proposal = run(server)
    assert len(proposal.scenarios) == 24
    assert "break the server" in proposal.uncovered["crash"]
    assert sum(name == "crash" for name, _ in server.calls) <= 2


def test_a_dead_server_ends_the_search() -> None:
    server = time_server()

    def die(_: dict[str, Any]) -> Any:
        raise InfrastructureError("connection closed")

    server.answers = dict.fromkeys(server.answers, die)
    with pytest.raises(InfrastructureError, match="connection closed"):
        run(server)


def test_a_hundred_tools_are_all_tried_and_only_they(tmp_path: Path) -> None:
    server = FakeServer()
    for index in range(101):
        server.add(f"add_{index}", "", {"n": {"type": "integer"}}, checksum)
    proposal = asyncio.run(propose(server, server.tools[:100], seed=0, num_train=100, num_held_out=100))
    assert {s.tool for s in proposal.scenarios if s.split == "train"} == {f"add_{index}" for index in range(100)}
    assert {s.tool for s in proposal.scenarios if s.split == "held_out"} == {f"add_{index}" for index in range(100)}
    write_scenarios(tmp_path / "s.jsonl", proposal.scenarios)
    assert tuple(read_scenarios(tmp_path / "s.jsonl")) == proposal.scenarios


def test_paths_come_from_the_workdir_and_stay_portable(tmp_path: Path) -> None:
    for index in range(8):
        (tmp_path / f"d{index}").mkdir()
        for extra in range(index + 1):
            (tmp_path / f"d{index}" / f"f{index}{extra}.txt").write_text(f"value {index * 71 + extra * 13 + 5}\n")
    server = file_server(tmp_path)
    proposal = run(server, num_train=6, num_held_out=6, workdir=tmp_path)
    assert len(proposal.scenarios) == 12
    assert {s.tool for s in proposal.scenarios} == {"read_file", "list_directory"}
    for scenario in proposal.scenarios:
        assert str(tmp_path) not in scenario.model_dump_json()
        placed = scenario.in_workdir(tmp_path)
        result = asyncio.run(server.call(placed.tool, placed.arguments))
        tool = next(tool for tool in server.tools if tool.name == placed.tool)
        call = AttemptedCall(placed.tool, placed.arguments, "", result)
        assert verify(placed, tool, [call], demonstration(placed, result)).success


def test_folders_of_the_command_line_are_candidates(tmp_path: Path) -> None:
    for index in range(6):
        (tmp_path / f"n{index}.txt").write_text(f"{index * 97 + 11}")
    proposal = run(file_server(tmp_path), num_train=3, num_held_out=3, hints=["server", str(tmp_path)])
    assert sum(s.tool == "read_file" for s in proposal.scenarios) >= 4


ODD_SCHEMAS: dict[str, dict[str, Any]] = {
    "named like keywords": {
        "properties": {
            "type": {"type": "string"},
            "properties": {"type": "object"},
            "required": {"type": "boolean"},
            "items": {"type": "integer"},
        },
        "required": ["type", "properties", "required", "items"],
    },
    "draft 7 with definitions": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"Zone": {"type": "string", "description": "IANA timezone"}},
        "properties": {"where": {"$ref": "#/definitions/Zone"}},
        "required": ["where"],
    },
    "nullable enum": {
        "properties": {"v": {"type": ["string", "null"], "enum": ["a", None]}, "n": {"type": "integer"}},
        "required": ["v", "n"],
    },
    "anyOf with null": {"properties": {"v": {"anyOf": [{"type": "null"}, {"type": "integer"}]}}, "required": ["v"]},
    "oneOf consts": {
        "properties": {"v": {"oneOf": [{"const": "x"}, {"const": "y"}]}, "n": {"type": "number"}},
        "required": ["v", "n"],
    },
    "oneOf at root": {
        "oneOf": [
            {"properties": {"city": {"type": "string"}}, "required": ["city"]},
            {"properties": {"zip": {"type": "string"}}, "required": ["zip"]},
        ]
    },
    "allOf": {
        "allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"$ref": "#/$defs/B"}],
        "$defs": {"B": {"properties": {"b": {"type": "integer"}}, "required": ["b"]}},
    },
    "nested": {
        "properties": {
            "query": {
                "type": "object",
                "properties": {
                    "points": {"type": "array", "items": {"$ref": "#/$defs/P"}, "minItems": 2, "maxItems": 3},
                    "tags": {"type": "array", "items": {"enum": ["r", "g"]}, "uniqueItems": True},
                },
                "required": ["points"],
            }
        },
        "required": ["query"],
        "$defs": {
            "P": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                "required": ["x", "y"],
            }
        },
    },
    "bounds": {
        "properties": {"n": {"type": "integer", "exclusiveMinimum": 1000, "maximum": 1100, "multipleOf": 2}},
        "required": ["n"],
    },
    "pattern": {"properties": {"code": {"type": "string", "pattern": "^[A-Z]{3}-\\d{2,4}$"}}, "required": ["code"]},
    "examples": {
        "properties": {"sku": {"type": "string", "examples": ["K1", "K2", "K3", "K4", "K5", "K6"]}},
        "required": ["sku"],
    },
    "formats": {
        "properties": {
            "d": {"type": "string", "format": "date"},
            "m": {"type": "string", "format": "email"},
            "u": {"type": "string", "format": "uri"},
        },
        "required": ["d", "m", "u"],
    },
    "no types": {"properties": {"v": {}, "w": True}, "required": ["v"]},
    "recursive": {
        "properties": {"tree": {"$ref": "#/$defs/T"}},
        "required": ["tree"],
        "$defs": {
            "T": {
                "type": "object",
                "properties": {"n": {"type": "integer"}, "left": {"$ref": "#/$defs/T"}},
                "required": ["n"],
            }
        },
    },
}


def checksum(arguments: dict[str, Any]) -> dict[str, Any]:
    """A short number that depends on every argument."""
    text = json.dumps(arguments, sort_keys=True)
    return {"total": sum((place + 1) * ord(char) for place, char in enumerate(text)) % 89_993 + 10_007}


@pytest.mark.parametrize("name", ODD_SCHEMAS)
def test_odd_schemas_are_drawn_from_with_their_meaning(name: str) -> None:
    server = FakeServer()
    server.tools.append(McpTool("weigh", "", {"type": "object", **ODD_SCHEMAS[name]}))
    server.answers["weigh"] = checksum
    proposal = run(server, num_train=3, num_held_out=3)
    assert len(proposal.scenarios) == 6, proposal
    validate_scenarios(proposal.scenarios, server.tools)


def test_required_arguments_without_any_end_are_given_up() -> None:
    server = FakeServer()
    loop = {"type": "object", "properties": {"next": {"$ref": "#/$defs/T"}}, "required": ["next"]}
    server.add("walk", "", {"t": {"$ref": "#/$defs/T"}}, checksum, **{"$defs": {"T": loop}})
    proposal = run(server)
    assert proposal.scenarios == ()
    assert "no value known for argument" in proposal.uncovered["walk"]


def test_an_empty_description_is_no_obstacle() -> None:
    server = FakeServer()
    server.add("add", "", {"n": {"type": "integer"}}, checksum)
    assert len(run(server).scenarios) == 24


def test_progress_is_told_after_each_scenario() -> None:
    seen: list[tuple[int, int]] = []
    run(calculator(), num_train=3, num_held_out=2, progress=lambda done, wanted: seen.append((done, wanted)))
    assert seen == [(index, 5) for index in range(1, 6)]


_NAMES = st.sampled_from(["id", "type", "city", "time", "value", "limit", "query", "items", "user_name", "maxCount"])
_LEAVES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(
        lambda low, width: {"type": "integer", "minimum": low, "maximum": low + width},
        st.integers(-50, 500),
        st.integers(0, 500),
    ),
    st.just({"type": "number"}),
    st.just({"type": "string"}),
    st.just({"type": "boolean"}),
    st.just({"type": ["string", "null"]}),
    st.just({"type": "string", "format": "date-time"}),
    st.builds(
        lambda values: {"enum": values}, st.lists(st.sampled_from(["a", "b", 3, None, "d e"]), min_size=1, unique=True)
    ),
)
_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda item: {"type": "array", "items": item}, inner),
        st.builds(lambda first, second: {"anyOf": [first, second]}, inner, inner),
        st.builds(
            lambda named, share: {"type": "object", "properties": named, "required": list(named)[:share]},
            st.dictionaries(_NAMES, inner, max_size=3),
            st.integers(0, 3),
        ),
    ),
    max_leaves=5,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(_NAMES, _SCHEMAS, max_size=4), st.integers(0, 4), st.integers(0, 10_000))
def test_whatever_the_schema_proposals_are_valid_unique_disjoint_and_winnable(
    named: dict[str, Any], num_required: int, seed: int
) -> None:
    server = FakeServer()
    server.add("weigh", "Weigh things", named, checksum, required=list(named)[:num_required])
    proposal = run(server, num_train=4, num_held_out=3, seed=seed, max_calls=60)
    validate_scenarios(proposal.scenarios, server.tools)
    assert len({call_key(s.tool, s.arguments) for s in proposal.scenarios}) == len(proposal.scenarios)
    for scenario in proposal.scenarios:
        result = result_of(checksum(dict(scenario.arguments)))
        call = AttemptedCall(scenario.tool, scenario.arguments, "", result)
        verdict = verify(scenario, server.tools[0], [call], demonstration(scenario, result))
        assert verdict.success
        assert verdict.reward == 1.0
    if proposal.counters["closed_values_shared"] == 0 and not any(
        isinstance(v, bool) for s in proposal.scenarios for v in leaves(s.arguments)
    ):
        in_train, held_out = (
            {
                place
                for scenario in proposal.scenarios
                if scenario.split == split
                for place in placed(scenario.arguments)
            }
            for split in ("train", "held_out")
        )
        assert not in_train & held_out
