"""A thin adapter round `tokenizers.Tokenizer`, and incremental decoding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from art_core.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    import tokenizers

_INCOMPLETE = "\ufffd"


class TextTokenizer:
    """Encodes text as text: the spelling of a special token inside it never becomes that token."""

    def __init__(self, backend: tokenizers.Tokenizer, *, name_or_path: str = "") -> None:
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        self._backend = backend
        self.name_or_path = name_or_path
        self.unk_token_id: int | None = None
        self.eos_token_id: int | None = None

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """The tokenizer in a `tokenizer.json`.

        Raises:
            DataError: there is no such file, or it cannot be read.
            MissingExtraError: the `tokenizers` library is not installed.
        """
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "rendering needs 'tokenizers', which is not installed; run: pip install 'art-core[train]'"
            ) from error
        if not path.is_file():
            raise DataError(f"{path} does not exist; wanted a model folder with a tokenizer.json")
        try:
            backend = Tokenizer.from_file(str(path))
        except Exception as error:
            raise DataError(f"{path} is not a readable tokenizer: {error}; download the model again") from error
        return cls(backend, name_or_path=str(path.parent))

    @property
    def special_tokens(self) -> dict[str, int]:
        """Text and id of the tokens that stand for structure."""
        return {
            token.content: index for index, token in self._backend.get_added_tokens_decoder().items() if token.special
        }

    @cached_property
    def vocabulary_size(self) -> int:
        """Every token id is below this."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of `text`; half a surrogate pair, which UTF-8 cannot carry, becomes U+FFFD."""
        if not text:
            return []
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return str(self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def extended_definition(self, special_token: str) -> tuple[str, int]:
        """This tokenizer as the text of a `tokenizer.json`, with one more special token, and the id of that one."""
        extended = type(self._backend).from_str(self._backend.to_str())
        extended.add_special_tokens([special_token])
        return str(extended.to_str()), int(extended.get_vocab()[special_token])

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self._backend.token_to_id(tokens)
        return [self._backend.token_to_id(token) for token in tokens]


class TextStream:
    """Decodes tokens as they arrive. A character whose bytes are spread over tokens comes out when it is whole.

    The joined text is that of decoding all tokens at once.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._context = ""
        self._context_size = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that `token_ids` have completed."""
        return "".join(self._push(token_id) for token_id in token_ids)

    def _push(self, token_id: int) -> str:
        self._ids.append(token_id)
        text = self._tokenizer.decode(self._ids)
        if text.endswith(_INCOMPLETE):
            return ""
        new = text[len(self._context) :]
        # One finished piece stays as left context: some decoders treat the first token of a text specially.
        self._ids = self._ids[self._context_size :]
        self._context, self._context_size = self._tokenizer.decode(self._ids), len(self._ids)
        return new

    def finish(self) -> str:
        """What is left of a character that never became whole, as U+FFFD."""
        new = self._tokenizer.decode(self._ids)[len(self._context) :]
        self._ids, self._context, self._context_size = [], "", 0
        return new
