"""Recorded exchanges -> conversations. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art_core.messages import canonical_json, message_key
from art_core.trajectories import History
from art_core.types import Exchange

if TYPE_CHECKING:
    from openai.types.chat.chat_completion import Choice


@dataclass
class _Conversation:
    tools_key: str
    keys: list[str]
    history: History

    def is_continued_by(self, role: str, tools_key: str, keys: list[str]) -> bool:
        same_agent = (role, tools_key) == (self.history.role, self.tools_key)
        return same_agent and keys[: len(self.keys)] == self.keys


def conversations(exchanges: Iterable[Exchange]) -> list[History]:
    """The conversations that `exchanges` make up, in the order in which they began; the first is the main one.

    A call whose messages continue a conversation (its messages, then its answer, in any of the spellings that clients
    echo, with the same tools and in the same role) belongs to it: the longest such one. Any other call opens a
    conversation: a sub-agent, a parallel branch, an edited history. Each answer is a choice in exactly one of them, and
    carries the id of its exchange; what a conversation was opened with stays message dicts.
    """
    found: list[_Conversation] = []
    for exchange in sorted(exchanges, key=lambda exchange: exchange.started_at):
        tools_key = canonical_json(list(exchange.tools))
        keys = [message_key(message) for message in exchange.messages]
        continued = [
            conversation for conversation in found if conversation.is_continued_by(exchange.role, tools_key, keys)
        ]
        conversation = max(continued, key=lambda conversation: len(conversation.keys), default=None)
        if conversation is None:
            conversation = _Conversation(tools_key, [], History(tools=list(exchange.tools) or None, role=exchange.role))
            found.append(conversation)
        new: list[Any] = [dict(message) for message in exchange.messages[len(conversation.keys) :]]
        conversation.history.messages_and_choices += [*new, choice_of(exchange)]
        conversation.keys = [*keys, message_key(exchange.response)]
    return [conversation.history for conversation in found]


def choice_of(exchange: Exchange) -> Choice:
    """The answer of `exchange` as a choice of the `openai` client, with `exchange_id` and `policy_version`."""
    from openai.types.chat.chat_completion import Choice

    called = exchange.finish_reason == "stop" and exchange.response.get("tool_calls")
    return Choice.model_validate(
        {
            "index": 0,
            "finish_reason": "tool_calls" if called else exchange.finish_reason,
            "logprobs": None,
            "message": exchange.response,
            "exchange_id": exchange.id,
            "policy_version": exchange.policy_version,
        }
    )
