"""Draw tokens from logits: each row's result depends on that row, its parameters and its own random number only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from art_core.errors import ArtError
from art_core.types import Sampling

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_CANDIDATES = 1024  # of a top-p row that are looked at before the whole vocabulary is sorted
_BLOCK = 256
_SMALLEST_TEMPERATURE = 1e-30  # below, the division would leave the range of float32; the draw is greedy long before


class NonFiniteLogitsError(ArtError, ArithmeticError):
    """The model computed NaN or infinite logits, so there is no distribution to draw from."""


def _mix(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): 64 well mixed bits."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, index: int) -> float:
    """Number `index` of the random sequence of `seed`, in [0, 1), with 53 random bits.

    Counter based: there is no state that other requests could advance.
    """
    key = _mix((seed + _GOLDEN) & _MASK)
    return (_mix((key + (index + 1) * _GOLDEN) & _MASK) >> 11) / 2.0**53


@dataclass(frozen=True)
class Draw:
    """What one row is to be drawn with; `random` is in [0, 1)."""

    sampling: Sampling
    random: float


def draw(logits: Tensor, draws: Sequence[Draw]) -> list[tuple[int, float]]:
    """One (token id, logprob) for each row of `logits` (n, V).

    The logprob is that of the distribution the token was drawn from: temperature applied first, then the `top_k` most
    likely tokens kept, then the fewest of these that hold a share of `top_p`, renormalised. At temperature 0 the most
    likely token is taken and its logprob is that under temperature 1, unfiltered, since the distribution it was drawn
    from has only one outcome. Always finite.

    Raises:
        NonFiniteLogitsError: a row has no usable distribution.
    """
    scores = _tempered(logits.float(), [d.sampling.temperature for d in draws])
    probabilities = torch.softmax(scores, -1)  # (n, V)
    greedy, filtered, plain = [], [], []
    for row, d in enumerate(draws):
        if d.sampling.temperature == 0.0:
            greedy.append(row)
        elif d.sampling.top_k or d.sampling.top_p < 1.0:
            filtered.append(row)
        else:
            plain.append(row)

    result: dict[int, tuple[int, float]] = {}
    if greedy:
        chosen = scores[greedy].argmax(-1)
        likelihoods = probabilities[greedy].gather(1, chosen.unsqueeze(1)).squeeze(1)
        result.update(zip(greedy, zip(chosen.tolist(), likelihoods.tolist(), strict=True), strict=True))
    if plain:
        rows = probabilities if len(plain) == len(draws) else probabilities[plain]
        chosen, likelihoods = _invert(rows, [draws[row].random for row in plain])
        result.update(zip(plain, zip(chosen.tolist(), likelihoods.tolist(), strict=True), strict=True))
    for row in filtered:
        result[row] = _draw_filtered(probabilities[row], draws[row])
    for token, likelihood in result.values():
        if not 0.0 < likelihood <= 1.001:
            raise NonFiniteLogitsError(
                f"token {token} was drawn with probability {likelihood}; the logits of the model are not finite, so "
                "its weights are damaged or overflow their number type"
            )
    # Through float64 on single numbers: a vectorised logarithm may round differently in its last, partial vector.
    return [(token, min(0.0, math.log(likelihood))) for _, (token, likelihood) in sorted(result.items())]


def _tempered(scores: Tensor, temperatures: Sequence[float]) -> Tensor:
    """Each row divided by its temperature; rows of temperature 0 and 1 as they are."""
    rows = [row for row, temperature in enumerate(temperatures) if temperature not in (0.0, 1.0)]
    if not rows:
        return scores
    divisor = torch.tensor([max(temperatures[row], _SMALLEST_TEMPERATURE) for row in rows], dtype=torch.float32)
    chosen = scores[rows]
    result = scores.clone()
    # The maximum goes first, so that a small temperature overflows towards minus infinity only.
    result[rows] = (chosen - chosen.amax(-1, keepdim=True)) / divisor.to(scores.device).unsqueeze(1)
    return result


def _invert(probabilities: Tensor, randoms: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Inverse of the cumulative distribution of each row (n, V): the token ids and their probabilities (n,).

    Two levels, since a running sum over a whole vocabulary is slow: first the block of `_BLOCK` tokens, by sums of
    blocks, then the token in it. A token of probability 0 is never chosen.
    """
    n, vocabulary = probabilities.shape
    blocks = torch.nn.functional.pad(probabilities, (0, -vocabulary % _BLOCK)).view(n, -1, _BLOCK)
    sums = blocks.sum(-1).double()  # (n, V / _BLOCK)
    shares = torch.tensor(randoms, dtype=torch.float64, device=probabilities.device).unsqueeze(1)
    block, share = _locate(sums, shares)
    inside = blocks.gather(1, block.unsqueeze(2).expand(n, 1, _BLOCK)).squeeze(1)
    index, _ = _locate(inside.double(), share)
    chosen = (block * _BLOCK + index).clamp_(max=vocabulary - 1)  # beyond only where no number is finite
    return chosen.squeeze(1), inside.gather(1, index).squeeze(1)


def _locate(masses: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Where a share (n, 1) of the whole mass of each row (n, k) falls: index (n, 1), and the share of that entry."""
    cumulative = masses.cumsum(-1)
    total = cumulative[:, -1:]
    # Strictly below the total, so that an entry with a mass is always found: the sum rises only at such entries.
    target = torch.minimum(shares * total, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, target, right=True).clamp_(max=masses.shape[1] - 1)
    mass = masses.gather(1, index)
    return index, ((target - (cumulative.gather(1, index) - mass)) / mass).clamp_(0.0, 1.0)


def _draw_filtered(probabilities: Tensor, request: Draw) -> tuple[int, float]:
    """Draw from one row (V,) after top-k and top-p: token id and renormalised probability."""
    vocabulary = probabilities.shape[0]
    top_k, top_p = request.sampling.top_k, request.sampling.top_p
    limit = min(top_k or _CANDIDATES, vocabulary)
    likeliest, ids = torch.topk(probabilities, limit)
    total = float(likeliest.sum(dtype=torch.float64)) if top_k else 1.0
    if not top_k and limit < vocabulary and float(likeliest.sum(dtype=torch.float64)) < top_p:
        likeliest, ids = torch.sort(probabilities, descending=True, stable=True)
    before = likeliest.cumsum(0, dtype=torch.float64) - likeliest
    kept = max(1, int((before < top_p * total).sum())) if top_p < 1.0 else likeliest.shape[0]
    likeliest = likeliest[:kept]
    index, likelihood = _invert(likeliest.unsqueeze(0), [request.random])
    return int(ids[index]), float(likelihood.double() / likeliest.sum(dtype=torch.float64))
