"""Say a call in words: short, in several ways, with every value verbatim, so that only that call answers the task."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from art_mcp.facts import Fact
from art_mcp.kinds import words_of
from art_mcp.types import McpTool

_WITH_ARGUMENTS = (
    "{Action} with {arguments}. Report the {facts}.",
    "{Action}: {arguments}. What is the {facts}?",
    "Please {action} using {arguments} and tell me the {facts}.",
    "I need the {facts}: {action} with {arguments}.",
    "For {arguments}, {action} and give the {facts}.",
    "What is the {facts} if you {action} with {arguments}?",
    "Given {arguments}: {action}. State the {facts}.",
    "Find the {facts}. To do so, {action} with {arguments}.",
)
_WITHOUT_ARGUMENTS = (
    "{Action}. Report the {facts}.",
    "Please {action} and tell me the {facts}.",
    "I need the {facts}: {action}.",
    "What is the {facts} if you {action}?",
    "{Action} and give the {facts}.",
    "Find the {facts}. To do so, {action}.",
)
NUM_TEMPLATES = len(_WITH_ARGUMENTS)
_IMPERATIVE_WORDS = """
    add analyse analyze ask browse calculate check compare compute convert copy count create decode delete
    describe divide download echo edit encode estimate evaluate execute explain export extract fetch filter find
    format generate get give hash insert inspect join list look lookup make measure merge move multiply open parse
    predict print query rank read remove rename render replace resolve reverse roll round run save search select
    send set show sort split subtract sum summarize tell test transform translate update validate verify write
    """
_IMPERATIVES = frozenset(_IMPERATIVE_WORDS.split())
_MAX_DESCRIPTION_WORDS = 8


def phrase(
    tool: McpTool, arguments: Mapping[str, JsonValue], facts: Sequence[Fact], *, template: int, rng: random.Random
) -> str:
    """A task whose answer is the call of `tool` with `arguments`, and that asks for `facts`.

    `template` picks the sentence (modulo their number); `rng` the order of the arguments and the wording of the action.
    """
    action = rng.choice(actions(tool))
    labels = list(dict.fromkeys(fact.label for fact in facts)) or ["result"]
    pairs = [f"{' '.join(words_of(name)) or name} {spell(value)}" for name, value in arguments.items()]
    if len(pairs) == 1 and len(tool.input_schema.get("properties", ())) == 1 and rng.random() < 0.5:
        pairs = [spell(value) for value in arguments.values()]
    rng.shuffle(pairs)
    templates = _WITH_ARGUMENTS if pairs else _WITHOUT_ARGUMENTS
    text = templates[template % len(templates)].format(
        action=action, Action=action[0].upper() + action[1:], arguments=_listed(pairs), facts=_listed(labels)
    )
    return text[0].upper() + text[1:]


def actions(tool: McpTool) -> list[str]:
    """What the tool does as a verb phrase: its name in words, and its description where that is a short command."""
    words = words_of(tool.name)
    first = words[0] if words else ""
    found = [" ".join(words) if first in _IMPERATIVES else f"use {' '.join(words) or tool.name}"]
    sentence = re.split(r"(?<=[.!?])\s|\n", (tool.description or "").strip(), maxsplit=1)[0].rstrip(".! ")
    start = sentence.split(" ", 1)[0].lower()
    if start in _IMPERATIVES and len(sentence.split()) <= _MAX_DESCRIPTION_WORDS and "{" not in sentence:
        found.append(sentence[0].lower() + sentence[1:])
    return list(dict.fromkeys(found))


def spell(value: JsonValue) -> str:
    """A value as it stands in a task: bare where its end is clear, else in quotes or as JSON."""
    if isinstance(value, str):
        clear = re.fullmatch(r"\S*\w|\S*[\w)]", value) and not re.search(r"[\"',;]", value)
        if clear:
            return value
        return f'"{value}"' if '"' not in value and "\\" not in value and "\n" not in value else json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
