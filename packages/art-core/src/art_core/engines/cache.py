"""Where keys and values live: private storage per running request, and blocks of prompt prefixes kept for later ones.

All of it is float32, also under bfloat16 weights, so that attention is computed without rounding its inputs again.
Keys and values of a position depend on the tokens up to it alone (see `attention`), so any request may use what
another has computed for the same tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from art_core.engines.attention import PIECE, Segment, round_up

Tokens = NDArray[np.int64]


def common_length(a: Tokens, b: Tokens) -> int:
    """How many leading tokens `a` and `b` share."""
    size = min(a.size, b.size)
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if different.size else size


class SlotStore:
    """Keys and values that one request each appends to: per layer (slots, H, capacity, D), grown when needed.

    It grows by more than is needed, so that it grows seldom, but not for that beyond `max_slots` and `max_length`,
    rounded up to a multiple of `PIECE`.
    """

    def __init__(
        self, *, num_layers: int, num_heads: int, head_dim: int, max_slots: int, max_length: int, device: torch.device
    ) -> None:
        self._max_slots = max_slots
        self._max_capacity = round_up(max_length, PIECE)
        self.num_layers = num_layers
        self._shape = (num_heads, head_dim)
        self._device = device
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.clear()

    def clear(self) -> None:
        """Free all memory."""
        empty = torch.zeros(0, self._shape[0], 0, self._shape[1], device=self._device)
        self.keys = [empty] * self.num_layers
        self.values = [empty] * self.num_layers

    def ensure(self, num_slots: int, length: int) -> None:
        """Make room for `length` positions in each of `num_slots` slots; what is stored stays."""
        slots, _, capacity, _ = self.keys[0].shape
        if num_slots <= slots and length <= capacity:
            return
        new_slots, new_capacity = slots, capacity
        if num_slots > slots:
            new_slots = max(num_slots, min(2 * slots, num_slots + 8, self._max_slots))
        if length > capacity:
            new_capacity = round_up(max(length, min(capacity + capacity // 2, self._max_capacity)), PIECE)
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                # Zeros, since a hidden position is multiplied by a weight of 0 and must therefore be finite.
                new = torch.zeros(new_slots, self._shape[0], new_capacity, self._shape[1], device=self._device)
                new[:slots, :, :capacity] = old
                tensors[layer] = new

    def read(self, slot: int, start: int, stop: int) -> Tensor:
        """A copy of columns `start` to `stop`: (2 * layers, H, stop - start, D), keys before values for each layer."""
        pairs = zip(self.keys, self.values, strict=True)
        return torch.stack([tensor[slot, :, start:stop] for pair in pairs for tensor in pair])

    def write(self, slot: int, start: int, block: Tensor) -> None:
        """Store a block as `read` returns it from column `start` on."""
        stop = start + block.shape[2]
        for layer in range(self.num_layers):
            self.keys[layer][slot, :, start:stop] = block[2 * layer]
            self.values[layer][slot, :, start:stop] = block[2 * layer + 1]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` columns of slot `source` to slot `target`."""
        for tensor in (*self.keys, *self.values):
            tensor[target, :, :length] = tensor[source, :, :length]


@dataclass(eq=False)
class _Node:
    """Up to `PIECE` consecutive tokens with their keys and values. Only a full node has children."""

    tokens: Tokens
    block: Tensor
    parent: _Node | None
    children: dict[bytes, _Node] = field(default_factory=dict)


@dataclass(frozen=True)
class Match:
    """A prefix found in the cache: whole blocks of `PIECE` tokens, then `tail_length` tokens of one more block."""

    blocks: Sequence[Tensor] = ()
    tail: Tensor | None = None
    tail_length: int = 0

    @property
    def length(self) -> int:
        return len(self.blocks) * PIECE + self.tail_length


