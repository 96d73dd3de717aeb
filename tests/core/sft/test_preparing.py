"""Rows of all examples: what is too long, what is counted, and when two sets are the same."""

from __future__ import annotations

from typing import Any

import pytest

from art_core.control import SftExample
from art_core.errors import ConfigError, DataError
from art_core.sft.preparing import PreparedSet, prepare
from art_core.sft_config import SftConfig
from tests.core.sft.families import renderer_of


def example(answer: str, number: int = 1, *, turns: int = 1, **fields: Any) -> SftExample:
    turn = [{"role": "user", "content": "U"}, {"role": "assistant", "content": answer, **fields}]
    return SftExample(source=f"d.jsonl:{number}", messages=turn * turns)


def prepared(*examples: SftExample, family: str = "chatml", limit: int = 1000, **options: Any) -> PreparedSet:
    return prepare(examples, renderer_of(family), SftConfig(**options), max_context_tokens=limit)


def test_counts() -> None:
    found = prepared(example("A"), example("B", 2), example("A", 3))
    assert len(found.examples) == 3
    counted = {name: value for name, value in found.counters.items() if value}
    row = found.examples[0][0]
    assert counted == {
        "sft/examples": 3.0,
        "sft/duplicates": 1.0,
        "sft/rows": 3.0,
        "sft/row_tokens": float(sum(len(row.token_ids) for row in found.rows)),
        "sft/trained_tokens": 6.0,
    }
    assert row.num_trained == 2
    assert row.trajectory_id == "d.jsonl:1"


def test_forks_and_reasoning_are_counted() -> None:
    reasoned = example("A", turns=2, reasoning_content="R")
    assert prepared(reasoned, family="qwen3").counters["sft/forks"] == 1.0
    assert prepared(reasoned, family="llama-3").counters["sft/turns_without_reasoning"] == 2.0
    assert prepared(example("A"), family="nemotron-3").counters["sft/turns_in_history_form"] == 1.0


def test_too_long_is_refused_dropped_or_cut() -> None:
    short, long = example("A"), example("A" + " b" * 50, 2)
    size = len(prepared(long).examples[0][0].token_ids)
    assert len(prepared(short, long, max_row_tokens=size).examples) == 2
    with pytest.raises(DataError, match=rf"1 of 2 examples have more than {size - 1} tokens.*d.jsonl:2 has {size};"):
        prepared(short, long, max_row_tokens=size - 1)
    dropped = prepared(short, long, limit=size - 1, overlong="drop")
    assert (len(dropped.examples), dropped.counters["sft/dropped_overlong"]) == (1, 1.0)
    cut = prepared(short, long, max_row_tokens=size - 3, overlong="cut")
    assert [len(rows[0].token_ids) for rows in cut.examples][1] == size - 3
    assert (cut.counters["sft/rows_cut"], cut.counters["sft/dropped_overlong"]) == (1.0, 0.0)
    assert cut.rows[1].num_trained == prepared(long).rows[0].num_trained - 3
    gone = prepared(short, long, max_row_tokens=len(prepared(short).rows[0].token_ids), overlong="cut")
    assert gone.counters["sft/rows_cut"] == 1.0
    with pytest.raises(DataError, match="none of the 1 examples can be trained on"):
        prepared(long, max_row_tokens=3, overlong="cut")
    with pytest.raises(ConfigError, match="max_row_tokens is 2000, but the model reads at most 1000"):
        prepared(short, max_row_tokens=2000)


def test_what_a_template_refuses_is_named() -> None:
    broken = SftExample(source="d.jsonl:9", messages=[{"role": "user", "content": "U"}, {"role": "bot"}])
    broken.messages.append({"role": "assistant", "content": "A"})
    with pytest.raises(DataError, match=r"1 of 2 examples .*: d.jsonl:9: message role 'bot'"):
        prepared(example("A"), broken)


def test_the_digest_is_of_the_rows_in_their_order() -> None:
    first, second = example("A"), example("B", 2)
    assert prepared(first, second).digest == prepared(example("A", 8), second).digest
    assert prepared(first, second).digest != prepared(second, first).digest
    assert prepared(first).digest != prepared(first, first).digest
    weighted = SftExample(source="d", messages=[*first.messages, *first.messages])
    context = SftExample(source="d", messages=[first.messages[0], {**first.messages[1], "weight": 0}, *first.messages])
    assert prepared(weighted).digest != prepared(context).digest
