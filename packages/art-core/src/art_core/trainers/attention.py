"""Attention over a forest of segments, for any decoder-only model of transformers.

transformers lets an attention function be registered by name. Ours computes each segment of a `TokenBatch` against the
keys of its ancestors and its own, so the work is that of the visible pairs and no T x T mask exists. The layout travels
to it through the model's keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from art_core.errors import ConfigError
from art_core.trainers.batch import Segment

ATTENTION_NAME = "art_segments"


class SegmentLayout:
    """Which packed token attends to which, on a device. One object per micro-batch, shared by all layers.

    `on_layer` is called before each layer's attention, forward and backward; what it raises ends the computation.
    """

    def __init__(
        self,
        segments: tuple[Segment, ...],
        *,
        device: torch.device,
        dtype: torch.dtype,
        on_layer: Callable[[], None] = lambda: None,
    ) -> None:
        self.segments = segments
        self.lengths = [len(segment) for segment in segments]
        self.on_layer = on_layer
        self._device = device
        self._dtype = dtype
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}

    def mask(self, index: int, window: int | None) -> Tensor | None:
        """What to add to the scores (queries of the segment, keys of its chain); None for a plain causal triangle.

        The keys of a chain stand at positions 0, 1, 2, …, so position alone decides. `window` limits how many
        positions back a query sees, itself included.
        """
        segment = self.segments[index]
        end = segment.offset + len(segment)
        if window is not None and window >= end:
            window = None
        if segment.offset == 0 and window is None:
            return None
        key = (index, window)
        if key not in self._masks:
            query_positions = torch.arange(segment.offset, end, device=self._device)[:, None]
            key_positions = torch.arange(end, device=self._device)[None, :]
            hidden = key_positions > query_positions
            if window is not None:
                hidden |= query_positions - key_positions >= window
            mask = torch.zeros(hidden.shape, device=self._device, dtype=self._dtype)
            self._masks[key] = mask.masked_fill_(hidden, float("-inf"))
        return self._masks[key]


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
    segments.on_layer()
    # Splitting once, instead of slicing per use, lets autograd put the gradients together in one concatenation.
    queries = torch.split(query, segments.lengths, dim=2)
    keys = torch.split(key, segments.lengths, dim=2)
    values = torch.split(value, segments.lengths, dim=2)
    grouped = query.shape[1] != key.shape[1]
    outputs = []
    for index, segment in enumerate(segments.segments):
        chain = (*segment.ancestors, index)
        mask = segments.mask(index, sliding_window)
        outputs.append(
            nn.functional.scaled_dot_product_attention(
                queries[index],
                torch.cat([keys[link] for link in chain], dim=2) if len(chain) > 1 else keys[index],
                torch.cat([values[link] for link in chain], dim=2) if len(chain) > 1 else values[index],
                attn_mask=mask,
                is_causal=mask is None,
                scale=scaling,
                enable_gqa=grouped,
            )
        )
    output = torch.cat(outputs, dim=2)
    if output.requires_grad:
        output.register_hook(lambda _grad: segments.on_layer())  # type: ignore[no-untyped-call]
    return output.transpose(1, 2), None


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
