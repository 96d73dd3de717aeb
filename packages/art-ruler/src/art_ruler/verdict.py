"""Reads a judge's answer: tolerant of what stands around it, strict about what it says. Pure.

An answer is found and checked, never guessed: no score is taken from text, by position, or from an object inside
another one, and none at all from an answer with a number outside [0, 1], which is on a scale of its own. Two other
spellings of a verdict are read as such: a number in quotes and, where one attempt was shown, `{"score": ...}` alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_THOUGHT = r"(?:think|thinking|thoughts?|reason|reasoning|analysis|reflection|scratchpad|inner_monologue)"
# <think>, </think>, <think effort="high">, <|think|>, <seed:think>, [THINK], ◁think▷, <|begin_of_thought|>, and the
# channels of gpt-oss. One of the groups matches where the tag ends reasoning.
_REASONING_TAG = (
    rf"<\|?(/?)\|?(?:\w+:)?{_THOUGHT}(?:\s[^<>]*)?\|?>"
    r"|\[(/?)(?:think|thinking|thoughts?)\]"
    r"|◁(/?)think▷"
    rf"|<\|(?:begin|start|(end))_(?:of_)?{_THOUGHT}\|>"
    r"|<\|channel\|>\s*(?:analysis|commentary|(final))"
)
_TOKEN = re.compile(rf"(?P<tag>{_REASONING_TAG})|(?P<bracket>[{{}}\[\]])", re.IGNORECASE)
_DECIMAL = re.compile(r"\d{1,3}(?:\.\d+)?", re.ASCII)
_VERDICT_START = re.compile(r'\{\s*"scores"')
_JSON_START = re.compile(r'\{\s*(?:\}|"(?:[^"\\]|\\.)*"\s*:)|\[\s*[\[{"\]]', re.DOTALL)
_CLOSING = re.compile(r"[\s`~]*")
_MAX_BROKEN = 50
"""An answer with more broken JSON than this is not read: each piece costs a look at all that follows it."""


@dataclass(frozen=True)
class ReadVerdict:
    """What an answer says: valid scores by id, and one sentence for each fault.

    An id that was shown and is not in `scores` has no valid score. The answer is sound if there is no fault; else
    `quote` may hold its beginning, and `stop` why nobody was asked to repair it.
    """

    scores: dict[str, float] = field(default_factory=dict)
    explanations: dict[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    quote: str = ""
    stop: str | None = None

    @property
    def is_sound(self) -> bool:
        return not self.faults


class _NotJsonError(ValueError):
    pass


class _ScaleError(ValueError):
    pass


def read_verdict(text: str, ids: Sequence[str], *, cut: bool = False) -> ReadVerdict:
    """Read the answer to a request that showed `ids`.

    Whole text first, so that fences inside a string of it do no harm; else the JSON objects that stand in the text on
    their own, outside of reasoning. Of several that look like a verdict the last one counts. An answer that was `cut`
    has to end with it: what was about to follow might have been another.
    """
    if not text.strip():
        return ReadVerdict(faults=("it is empty",))
    value = _answer_in(text, alone=len(ids) == 1, cut=cut)
    return ReadVerdict(faults=(_why_no_json(text),)) if value is None else _checked(value, ids)


def _answer_in(text: str, *, alone: bool, cut: bool) -> dict[str, Any] | None:
    def is_verdict(value: Any) -> bool:
        return isinstance(value, dict) and ("scores" in value or (alone and "score" in value))

    try:
        whole = _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        found = [(value, end) for value, end in _objects_in(text) if value is None or is_verdict(value)]
        if not found or any(value is None for value, _ in found):
            return None
        value, end = found[-1]
        return value if not cut or _CLOSING.fullmatch(text, end) else None
    # Objects inside it are not answers of their own.
    return whole if is_verdict(whole) else None


def _objects_in(text: str) -> list[tuple[dict[str, Any] | None, int]]:
    """JSON objects in running text, each with its end, but not those in reasoning, nor inside other JSON or a
    quotation, which may be somebody else's. None stands for a verdict that is not valid JSON: what follows may be part
    of it, as it does where JSON has broken off until its brackets are closed.

    Tags inside an object are words of its strings. A closing tag without an opening one ends reasoning that began with
    the text: some templates open it in the prompt.
    """
    found: list[tuple[dict[str, Any] | None, int]] = []
    thinks = False
    depth = broken = at = 0
    while token := _TOKEN.search(text, at):
        start, at = token.span()
        if token["tag"]:
            closes = any(token.groups()[1:-1])
            if closes and not thinks:
                found.clear()
            thinks, depth = not closes, 0
        elif depth:
            depth += 1 if token["bracket"] in "[{" else -1
        elif _JSON_START.match(text, start):
            try:
                value, at = _DECODER.raw_decode(text, start)
            except (ValueError, RecursionError):
                depth, broken = 1, broken + 1
                if broken > _MAX_BROKEN:
                    return []
                if not thinks and _VERDICT_START.match(text, start):
                    found.append((None, at))
            else:
                if not thinks and isinstance(value, dict) and not _is_quoted(text[max(0, start - 100) : start]):
                    found.append((value, at))
    return found


def _is_quoted(before: str) -> bool:
    """Whether what stands before an object on its line opens a quotation, or is a key."""
    line = before.rpartition("\n")[2].rstrip()
    return line.removesuffix(":").rstrip().endswith(("'", '"')) or line.endswith("\\")


def _checked(value: dict[str, Any], ids: Sequence[str]) -> ReadVerdict:
    entries = value["scores"] if "scores" in value else [{"id": ids[0], **value}]
    if not isinstance(entries, list):
        return ReadVerdict(faults=('"scores" is not a list',))
    faults: list[str] = []
    scores: dict[str, float] = {}
    explanations: dict[str, str] = {}
    seen: set[str] = set()
    is_other_scale = False
    for entry in entries:
        blind_id = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(blind_id, str):
            faults.append('an entry of "scores" is not an object with an "id"')
            continue
        score, fault = None, ""
        try:
            score = _score(entry.get("score"))
        except _ScaleError as error:
            is_other_scale = True
            fault = str(error)
        except ValueError as error:
            fault = str(error)
        if blind_id not in ids:
            faults.append(f"the id {_quoted(blind_id)} was not shown")
        elif blind_id in seen:
            faults.append(f"the id {_quoted(blind_id)} is there more than once")
            scores.pop(blind_id, None)
        else:
            seen.add(blind_id)
            if score is None:
                faults.append(f"the score of {_quoted(blind_id)} {fault}")
            else:
                scores[blind_id] = score
            explanations[blind_id] = _explanation(entry.get("explanation"))
    faults += [f"the id {_quoted(missing)} is missing" for missing in ids if missing not in seen]
    # Who gives an 8 to one has not given a 1 to another on the scale that was asked for.
    return ReadVerdict({} if is_other_scale else scores, explanations, tuple(dict.fromkeys(faults)))


def _score(value: Any) -> float:
    if value is None:
        raise ValueError("is missing")
    if isinstance(value, str) and _DECIMAL.fullmatch(value.strip()):
        value = float(value)
    if type(value) not in (float, int):  # a bool is neither here
        raise ValueError(f"is a {type(value).__name__}, not a number")
    if not 0 <= value <= 1:  # NaN and infinities are not either
        raise _ScaleError("is not between 0 and 1")
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
