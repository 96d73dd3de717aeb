"""Groups with a known order, made from good trajectories by graded damage. Pure and seeded.

The units of a trajectory are the words of its last answer and those of its tool calls that have arguments. Level `k`
damages a share of them, and each level damages all that the level before it damaged, so the true order needs no
opinion. How a unit is damaged is drawn once per group, so that over many groups length says nothing about quality:

- `alter`: a word becomes another word, a number another number; the length stays about the same.
- `omit`: a word is left out; worse is shorter.
- `bury`: a word is left out and confident filler is added; worse is longer.

In each of them a damaged tool call has a wrong argument, and its result is an error.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from art_ruler.errors import DataError

Corruption = Literal["alter", "omit", "bury"]
CORRUPTIONS: tuple[Corruption, ...] = get_args(Corruption)
MIN_SIZE, MAX_SIZE = 2, 64

Message = dict[str, Any]

_WORDS: list[str] = re.findall(
    r"\w+",
    "o I us we oak ice fig tin wool moss blue wide left mild chalk bread river never green stone early south cloud "
    "spoon window seldom garden slowly winter almost market copper morning whisper thirsty lantern sandwich railroad "
    "chocolate afternoon blackberry hesitation comfortable grandfather",
)
_NUM_NEAREST = 6
_FILLER = (
    "Everything that was asked for has been taken care of.",
    "The result was checked and can be relied upon.",
    "All steps were carried out as one would expect.",
    "Further details can be provided at any time.",
    "This covers the matter in full.",
)
_FAILED_RESULT = "error: not found"


@dataclass(frozen=True)
class SyntheticGroup:
    """Trajectories in a shuffled order, and for each its true quality: 1.0 the original, 0.0 the most damaged."""

    trajectories: tuple[list[Message], ...]
    labels: tuple[float, ...]
    corruption: Corruption


@dataclass(frozen=True)
class _Answer:
    """Where the last answer stands, and its text cut into pieces: damageable ones at the positions in `units`."""

    index: int
    pieces: list[str]
    units: list[int]


@dataclass(frozen=True)
class _Call:
    """Where a damageable tool call stands."""

    message: int
    call: int


def corrupt(
    messages: Sequence[Mapping[str, Any]], *, size: int = 6, seed: int = 0, corruption: Corruption | None = None
) -> SyntheticGroup:
    """The good trajectory `messages` together with `size - 1` ever more damaged copies of it.

    The group is smaller where the trajectory has fewer than `size - 1` units. Without `corruption`, `seed` draws one.
    Raises `DataError` if there is nothing to damage: no answer with text, and no tool call with arguments.
    """
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise ValueError(f"size is {size}; a group of {MIN_SIZE} to {MAX_SIZE} trajectories is wanted")
    rng = random.Random(f"synthetic:{seed}")
    kind: Corruption = corruption if corruption else rng.choice(CORRUPTIONS)
    answer = _find_answer(messages, size - 1)
    units: list[int | _Call] = [*(answer.units if answer else ()), *_find_calls(messages)]
    if not units:
        raise DataError(
            "nothing in this trajectory can be damaged: it has no assistant message with text and no tool call with "
            "arguments; give good trajectories that end with an answer"
        )
    rng.shuffle(units)
    other_words = {piece: _altered(piece, rng) for piece in dict.fromkeys(answer.pieces)} if answer else {}
    levels = min(size - 1, len(units))
    graded: list[tuple[list[Message], float]] = []
    for level in range(levels + 1):
        damaged = set(units[: math.ceil(len(units) * level / levels)])
        graded.append((_damaged(messages, answer, damaged, kind, other_words), 1 - level / levels))
    rng.shuffle(graded)
    return SyntheticGroup(tuple(t for t, _ in graded), tuple(label for _, label in graded), kind)


def _find_answer(messages: Sequence[Mapping[str, Any]], wanted: int) -> _Answer | None:
    """The last assistant message with text. Its units are words, or characters where there are too few words."""
    for index in reversed(range(len(messages))):
        message = messages[index]
        if message.get("role") == "assistant" and (text := _text(message.get("content"))).strip():
            for pattern in (r"\s+|\S+", r"\s+|\S"):
                pieces = re.findall(pattern, text)
                units = [position for position, piece in enumerate(pieces) if piece.strip()]
                if len(units) >= wanted:
                    break
            return _Answer(index, pieces, units)
    return None


def _find_calls(messages: Sequence[Mapping[str, Any]]) -> list[_Call]:
    return [
        _Call(m, c)
        for m, message in enumerate(messages)
        for c, call in enumerate(message.get("tool_calls") or ())
        if _arguments(call)
    ]


def _arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a tool call; empty if it has none or they are no JSON object."""
    arguments = (call.get("function") or {}).get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return {}
    return arguments if isinstance(arguments, dict) else {}


