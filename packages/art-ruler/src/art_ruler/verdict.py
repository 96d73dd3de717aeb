"""Reads a judge's answer: tolerant of what stands around it, strict about what it says. Pure.

An answer is found and checked, never guessed: no score is taken from text, by position, or from an object inside
another one. Two other spellings of a verdict are read as such: a number in quotes and, where one attempt was shown,
`{"score": ...}` alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_REASONING_TAG = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_DECIMAL = re.compile(r"\d{1,3}(?:\.\d+)?", re.ASCII)
_VERDICT_START = re.compile(r'\{\s*"scores"')


@dataclass(frozen=True)
class ReadVerdict:
    """What an answer says: valid scores by id, and one sentence for each fault.

    An id that was shown and is not in `scores` has no valid score. The answer is sound if there is no fault.
    """

    scores: dict[str, float] = field(default_factory=dict)
    explanations: dict[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        return not self.faults


class _NotJsonError(ValueError):
    pass


def read_verdict(text: str, ids: Sequence[str]) -> ReadVerdict:
    """Read the answer to a request that showed `ids`.

    Whole text first, so that fences inside a string of it do no harm; else the JSON objects that stand in the text on
    their own, outside of reasoning. Of several that look like a verdict the last one counts.
    """
    if not text.strip():
        return ReadVerdict(faults=("it is empty",))
    value = _answer_in(text, alone=len(ids) == 1)
    return ReadVerdict(faults=(_why_no_json(text),)) if value is None else _checked(value, ids)


def _answer_in(text: str, *, alone: bool) -> dict[str, Any] | None:
    def is_verdict(value: Any) -> bool:
        return isinstance(value, dict) and ("scores" in value or (alone and "score" in value))

    try:
        whole = _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        found = [value for value in _outside_reasoning(text, _objects_in(text)) if value is None or is_verdict(value)]
        return found[-1] if found and None not in found else None
    # Objects inside it are not answers of their own.
    return whole if is_verdict(whole) else None


_Found = tuple[int, int, dict[str, Any] | None]


def _objects_in(text: str) -> list[_Found]:
    """JSON objects in running text, each with its span, but not those inside other JSON or a quotation, which may be
    somebody else's. None stands for a verdict that is not valid JSON: what follows may be part of it."""
    found: list[_Found] = []
    at = text.find("{")
    while at >= 0:
        end = at + 1
        if not _is_inside(text[max(0, at - 200) : at]):
            try:
                value, end = _DECODER.raw_decode(text, at)
            except (ValueError, RecursionError):
                end = at + 1
                if _VERDICT_START.match(text, at):
                    found.append((at, end, None))
            else:
                found.append((at, end, value))
        at = text.find("{", end)
    return found


def _is_inside(before: str) -> bool:
    before = before.rstrip()
    return before.endswith(("[", "{", ",", '"', "'", "\\")) or bool(re.search(r"[\"']\s*:$", before))


def _outside_reasoning(text: str, objects: Sequence[_Found]) -> list[dict[str, Any] | None]:
    """The objects that are not part of reasoning. Tags inside an object are words of its strings, not tags.

    A closing tag without an opening one ends reasoning that began with the text: some templates open it in the prompt.
    """
    regions: list[tuple[int, int]] = []
    opened: int | None = None
    for tag in _REASONING_TAG.finditer(text):
        if any(start < tag.start() < end for start, end, _ in objects):
            continue
        if not tag[1]:
            opened = tag.start() if opened is None else opened
        elif opened is not None:
            regions.append((opened, tag.end()))
            opened = None
        else:
            regions = [(0, tag.end())]
    if opened is not None:
        regions.append((opened, len(text)))
    return [value for start, _, value in objects if not any(a <= start < b for a, b in regions)]


def _checked(value: dict[str, Any], ids: Sequence[str]) -> ReadVerdict:
    entries = value["scores"] if "scores" in value else [{"id": ids[0], **value}]
    if not isinstance(entries, list):
        return ReadVerdict(faults=('"scores" is not a list',))
    faults: list[str] = []
    scores: dict[str, float] = {}
    explanations: dict[str, str] = {}
    seen: set[str] = set()
    for entry in entries:
        blind_id = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(blind_id, str):
            faults.append('an entry of "scores" is not an object with an "id"')
        elif blind_id not in ids:
            faults.append(f"the id {_quoted(blind_id)} was not shown")
        elif blind_id in seen:
            faults.append(f"the id {_quoted(blind_id)} is there more than once")
            scores.pop(blind_id, None)
        else:
            seen.add(blind_id)
            try:
                scores[blind_id] = _score(entry.get("score"))
            except ValueError as error:
                faults.append(f"the score of {_quoted(blind_id)} {error}")
            explanations[blind_id] = _explanation(entry.get("explanation"))
    faults += [f"the id {_quoted(missing)} is missing" for missing in ids if missing not in seen]
    return ReadVerdict(scores, explanations, tuple(dict.fromkeys(faults)))


def _score(value: Any) -> float:
    if value is None:
        raise ValueError("is missing")
    if isinstance(value, str) and _DECIMAL.fullmatch(value.strip()):
        value = float(value)
    if type(value) not in (float, int):  # a bool is neither here
        raise ValueError(f"is a {type(value).__name__}, not a number")
    if not 0 <= value <= 1:  # NaN and infinities are not either
        raise ValueError("is not between 0 and 1")
    return abs(float(value))  # -0.0 is 0.0


def _explanation(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return json.dumps(value, ensure_ascii=False)


def _why_no_json(text: str) -> str:
    if text.count("{") > text.count("}"):
        return "it breaks off before its JSON is complete"
    return 'it holds no JSON object of the form {"scores": [...]}, or one that is not valid JSON'


def _quoted(text: str) -> str:
    return json.dumps(text[:40])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _NotJsonError("a key appears twice in one object")
    return made


def _no_constant(name: str) -> Any:
    raise _NotJsonError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
