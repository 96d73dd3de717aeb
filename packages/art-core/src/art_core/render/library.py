"""Renderers of the `renderers` library, behind the same protocol as our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from renderers import DefaultRendererConfig, ParsedResponse, RenderedTokens, ToolCallParseStatus, create_renderer

from art_core.errors import DataError, MissingExtraError
from art_core.messages import compact_json, normal_message, tool_function
from art_core.render.base import CompletionParser, ContentDelta, Delta, ReasoningDelta, ToolCallDelta
from art_core.render.families import call_format, recognised
from art_core.render.parsing import StreamParser
from art_core.types import ChatMessage, ToolSpec

_TOOL_FORMATS = (("<tool_call>", "<function=", "qwen3.5"), ("<tool_call>", '"name"', "qwen3"))
_BREAK = "\u200b"


class LibraryRenderer:
    """A renderer of the library for one model.

    The library's renderers tokenise whole texts, so the spelling of a special token inside a message would become that
    token. It is broken up by a zero-width space after its first character.
    """

    def __init__(self, renderer: Any, tokenizer: Any, *, supports_tools: bool) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.values()
        self._special = sorted((token.content for token in added if token.special), key=len, reverse=True)
        self._tags = frozenset(token.content for token in added)
        self.supports_tools = supports_tools
        self._call_format = call_format(self._answer_text) if supports_tools else None

    @classmethod
    def load(cls, folder: Path, *, model_id: str | None, template: str | None) -> Self:
        """The library's renderer for `model_id` if it knows that name, else the one that writes what `template` writes.

        That is a hand-written one where one agrees with the template, and the generic one otherwise. The generic one
        reads tool calls where the template shows which of the known formats the model writes.

        Raises:
            DataError: the folder has no readable tokenizer, or one that is not that of `model_id`.
            MissingExtraError: `transformers` is not installed.
        """
        try:
            from renderers.base import MODEL_RENDERER_MAP
            from transformers import AutoTokenizer
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"the tokenizer in {folder} needs 'transformers', which is not installed; "
                "run: pip install 'art-core[train]'"
            ) from error
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{folder} holds no tokenizer that can be read: {error}; wanted a model folder") from error
        if model_id in MODEL_RENDERER_MAP:
            tokenizer.name_or_path = model_id
            try:
                return cls(create_renderer(tokenizer), tokenizer, supports_tools=True)
            except Exception as error:  # the library asserts, and some families download more
                raise DataError(
                    f"the tokenizer in {folder} cannot be used as that of {model_id}: {error or type(error).__name__}; "
                    "download the model again, or give no model id"
                ) from error
        if template is None:
            raise DataError(f"the model in {folder} has no chat template; wanted an instruct model, not a base model")
        tokenizer.chat_template = template
        if (known := recognised(tokenizer)) is not None:
            return cls(known, tokenizer, supports_tools=True)
        tool_parser = _tool_parser(template, tokenizer)
        config = DefaultRendererConfig(
            tool_parser=tool_parser, reasoning_parser="think" if "<think>" in template else None
        )
        return cls(create_renderer(tokenizer, config), tokenizer, supports_tools=tool_parser is not None)

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        return self._call(self._renderer.render, messages, tools, add_generation_prompt)

    def render_ids(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        return list(self._call(self._renderer.render_ids, messages, tools, add_generation_prompt))

    def parse_response(
        self,
        token_ids: Sequence[int],
        *,
        tools: Sequence[ToolSpec] | None = None,
        prompt_ids: Sequence[int] | None = None,
    ) -> ParsedResponse:
        return self._renderer.parse_response(
            list(token_ids), tools=_specs(tools), prompt_ids=list(prompt_ids) if prompt_ids else None
        )

    def completion_parser(
        self,
        *,
        tools: Sequence[ToolSpec] | None = None,
        prompt_ids: Sequence[int] | None = None,
        stop: Sequence[str] = (),
        only_one_call: bool = False,
    ) -> CompletionParser:
        return _WholeParser(self, self._tokenizer, tools, prompt_ids, stop, ends_with_call=only_one_call)

    def text_parser(self, *, stop: Sequence[str] = ()) -> CompletionParser:
        return StreamParser(self._tokenizer, self.get_stop_token_ids(), with_calls=False, stop=stop)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    @property
    def vocabulary_size(self) -> int:
        return len(self._tokenizer)

    def prefill_ids(self, message: ChatMessage) -> list[int] | None:
        """What the template writes for `message` as the last one, up to the end of its turn.

        None for a message with calls, and where the template changes the text: what follows would not continue it.
        """
        ids = None if message.get("tool_calls") else self._answer_ids(message, None)
        [prepared] = self._prepared([message])
        return ids if ids is not None and self._decoded(ids).endswith(prepared["content"]) else None

    def tool_call_grammar(
        self, tools: Sequence[ToolSpec], *, only_one: bool = False, instead: Mapping[str, Any] | None = None
    ) -> str | None:
        form = self._call_format
        if form is None or (instead is not None and not form.opening):  # without tags the two cannot be told apart
            return None
        functions = [tool_function(tool) for tool in tools]
        return form.grammar(functions, only_one=only_one, instead=instead, special=self._tags)

    def _answer_ids(self, message: ChatMessage, tools: Sequence[ToolSpec] | None) -> list[int] | None:
        """Ids of an assistant message behind the generation prompt, without what ends its turn; None if unclear."""
        asked: list[ChatMessage] = [{"role": "user", "content": "u"}]
        head = self.render_ids(asked, tools=tools, add_generation_prompt=True)
        whole = self.render_ids([*asked, message], tools=tools)
        stops = set(self.get_stop_token_ids())
        ends = [place for place in range(len(head), len(whole)) if whole[place] in stops]
        return whole[len(head) : ends[-1]] if whole[: len(head)] == head and ends else None

    def _answer_text(self, message: ChatMessage, tools: Sequence[ToolSpec] | None) -> str | None:
        try:
            ids = self._answer_ids(message, tools)
        except DataError:
            return None
        return None if ids is None else self._decoded(ids)

    def _decoded(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def get_stop_token_ids(self) -> list[int]:
        return list(self._renderer.get_stop_token_ids())

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] | None = None,
    ) -> RenderedTokens | None:
        return self._renderer.bridge_to_next_turn(
            list(previous_prompt_ids), list(previous_completion_ids), self._prepared(new_messages), tools=_specs(tools)
        )

    def token_text(self, token_id: int) -> str:
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False))

    def _call(
        self, method: Any, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec] | None, generate: bool
    ) -> Any:
        if not messages:
            raise DataError("there are no messages; wanted at least one")
        prepared = self._prepared(messages)
        try:
            return method(prepared, tools=_specs(tools), add_generation_prompt=generate)
        except Exception as error:  # a template may raise anything on messages it was not written for
            raise DataError(f"the model's chat template refuses these messages: {error}") from error

    def _prepared(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        return [self._defused(_with_argument_objects(normal_message(message))) for message in messages]

    def _defused(self, value: Any) -> Any:
        if isinstance(value, str):
            for token in self._special:
                value = value.replace(token, token[:1] + _BREAK + token[1:])
            return value
        if isinstance(value, Mapping):
            return {key: self._defused(item) for key, item in value.items()}
        return [self._defused(item) for item in value] if isinstance(value, list) else value


def _with_argument_objects(message: ChatMessage) -> ChatMessage:
    """Templates read arguments as an object; anything else is wrapped into one."""
    for call in message.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, dict):
            call["function"]["arguments"] = {"raw": arguments}
    return message


def _specs(tools: Sequence[ToolSpec] | None) -> list[dict[str, Any]] | None:
    return [{"type": "function", "function": tool_function(tool)} for tool in tools] if tools else None


def _tool_parser(template: str, tokenizer: Any) -> str | None:
    for tag, sign, name in _TOOL_FORMATS:
        if tag in template and sign in template.replace("\\", "") and tag in tokenizer.get_vocab():
            return name
    return None


class _WholeParser:
    """Parses when all tokens are there: the library has no incremental parsers.

    With `ends_with_call` also behind every token that a call may end with, until the first call is whole.
    """

    def __init__(
        self,
        renderer: LibraryRenderer,
        tokenizer: Any,
        tools: Sequence[ToolSpec] | None,
        prompt_ids: Sequence[int] | None,
        stop: Sequence[str],
        *,
        ends_with_call: bool,
    ) -> None:
        self._renderer = renderer
        self._ends_with_call = ends_with_call and bool(tools)
        self._tokenizer = tokenizer
        self._tools = tools
        self._prompt_ids = prompt_ids
        self._ids: list[int] = []
        self._scanned = renderer.text_parser(stop=stop) if stop else None
        self._text = ""
        self.num_malformed_calls = 0

    @property
    def stopped(self) -> bool:
        return self._scanned is not None and self._scanned.stopped

    def push(self, token_ids: Sequence[int]) -> list[Delta]:
        self._ids += token_ids
        if self._scanned is not None:
            self._text += "".join(
                delta.text for delta in self._scanned.push(token_ids) if isinstance(delta, ContentDelta)
            )
        if self._ends_with_call and not self.stopped and self._may_end_call(token_ids):
            deltas = self._parsed()
            if any(isinstance(delta, ToolCallDelta) for delta in deltas):
                return deltas
        return []

    def _may_end_call(self, token_ids: Sequence[int]) -> bool:
        """Calls of every family end with a bracket: of JSON, of a list or of a tag."""
        return any(end in self._renderer.token_text(token_id) for token_id in token_ids for end in "}])>")

    def finish(self) -> list[Delta]:
        if self.stopped:  # what precedes the stop string, encoded only to be parsed
            self._ids = list(self._tokenizer.encode(self._text, add_special_tokens=False))
        return self._parsed()

    def _parsed(self) -> list[Delta]:
        parsed = self._renderer.parse_response(self._ids, tools=self._tools, prompt_ids=self._prompt_ids)
        readable = [call for call in parsed.tool_calls if call.status == ToolCallParseStatus.OK and self._tools]
        unreadable = [call.raw for call in parsed.tool_calls if call not in readable]
        self.num_malformed_calls = len(unreadable) if self._tools else 0
        deltas: list[Delta] = []
        if parsed.reasoning_content:
            deltas.append(ReasoningDelta(parsed.reasoning_content))
        if content := "\n".join(text for text in (parsed.content, *unreadable) if text):
            deltas.append(ContentDelta(content))
        for call in readable:
            arguments = call.arguments if isinstance(call.arguments, str) else compact_json(call.arguments or {})
            deltas.append(ToolCallDelta(str(call.name), arguments))
        return deltas
