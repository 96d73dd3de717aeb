"""The verified reward: what a rollout did is compared with its scenario's reference call and its own tool results.

No judge and no reference answer: an answer is right when it states what the tool really said.

    reward = 0.1 call + 0.1 tool + 0.1 schema + 0.3 arguments + 0.4 answer,   times economy

Each part lies in [0, 1]; the reward is 1 exactly when the attempt is a success.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from pydantic import JsonValue

from art_core.errors import DataError
from art_mcp.facts import Mentions, carries, fact_text, fact_value, mentions, same_number
from art_mcp.scenarios import Scenario
from art_mcp.schema import Property, argument_schema, properties, tool_properties, type_of, variants
from art_mcp.types import AttemptedCall, McpTool, ToolResult

_TENTHS = {"call": 1, "tool": 1, "schema": 1, "arguments": 3, "answer": 4}
MAX_CALLS = 2
"""Calls that cost nothing: the right one, and one more (a first try that failed)."""
_MAX_OTHER_VALUES = 3
_MAX_EXTRA_CHARS = 400
_CALL_MARKUP = re.compile(r"</?tool_call|<tool_response|<function=|\"arguments\"\s*:\s*\{", re.IGNORECASE)
_EXPRESSION = re.compile(r"[\d\s.,()+\-*/^%]*\d[\d\s.,()+\-*/^%]*")


@dataclass(frozen=True)
class Verdict:
    """The outcome of one attempt.

    `parts`: `call` (a call could be parsed), `tool` (of the right tool), `schema` (with valid arguments), `arguments`
    (of the arguments that either call states, the share that is equal), `answer` (share of the facts that the answer
    carries, less for invented values, padding and call markup; 0 unless the reference call itself was made and worked)
    and `economy` (1 for up to two calls, less for more).
    """

    reward: float
    success: bool
    parts: dict[str, float]


def verify(
    scenario: Scenario, tool: McpTool | Mapping[str, McpTool], calls: Sequence[AttemptedCall], answer: str | None
) -> Verdict:
    """Score one attempt at `scenario`; `tool` is its tool, or all tools by name.

    Two calls are equal when they are so after canonicalisation: `3` is `3.0`; strings lose surrounding white space
    (arithmetic loses all of it); a missing optional argument is its default, and null where null is allowed; key order
    is free. `14:30` and `14:30:00` differ, since a server may take one and refuse the other; so do `3` and `"3"`.

    Raises:
        DataError: the scenario's tool is not among the tools.
    """
    known = _tool(scenario, tool)
    parts = dict.fromkeys((*_TENTHS, "economy"), 0.0)
    matching: list[ToolResult] = []
    best = -1.0
    for call in calls:
        graded = _grade_call(scenario, known, call)
        score = sum(_TENTHS[name] * value for name, value in graded.items())
        if score > best:
            best = score
            parts |= graded
        exact = graded["schema"] == graded["arguments"] == 1.0
        if exact and call.result is not None and not call.result.is_error:
            matching.append(call.result)
    parts["answer"] = max((_grade_answer(scenario, result, answer) for result in matching), default=0.0)
    parts["economy"] = min(1.0, MAX_CALLS / len(calls)) if calls else 0.0
    reward = parts["economy"] * sum(tenths * parts[name] for name, tenths in _TENTHS.items()) / 10
    return Verdict(reward, all(value == 1.0 for value in parts.values()), parts)


def demonstration(scenario: Scenario, result: ToolResult) -> str:
    """The final answer of a perfect attempt whose call gave `result`: one short sentence with every fact.

    Raises:
        DataError: `result` lacks one of the facts.
    """
    phrases = []
    for fact in scenario.facts:
        text = fact_text(fact, result)
        if text is None:
            raise DataError(
                f"scenario {scenario.id!r}: the result of {scenario.tool!r} has no {fact.kind} at {list(fact.path)} "
                f"({result.text[:80]!r}); correct the path of fact {fact.label!r} in the scenarios file"
            )
        phrases.append(f"the {fact.label} is {text}")
    if not phrases:
        return "Done."
    sentence = " and ".join(phrases)
    return sentence[0].upper() + sentence[1:] + ("" if sentence.endswith((".", "!", "?")) else ".")


def validate_scenarios(scenarios: Sequence[Scenario], tools: Sequence[McpTool]) -> None:
    """Check that every scenario can be attempted with `tools`.

    Raises:
        DataError: a scenario's tool is not among them, or its arguments do not fit the tool's schema.
    """
    by_name = {tool.name: tool for tool in tools}
    for scenario in scenarios:
        tool = _tool(scenario, by_name)
        problem = argument_schema(tool).problem(scenario.arguments)
        if problem is not None:
            raise DataError(
                f"scenario {scenario.id!r}: its arguments do not fit the schema of {scenario.tool!r}: {problem}; "
                "correct the arguments or remove the scenario"
            )


def _tool(scenario: Scenario, tool: McpTool | Mapping[str, McpTool]) -> McpTool:
    tools = {tool.name: tool} if isinstance(tool, McpTool) else tool
    if scenario.tool not in tools:
        raise DataError(
            f"scenario {scenario.id!r}: tool {scenario.tool!r} is not among the callable tools "
            f"({', '.join(sorted(tools)) or 'none'}); allow it with --allow-tool, or remove the scenario"
        )
    return tools[scenario.tool]


def _grade_call(scenario: Scenario, tool: McpTool, call: AttemptedCall) -> dict[str, float]:
    """The parts that one call earns by itself."""
    if call.name is None or call.arguments is None:
        return {"call": 0.0, "tool": 0.0, "schema": 0.0, "arguments": 0.0}
    if call.name != scenario.tool:
        return {"call": 1.0, "tool": 0.0, "schema": 0.0, "arguments": 0.0}
    valid = argument_schema(tool).problem(call.arguments) is None
    reference = canonical_arguments(tool, scenario.arguments)
    given = canonical_arguments(tool, call.arguments)
    wanted, got = dict(_leaves(reference)), dict(_leaves(given))
    stated = dict(_leaves(scenario.arguments)).keys() | dict(_leaves(call.arguments)).keys()
    places = (wanted.keys() | got.keys()) & stated
    equal = sum(place in wanted and place in got and _same(wanted[place], got[place]) for place in places)
    num_places = len(places) + int(equal == len(places) and not _same(reference, given))
    return {"call": 1.0, "tool": 1.0, "schema": float(valid), "arguments": equal / num_places if num_places else 1.0}


def _grade_answer(scenario: Scenario, result: ToolResult, answer: str | None) -> float:
    """Share of the facts that `answer` carries, divided by one plus the number of its faults."""
    if answer is None or not answer.strip():
        return 0.0
    values = [(fact, fact_value(fact, result)) for fact in scenario.facts]
    if any(value is None for _, value in values):
        return 0.0
    carried = [carries(answer, fact, value) for fact, value in values if value is not None]
    share = sum(carried) / len(carried) if carried else 1.0
    return share / (1 + _num_faults(scenario, result, answer))


def _num_faults(scenario: Scenario, result: ToolResult, answer: str) -> int:
    """Values the answer has from nowhere, values poured out with the right ones, padding, and call markup.

    An answer that lists many candidates states few of them on purpose; so beyond the facts and what the task itself
    says, only a few further values of the result may be told.
    """
    asked = Mentions.joined(mentions(text) for text in (scenario.task, *_texts(scenario.arguments)))
    facts = [text for fact in scenario.facts if (text := fact_text(fact, result)) is not None]
    told = Mentions.joined(mentions(text) for text in facts)
    real = Mentions.joined(mentions(text) for text in (result.text, *_texts(result.structured)))
    stated = mentions(answer)
    invented: set[object] = set()
    others: set[object] = set()
    for number in stated.numbers:
        if any(same_number(abs(number), abs(value)) for value in (*asked.numbers, *told.numbers)):
            continue
        known = any(same_number(abs(number), abs(value)) for value in real.numbers)
        (others if known else invented).add(number)
    for mine, theirs, truth in (
        (stated.clock_times, (*asked.clock_times, *told.clock_times), real.clock_times),
        (stated.dates, (*asked.dates, *told.dates), real.dates),
        (stated.weekdays, (*asked.weekdays, *told.weekdays), real.weekdays),
    ):
        for value in set(mine) - set(theirs):
            (others if value in truth else invented).add(value)
    too_long = len(answer) > _MAX_EXTRA_CHARS + sum(len(text) for text in facts)
    return (
        len(invented)
        + max(0, len(others) - _MAX_OTHER_VALUES)
        + int(too_long)
        + int(_CALL_MARKUP.search(answer) is not None)
    )


def canonical_arguments(tool: McpTool, arguments: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """`arguments` with defaults filled in and nulls that mean "not given" left out, at every depth."""
    return _filled(dict(arguments), tool_properties(tool), tool)


def _filled(value: dict[str, JsonValue], known: list[Property], tool: McpTool) -> dict[str, JsonValue]:
    filled = dict(value)
    for each in known:
        if each.name not in filled and "default" in each.schema and not each.required:
            filled[each.name] = each.schema["default"]
        if each.name in filled and filled[each.name] is None and not each.required:
            del filled[each.name]
        inner = filled.get(each.name)
        if isinstance(inner, dict):
            shape = next(variants(each.schema, tool.input_schema), {})
            if type_of(shape) == "object":
                filled[each.name] = _filled(inner, properties(shape, tool.input_schema), tool)
    return filled


def _leaves(value: JsonValue, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], JsonValue]]:
    if isinstance(value, dict) and (value or not path):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    else:
        yield path, value


def _same(first: JsonValue, second: JsonValue) -> bool:
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, int | float) and isinstance(second, int | float):
        return first == second
    if isinstance(first, str) and isinstance(second, str):
        return _canonical_text(first) == _canonical_text(second)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(_same(a, b) for a, b in zip(first, second, strict=True))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
    return first is None and second is None


def _canonical_text(text: str) -> str:
    text = unicodedata.normalize("NFC", text).strip()
    return "".join(text.split()) if _EXPRESSION.fullmatch(text) and re.search(r"[-+*/^%]", text) else text


def _texts(value: JsonValue) -> Iterator[str]:
    """Every string and number inside `value`, as text."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(Decimal(str(value))) if value - value == 0 else json.dumps(value)