class PrefixCache:
    """A tree of token blocks. Holds at most `max_bytes`; beyond, what was used longest ago goes first.

    A prefix is found token by token: of the last block it may take the beginning only.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._roots: dict[bytes, _Node] = {}
        # Least recently used first. A parent is touched after its child, so the first node never has children.
        self._recency: OrderedDict[_Node, None] = OrderedDict()

    @property
    def enabled(self) -> bool:
        return self.max_bytes > 0

    def clear(self) -> None:
        """Forget everything."""
        self._roots.clear()
        self._recency.clear()
        self.size_bytes = 0

    def match(self, tokens: Tokens) -> Match:
        """The longest stored prefix of `tokens`."""
        path = self._path(tokens)
        children = path[-1].children if path else self._roots
        rest = tokens[len(path) * PIECE :][:PIECE]
        tail, tail_length = None, 0
        for node in children.values():
            length = common_length(node.tokens, rest)
            if length > tail_length:
                tail, tail_length = node, length
        self._touch([*path, tail] if tail else path)
        return Match([node.block for node in path], tail.block if tail else None, tail_length)

    def missing(self, tokens: Tokens) -> Iterator[tuple[int, int]]:
        """The blocks of `tokens` that are not stored, as `(start, stop)` positions, the last one perhaps partial."""
        for start in range(len(self._path(tokens)) * PIECE, tokens.size, PIECE):
            yield start, min(start + PIECE, tokens.size)

    def insert(self, tokens: Tokens, start: int, block: Tensor) -> None:
        """Store `block`: keys and values of positions `start` to `tokens.size`, whose preceding blocks are stored.

        Does nothing where a stored block covers it, or where the blocks before it had to go meanwhile.
        """
        path = self._path(tokens[:start])
        if len(path) * PIECE != start or block.nbytes > self.max_bytes:
            return
        children = path[-1].children if path else self._roots
        own = tokens[start:]
        for key, sibling in list(children.items()):
            shared = common_length(sibling.tokens, own)
            if shared == own.size:
                self._touch([*path, sibling])
                return
            if shared == sibling.tokens.size:  # a shorter tail of the same text, which the new block replaces
                self._drop(children, key, sibling)
        node = _Node(own.copy(), block, path[-1] if path else None)
        children[own.tobytes()] = node
        self.size_bytes += block.nbytes
        self._touch([*path, node])
        while self.size_bytes > self.max_bytes:
            oldest = next(iter(self._recency))
            siblings = oldest.parent.children if oldest.parent else self._roots
            self._drop(siblings, oldest.tokens.tobytes(), oldest)

    def _path(self, tokens: Tokens) -> list[_Node]:
        """The whole blocks that `tokens` begins with."""
        path: list[_Node] = []
        children = self._roots
        for start in range(0, tokens.size - PIECE + 1, PIECE):
            node = children.get(tokens[start : start + PIECE].tobytes())
            if node is None:
                break
            path.append(node)
            children = node.children
        return path

    def _touch(self, path: Sequence[_Node]) -> None:
        for node in reversed(path):
            self._recency[node] = None
            self._recency.move_to_end(node)

    def _drop(self, siblings: dict[bytes, _Node], key: bytes, node: _Node) -> None:
        del siblings[key]
        del self._recency[node]
        self.size_bytes -= node.block.nbytes


class Segments:
    """Shared prefixes in use, each assembled once from the blocks of the cache and freed with its last reader."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[Segment, int]] = {}

    def acquire(self, tokens: Tokens, blocks: Sequence[Tensor]) -> Segment:
        """The segment of `tokens`, made from `blocks` if no request reads it yet. Each call needs one `release`."""
        key = tokens.tobytes()
        if key in self._open:
            segment, readers = self._open[key]
        else:
            segment, readers = Segment(torch.cat(list(blocks), dim=2), tokens.size), 0
        self._open[key] = (segment, readers + 1)
        return segment

    def release(self, tokens: Tokens) -> None:
        """One reader less for the segment of `tokens`."""
        key = tokens.tobytes()
        segment, readers = self._open.pop(key)
        if readers > 1:
            self._open[key] = (segment, readers - 1)
