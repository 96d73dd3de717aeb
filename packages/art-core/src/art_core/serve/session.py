"""The open record of each trajectory, and how its next prompt continues it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from art_core.errors import ConfigError, UnknownTrajectoryError
from art_core.messages import canonical_json, content_text, message_key
from art_core.protocols import Recorder
from art_core.render.base import ChatRenderer
from art_core.serve.retries import Attempts
from art_core.serve.wire import unsupported
from art_core.types import ChatMessage, Exchange, ToolSpec


@dataclass(frozen=True)
class Prompt:
    """Token ids to continue. `forked`: the trajectory has exchanges, and these ids extend none of them."""

    ids: tuple[int, ...]
    forked: bool = False


class Session:
    """The exchanges of one trajectory, in the order in which they finished.

    A `recorder` receives each of them as well; what it refuses is not recorded here either. With a `model_name`, calls
    of other models are none of this trajectory: they are answered and recorded as calls outside any.
    """

    def __init__(self, trajectory_id: str) -> None:
        self.trajectory_id = trajectory_id
        self.exchanges: list[Exchange] = []
        self.closed = False
        self.attempts = Attempts()
        self.recorder: Recorder | None = None
        self.model_name: str | None = None
        self._by_conversation: dict[str, Exchange] = {}

    def prompt(self, renderer: ChatRenderer, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> Prompt:
        """The prompt for `messages`.

        Where they continue an exchange of this trajectory (its messages, then its answer in any of the spellings that
        clients echo, with the same tools), the recorded ids of the longest such exchange are extended by the new
        messages alone: also by what the client was not shown, a stop string or calls after the only one it wanted.
        Otherwise, and where the renderer cannot prove the extension, everything is rendered anew.

        A last message of the assistant begins the answer: its ids follow the generation prompt. Where it repeats an
        answer that was cut off at its limit, the recorded ids are continued as they are.
        """
        if messages[-1].get("role") == "assistant":
            return self._begun(renderer, messages, tools)
        return self._answer_to(renderer, messages, tools)

    def _answer_to(self, renderer: ChatRenderer, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> Prompt:
        """The prompt for a turn of its own after `messages`."""
        conversations = list(_conversation_keys(tools, messages))
        for size in range(len(messages), 0, -1):
            exchange = self._by_conversation.get(conversations[size - 1])
            if exchange is None:
                continue
            bridged = renderer.bridge_to_next_turn(
                exchange.prompt_ids, exchange.completion_ids, messages[size:], tools=tools
            )
            if bridged is not None:
                return Prompt(tuple(bridged.token_ids))
            break
        ids = tuple(renderer.render_ids(messages, tools=tools, add_generation_prompt=True))
        return Prompt(ids, forked=self.forks(ids))

    def _begun(self, renderer: ChatRenderer, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> Prompt:
        """The prompt for an answer that the last message begins."""
        *_, conversation = _conversation_keys(tools, messages)
        exchange = self._by_conversation.get(conversation)
        if exchange is not None and exchange.finish_reason == "length":
            return Prompt(exchange.prompt_ids + exchange.completion_ids)  # it was cut off: its own ids go on
        before = self._answer_to(renderer, messages[:-1], tools)
        return Prompt(before.ids + _prefill(renderer, messages[-1]), before.forked)

    def forks(self, ids: tuple[int, ...]) -> bool:
        """Whether a prompt of these ids extends nothing that the trajectory has recorded."""
        return bool(self.exchanges) and not any(_starts_with(ids, exchange) for exchange in self.exchanges)

    def record(self, *exchanges: Exchange) -> None:
        """Add the finished exchanges of one call.

        Raises:
            UnknownTrajectoryError: the trajectory was closed while they were made.
        """
        self.check_open()
        if self.recorder is not None:
            self.recorder.record(*exchanges)
        for exchange in exchanges:
            self.exchanges.append(exchange)
            if not exchange.messages:
                continue  # a text completion: no chat goes on from it
            for answered in _conversations(exchange):
                *_, conversation = _conversation_keys(exchange.tools, answered)
                self._by_conversation[conversation] = exchange

    def check_open(self) -> None:
        if self.closed:
            raise UnknownTrajectoryError(
                f"trajectory {self.trajectory_id!r} was closed while this call was running; its answer is not recorded"
            )


class Sessions:
    """The trajectories that are open."""

    def __init__(self) -> None:
        self._open: dict[str, Session] = {}

    def open(self, trajectory_id: str) -> Session:
        """Begin to record under `trajectory_id`.

        Raises:
            ConfigError: the id is empty, or is open already.
        """
        if not trajectory_id:
            raise ConfigError("the trajectory id is empty; wanted a name that is used once")
        if trajectory_id in self._open:
            raise ConfigError(f"trajectory {trajectory_id!r} is open already; give each rollout an id of its own")
        session = self._open[trajectory_id] = Session(trajectory_id)
        return session

    def get(self, trajectory_id: str) -> Session:
        """The open record of `trajectory_id`.

        Raises:
            UnknownTrajectoryError: it is not open.
        """
        session = self._open.get(trajectory_id)
        if session is None:
            raise UnknownTrajectoryError(
                f"trajectory {trajectory_id!r} is not open; open it before its first call, and make no call after "
                "it was closed"
            )
        return session

    def close(self, trajectory_id: str) -> list[Exchange]:
        """End the record of `trajectory_id` and return it. A call still running under it fails.

        Raises:
            UnknownTrajectoryError: it is not open.
        """
        session = self.get(trajectory_id)
        del self._open[trajectory_id]
        session.closed = True
        return session.exchanges

    def close_all(self) -> None:
        """End every record; what was not fetched with `close` is dropped."""
        for trajectory_id in list(self._open):
            self.close(trajectory_id)


def whole_prompt(renderer: ChatRenderer, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> Prompt:
    """The prompt for `messages`, rendered whole; the turn of an assistant at the end stays open.

    Raises:
        ApiError: 400, an answer is begun that this model's renderer cannot begin.
    """
    is_begun = messages[-1].get("role") == "assistant"
    answered = messages[:-1] if is_begun else messages
    ids = tuple(renderer.render_ids(answered, tools=tools, add_generation_prompt=True))
    return Prompt(ids + _prefill(renderer, messages[-1]) if is_begun else ids)


def _prefill(renderer: ChatRenderer, message: ChatMessage) -> tuple[int, ...]:
    ids = renderer.prefill_ids(message)
    if ids is None:
        raise unsupported(
            "the last message is the assistant's, but how an answer of this model begins is not known exactly; "
            "end with a message of another role",
            "messages",
        )
    return tuple(ids)


def _conversations(exchange: Exchange) -> Iterator[list[ChatMessage]]:
    """The conversation up to and with the answer, as clients write it: a begun answer as one message, or as two."""
    yield [*exchange.messages, exchange.response]
    *before, last = exchange.messages
    if last.get("role") == "assistant":
        begun = content_text(last.get("content")) + content_text(exchange.response.get("content"))
        yield [*before, {**last, **exchange.response, "content": begun}]


def _starts_with(ids: tuple[int, ...], exchange: Exchange) -> bool:
    recorded = exchange.prompt_ids + exchange.completion_ids
    return ids[: len(recorded)] == recorded


def _conversation_keys(tools: Sequence[ToolSpec], messages: Sequence[ChatMessage]) -> Iterator[str]:
    """For each message, a key of the conversation up to and with it: equal for equal tools and messages."""
    digest = hashlib.sha256(canonical_json(list(tools)).encode())
    for message in messages:
        digest.update(b"\0" + message_key(message).encode())
        yield digest.copy().hexdigest()
