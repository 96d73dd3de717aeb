"""Which conversations can be trained on, and what is said of the others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from art_core.errors import DataError
from art_core.sft.reading import examples_of_file, examples_of_trajectories, flattened
from art_core.trajectories import History, Trajectory, TrajectoryGroup
from art_core.types import RolloutError

USER = {"role": "user", "content": "U"}
ANSWER = {"role": "assistant", "content": "A"}
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def calling(*ids: str | None, name: str = "look", arguments: Any = "{}", **fields: Any) -> dict[str, Any]:
    calls = [{"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}} for id_ in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **fields}


def result(id_: str | None) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": "r"}


def line(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages), **fields}


GOOD: list[Any] = [
    line(USER, ANSWER),
    line({"role": "system", "content": ""}, USER, ANSWER),
    line({"role": "developer", "content": "D"}, USER, ANSWER, metadata={"from": "x"}, id="7"),
    line({"role": "user", "content": [{"type": "text", "text": "U"}]}, ANSWER),
    line(USER, {**ANSWER, "weight": 0}, USER, {**ANSWER, "weight": 1}),
    line(USER, {**ANSWER, "reasoning_content": "R", "refusal": None, "annotations": []}),
    line(USER, calling("a"), tools=[TOOL]),
    line(USER, calling("a", "b"), result("b"), result("a"), ANSWER, tools=[TOOL]),
    line(USER, calling("a"), result("a"), calling("a"), result("a"), ANSWER, tools=[TOOL]),
    line(USER, calling(None), tools=[TOOL]),
    line(USER, calling("a", arguments={"x": 1}), tools=[TOOL], parallel_tool_calls=False),
    line(USER, calling("a", arguments="{broken", weight=0), result("a"), ANSWER, tools=[TOOL]),
    line({**ANSWER, "weight": 0}, USER, ANSWER),
]
BAD: list[tuple[Any, str]] = [
    ("not json", "no JSON (Expecting value: line 1 column 1 (char 0))"),
    ('{"messages": [], "x": NaN}', "no JSON (NaN is not JSON)"),
    ([1], "a JSON list; wanted an object with 'messages'"),
    ({"prompt": "x"}, "an object with ['prompt']; wanted an object with 'messages'"),
    ({"messages": []}, "'messages' is empty or no list"),
    ({"messages": "x"}, "'messages' is empty or no list"),
    (line("x", ANSWER), "messages[0] is a str; wanted an object"),
    (line(USER), "there is no message of the assistant, so nothing to train"),
    (line(USER, {**ANSWER, "weight": 0}), "every answer of the assistant has weight 0"),
    (line(USER, {**ANSWER, "weight": 0.5}), "messages[1]: 'weight' is 0.5; wanted 0 or 1"),
    (line(USER, {**ANSWER, "weight": True}), "messages[1]: 'weight' is True; wanted 0 or 1"),
    (line({**USER, "weight": 1}, ANSWER), "messages[0]: 'weight' is given for the role 'user'"),
    (line(ANSWER), "messages[0] is an answer to nothing"),
    (line(USER, {"role": "assistant", "content": " "}), "messages[1]: the answer is empty"),
    (line(USER, {"role": "assistant", "content": None}), "messages[1]: the answer is empty"),
    (line({"role": "user", "content": ""}, ANSWER), "messages[0]: the content is empty"),
    (line({"role": "bot", "content": "x"}, ANSWER), "messages[0]: message role 'bot' is unknown"),
    (line({"role": "user", "content": 7}, ANSWER), "messages[0]: message content is a int"),
    (line({"role": "user", "content": [{"type": "image_url"}]}, ANSWER), "of type 'image_url'"),
    (line(USER, {**ANSWER, "wieght": 0}), "messages[1] has the field 'wieght', which nothing reads"),
    (line(USER, {"role": "assistant", "function_call": {}}), "messages[1]: functions are of an older format"),
    (line(USER, {"role": "function", "content": "x"}, ANSWER), "messages[1]: functions are of an older format"),
    (line(USER, ANSWER, functions=[]), "the field 'functions' is unknown"),
    (line(USER, ANSWER, tool=[]), "the field 'tool' is unknown; known are"),
    (line(USER, ANSWER, tools={"a": 1}), "'tools' is a dict; wanted a list"),
    (line(USER, ANSWER, tools=["look"]), "tools[0] is a str; wanted an object"),
    (line(USER, ANSWER, tools=[{"type": "function", "function": {}}]), "a tool has no name"),
    (line(USER, ANSWER, parallel_tool_calls=1), "'parallel_tool_calls' is 1; wanted true or false"),
    (line(USER, calling("a")), "messages[1]: calls 'look', and there are no 'tools'"),
    (line(USER, calling("a", name="see"), tools=[TOOL]), "messages[1]: calls 'see', and 'tools' are ['look']"),
    (line(USER, calling("a", arguments="{broken"), tools=[TOOL]), "are no JSON object: '{broken'"),
    (line(USER, calling("a", arguments="[1]"), tools=[TOOL]), "are no JSON object: '[1]'"),
    (line(USER, calling("a", "a"), tools=[TOOL]), "messages[1]: two calls have the id 'a'"),
    (
        line(USER, calling("a", "b"), tools=[TOOL], parallel_tool_calls=False),
        "messages[1]: 2 calls of tools in one answer, and 'parallel_tool_calls' is false",
    ),
    (
        line(USER, calling("a"), result("b"), ANSWER, tools=[TOOL]),
        "messages[2]: 'tool_call_id' is 'b', and the calls before it that wait for a result are ['a']",
    ),
    (line(USER, result("a"), ANSWER, tools=[TOOL]), "messages[1]: 'tool_call_id' is 'a', and the calls before it"),
    (line(USER, calling(None), result(None), ANSWER, tools=[TOOL]), "messages[2]: 'tool_call_id' is None"),
    (line(USER, calling("a"), USER, ANSWER, tools=[TOOL]), "messages[2]: the call 'a' before it has no result"),
    (line(USER, calling("a"), result("a"), result("a"), ANSWER, tools=[TOOL]), "messages[3]: 'tool_call_id' is 'a'"),
]


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "data.jsonl"
    path.write_text("\n".join(text if isinstance(text, str) else json.dumps(text) for text in lines) + "\n")
    return path


@pytest.mark.parametrize("good", GOOD, ids=range(len(GOOD)))
def test_what_is_taken(tmp_path: Path, good: Any) -> None:
    [example] = examples_of_file(written(tmp_path, "", good, "  ")).examples
    assert example.source == "data.jsonl:2"
    assert (example.messages, example.tools) == (good["messages"], good.get("tools", []))


@pytest.mark.parametrize(("bad", "message"), BAD, ids=[message for _, message in BAD])
def test_what_is_refused_is_named_with_its_line(tmp_path: Path, bad: Any, message: str) -> None:
    path = written(tmp_path, GOOD[0], bad, GOOD[1])
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        examples_of_file(path)
    assert str(caught.value).startswith(f"1 of 3 lines cannot be trained on, and nothing was begun: {path}:2: "), (
        caught.value
    )


def test_all_bad_lines_are_counted_and_some_shown(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^7 of 8 lines .*data.jsonl:1: .*data.jsonl:5: [^/]*; \.\.\.$"):
        examples_of_file(written(tmp_path, *["x"] * 7, GOOD[0]))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing\.jsonl cannot be read: No such file"):
        examples_of_file(tmp_path / "missing.jsonl")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        examples_of_file(tmp_path)
    with pytest.raises(DataError, match=r"data\.jsonl has no line"):
        examples_of_file(written(tmp_path, ""))
    (tmp_path / "data.jsonl").write_bytes(b'{"messages": ["\xff"]}\n')
    with pytest.raises(DataError, match=r"data\.jsonl:1: byte 15 is no UTF-8"):
        examples_of_file(tmp_path / "data.jsonl")


def test_line_ends_of_windows_a_byte_order_mark_and_odd_separators(tmp_path: Path) -> None:
    text = json.dumps(line({"role": "user", "content": "a\u2028b\u0085"}, ANSWER), ensure_ascii=False)
    (tmp_path / "data.jsonl").write_bytes(f"\ufeff{text}\r\n{text}".encode())
    found = examples_of_file(tmp_path / "data.jsonl").examples
    assert [example.messages[0]["content"] for example in found] == ["a\u2028b\u0085"] * 2


def test_trajectories_and_groups_without_those_that_failed() -> None:
    good = Trajectory(messages_and_choices=[USER, ANSWER], tools=[TOOL], reward=None)
    failed = Trajectory(error=RolloutError(kind="OSError", message="x"))
    found = examples_of_trajectories(flattened([TrajectoryGroup([good, failed]), good]))
    assert [example.messages for example in found.examples] == [[USER, ANSWER]] * 2
    assert (found.num_failed, found.examples[0].tools) == (1, [TOOL])
    with pytest.raises(DataError, match="rollouts of all 1 trajectories failed"):
        examples_of_trajectories([failed])


def test_every_history_of_a_trajectory_is_an_example() -> None:
    beside = History(messages_and_choices=[USER, {"role": "assistant", "content": "B"}])
    whole = Trajectory(messages_and_choices=[USER, ANSWER], additional_histories=[beside])
    assert [e.messages[1]["content"] for e in examples_of_trajectories([whole]).examples] == ["A", "B"]
    alone = Trajectory(additional_histories=[beside])
    assert [e.messages[1]["content"] for e in examples_of_trajectories([alone]).examples] == ["B"]


def test_trajectories_that_cannot_be_trained_on_are_named() -> None:
    bad = Trajectory(id="t7", messages_and_choices=[USER])
    with pytest.raises(DataError, match=r"1 of 2 trajectories .*trajectory 1 \(id 't7'\): there is no message of the"):
        examples_of_trajectories([Trajectory(messages_and_choices=[USER, ANSWER]), bad])


@pytest.mark.parametrize("data", [None, 3, {"messages": []}, [{"messages": []}], [[USER, ANSWER]]])
def test_other_data_is_refused(data: Any) -> None:
    with pytest.raises(DataError, match=r"wanted (trajectories, or the path|a Trajectory, such as)"):
        flattened(data)
