"""Attention over a forest of segments, for any decoder-only model of transformers.

transformers lets an attention function be registered by name. Ours goes through the segments of a `TokenBatch`: the
tokens that see a segment are its own and those of its descendants, one range of the packed tokens, so each segment's
keys are multiplied once with all their queries. The parts of a query's softmax, one per segment on its chain, are put
together by their normalisers (as in Rabe & Staats 2021, arXiv 2112.05682, and in ring attention, arXiv 2310.01889).
The work is that of the visible pairs, and what is kept for the backward pass grows linearly with the tokens: no T x T
scores or masks, and no copies of keys. The layout travels to it through the model's keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from art_core.errors import ConfigError
from art_core.trainers.attention_block import Part, block_backward, block_forward
from art_core.trainers.batch import Segment

ATTENTION_NAME = "art_segments"
_WINDOW_CHUNK = 512
"""Queries whose mask is built at a time, in layers that see a window only."""


class SegmentLayout:
    """Which packed token attends to which, on a device. One object per micro-batch, shared by all layers.

    `on_layer` is called before each layer's attention, forward and backward, and once more where a layer is computed
    again; what it raises ends the computation.
    """

    def __init__(
        self, segments: tuple[Segment, ...], *, device: torch.device, on_layer: Callable[[], None] = lambda: None
    ) -> None:
        self.on_layer = on_layer
        self._segments = segments
        self._stops = [segment.stop for segment in segments]
        for segment in segments:
            for ancestor in segment.ancestors:
                self._stops[ancestor] = max(self._stops[ancestor], segment.stop)
        self._longest = max(segment.offset + len(segment) for segment in segments)
        self._positions = torch.cat(
            [torch.arange(segment.offset, segment.offset + len(segment), device=device) for segment in segments]
        )
        self._parts: dict[int | None, list[Part]] = {}

    def parts(self, window: int | None) -> list[Part]:
        """What to multiply: every visible pair of query and key is in one of them. Parts with `own` come first, hold
        each query once, and at least one key that it sees. `window` limits how many positions back a query sees,
        itself included.
        """
        if window is not None and window >= self._longest:
            window = None
        if window not in self._parts:
            self._parts[window] = self._whole_parts() if window is None else self._windowed_parts(window)
        return self._parts[window]

    def _whole_parts(self) -> list[Part]:
        own = [
            Part(slice(segment.start, segment.stop), slice(segment.start, segment.stop), own=True)
            for segment in self._segments
        ]
        others = [
            Part(slice(segment.stop, stop), slice(segment.start, segment.stop), own=False)
            for segment, stop in zip(self._segments, self._stops, strict=True)
            if stop > segment.stop
        ]
        return own + others

    def _windowed_parts(self, window: int) -> list[Part]:
        parts = []
        for segment, stop in zip(self._segments, self._stops, strict=True):
            for own, first, last in ((True, segment.start, segment.stop), (False, segment.stop, stop)):
                for start in range(first, last, _WINDOW_CHUNK):
                    queries = slice(start, min(start + _WINDOW_CHUNK, last))
                    positions = self._positions[queries]
                    nearest, farthest = int(positions.min()), int(positions.max())
                    # A query at position p sees the keys at p - window + 1 to p.
                    unseen = max(0, nearest - window + 1 - segment.offset)
                    keys = slice(segment.start + unseen, queries.stop if own else segment.stop)
                    if keys.start < keys.stop:
                        whole = not own and farthest - segment.offset - unseen < window
                        mask = None if whole else (self._positions, window)
                        parts.append(Part(queries, keys, own=own, window=mask))
        return sorted(parts, key=lambda part: not part.own)


class _SegmentAttention(torch.autograd.Function):
    """softmax(scale Q K^T) V over the visible pairs; keeps its inputs, its output and one normaliser per query."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: SegmentLayout, window: int | None, scale: float
    ) -> Tensor:
        layout.on_layer()
        parts = layout.parts(window)
        q, k, v = _grouped(query, key.shape[1]), *_shared(query, key, value)
        group, kv_heads, tokens, _ = q.shape
        output = torch.empty(tokens, kv_heads * group, v.shape[-1], dtype=torch.float32, device=query.device)
        out = _grouped(output.transpose(0, 1)[None], kv_heads)
        lse = torch.empty(tokens, kv_heads, group, dtype=torch.float32, device=query.device).permute(2, 1, 0)
        for part in parts:
            at = part.queries
            part_out, part_lse = block_forward(part, q[:, :, at], k[:, :, part.keys], v[:, :, part.keys], scale)
            if part.own:
                out[:, :, at], lse[:, :, at] = part_out, part_lse
            else:
                together = torch.logaddexp(lse[:, :, at], part_lse)
                out[:, :, at] *= (lse[:, :, at] - together).exp_()[..., None]
                out[:, :, at] += part_out * (part_lse - together).exp_()[..., None]
                lse[:, :, at] = together
        output = output.to(query.dtype)[None]
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.layout, ctx.window, ctx.scale = layout, window, scale
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, lse = ctx.saved_tensors
        ctx.layout.on_layer()
        kv_heads = key.shape[1]
        q, k, v = _grouped(query, kv_heads), *_shared(query, key, value)
        out, grad_out = (_grouped(each.transpose(1, 2), kv_heads) for each in (output, grad_outputs[0]))
        grad_query, grad_key, grad_value = (
            torch.zeros(each.shape[2], each.shape[1], each.shape[3], dtype=torch.float32, device=each.device)
            for each in (query, key, value)
        )
        grad_q = _grouped(grad_query.transpose(0, 1)[None], kv_heads)
        for part in ctx.layout.parts(ctx.window):
            at, keys = part.queries, part.keys
            part_q, part_k, part_v = block_backward(
                part,
                grad_out[:, :, at],
                q[:, :, at],
                k[:, :, keys],
                v[:, :, keys],
                out[:, :, at],
                lse[:, :, at],
                ctx.scale,
            )
            grad_q[:, :, at] += part_q
            grad_key[keys] += part_k.sum(0).transpose(0, 1)
            grad_value[keys] += part_v.sum(0).transpose(0, 1)
        gradients = (each.to(query.dtype).transpose(0, 1)[None] for each in (grad_query, grad_key, grad_value))
        return *gradients, None, None, None


