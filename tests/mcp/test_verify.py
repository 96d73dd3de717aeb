"""The verified reward: exact values at each stage, and no way around the tool."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_core.errors import DataError
from art_mcp.facts import Fact
from art_mcp.scenarios import Scenario
from art_mcp.types import AttemptedCall, McpTool, ToolResult
from art_mcp.verify import demonstration, validate_scenarios, verify

TOOL = McpTool(
    "convert_time",
    "Convert time between timezones",
    {
        "type": "object",
        "properties": {
            "source_timezone": {"type": "string"},
            "time": {"type": "string", "pattern": "^[0-9:]+$"},
            "target_timezone": {"type": "string"},
            "style": {"type": "string", "enum": ["long", "short"], "default": "short"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "days": {"type": "integer"},
        },
        "required": ["source_timezone", "time", "target_timezone"],
        "additionalProperties": False,
    },
)
ARGUMENTS: dict[str, Any] = {"source_timezone": "Asia/Tokyo", "time": "14:30", "target_timezone": "Europe/Paris"}
STRUCTURED: dict[str, Any] = {
    "source": {"timezone": "Asia/Tokyo", "datetime": "2026-11-30T14:30:00+09:00", "day_of_week": "Monday"},
    "target": {"timezone": "Europe/Paris", "datetime": "2026-11-30T06:30:00+01:00", "day_of_week": "Monday"},
    "time_difference": "-8.0h",
}
RESULT = ToolResult(str(STRUCTURED), STRUCTURED)
SCENARIO = Scenario(
    id="train-000",
    split="train",
    tool="convert_time",
    arguments=ARGUMENTS,
    task="Convert time 14:30 from source timezone Asia/Tokyo to target timezone Europe/Paris. Report the target time.",
    facts=(Fact(path=("target", "datetime"), label="target time", kind="clock_time"),),
)
GOOD = "The target time is 06:30."


def call(
    arguments: dict[str, Any] | None = None, *, name: str | None = "convert_time", result: ToolResult | None = RESULT
) -> AttemptedCall:
    return AttemptedCall(name, ARGUMENTS if arguments is None else arguments, "", result)


def rewarded(*calls: AttemptedCall, answer: str | None = GOOD) -> float:
    verdict = verify(SCENARIO, TOOL, calls, answer)
    assert verdict.success is (verdict.reward == 1.0)
    assert 0.0 <= verdict.reward <= 1.0
    return verdict.reward


def test_the_demonstration_is_a_success() -> None:
    assert demonstration(SCENARIO, RESULT) == GOOD
    verdict = verify(SCENARIO, {"convert_time": TOOL}, [call()], GOOD)
    assert verdict.reward == 1.0
    assert verdict.success
    assert verdict.parts == {"call": 1.0, "tool": 1.0, "schema": 1.0, "arguments": 1.0, "answer": 1.0, "economy": 1.0}


@pytest.mark.parametrize(
    ("attempt", "reward"),
    [
        (AttemptedCall(None, None, "{broken", None, "not JSON"), 0.0),
        (AttemptedCall("convert_time", None, "{broken", None, "not JSON"), 0.0),
        (call(name="get_current_time"), 0.1),
        (call({}), 0.2),
        (call({"time": "14:30"}), 0.3),
        (call(ARGUMENTS | {"time": "half"}), 0.4),
        (call(ARGUMENTS | {"time": "15:30"}), 0.5),
        (call(ARGUMENTS | {"extra": 1}), 0.425),
        (call(result=None), 0.6),
        (call(result=ToolResult("refused", is_error=True)), 0.6),
    ],
)
def test_each_stage_adds_its_share(attempt: AttemptedCall, reward: float) -> None:
    assert rewarded(attempt) == pytest.approx(reward)


@pytest.mark.parametrize(
    "arguments",
    [
        dict(reversed(ARGUMENTS.items())),
        ARGUMENTS | {"time": " 14:30\n"},
        ARGUMENTS | {"style": "short"},
        ARGUMENTS | {"note": None},
    ],
)
def test_equal_arguments_may_be_written_differently(arguments: dict[str, Any]) -> None:
    pattern_free = McpTool(
        TOOL.name, "", {**TOOL.input_schema, "properties": {**TOOL.input_schema["properties"], "time": {}}}
    )
    assert verify(SCENARIO, pattern_free, [call(arguments)], GOOD).success


@pytest.mark.parametrize(
    "change",
    [{"time": "14:30:00"}, {"style": "long"}, {"note": "hi"}, {"source_timezone": "asia/tokyo"}, {"days": 1}],
)
def test_a_different_argument_is_no_success(change: dict[str, Any]) -> None:
    assert 0.3 < rewarded(call(ARGUMENTS | change)) < 0.6


@pytest.mark.parametrize(
    ("wanted", "got", "equal"),
    [
        (3, 3.0, True),
        (3, "3", False),
        (1, True, False),
        ("2+3", " 2 + 3 ", True),
        ("a b", "ab", False),
        ([1, 2], [1.0, 2], True),
        ([1, 2], [2, 1], False),
        ({"x": {"y": 1}}, {"x": {"y": 1.0}}, True),
        ({"x": 1}, {"x": 1, "z": 2}, False),
        (None, None, True),
    ],
)
def test_values_are_compared_after_canonicalisation(wanted: Any, got: Any, equal: bool) -> None:
    tool = McpTool("t", "", {"type": "object", "properties": {"v": {}}, "required": ["v"]})
    task = Scenario(id="a", split="train", tool="t", arguments={"v": wanted}, task="Do it.")
    verdict = verify(task, tool, [AttemptedCall("t", {"v": got}, "", ToolResult("done"))], "Done.")
    assert verdict.success is equal


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        (None, 0.0),
        ("", 0.0),
        ("  \n", 0.0),
        (SCENARIO.task, 0.0),
        ("It is 05:30.", 0.0),
        ("It is 6:30 AM in Paris, 14:30 in Tokyo, 8 hours behind, on Monday 30 November 2026.", 1.0),
        ("It is 06:30 or 07:30.", 0.5),
        ("05:30 06:30 07:30 08:30", 0.25),
        ("It is 06:30, 9 hours behind.", 0.5),
        ("It is 06:30 on Tuesday.", 0.5),
        (GOOD + " " + "really " * 100, 0.5),
        (GOOD + ' <tool_call>{"name": "convert_time"}</tool_call>', 0.5),
        ('06:30 {"name": "convert_time", "arguments": {"time": "14:30"}}', 0.5),
    ],
)
def test_the_answer_earns_the_share_it_truly_carries(answer: str | None, share: float) -> None:
    assert rewarded(call(), answer=answer) == pytest.approx(0.6 + 0.4 * share)


def test_every_minute_of_the_day_is_worth_next_to_nothing() -> None:
    answer = " ".join(f"{hour:02d}:{minute:02d}" for hour in range(24) for minute in range(60))
    assert rewarded(call(), answer=answer) < 0.601


def test_pouring_out_a_long_result_is_no_answer() -> None:
    numbers = {f"k{index}": index * 37 + 1000 for index in range(20)}
    result = ToolResult(str(numbers), dict(numbers))
    task = Scenario(
        id="a",
        split="train",
        tool="t",
        arguments={},
        task="Get it.",
        facts=(Fact(path=("k7",), label="k7", kind="number"),),
    )
    tool = McpTool("t", "", {"type": "object", "properties": {}})
    attempt = [AttemptedCall("t", {}, "", result)]
    assert verify(task, tool, attempt, "It is 1259.").success
    assert verify(task, tool, attempt, "It is 1259, not 1000, 1037 or 1074.").success
    poured = verify(task, tool, attempt, " ".join(str(value) for value in numbers.values()))
    assert not poured.success
    assert poured.reward < 0.65


def test_an_answer_without_a_call_earns_nothing() -> None:
    assert rewarded() == 0.0


def test_a_right_answer_after_a_wrong_call_earns_nothing_for_the_answer() -> None:
    wrong = rewarded(call(ARGUMENTS | {"time": "15:30"}))
    assert wrong == rewarded(call(ARGUMENTS | {"time": "15:30"}), answer=None)


def test_one_failed_try_is_forgiven() -> None:
    failed = call(ARGUMENTS | {"source_timezone": "Tokyo"}, result=ToolResult("unknown zone", is_error=True))
    assert rewarded(failed, call()) == 1.0
    assert rewarded(call(result=ToolResult("busy", is_error=True)), call()) == 1.0


def test_trying_many_calls_costs() -> None:
    wrong = call(ARGUMENTS | {"time": "15:30"})
    assert rewarded(wrong, wrong, call()) == pytest.approx(2 / 3)
    assert rewarded(*[wrong] * 9, call()) == pytest.approx(0.2)
    assert rewarded(call(), call(), call()) == pytest.approx(2 / 3)


def test_the_answer_is_checked_against_the_result_the_rollout_got() -> None:
    later = {**STRUCTURED, "target": {"datetime": "2026-11-30T06:31:07+01:00"}}
    attempt = call(result=ToolResult(str(later), later))
    assert rewarded(attempt, answer="It is 06:31.") == 1.0
    assert rewarded(attempt, answer=GOOD) == pytest.approx(0.6)


def test_a_result_without_the_fact_is_no_success() -> None:
    assert rewarded(call(result=ToolResult("ok", {"target": {}})), answer="ok") == pytest.approx(0.6)
    with pytest.raises(DataError, match="has no clock_time at"):
        demonstration(SCENARIO, ToolResult("ok", {"target": {}}))


def test_two_facts_are_both_wanted() -> None:
    facts = (*SCENARIO.facts, Fact(path=("time_difference",), label="time difference", kind="number"))
    task = SCENARIO.model_copy(update={"facts": facts})
    assert demonstration(task, RESULT) == "The target time is 06:30 and the time difference is -8.0h."
    assert verify(task, TOOL, [call()], demonstration(task, RESULT)).success
    assert verify(task, TOOL, [call()], GOOD).reward == pytest.approx(0.8)


def test_a_scenario_without_facts_wants_some_answer() -> None:
    task = SCENARIO.model_copy(update={"facts": ()})
    assert verify(task, TOOL, [call()], demonstration(task, RESULT)).success
    assert not verify(task, TOOL, [call()], "").success


def test_nested_defaults_are_filled_in() -> None:
    schema = {
        "type": "object",
        "properties": {"box": {"$ref": "#/$defs/Box"}},
        "required": ["box"],
        "$defs": {"Box": {"type": "object", "properties": {"size": {"type": "integer", "default": 2}, "name": {}}}},
    }
    tool = McpTool("t", "", schema)
    task = Scenario(id="a", split="train", tool="t", arguments={"box": {"name": "x"}}, task="Do it.")
    attempt = AttemptedCall("t", {"box": {"size": 2, "name": "x"}}, "", ToolResult("done"))
    assert verify(task, tool, [attempt], "Done.").success


def test_an_empty_object_is_not_a_missing_one() -> None:
    box = {"type": "object", "properties": {"size": {"type": "integer", "default": 2}}}
    tool = McpTool("t", "", {"type": "object", "properties": {"box": box}})
    task = Scenario(id="a", split="train", tool="t", arguments={"box": {}}, task="Do it.")
    assert not verify(task, tool, [AttemptedCall("t", {}, "", ToolResult("done"))], "Done.").success
    assert verify(task, tool, [AttemptedCall("t", {"box": {"size": 2}}, "", ToolResult("done"))], "Done.").success


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"type": {"type": "string"}, "properties": {"type": "object"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"type": {}}},
        {"type": "object", "properties": {"type": {"$ref": "https://example.com/never-fetched.json"}}},
        {"type": "object", "properties": {"type": {"type": 17}}},
        {"type": "object", "properties": {"type": {"$ref": "#/properties/type"}}},
        {},
    ],
)
def test_odd_schemas_neither_fail_nor_reach_for_the_network(schema: dict[str, Any]) -> None:
    tool = McpTool("t", "", schema)
    task = Scenario(id="a", split="train", tool="t", arguments={"type": "required"}, task="Do it.")
    assert verify(task, tool, [AttemptedCall("t", {"type": "required"}, "", ToolResult("done"))], "Done.").success
    validate_scenarios([task], [tool])


def test_scenarios_for_unknown_tools_or_with_invalid_arguments_are_named() -> None:
    validate_scenarios([SCENARIO], [TOOL])
    with pytest.raises(DataError, match=r"'train-000': tool 'convert_time' is not among the callable tools \(none\)"):
        validate_scenarios([SCENARIO], [])
    broken = SCENARIO.model_copy(update={"arguments": {"time": "14:30"}})
    with pytest.raises(DataError, match="'source_timezone' is a required property"):
        validate_scenarios([broken], [TOOL])
    with pytest.raises(DataError, match="not among the callable tools"):
        verify(SCENARIO, {}, [], None)


def _calls() -> st.SearchStrategy[AttemptedCall]:
    values = st.one_of(
        st.sampled_from(list(ARGUMENTS.values())), st.text(max_size=5), st.integers(), st.none(), st.booleans()
    )
    names = st.sampled_from([*ARGUMENTS, "style", "note", "x"])
    arguments = st.one_of(st.none(), st.just(ARGUMENTS), st.dictionaries(names, values, max_size=4))
    results = st.sampled_from([None, RESULT, ToolResult("no", is_error=True), ToolResult("", {"target": 3})])
    return st.builds(AttemptedCall, st.sampled_from([None, "convert_time", "other"]), arguments, st.just(""), results)


@given(
    st.lists(_calls(), max_size=4),
    st.one_of(st.none(), st.text(max_size=60), st.sampled_from([GOOD, "06:30 07:30", SCENARIO.task])),
)
def test_the_reward_is_one_exactly_for_a_success(calls: list[AttemptedCall], answer: str | None) -> None:
    verdict = verify(SCENARIO, TOOL, calls, answer)
    assert 0.0 <= verdict.reward <= 1.0
    assert verdict.success is (verdict.reward == 1.0)
    assert all(0.0 <= part <= 1.0 for part in verdict.parts.values())
    if verdict.success:
        assert any(call.arguments == ARGUMENTS and call.result is RESULT for call in calls if call.name) or answer
