"""Rows -> micro-batches in which a token prefix that several rows share stands once. Pure: no torch.

The rows of a step have long prefixes in common: all of them the system prompt with its tools, those of a group the
whole task. A `TokenBatch` is a forest of *segments*: each token of it stands for all rows that agree up to there, and
attends to the segments on the way to its root. What is computed once for several rows gets the sum of their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from art_core.errors import ConfigError
from art_core.types import TokenSample


@dataclass(frozen=True)
class Segment:
    """The packed tokens `start:stop`. The tokens before them in their rows are those of `ancestors`, root first.

    `ancestors` are indices of segments, all smaller than this segment's own; `offset` is the position of the first
    token in its rows, the number of tokens in all ancestors. A segment's descendants stand directly behind it, so the
    tokens that see it are one range.
    """

    start: int
    stop: int
    ancestors: tuple[int, ...]
    offset: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Target:
    """One trained token of one row: `prediction` is an index into `TokenBatch.predictions`, `row` into the rows."""

    prediction: int
    logprob: float
    advantage: float
    row: int


@dataclass(frozen=True)
class TokenBatch:
    """Rows packed into `T` tokens to compute.

    `predictions` holds the distinct pairs (packed index, token id): the log-probability of that id is read from the
    model's output at that index. Rows that sampled the same token after the same tokens share a prediction, and each of
    them keeps its own target. `row_tokens` is what the rows would need without sharing.
    """

    token_ids: tuple[int, ...]
    segments: tuple[Segment, ...]
    predictions: tuple[tuple[int, int], ...]
    targets: tuple[Target, ...]
    row_tokens: int

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def positions(self) -> list[int]:
        """Position of each packed token in its rows, from 0."""
        return [
            position for segment in self.segments for position in range(segment.offset, segment.offset + len(segment))
        ]


def pack(rows: Sequence[TokenSample], *, max_tokens: int) -> list[TokenBatch]:
    """All `rows` that have a trained token, in micro-batches of at most `max_tokens` packed tokens.

    A row is computed up to the token that predicts its last trained one; what follows has no influence. Rows are taken
    in the order of their token ids, which brings together those that share most, and makes the result independent of
    the order in which they came. A row that alone needs more than `max_tokens` gets a micro-batch of its own: rows are
    never cut.
    """
    return RowForest(rows).pack(max_tokens=max_tokens)


class RowForest:
    """The rows of a step that have a trained token, in order of their token ids, with what neighbours share."""

    def __init__(self, rows: Sequence[TokenSample]) -> None:
        self._rows = rows
        self._inputs = {
            index: row.token_ids[: _last_trained(row)] for index, row in enumerate(rows) if any(row.trained)
        }
        self._order = sorted(self._inputs, key=lambda index: (self._inputs[index], rows[index].trained, index))
        inputs = [self._inputs[index] for index in self._order]
        self._shared = [0, *(_common_prefix(left, right) for left, right in pairwise(inputs))]

    def sizes(self, *, max_tokens: int) -> list[int]:
        """The packed tokens of each micro-batch that `pack` would make."""
        return [size for _, size in self._divide(max_tokens)]

    def pack(self, *, max_tokens: int) -> list[TokenBatch]:
        """See the function `pack`."""
        return [_build(self._rows, self._inputs, taken) for taken, _ in self._divide(max_tokens)]

    def _divide(self, max_tokens: int) -> list[tuple[list[int], int]]:
        """The rows of each micro-batch, and its packed tokens."""
        if max_tokens < 1:
            raise ConfigError(f"a micro-batch of {max_tokens} tokens holds nothing; wanted 1 or more")
        parts: list[tuple[list[int], int]] = []
        taken: list[int] = []
        size = 0
        for index, shared in zip(self._order, self._shared, strict=False):
            length = len(self._inputs[index])
            if taken and size + length - shared > max_tokens:
                parts.append((taken, size))
                taken, size = [], 0
            size += length - shared if taken else length
            taken.append(index)
        if taken:
            parts.append((taken, size))
        return parts


def _last_trained(row: TokenSample) -> int:
    return max(index for index, is_trained in enumerate(row.trained) if is_trained)


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter
    return next(index for index in range(shorter) if left[index] != right[index])


def _build(rows: Sequence[TokenSample], inputs: dict[int, tuple[int, ...]], taken: Sequence[int]) -> TokenBatch:
    """One micro-batch of the rows `taken`, whose inputs are in sorted order."""
    token_ids: list[int] = []
    segments: list[Segment] = []
    chain_of: dict[int, tuple[int, ...]] = {}
    # Rows that agree on at least one token more than `offset`. The last one in is the next to be laid down, with all
    # its descendants before its siblings.
    todo: list[tuple[list[int], tuple[int, ...], int]] = [
        (run, (), 0) for run in reversed(list(_by_next_token(taken, inputs, 0)))
    ]
    while todo:
        run, ancestors, offset = todo.pop()
        # In sorted order the first and the last differ earliest.
        stop = _common_prefix(inputs[run[0]], inputs[run[-1]])
        segments.append(Segment(len(token_ids), len(token_ids) + stop - offset, ancestors, offset))
        token_ids += inputs[run[0]][offset:stop]
        chain = (*ancestors, len(segments) - 1)
        longer = [index for index in run if len(inputs[index]) > stop]
        chain_of.update((index, chain) for index in run[: len(run) - len(longer)])
        todo += [(part, chain, stop) for part in reversed(list(_by_next_token(longer, inputs, stop)))]
    predictions: dict[tuple[int, int], int] = {}
    targets: list[Target] = []
    for index in taken:
        row = rows[index]
        packed = [at for ancestor in chain_of[index] for at in range(segments[ancestor].start, segments[ancestor].stop)]
        for position, is_trained in enumerate(row.trained):
            if is_trained:
                pair = (packed[position - 1], row.token_ids[position])
                prediction = predictions.setdefault(pair, len(predictions))
                targets.append(Target(prediction, row.logprobs[position], row.advantage, index))
    return TokenBatch(
        token_ids=tuple(token_ids),
        segments=tuple(segments),
        predictions=tuple(predictions),
        targets=tuple(targets),
        row_tokens=sum(len(inputs[index]) for index in taken),
    )


def _by_next_token(members: Sequence[int], inputs: dict[int, tuple[int, ...]], offset: int) -> Iterator[list[int]]:
    """`members`, sorted and equal up to `offset`, in runs that also agree on the token at `offset`."""
    run: list[int] = []
    for index in members:
        if run and inputs[run[0]][offset] != inputs[index][offset]:
            yield run
            run = []
        run.append(index)
    if run:
        yield run
