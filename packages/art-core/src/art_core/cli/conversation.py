"""One trajectory as a conversation that a person can read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art_core.trajectories import Trajectory

if TYPE_CHECKING:
    from rich.console import Console

    from art_core.runs import StoredTrajectory

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_STYLES = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}


@dataclass(frozen=True)
class Line:
    """A piece of the conversation: who speaks, and what. A `speaker` in brackets is a remark about what follows."""

    speaker: str
    text: str = ""


def print_trajectory(console: Console, stored: StoredTrajectory) -> None:
    """Where the trajectory stands in its run, how it was judged, and all that was said."""
    trajectory = stored.trajectory

    def say(text: str, style: str = "") -> None:
        console.print(shown(text), style=style or None, soft_wrap=True)

    say(f"{trajectory.id}  {stored.split} step {stored.step}", "bold")
    say(f"scenario {trajectory.scenario_id!r}, group {stored.group.id}")
    say(f"reward {'none' if trajectory.reward is None else trajectory.reward}")
    if trajectory.error is not None:
        say(f"error {trajectory.error.kind}: {trajectory.error.message}", "red")
    for name, value in sorted(trajectory.metrics.items()):
        say(f"metric {name} {value}")
    if trajectory.metadata:
        say(f"metadata {json.dumps(trajectory.metadata, ensure_ascii=False)}")
    for line in conversation(trajectory):
        say("")
        say(line.speaker, f"bold {_STYLES.get(line.speaker.split()[0], 'blue')}")
        if line.text:
            say(line.text)
    if trajectory.logs:
        say("")
        say("logs", "bold")
        for text in trajectory.logs:
            say(text)


def conversation(trajectory: Trajectory) -> Iterator[Line]:
    """What was said, each message once: as the trajectory's own messages tell it, else as its recorded calls do.

    A call whose messages do not continue those before begins again with all of them, after a remark.
    """
    if trajectory.messages_and_choices:
        yield from _lines(trajectory.messages())
    else:
        before: list[dict[str, Any]] = []
        for exchange in trajectory.exchanges:
            messages = list(exchange.messages)
            if _same(messages[: len(before)], before):
                yield from _lines(messages[len(before) :])
            else:
                yield Line("[another conversation: it does not continue the one before]")
                yield from _lines(messages)
            yield from _lines([exchange.response])
            if exchange.finish_reason == "length":
                yield Line("[cut: the answer reached its length limit]")
            before = [*messages, exchange.response]
    for number, history in enumerate(trajectory.additional_histories, start=1):
        yield Line(f"[additional history {number}]")
        yield from _lines(history.messages())


def shown(text: str) -> str:
    """`text` without what would steer a terminal: control characters are spelled out."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _lines(messages: Sequence[dict[str, Any]]) -> Iterator[Line]:
    for message in messages:
        role = str(message.get("role", "?"))
        speaker = f"{role} {message['tool_call_id']}" if message.get("tool_call_id") else role
        parts = []
        if reasoning := message.get("reasoning_content"):
            parts.append(f"(thinks) {_text(reasoning)}")
        if content := message.get("content"):
            parts.append(_text(content))
        for call in message.get("tool_calls") or ():
            name, arguments = _called(call)
            parts.append(f"-> {name}({arguments})" + (f"  [{call['id']}]" if "id" in call else ""))
        yield Line(speaker, "\n".join(parts))


def _text(content: Any) -> str:
    """Text as it is; of content parts the texts, and the kinds of the others."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return "\n".join(str(part["text"]) if "text" in part else f"[{part.get('type', 'part')}]" for part in content)
    return json.dumps(content, ensure_ascii=False)


def _called(call: dict[str, Any]) -> tuple[str, str]:
    function = call.get("function") or {}
    arguments = function.get("arguments", "")
    return str(function.get("name", "?")), arguments if isinstance(arguments, str) else json.dumps(arguments)


def _same(left: Sequence[dict[str, Any]], right: Sequence[dict[str, Any]]) -> bool:
    """Whether two histories say the same, however their clients spell it (absent, null and empty are one)."""
    return [_said(message) for message in left] == [_said(message) for message in right]


def _said(message: dict[str, Any]) -> tuple[Any, ...]:
    calls = [_called(call) for call in message.get("tool_calls") or ()]
    return message.get("role"), _text(message.get("content") or ""), message.get("tool_call_id"), calls
