"""The scenarios file: what is written is read back, what cannot be used is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from art_core.errors import DataError, StorageError
from art_mcp.facts import Fact
from art_mcp.scenarios import Scenario, call_key, read_scenarios, write_scenarios


def scenario(**changes: Any) -> Scenario:
    fields: dict[str, Any] = {
        "id": "train-000",
        "split": "train",
        "tool": "add",
        "arguments": {"a": 1, "b": [2, {"c": "é"}]},
        "task": "Add 1 and 2.",
        "facts": (Fact(path=("items", 0, "sum"), label="sum", kind="number"),),
        "reference": "3",
    }
    return Scenario.model_validate(fields | changes)


def held_out(**changes: Any) -> Scenario:
    return scenario(**{"id": "held_out-000", "split": "held_out", "arguments": {"a": 5}} | changes)


def lines(*records: object) -> str:
    return "\n".join(json.dumps(record) for record in records) + "\n"


def dump(value: Scenario) -> dict[str, Any]:
    return value.model_dump(mode="json")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    scenarios = [scenario(), held_out(task="Zeile\u2028 mit\nUmbruch", reference=None, facts=())]
    write_scenarios(tmp_path / "s.jsonl", scenarios)
    assert read_scenarios(tmp_path / "s.jsonl") == scenarios
    assert [path.name for path in tmp_path.iterdir()] == ["s.jsonl"]


def test_blank_lines_and_a_byte_order_mark_are_skipped(tmp_path: Path) -> None:
    text = "\ufeff" + lines(dump(scenario())) + "\n  \r\n" + lines(dump(held_out())).replace("\n", "\r\n")
    (tmp_path / "s.jsonl").write_text(text, encoding="utf-8", newline="")
    assert [s.id for s in read_scenarios(tmp_path / "s.jsonl")] == ["train-000", "held_out-000"]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("{nonsense\n", 1, "not valid JSON"),
        (lines(dump(scenario()), [1]), 2, "wanted one scenario object per line"),
        (lines(dump(scenario()) | {"reward": 1}), 1, "'reward'"),
        (lines(dump(scenario()) | {"split": "test"}), 1, "'train' or 'held_out'"),
        (lines({key: value for key, value in dump(scenario()).items() if key != "task"}), 1, "'task'"),
        (lines(dump(scenario()) | {"facts": [{"path": [], "label": "x", "kind": "mood"}]}), 1, "facts.0.kind"),
        (lines(dump(scenario()) | {"arguments": "{}"}), 1, "'arguments'"),
        (lines(dump(scenario()), dump(held_out(id="train-000"))), 2, "is also in line 1"),
        (
            lines(dump(scenario(arguments={"a": 1, "b": 2})), dump(held_out(arguments={"b": 2.0, "a": 1}))),
            2,
            "same call",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, line: int, says: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_scenarios(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: ")
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize(("present", "missing"), [(scenario(), "held_out"), (held_out(), "train")])
def test_both_splits_are_needed(tmp_path: Path, present: Scenario, missing: str) -> None:
    write_scenarios(tmp_path / "s.jsonl", [present])
    with pytest.raises(DataError, match=f"split '{missing}'"):
        read_scenarios(tmp_path / "s.jsonl")


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": "\xe9"}')
    for name in ("missing.jsonl", "latin.jsonl", "."):
        with pytest.raises(DataError, match="cannot read scenarios"):
            read_scenarios(tmp_path / name)


def test_writing_into_a_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write scenarios"):
        write_scenarios(tmp_path / "no" / "s.jsonl", [scenario()])


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "s.jsonl"
    target.mkdir()
    with pytest.raises(StorageError):
        write_scenarios(target, [scenario()])
    assert [path.name for path in tmp_path.iterdir()] == ["s.jsonl"]


def test_the_workdir_is_filled_in_everywhere_but_in_keys() -> None:
    placed = scenario(task="Read {workdir}/a.txt", arguments={"p": ["{workdir}/a.txt"], "{workdir}": 1})
    filled = placed.in_workdir(Path("/tmp/w"))
    assert filled.task == "Read /tmp/w/a.txt"
    assert filled.arguments == {"p": ["/tmp/w/a.txt"], "{workdir}": 1}
    assert placed.in_workdir(None) is placed


def test_equal_calls_have_one_key() -> None:
    assert call_key("t", {"a": 1.0, "b": " x"}) == call_key("t", {"b": "x", "a": 1})
    assert call_key("t", {"a": 1}) != call_key("t", {"a": "1"})
    assert call_key("t", {"a": True}) != call_key("t", {"a": 1})
