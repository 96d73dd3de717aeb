"""Stop strings, and the parser of completions that are text with calls in it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from renderers import ParsedToolCall, ToolCallParseStatus

from art_core.messages import compact_json
from art_core.render.base import ContentDelta, Delta, ToolCallDelta
from art_core.render.hermes import HermesSplitter
from art_core.render.tokenizer import TextStream, TextTokenizer


class StopScanner:
    """Passes on text that arrives in pieces, up to the first place where one of `stops` begins.

    The end of the text that a stop string may begin with is held back. `found` tells that one was completed; from then
    on nothing more comes out. Of several that are completed by the same character, the one that begins first counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that no stop string can touch any more."""
        if not self._stops or self.found:
            return "" if self.found else text
        previous = len(self._held)
        self._held += text
        for end in range(previous + 1, len(self._held) + 1):
            starts = [end - len(stop) for stop in self._stops if self._held.endswith(stop, 0, end)]
            if starts:
                self.found = True
                safe, self._held = self._held[: min(starts)], ""
                return safe
        keep = max(self._overlap(stop) for stop in self._stops)
        safe, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return safe

    def finish(self) -> str:
        """What was held back for a stop string that never came."""
        held, self._held = self._held, ""
        return held

    def _overlap(self, stop: str) -> int:
        longest = min(len(self._held), len(stop) - 1)
        return next(size for size in range(longest, -1, -1) if self._held.endswith(stop[:size]))


class StreamParser:
    """A `CompletionParser` that gives out text as it is decoded: as content, or split into content and Hermes calls.

    The first of `close_ids` ends the text. Stop strings are looked for in the whole text, markup of calls included.
    """

    def __init__(
        self, tokenizer: TextTokenizer, close_ids: Sequence[int], *, with_calls: bool, stop: Sequence[str] = ()
    ) -> None:
        self._text = TextStream(tokenizer)
        self._close_ids = frozenset(close_ids)
        self._stops = StopScanner(stop)
        self._splitter = HermesSplitter() if with_calls else None
        self._closed = False

    @property
    def stopped(self) -> bool:
        return self._stops.found

    @property
    def attempts(self) -> list[ParsedToolCall]:
        """Every attempted call, in order."""
        return list(self._splitter.attempts) if self._splitter else []

    @property
    def num_malformed_calls(self) -> int:
        return sum(call.status != ToolCallParseStatus.OK for call in self.attempts)

    def push(self, token_ids: Sequence[int]) -> list[Delta]:
        ids = []
        for token_id in token_ids:
            self._closed = self._closed or token_id in self._close_ids
            if not self._closed:
                ids.append(token_id)
        text = self._stops.push(self._text.push(ids))
        return _deltas(self._splitter.push(text) if self._splitter else [text])

    def finish(self) -> list[Delta]:
        text = self._stops.push(self._text.finish())
        text += self._stops.finish()
        if self._splitter is None:
            return _deltas([text])
        return _deltas([*self._splitter.push(text), *self._splitter.finish()])


def _deltas(events: Sequence[str | ParsedToolCall]) -> list[Delta]:
    return [
        ContentDelta(event) if isinstance(event, str) else ToolCallDelta(str(event.name), compact_json(event.arguments))
        for event in events
        if event
    ]
