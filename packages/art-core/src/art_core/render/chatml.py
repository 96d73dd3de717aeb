"""ChatML with Hermes-style tool calls, for models whose own template knows no tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from renderers import ParsedResponse, RenderedTokens, extract_message_tool_names, reject_assistant_in_extension

from art_core.errors import DataError
from art_core.messages import compact_json, normal_message, tool_function
from art_core.render.base import CompletionParser, ContentDelta
from art_core.render.calls import COMPACT_HERMES
from art_core.render.hermes import call_text
from art_core.render.parsing import StreamParser
from art_core.render.tokenizer import TextTokenizer
from art_core.types import ChatMessage, ToolSpec

START = "<|im_start|>"
END = "<|im_end|>"
_END_OF_TEXT = "<|endoftext|>"
_GENERATION_PROMPT = "assistant\n"

DEFAULT_SYSTEM_WITH_TOOLS = "You are a helpful assistant."
_TOOLS_HEADER = "# Tools\n"
_TOOLS_FOOTER = '\nCall a tool with\n<tool_call>\n{"name":...,"arguments":{...}}\n</tool_call>'


@dataclass(frozen=True)
class _Piece:
    """A run of tokens: one special token, or text encoded by itself. `index` is that of its message, or -1."""

    text: str
    index: int
    special: bool = False
    sampled: bool = False


def tools_block(tools: Sequence[ToolSpec]) -> str:
    """What the model is told about `tools`. Short on purpose: every prompt token is computed on every new scenario."""
    lines = []
    for tool in tools:
        function = tool_function(tool)
        shown = {key: function[key] for key in ("name", "description", "parameters") if function.get(key)}
        lines.append(compact_json(shown))
    return _TOOLS_HEADER + "\n".join(lines) + _TOOLS_FOOTER


class ChatMLHermesRenderer:
    """Messages and tools as ChatML; calls as `<tool_call>` JSON, tool results as turns of the role `tool`.

    Without tools the text is that of the model's own template. With tools, the tools follow the text of the leading
    system message, or a short default one. Earlier reasoning stays in the history, so a longer conversation always
    extends the ids of the shorter one.

    An assistant turn is encoded in two parts, role header and body, exactly as it comes about when it is sampled.

    Args:
        tokenizer: has `<|im_start|>` and `<|im_end|>` as special tokens.
        default_system: system message that the model's template puts before conversations without one.

    Raises:
        DataError: the tokenizer lacks the special tokens.
    """

    supports_tools = True

    def __init__(self, tokenizer: TextTokenizer, *, default_system: str | None = None) -> None:
        special = tokenizer.special_tokens
        missing = [token for token in (START, END) if token not in special]
        if missing:
            raise DataError(
                f"the tokenizer {tokenizer.name_or_path!r} has no special token {missing[0]!r}; "
                "wanted a tokenizer made for ChatML"
            )
        self._tokenizer = tokenizer
        self._special = special
        self._default_system = default_system
        self._close_ids = [special[token] for token in (END, _END_OF_TEXT) if token in special]

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        return self._tokens(list(self._pieces(messages, tools, add_generation_prompt)), messages)

    def render_ids(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        return list(self.render(messages, tools=tools, add_generation_prompt=add_generation_prompt).token_ids)

    def render_text(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """The text that the ids of `render` stand for."""
        return "".join(piece.text for piece in self._pieces(messages, tools, add_generation_prompt))

    def parse_response(
        self,
        token_ids: Sequence[int],
        *,
        tools: Sequence[ToolSpec] | None = None,
        prompt_ids: Sequence[int] | None = None,  # noqa: ARG002 - of the protocol; every prompt is parsed alike here
    ) -> ParsedResponse:
        parser = StreamParser(self._tokenizer, self._close_ids, with_calls=bool(tools))
        deltas = [*parser.push(token_ids), *parser.finish()]
        content = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
        return ParsedResponse(content=content, tool_calls=parser.attempts)

    def completion_parser(
        self,
        *,
        tools: Sequence[ToolSpec] | None = None,
        prompt_ids: Sequence[int] | None = None,  # noqa: ARG002 - of the protocol; every prompt is parsed alike here
        stop: Sequence[str] = (),
        only_one_call: bool = False,  # noqa: ARG002 - of the protocol; every call is given out as soon as it is whole
    ) -> CompletionParser:
        return StreamParser(self._tokenizer, self._close_ids, with_calls=bool(tools), stop=stop)

    def text_parser(self, *, stop: Sequence[str] = ()) -> CompletionParser:
        return StreamParser(self._tokenizer, self._close_ids, with_calls=False, stop=stop)

    def get_stop_token_ids(self) -> list[int]:
        return list(self._close_ids)

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] | None = None,  # noqa: ARG002 - of the protocol; tools stand in the previous prompt
    ) -> RenderedTokens | None:
        if not previous_prompt_ids or reject_assistant_in_extension(list(new_messages)):
            return None
        previous = [*previous_prompt_ids, *previous_completion_ids]
        if not previous_completion_ids or previous[-1] not in self._close_ids:
            previous.append(self._special[END])  # cut off at max_tokens: closed as context, not as something sampled
        pieces = [_Piece("\n", -1)]
        for index, message in enumerate(new_messages):
            pieces += self._turn(normal_message(message), index)
        added = self._tokens([*pieces, *_generation_prompt()], new_messages)
        return RenderedTokens(
            token_ids=previous + added.token_ids,
            message_indices=[-1] * len(previous) + added.message_indices,
            sampled_mask=[False] * (len(previous) + len(added.token_ids)),
            message_roles=added.message_roles,
            message_tool_names=added.message_tool_names,
        )

    def prefill_ids(self, message: ChatMessage) -> list[int] | None:
        return self._tokenizer.encode(_assistant_text(normal_message(message)))

    def tool_call_grammar(
        self, tools: Sequence[ToolSpec], *, only_one: bool = False, instead: Mapping[str, Any] | None = None
    ) -> str | None:
        return COMPACT_HERMES.grammar(
            [tool_function(tool) for tool in tools], only_one=only_one, instead=instead, special=self._special
        )

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    @property
    def vocabulary_size(self) -> int:
        return self._tokenizer.vocabulary_size

    def token_text(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id])

    def _pieces(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec] | None, add_generation_prompt: bool
    ) -> Iterator[_Piece]:
        if not messages:
            raise DataError("there are no messages; wanted at least one")
        normal = [normal_message(message) for message in messages]
        has_system = normal[0]["role"] == "system"
        if tools:
            system = normal[0]["content"] if has_system else DEFAULT_SYSTEM_WITH_TOOLS
            text = "\n\n".join(part for part in (system, tools_block(tools)) if part)
            yield from self._turn({"role": "system", "content": text}, 0 if has_system else -1)
        elif has_system:
            yield from self._turn(normal[0], 0)
        elif self._default_system is not None:
            yield from self._turn({"role": "system", "content": self._default_system}, -1)
        for index, message in enumerate(normal):
            if index > 0 or not has_system:
                yield from self._turn(message, index)
        if add_generation_prompt:
            yield from _generation_prompt()

    def _turn(self, message: ChatMessage, index: int) -> Iterator[_Piece]:
        sampled = message["role"] == "assistant"
        yield _Piece(START, index, special=True)
        if sampled:
            yield _Piece(_GENERATION_PROMPT, index)
            yield _Piece(_assistant_text(message), index, sampled=True)
        else:
            yield _Piece(f"{message['role']}\n{message['content']}", index)
        yield _Piece(END, index, special=True, sampled=sampled)
        yield _Piece("\n", index)

    def _tokens(self, pieces: Sequence[_Piece], messages: Sequence[ChatMessage]) -> RenderedTokens:
        rendered = RenderedTokens(
            message_roles=[message["role"] for message in messages],
            message_tool_names=extract_message_tool_names(list(messages)),
        )
        for piece in pieces:
            ids = [self._special[piece.text]] if piece.special else self._tokenizer.encode(piece.text)
            rendered.token_ids += ids
            rendered.message_indices += [piece.index] * len(ids)
            rendered.sampled_mask += [piece.sampled] * len(ids)
        return rendered


def _generation_prompt() -> Iterator[_Piece]:
    yield _Piece(START, -1, special=True)
    yield _Piece(_GENERATION_PROMPT, -1)


def _assistant_text(message: ChatMessage) -> str:
    text = str(message["content"])
    if reasoning := message.get("reasoning_content"):
        text = f"<think>\n{reasoning.strip()}\n</think>\n\n{text}"
    calls = [call_text(call["function"]) for call in message.get("tool_calls", ())]
    return "\n".join([text, *calls] if text else calls)
