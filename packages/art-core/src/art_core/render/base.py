"""What the server asks of a renderer: the protocol of the `renderers` library, and a parser that can stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from renderers import ParsedResponse, RenderedTokens

from art_core.types import ChatMessage, ToolSpec


@dataclass(frozen=True)
class ContentDelta:
    """More text of the answer."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """More text of the reasoning that precedes the answer."""

    text: str


@dataclass(frozen=True)
class ToolCallDelta:
    """One whole tool call. `arguments` is JSON text, as on the OpenAI wire."""

    name: str
    arguments: str


Delta: TypeAlias = ContentDelta | ReasoningDelta | ToolCallDelta


class CompletionParser(Protocol):
    """Turns the tokens of one completion into the parts of its message, as they arrive.

    What comes out in total depends on the tokens only, never on how they were cut into pushes.
    """

    @property
    def num_malformed_calls(self) -> int:
        """Attempted tool calls that could not be read; their text was given out as content."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether a stop string was completed. Nothing of it, or after it, is ever given out."""
        ...

    def push(self, token_ids: Sequence[int]) -> list[Delta]:
        """The parts that `token_ids` have decided. Text that may turn out to be a tool call is held back."""
        ...

    def finish(self) -> list[Delta]:
        """The remaining parts. Called once, after the last token."""
        ...


@runtime_checkable
class ChatRenderer(Protocol):
    """`renderers.Renderer` for messages in the OpenAI wire shape, with a streaming parser."""

    @property
    def supports_tools(self) -> bool:
        """Whether tools can be shown to the model and its calls be read."""
        ...

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        """Token ids of `messages`, each with the index of its message and whether a model would have sampled it.

        Raises:
            DataError: no message, or one that cannot be rendered.
        """
        ...

    def render_ids(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """The token ids of `render`."""
        ...

    def parse_response(
        self,
        token_ids: Sequence[int],
        *,
        tools: Sequence[ToolSpec] | None = None,
        prompt_ids: Sequence[int] | None = None,
    ) -> ParsedResponse:
        """Content, reasoning and every attempted tool call of a completion."""
        ...

    def completion_parser(
        self,
        *,
        tools: Sequence[ToolSpec] | None = None,
        prompt_ids: Sequence[int] | None = None,
        stop: Sequence[str] = (),
        only_one_call: bool = False,
    ) -> CompletionParser:
        """A parser for one completion of `prompt_ids`. Without `tools` nothing is taken for a tool call.

        The strings in `stop` are looked for in the text as it was sampled, reasoning and calls included. With
        `only_one_call` the first call is given out by the token that completes it, and nothing after it matters.
        """
        ...

    def text_parser(self, *, stop: Sequence[str] = ()) -> CompletionParser:
        """A parser that takes everything for content, up to a stop token."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of `text` as text: the spelling of a special token in it does not become that token."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """Every token id is below this."""
        ...

    def prefill_ids(self, message: ChatMessage) -> list[int] | None:
        """Ids of the beginning of an answer, for after the generation prompt; the turn stays open.

        None where it is not known how this model's turns begin.
        """
        ...

    def tool_call_grammar(
        self, tools: Sequence[ToolSpec], *, only_one: bool = False, instead: Mapping[str, Any] | None = None
    ) -> str | None:
        """A grammar (see `Sampling.grammar`) of completions that are calls of `tools` in this model's own format.

        Arguments follow the tools' `parameters`. Several calls are possible unless `only_one`. With `instead`, a JSON
        value of that schema is the other possible completion. None where the format is not known exactly.
        """
        ...

    def get_stop_token_ids(self) -> list[int]:
        """Ids that end a turn."""
        ...

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] | None = None,
    ) -> RenderedTokens | None:
        """The next prompt: previous prompt and completion unchanged, then only `new_messages`.

        None where that cannot be proven to be what the model would have been shown.
        """
        ...

    def token_text(self, token_id: int) -> str:
        """The text of one token by itself; U+FFFD where it is a part of a character."""
        ...