def _damaged(
    messages: Sequence[Mapping[str, Any]],
    answer: _Answer | None,
    damaged: set[int | _Call],
    kind: Corruption,
    other_words: Mapping[str, str],
) -> list[Message]:
    result = [dict(message) for message in messages]
    for unit in damaged:
        if isinstance(unit, _Call):
            _damage_call(result, unit)
    if answer and (words := {unit for unit in damaged if isinstance(unit, int)}):
        message = result[answer.index]
        text = _damaged_text(answer, words, kind, other_words)
        message["content"] = _with_text(message.get("content"), text)
    return result


def _damaged_text(answer: _Answer, damaged: set[int], kind: Corruption, other_words: Mapping[str, str]) -> str:
    replaced = [
        piece if position not in damaged else other_words[piece] if kind == "alter" else ""
        for position, piece in enumerate(answer.pieces)
    ]
    text = "".join(replaced).strip()
    if kind != "bury":
        return text
    share = len(damaged) / len(answer.units)
    length = len("".join(answer.pieces)) * (1 + share)
    number = 0
    while number == 0 or len(text) < length:
        text = f"{text} {_FILLER[number % len(_FILLER)]}".strip()
        number += 1
    return text


def _damage_call(messages: list[Message], unit: _Call) -> None:
    """Give the call a wrong first argument and turn its result into an error."""
    message = messages[unit.message]
    calls = [dict(call) for call in message["tool_calls"]]
    call = calls[unit.call]
    arguments = dict(_arguments(call))
    name = next(iter(arguments))
    arguments[name] = _wrong(arguments[name])
    as_text = isinstance(call["function"]["arguments"], str)
    call["function"] = {**call["function"], "arguments": json.dumps(arguments) if as_text else arguments}
    message["tool_calls"] = calls
    for position, other in enumerate(messages):
        if other.get("role") == "tool" and other.get("tool_call_id") == call.get("id"):
            messages[position] = {**other, "content": _FAILED_RESULT}


def _wrong(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 17
    if isinstance(value, str):
        return _altered(value, random.Random(value)) if value.strip() else _WORDS[0]
    return None if value is not None else _WORDS[0]


def _altered(piece: str, rng: random.Random) -> str:
    """`piece` with other words and other digits in it, never equal to it."""
    if not piece.strip():
        return piece
    if re.search("[0-9]", piece):
        return re.sub("[0-9]", lambda match: str((int(match[0]) + rng.randint(1, 9)) % 10), piece)
    if not re.search(r"\w", piece):
        return rng.choice(_WORDS)
    return re.sub(r"\w+", lambda match: _other_word(match[0], rng), piece)


def _other_word(word: str, rng: random.Random) -> str:
    """Another word of about the same length."""
    others = [other for other in _WORDS if other.lower() != word.lower()]
    return rng.choice(sorted(others, key=lambda other: abs(len(other) - len(word)))[:_NUM_NEAREST])


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "\n".join(
            part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        )
    return ""


def _with_text(content: Any, text: str) -> Any:
    if isinstance(content, list | tuple):
        others = [part for part in content if not (isinstance(part, Mapping) and isinstance(part.get("text"), str))]
        return [*others, {"type": "text", "text": text}]
    return text
