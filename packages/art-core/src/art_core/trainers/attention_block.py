"""One part of attention: some queries against some keys, with the normaliser that lets parts be put together.

Tensors are (group, kv heads, tokens, head size), strided as they come; results are float32 or in the type of the
queries. On a CPU torch's fused kernel does the work, elsewhere plain products in float32, a few queries at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_LARGEST_SCORES = 2**24
"""Scores that the plain products hold at a time: 64 MB."""
_HIDDEN = -1e30
"""What hides a score. Finite, so that a query which sees no key of a part gets a part of weight 0 and not NaN."""


@dataclass(frozen=True)
class Part:
    """Packed tokens `queries` against packed tokens `keys`.

    With `own` both are of one segment, ending at the same token, and a query sees no key behind it. `window` hides keys
    that lie further back: the positions of all packed tokens, and how many positions a query sees, itself included.
    """

    queries: slice
    keys: slice
    own: bool
    window: tuple[Tensor, int] | None = None

    @property
    def is_triangle(self) -> bool:
        """Whether the keys that a query sees are those of the queries up to itself."""
        return self.own and self.window is None

    def hidden(self, first: int, last: int, device: torch.device) -> Tensor | None:
        """Which keys the queries `first:last`, counted from the part's first, do not see: (queries, keys), or None."""
        if self.window is not None:
            positions, window = self.window
            queries = positions[self.queries.start + first : self.queries.start + last]
            back = queries[:, None] - positions[None, self.keys]
            return (back < 0) | (back >= window)
        if self.own:
            keys = torch.arange(self.keys.stop - self.keys.start, device=device)
            return keys[None, :] > torch.arange(first, last, device=device)[:, None]
        return None


def block_forward(part: Part, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """softmax(scale q k^T) v over the part's visible pairs, and the logarithm of the softmax's denominator, float32."""
    if _has_fused(q, v):
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, part.is_triangle, attn_mask=_additive_mask(part, q), scale=scale
        )
        return out, lse
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=torch.float32, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    k, v = k.float(), v.float()
    for first, last in _chunks(q, k):
        at = slice(first, last)
        scores = _scores(part, q, k, scale, first, last)
        lse[:, :, at] = scores.logsumexp(-1)
        out[:, :, at] = scores.sub_(lse[:, :, at, None]).exp_() @ v
    return out, lse


def block_backward(
    part: Part, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """This part's share of the gradients of q, k and v. `out` and `lse` are those of all parts of the queries."""
    if _has_fused(q, v):
        gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out, q, k, v, out, lse, 0.0, part.is_triangle, attn_mask=_additive_mask(part, q), scale=scale
        )
        return gradients
    grad_q = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    k, v = k.float(), v.float()
    grad_k, grad_v = torch.zeros_like(k), torch.zeros_like(v)
    for first, last in _chunks(q, k):
        at = slice(first, last)
        grad = grad_out[:, :, at].float()
        p = _scores(part, q, k, scale, first, last).sub_(lse[:, :, at, None]).exp_()
        grad_v += p.mT @ grad
        shift = (grad * out[:, :, at]).sum(-1, keepdim=True)
        grad_scores = (grad @ v.mT).sub_(shift).mul_(p).mul_(scale)
        grad_q[:, :, at] = grad_scores @ k
        grad_k += grad_scores.mT @ q[:, :, at].float()
    return grad_q, grad_k, grad_v


def _has_fused(q: Tensor, v: Tensor) -> bool:
    return q.device.type == "cpu" and q.shape[-1] == v.shape[-1]


def _additive_mask(part: Part, q: Tensor) -> Tensor | None:
    hidden = None if part.window is None else part.hidden(0, q.shape[2], q.device)
    return None if hidden is None else torch.zeros_like(hidden, dtype=q.dtype).masked_fill_(hidden, _HIDDEN)


def _chunks(q: Tensor, k: Tensor) -> Iterator[tuple[int, int]]:
    size = max(1, _LARGEST_SCORES // (q.shape[0] * q.shape[1] * k.shape[2]))
    return ((first, min(first + size, q.shape[2])) for first in range(0, q.shape[2], size))


def _scores(part: Part, q: Tensor, k: Tensor, scale: float, first: int, last: int) -> Tensor:
    scores = (q[:, :, first:last].float() @ k.mT).mul_(scale)
    hidden = part.hidden(first, last, q.device)
    return scores if hidden is None else scores.masked_fill_(hidden, _HIDDEN)