def _grouped(heads: Tensor, kv_heads: int) -> Tensor:
    """(1, heads, T, D) as (group, kv heads, T, D), without a copy: the heads of a group share keys and values."""
    num_heads, tokens, size = heads.shape[1:]
    return heads[0].view(kv_heads, num_heads // kv_heads, tokens, size).transpose(0, 1)


def _shared(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values (1, kv heads, T, D) for each member of a group, (group, kv heads, T, D), without a copy."""
    group = query.shape[1] // key.shape[1]
    return key.expand(group, -1, -1, -1), value.expand(group, -1, -1, -1)


def segment_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    segments: SegmentLayout | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention in transformers' calling convention: `query` (1, heads, T, D), `key`/`value` (1, kv heads, T, D).

    Returns (1, T, heads, D). Heads may outnumber key/value heads by a whole factor.

    Raises:
        ConfigError: the model asks for something this attention does not compute.
    """
    if segments is None:
        raise ConfigError(
            f"{type(module).__name__} does not hand keyword arguments on to its attention; "
            "this architecture cannot be trained by the native trainer"
        )
    if softcap is not None or dropout != 0.0 or attention_mask is not None:
        raise ConfigError(
            f"{type(module).__name__} wants attention with softcap={softcap}, dropout={dropout}, "
            f"mask={'given' if attention_mask is not None else None}; the native trainer computes plain attention only"
        )
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    output: Tensor = _SegmentAttention.apply(query, key, value, segments, sliding_window, scale)  # type: ignore[no-untyped-call]
    return output, None


def _no_mask(*_args: Any, **_kwargs: Any) -> None:
    """The layout says who attends to whom; transformers need not build a mask."""


def use_segment_attention(model: nn.Module) -> None:
    """Make `model`, a causal language model of transformers, compute with `segment_attention`.

    Its base model then takes packed `input_ids` (1, T), `position_ids` (1, T) and `segments`, a `SegmentLayout`.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION_NAME, segment_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, _no_mask)
    model.set_attn_implementation(ATTENTION_NAME)  # type: ignore[operator]
