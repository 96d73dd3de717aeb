"""Attention over packed rows, whose result for a row depends on nothing but the tokens before it.

One forward pass computes rows of many requests side by side: chunks of prompts and single decoded tokens. Two rules
make the bits of each row independent of what else is in the pass, so that a request's tokens and logprobs do not
depend on load, on arrival order, or on whether its keys and values were computed now or came from a cache:

- Matrix products get at least `ROW_MULTIPLE` (linear layers) or `MIN_QUERY_ROWS` (attention) rows. Above these, MKL
  reduces every row in the same order whatever the number of rows; below, it switches kernels.
- The weighted sum over values is accumulated in pieces of `PIECE` keys that start at multiples of `PIECE`, in order.
  Piece boundaries are absolute positions, so it does not matter which pieces are read from a shared prefix.

Everything here is computed in float32, whatever the type of the weights.

Axes: R rows of the pass, n rows of one part, H key/value heads, G query heads per key/value head, D head size,
L keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from art_core.errors import ConfigError

PIECE = 128
"""Keys per step of the weighted sum over values; private key/value storage and shared prefixes are multiples of it."""
ROW_MULTIPLE = 16
"""Rows of a forward pass are padded to a multiple of this. MKL's float32 product gives equal rows from 12 rows on, in
multiples of 4, and other bits for 1, 2, 3, 5, 6, 7, 9, 10 and 11 rows; 16 is also a full tile of AMX."""
MIN_QUERY_ROWS = 4
"""Query rows of a product with keys or values. MKL's float32 batched product gives other bits for 1 to 3 rows."""
ATTENTION_NAME = "art_packed"
_NEG_INF = float("-inf")


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class Segment:
    """Keys and values of a prompt prefix that several requests read together: (2 * layers, H, length, D)."""

    key_values: Tensor
    length: int

    def keys(self, layer: int) -> Tensor:
        return self.key_values[2 * layer]

    def values(self, layer: int) -> Tensor:
        return self.key_values[2 * layer + 1]


@dataclass(frozen=True)
class Chunk:
    """Consecutive positions of one request: rows `row` to `row + count` of the pass.

    `hidden` (count, L) marks the keys each row must not see: later positions, and storage beyond the last one.
    """

    row: int
    count: int
    slot: int
    segment: Segment | None
    private_length: int
    hidden: Tensor


@dataclass(frozen=True)
class DecodeGroup:
    """One row each of the requests in slots `slot` to `slot + count`: rows `row` to `row + count` of the pass.

    `hidden` (count, 1, 1, private_length) marks private keys beyond a request's last one. `segments` lists each shared
    prefix with the members of the group that read it (None: all of them).
    """

    row: int
    count: int
    slot: int
    private_length: int
    hidden: Tensor
    segments: Sequence[tuple[Tensor | None, Segment]]

    @property
    def prefix_length(self) -> int:
        return max((segment.length for _, segment in self.segments), default=0)


