"""Grammars: which tokens may come next in a completion."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from art_core.errors import ConfigError, DataError
from art_core.guidance import llguidance
from art_core.render.tokenizer import TextTokenizer

_MAX_COMPILED = 64
_END = "<|the grammar may end here|>"  # an id of its own: which of the model's tokens stop is for each request to say
Allowed = npt.NDArray[np.bool_]


class Matcher:
    """Follows one completion through a grammar.

    `allowed` (V,) marks the tokens that may come next; it is never empty. A stop token is marked exactly where the
    grammar is satisfied. Used by one thread at a time.

    Raises:
        DataError: also by `advance`: the grammar has become too large, or no token of the model can continue it.
    """

    allowed: Allowed

    def __init__(self, state: Any, *, end_id: int, stop_token_ids: Sequence[int], vocab_size: int) -> None:
        self._state = state
        self._end_id = end_id
        self._stop_token_ids = list(stop_token_ids)
        self._vocab_size = vocab_size
        self._look()

    def advance(self, token_id: int) -> None:
        """Go on behind `token_id`, which must be one of those allowed, and no stop token."""
        self._state.consume_token(token_id)
        self._look()

    def _look(self) -> None:
        bits = self._state.compute_bitmask()
        if self._state.is_error():
            raise DataError(
                f"the grammar cannot be followed any further: {_brief(self._state.get_error())}; wanted a grammar with "
                "less repetition and ambiguity"
            )
        known = np.unpackbits(np.frombuffer(bits, np.uint8), count=self._end_id + 1, bitorder="little").view(np.bool_)
        allowed = np.zeros(self._vocab_size, np.bool_)
        num_shared = min(self._end_id, self._vocab_size)  # embeddings may be padded
        allowed[:num_shared] = known[:num_shared]
        allowed[self._stop_token_ids] = known[self._end_id]
        if not allowed.any():
            raise DataError(
                "the grammar is not satisfied yet, and no token of this model continues it; wanted a grammar of text "
                "that the tokenizer can spell, without the text of stop tokens"
            )
        self.allowed = allowed


class Grammars:
    """Compiles grammars for the tokenizer of one model. Used by any thread.

    The tokenizer's table is made when the first grammar comes (seconds for a large vocabulary), and compiled grammars
    are kept, the latest 64 of them.
    """

    def __init__(self, model_folder: Path, vocab_size: int) -> None:
        self._model_folder = model_folder
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._tokenizer: tuple[Any, int] | None = None
        self._compiled: dict[str, Any] = {}  # oldest use first; none has seen a token

    def matcher(self, grammar: str, stop_token_ids: Sequence[int]) -> Matcher:
        """A matcher at the start of a completion that ends with one of `stop_token_ids`. Blocks.

        Raises:
            ConfigError: the grammar is not one, or asks for what llguidance cannot do; nothing could stop it; or the
                tokenizer's kind is not supported.
            DataError: the model folder has no readable tokenizer, or no token can begin the grammar.
            MissingExtraError: llguidance is not installed.
        """
        stops = [token for token in stop_token_ids if 0 <= token < self._vocab_size]
        if not stops:
            raise ConfigError(
                f"a grammar came with the stop tokens {list(stop_token_ids)}, none of which the model has; wanted at "
                "least one in `stop_token_ids`, since the completion ends where the grammar lets a stop token through"
            )
        with self._lock:
            compiled = self._compiled.pop(grammar, None)
            if compiled is None:
                compiled = self._compile(grammar)
            self._compiled[grammar] = compiled
            if len(self._compiled) > _MAX_COMPILED:
                del self._compiled[next(iter(self._compiled))]
            # A copy of what has seen nothing: how much work is left of llguidance's limits does not depend on others.
            state = compiled.deep_copy()
            _, end_id = self._load_tokenizer()
        return Matcher(state, end_id=end_id, stop_token_ids=stops, vocab_size=self._vocab_size)

    def _compile(self, grammar: str) -> Any:
        tokenizer, _ = self._load_tokenizer()
        library = llguidance()
        limits = library.LLParserLimits(verbose_errors=False)
        state = library.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if not state.is_error():
            state.compute_bitmask()  # what the first mask needs is computed once for all copies
        if state.is_error():
            raise ConfigError(
                f"the grammar cannot be used: {_brief(state.get_error())}; wanted llguidance's dialect of Lark, or a "
                "JSON schema of the features it supports"
            )
        return state

    def _load_tokenizer(self) -> tuple[Any, int]:
        """llguidance's tokenizer, and the id by which it says that the grammar may end."""
        if self._tokenizer is None:
            text = TextTokenizer.from_file(self._model_folder / "tokenizer.json")
            definition, end_id = text.extended_definition(_END)
            try:
                self._tokenizer = llguidance().LLTokenizer(definition, eos_token=end_id), end_id
            except ValueError as error:
                raise ConfigError(
                    f"grammars do not work with the tokenizer in {self._model_folder}: {error}; wanted one that works "
                    "on bytes (byte-level BPE, or with byte fallback). Leave the grammar out"
                ) from error
        return self._tokenizer


def _brief(message: str) -> str:
    """llguidance's message without the grammar's text that it quotes, and on one line."""
    if "NoExtensionBias" in message:
        return "nothing can follow it, as when a schema refers to itself and to nothing else"
    message = re.split(r"\n\s*\d+ \| |\n?<state>", message, maxsplit=1)[0]
    return " ".join(message.split())
