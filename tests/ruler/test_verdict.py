"""Reading answers: tolerant of what stands around them, strict about what they say."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_ruler.verdict import read_verdict

IDS = ("BCD", "FGH")


def entry(blind_id: Any, score: Any, explanation: Any = "why") -> dict[str, Any]:
    return {"id": blind_id, "explanation": explanation, "score": score}


def answer(*entries: Any) -> str:
    return json.dumps({"scores": list(entries)})


GOOD = answer(entry("BCD", 0.25), entry("FGH", 1))
OTHER = answer(entry("BCD", 0.0), entry("FGH", 0.0))


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"\n  {GOOD}\n",
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```",
        f"~~~\n{GOOD}\n~~~",
        f"Sure, here: {GOOD} Hope this helps",
        f"`{GOOD}`",
        f"<think>I could say {OTHER} but no</think>\n{GOOD}",
        f"<think>{OTHER}</think><think>{OTHER}</think>{GOOD}",
        f"so {OTHER} it is</think>{GOOD}",
        f"<reasoning>{{ {{</reasoning>{GOOD}",
        f"{GOOD}<think>or was it {OTHER}",
        f"First try: {OTHER}\nCorrected: {GOOD}",
        f'The settings are {{"a": 1}} and the verdict is\n{GOOD}\nwith {{}} and {{"b": 2}}',
        f"a set {{x}} and {{y: 1}} then {GOOD}",
        f"Sure,\n{GOOD}",
        f"Here you go, {GOOD}",
        f'BCD says "hello", FGH ends with "done."\n\n{GOOD}',
        f'The winner is "FGH":\n\n{GOOD}',
        f"It's FGH's,\n\n{GOOD}",
        f"[1] says so, [see there] too: {GOOD}",
        f'The settings {{"a": x}} are broken. {GOOD}',
        f'<think effort="high">{OTHER}</think>{GOOD}',
        f"<|think|>{OTHER}<|/think|>{GOOD}",
        f"<thoughts>{OTHER}</thoughts>{GOOD}",
        f"<analysis>{OTHER}</analysis>{GOOD}",
        f"<seed:think>{OTHER}</seed:think>{GOOD}",
        f"[THINK]{OTHER}[/THINK]{GOOD}",
        f"◁think▷{OTHER}◁/think▷{GOOD}",
        f"<|begin_of_thought|>{OTHER}<|end_of_thought|>{GOOD}",
        f"<|channel|>analysis<|message|>{OTHER}<|end|><|start|>assistant<|channel|>final<|message|>{GOOD}",
        f'<think>so {{"scores": [ or</think>{GOOD}',
        json.dumps(json.loads(GOOD), indent=4),
    ],
)
def test_what_stands_around_the_answer_does_not_matter(text: str) -> None:
    verdict = read_verdict(text, IDS)
    assert verdict.faults == ()
    assert verdict.scores == {"BCD": 0.25, "FGH": 1.0}
    assert verdict.explanations == {"BCD": "why", "FGH": "why"}


@pytest.mark.parametrize(
    "explanation",
    [
        'used ```json {"score": 0} ``` in answer',
        f"it wrote {OTHER}",
        f"it wrote <think> and </think> {OTHER}",
        "</think>",
        "}]}",
        "\\\" { [ '",
    ],
)
@pytest.mark.parametrize("around", ["{}", "```json\n{}\n```", "Verdict: {} done", "<think>hm</think>{}"])
def test_what_an_explanation_quotes_is_not_an_answer(explanation: str, around: str) -> None:
    text = around.replace("{}", answer(entry("BCD", 0.9, explanation), entry("FGH", 0.1)))
    verdict = read_verdict(text, IDS)
    assert verdict.scores == {"BCD": 0.9, "FGH": 0.1}
    assert verdict.explanations["BCD"] == explanation


MALFORMED = {
    "nothing": "",
    "space": " \n",
    "prose": "BCD is better, I give it 0.9 and FGH 0.1",
    "null": "null",
    "number": "0.9",
    "list": json.dumps([entry("BCD", 0.9), entry("FGH", 0.1)]),
    "flat": '{"BCD": 0.9, "FGH": 0.1}',
    "one score": '{"score": 0.9}',
    "wrapped": f'{{"result": {GOOD}}}',
    "wrapped in prose": f'Here: {{"result": {GOOD}}}',
    "quoted": json.dumps(GOOD),
    "single quotes": GOOD.replace('"', "'"),
    "trailing comma": GOOD.replace("]}", "],}"),
    "cut": GOOD[:-3],
    "cut in an entry": GOOD[:60],
    "only thought": f"<think>{GOOD}</think>",
    "only thought, open": f"<think>{GOOD}",
    **{
        f"only thought, {tag}": f"{tag} I could say {GOOD} but"
        for tag in (
            '<think effort="high">',
            "<|think|>",
            "<thoughts>",
            "<thought>",
            "<analysis>",
            "<reasoning>",
            "[THINK]",
            "[think]",
            "◁think▷",
            "<seed:think>",
            "<scratchpad>",
            "<|begin_of_thought|>",
            "<|channel|>analysis<|message|>",
        )
    },
    "in a list": f"[{GOOD}]",
    "in a list in prose": f"These:\n[\n  {GOOD},\n  {GOOD}\n]",
    "in a list that breaks off": f"These:\n[\n  {GOOD},\n",
    "in an object that breaks off": f'So: {{"result":\n{GOOD}\n',
    "inside broken JSON": f'{{"scores": [{{"id": "BCD", "explanation": "it said {GOOD}", "score": 0.1}}',
    "inside a quotation": f'It said "{GOOD}" and so on',
    "key twice": '{"scores": [], "scores": [' + GOOD[12:],
    "key twice in an entry": GOOD.replace('"score": 0.25', '"score": 1, "score": 0.25'),
    "scores no list": json.dumps({"scores": {"BCD": 0.9, "FGH": 0.1}}),
    "later answer faulty": f"{GOOD} no: {answer(entry('BCD', 0.5))}",
    "deep": "[" * 100_000,
    "deep objects": '{"a":' * 100_000,
    "braces": "{" * 20_000,
    "schema": json.dumps({"type": "object", "properties": {"scores": []}, "required": ["scores"]}),
}


def test_a_number_in_quotes_is_a_number_and_an_explanation_may_be_a_list() -> None:
    verdict = read_verdict(answer(entry("BCD", "0.8", ["a", "b"]), entry("FGH", " 0 ")), IDS)
    assert verdict.is_sound
    assert verdict.scores == {"BCD": 0.8, "FGH": 0.0}
    assert verdict.explanations["BCD"] == "a\nb"


def test_a_score_without_an_id_is_a_verdict_on_one_attempt_only() -> None:
    for text in ('{"score": 0.8}', 'Well: {"score": "0.8", "explanation": "fine"}'):
        assert read_verdict(text, ("BCD",)).scores == {"BCD": 0.8}
        assert read_verdict(text, IDS).scores == {}
    assert not read_verdict('{"score": 0.8, "id": "FGH"}', ("BCD",)).scores


@pytest.mark.parametrize("text", MALFORMED.values(), ids=list(MALFORMED))
def test_a_malformed_answer_is_refused(text: str) -> None:
    assert not read_verdict(text, IDS).is_sound


@pytest.mark.parametrize("text", [v for k, v in MALFORMED.items() if k not in ("later answer faulty",)])
def test_a_malformed_answer_gives_no_score(text: str) -> None:
    assert read_verdict(text, IDS).scores == {}


def test_an_answer_that_was_cut_is_one_only_if_it_ends_with_its_verdict() -> None:
    for text in (GOOD, f"Well:\n{GOOD}\n", f"```json\n{GOOD}\n```"):
        assert read_verdict(text, IDS, cut=True).is_sound
    for text in (f"A first draft: {GOOD}\nHmm, but FGH is clearly wrong, so its score must be", f"{GOOD} {{"):
        verdict = read_verdict(text, IDS, cut=True)
        assert not verdict.is_sound
        assert verdict.scores == {}


@pytest.mark.parametrize("scores", [(8, 0.4), ("8", 0.4), (-0.1, 0.4), (1e9, 1), (0.4, 1.0001)])
def test_an_answer_on_another_scale_is_no_answer_at_all(scores: tuple[Any, Any]) -> None:
    for order in (scores, scores[::-1]):
        verdict = read_verdict(answer(entry("BCD", order[0]), entry("FGH", order[1])), IDS)
        assert verdict.scores == {}
        assert any("is not between 0 and 1" in fault for fault in verdict.faults)
    foreign = read_verdict(answer(entry("BCD", 1), entry("FGH", 0.4), entry("XXX", 8)), IDS)
    assert foreign.scores == {}


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    [
        'x{"',
        "{}</think>",
        "{}",
        '{"a":',
        '{"a":x}',
        '{"scores":x}',
        "[",
        "[[x]]",
        "{",
        "<think ",
        '"{}" ',
        '{"a\\',
        "{ ",
        "'{}",
    ],
)
def test_no_answer_takes_long_to_read(piece: str) -> None:
    """Minutes, or hours, if the time grew with the square of the length."""
    verdict = read_verdict(piece * 100_000, IDS)
    assert (verdict.scores, verdict.is_sound) == ({}, False)


@pytest.mark.parametrize(
    "score",
    [
        '"0.8/1"', '"1.5"', '"-0.1"', '"NaN"', '"8e-1"', '"٠.٥"',
        "true", "false", "null", "[0.8]", '{"value": 0.8}', "NaN", "Infinity", "-Infinity", "1e999", "-0.01",
        "1.0001", "5.0", "100", "9" * 400, "9" * 5000, '"high"', '""',
    ],
)  # fmt: skip
def test_a_score_that_is_no_number_from_0_to_1_is_none(score: str) -> None:
    text = f'{{"scores": [{{"id": "BCD", "explanation": "", "score": {score}}}, {json.dumps(entry("FGH", 0.5))}]}}'
    verdict = read_verdict(text, IDS)
    assert not verdict.is_sound
    assert "BCD" not in verdict.scores
    assert verdict.scores in ({"FGH": 0.5}, {})  # {} where the whole text is not JSON
    assert verdict.faults


@pytest.mark.parametrize(
    ("entries", "kept", "fault"),
    [
        ([entry("BCD", 0.9)], {"BCD": 0.9}, '"FGH" is missing'),
        ([], {}, '"BCD" is missing'),
        ([entry("BCD", 0.9), entry("FGH", 0.1), entry("JKL", 0.5)], {"BCD": 0.9, "FGH": 0.1}, '"JKL" was not shown'),
        ([entry("BCD", 0.9), entry("BCD", 0.9), entry("FGH", 0.1)], {"FGH": 0.1}, '"BCD" is there more than once'),
        ([entry("BCD", 0.9), entry("FGH", 0.1), entry("FGH", True)], {"BCD": 0.9}, '"FGH" is there more than once'),
        ([entry("FGH", True), entry("FGH", 0.1), entry("BCD", 0.9)], {"BCD": 0.9}, '"FGH" is there more than once'),
        ([entry("bcd", 0.9), entry("FGH", 0.1)], {"FGH": 0.1}, '"bcd" was not shown'),
        ([entry(" BCD", 0.9), entry("FGH", 0.1)], {"FGH": 0.1}, '" BCD" was not shown'),
        ([entry(1, 0.9), entry("FGH", 0.1)], {"FGH": 0.1}, "not an object with an"),
        ([0.9, 0.1], {}, "not an object with an"),
        ([{"explanation": "x", "score": 0.9}, entry("FGH", 0.1)], {"FGH": 0.1}, "not an object with an"),
        ([{"id": "BCD", "score": 0.9}, {"id": "FGH"}], {"BCD": 0.9}, 'the score of "FGH" is missing'),
    ],
)
def test_exactly_the_ids_that_were_shown_each_once(entries: list[Any], kept: dict[str, float], fault: str) -> None:
    verdict = read_verdict(answer(*entries), IDS)
    assert verdict.scores == kept
    assert any(fault in found for found in verdict.faults)


def test_explanations_are_kept_whatever_their_shape() -> None:
    ids = ("A", "B", "C", "D")
    text = answer(entry("A", 0, ["a", "b"]), entry("B", 0, {"k": 1}), entry("C", 0, None), {"id": "D", "score": 0})
    verdict = read_verdict(text, ids)
    assert verdict.is_sound
    assert verdict.explanations == {"A": "a\nb", "B": '{"k": 1}', "C": "", "D": ""}


def test_zero_has_one_sign() -> None:
    score = read_verdict(answer(entry("BCD", -0.0), entry("FGH", 1)), IDS).scores["BCD"]
    assert math.copysign(1.0, score) == 1.0


unit = st.floats(0, 1)
ids = st.lists(st.text("BCDFGH", min_size=3, max_size=3), min_size=1, max_size=9, unique=True)


@given(ids, st.data())
def test_every_permutation_of_an_answer_says_the_same(shown: list[str], data: st.DataObject) -> None:
    scores = {blind_id: data.draw(unit) for blind_id in shown}
    order = data.draw(st.permutations(shown))
    verdict = read_verdict(answer(*(entry(blind_id, scores[blind_id]) for blind_id in order)), shown)
    assert verdict.is_sound
    assert verdict.scores == scores


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(json_values, st.lists(json_values, max_size=3))
def test_no_other_json_is_an_answer(value: Any, entries: list[Any]) -> None:
    assert not read_verdict(json.dumps(value), IDS).is_sound
    assert not read_verdict(json.dumps({"scores": entries}), IDS).is_sound


@given(st.integers(0, len(GOOD) - 1), st.sampled_from(["", "x", '"', "{", "}", "]", ","]))
def test_a_cut_or_torn_answer_gives_no_wrong_score(at: int, put: str) -> None:
    for text in (GOOD[:at] + put, GOOD[:at] + put + GOOD[at + 1 :]):
        for blind_id, score in read_verdict(text, IDS).scores.items():
            assert (blind_id, score) in {("BCD", 0.25), ("BCD", 0.2), ("BCD", 0.5), ("FGH", 1.0)}


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    verdict = read_verdict(text, IDS)
    assert set(verdict.scores) <= set(IDS)
    assert verdict.faults