@dataclass(frozen=True)
class Plan:
    """Where the rows of one forward pass belong.

    `keys` and `values` are the private storage per layer, (slots, H, capacity, D); row r of the first `num_rows` is
    written to column `columns[r]` of slot `slots[r]`. Rows from `num_rows` on are padding.
    """

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    num_rows: int
    slots: Tensor
    columns: Tensor
    chunks: Sequence[Chunk] = field(default=())
    groups: Sequence[DecodeGroup] = field(default=())


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _attention_mask: Tensor | None,
    *,
    scaling: float,
    plan: Plan | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of a packed pass, as transformers calls it: query (1, H * G, R, D) -> (1, R, H * G, D).

    Keys and values of the new rows are stored before any row is answered.

    Raises:
        ConfigError: the model asks for a variant of attention that is not computed here.
    """
    unsupported = [name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None]
    layer = module.layer_idx
    if plan is None or unsupported or value.shape != key.shape or key.shape[-1] != plan.keys[layer].shape[-1]:
        raise ConfigError(
            f"{type(module).__name__} cannot be served by the embedded engine "
            f"(attention options {unsupported}, keys {tuple(key.shape)}, values {tuple(value.shape)}, "
            f"plan passed on: {plan is not None}); wanted plain causal attention with keys and values of one shape"
        )
    rows = plan.num_rows
    where = (plan.slots, slice(None), plan.columns)
    plan.keys[layer][where] = key[0, :, :rows].transpose(0, 1).float()
    plan.values[layer][where] = value[0, :, :rows].transpose(0, 1).float()
    scaled = query[0].float() * scaling  # (H * G, R, D)
    output = query.new_zeros(query.shape[2], query.shape[1], query.shape[3])
    for chunk in plan.chunks:
        _attend_chunk(scaled, plan, layer, chunk, output)
    for group in plan.groups:
        _attend_group(scaled, plan, layer, group, output)
    return output.unsqueeze(0), None


def _at_least_min_rows(rows: Tensor) -> Tensor:
    """`rows` (..., n, D) with zero rows added up to `MIN_QUERY_ROWS`."""
    missing = MIN_QUERY_ROWS - rows.shape[-2]
    return rows if missing <= 0 else torch.nn.functional.pad(rows, (0, 0, 0, missing))


def _add_weighted(total: Tensor, weights: Tensor, values: Tensor) -> None:
    """total (b, n, D) += weights (b, n, L) @ values (b, L, D), piece by piece from the front."""
    for start in range(0, weights.shape[-1], PIECE):
        total.baddbmm_(weights[..., start : start + PIECE], values[:, start : start + PIECE])


def _attend_chunk(scaled: Tensor, plan: Plan, layer: int, chunk: Chunk, output: Tensor) -> None:
    keys, values = plan.keys[layer][chunk.slot], plan.values[layer][chunk.slot]  # (H, capacity, D)
    H, _, D = keys.shape
    G, n = scaled.shape[0] // H, chunk.count
    prefix = chunk.segment.length if chunk.segment else 0
    queries = _at_least_min_rows(scaled[:, chunk.row : chunk.row + n].reshape(H, G * n, D))
    scores = scaled.new_empty(H, queries.shape[1], prefix + chunk.private_length)
    if chunk.segment:
        scores[..., :prefix] = torch.bmm(queries, chunk.segment.keys(layer).transpose(1, 2))
    scores[..., prefix:] = torch.bmm(queries, keys[:, : chunk.private_length].transpose(1, 2))
    scores[:, : G * n].view(H, G, n, -1).masked_fill_(chunk.hidden, _NEG_INF)
    weights = torch.softmax(scores, -1)
    total = torch.zeros_like(queries)
    if chunk.segment:
        _add_weighted(total, weights[..., :prefix], chunk.segment.values(layer))
    _add_weighted(total, weights[..., prefix:], values[:, : chunk.private_length])
    # (H, G * n, D) -> (n, H * G, D)
    output[chunk.row : chunk.row + n] = total[:, : G * n].reshape(H * G, n, D).transpose(0, 1)


def _attend_group(scaled: Tensor, plan: Plan, layer: int, group: DecodeGroup, output: Tensor) -> None:
    all_keys, all_values = plan.keys[layer], plan.values[layer]
    _, H, capacity, D = all_keys.shape
    n, G, private, prefix = group.count, scaled.shape[0] // H, group.private_length, group.prefix_length
    keys = all_keys[group.slot : group.slot + n].view(n * H, capacity, D)[:, :private]
    values = all_values[group.slot : group.slot + n].view(n * H, capacity, D)[:, :private]
    per_head = scaled[:, group.row : group.row + n].view(H, G, n, D).permute(2, 0, 1, 3)  # (n, H, G, D)
    queries = _at_least_min_rows(per_head).contiguous()
    padded = queries.shape[2]
    scores = scaled.new_empty(n, H, padded, prefix + private)
    own = torch.bmm(queries.view(n * H, padded, D), keys.transpose(1, 2)).view(n, H, padded, private)
    scores[..., prefix:] = own.masked_fill_(group.hidden, _NEG_INF)
    if prefix:
        scores[..., :prefix] = _NEG_INF
    members = [(slice(None) if index is None else index, segment) for index, segment in group.segments]
    for index, segment in members:
        readers = per_head[index]  # (m, H, G, D)
        m = readers.shape[0]
        shared = _at_least_min_rows(readers.permute(1, 0, 2, 3).reshape(H, m * G, D))
        found = torch.bmm(shared, segment.keys(layer).transpose(1, 2))[:, : m * G]
        scores[index, :, :G, : segment.length] = found.view(H, m, G, segment.length).permute(1, 0, 2, 3)
    weights = torch.softmax(scores, -1)
    total = torch.zeros_like(queries)
    for index, segment in members:
        part = weights[index, :, :G, : segment.length]
        m = part.shape[0]
        part = _at_least_min_rows(part.permute(1, 0, 2, 3).reshape(H, m * G, segment.length))
        summed = part.new_zeros(H, part.shape[1], D)
        _add_weighted(summed, part, segment.values(layer))
        total[index, :, :G] = summed[:, : m * G].view(H, m, G, D).permute(1, 0, 2, 3)
    flat_weights = weights.view(n * H, padded, prefix + private)[..., prefix:]
    _add_weighted(total.view(n * H, padded, D), flat_weights, values)
    output[group.row : group.row + n] = total[:, :, :G].reshape(n, H * G, D)


def use_packed_attention(model: Any) -> None:
    """Make `model`, a transformers model, compute attention with `packed_attention`. Other models keep their own.

    The name has no entry in transformers' mask registry, so no mask is built: the plan says what a row may see.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, packed_attention)
    model.set_attn_implementation(ATTENTION_NAME)
