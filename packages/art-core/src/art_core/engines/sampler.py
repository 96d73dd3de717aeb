"""Draw tokens from logits: each row's result depends on that row, its parameters and its own random number only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from art_core.errors import NonFiniteLogitsError
from art_core.types import Sampling

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_CANDIDATES = 1024  # of a top-p row that are looked at before the whole vocabulary is sorted
_BLOCK = 256
_SMALLEST_TEMPERATURE = 1e-30  # below, the division would leave the range of float32; the draw is greedy long before
_SMALLEST_LIKELIHOOD = 1e-30  # below, float32 loses digits, and then everything
UNLIKELY = -9999.0
"""Least logprob that is given out, also for a token that top-k or top-p remove: finite, so that JSON can carry it."""


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


@dataclass(frozen=True, eq=False)
class Draw:
    """What one row is to be drawn with; `random` is in [0, 1). `allowed` (V,) marks what a grammar leaves, if any."""

    sampling: Sampling
    random: float
    allowed: npt.NDArray[np.bool_] | None = None


class Drawn(NamedTuple):
    """What was drawn for one row. `forced`: the grammar allowed this token only."""

    token: int
    logprob: float
    forced: bool = False
    top_logprobs: tuple[tuple[int, float], ...] = ()


def draw(logits: Tensor, draws: Sequence[Draw]) -> list[Drawn]:
    """One token for each row of `logits` (n, V).

    The logprob is that of the distribution the token was drawn from: temperature applied first, then the `top_k` most
    likely tokens kept, then the fewest of these that hold a share of `top_p`, renormalised. At temperature 0 the most
    likely token is taken and its logprob is that under temperature 1, unfiltered, since the distribution it was drawn
    from has only one outcome. Always finite.

    With a grammar, all this is done to the allowed tokens alone to find the token, while the logprob is that of the
    distribution without the grammar; where `top_k` or `top_p` would have removed the token there, it is `UNLIKELY`.
    `top_logprobs` are of the same distribution as the logprob, most likely first; fewer than asked for where top-k or
    top-p keep no more.

    Raises:
        NonFiniteLogitsError: a row has no usable distribution.
    """
    scores = _tempered(logits.float(), [d.sampling.temperature for d in draws])
    probabilities = torch.softmax(scores, -1)  # (n, V)
    greedy, filtered, plain, constrained = [], [], [], []
    for row, d in enumerate(draws):
        if d.allowed is not None:
            constrained.append(row)
        elif d.sampling.temperature == 0.0:
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
        _refuse_impossible(token, likelihood)
    # Through float64 on single numbers: a vectorised logarithm may round differently in its last, partial vector.
    drawn = {row: Drawn(token, min(0.0, math.log(likelihood))) for row, (token, likelihood) in result.items()}
    for row, d in enumerate(draws):
        if d.allowed is None and not d.sampling.top_logprobs:
            continue
        policy = _Policy(scores[row], probabilities[row], d.sampling)
        if d.allowed is not None:
            token, forced = _draw_allowed(logits[row], d, d.allowed)
            drawn[row] = Drawn(token, policy.logprob(token), forced)
        if d.sampling.top_logprobs:
            drawn[row] = drawn[row]._replace(top_logprobs=policy.top(d.sampling.top_logprobs))
    return [drawn[row] for row in range(len(draws))]


def _refuse_impossible(token: int, likelihood: float) -> None:
    if not 0.0 < likelihood <= 1.001:
        raise NonFiniteLogitsError(
            f"token {token} was drawn with probability {likelihood}; the logits of the model are not finite, so its "
            "weights are damaged or overflow their number type"
        )


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


def _kept(probabilities: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """What top-k and top-p leave of one row (V,): probabilities, most likely first, not renormalised, and their ids."""
    vocabulary = probabilities.shape[0]
    top_k, top_p = sampling.top_k, sampling.top_p
    limit = min(top_k or _CANDIDATES, vocabulary)
    likeliest, ids = torch.topk(probabilities, limit)
    total = float(likeliest.sum(dtype=torch.float64)) if top_k else 1.0
    if not top_k and limit < vocabulary and float(likeliest.sum(dtype=torch.float64)) < top_p:
        likeliest, ids = torch.sort(probabilities, descending=True, stable=True)
    before = likeliest.cumsum(0, dtype=torch.float64) - likeliest
    kept = max(1, int((before < top_p * total).sum())) if top_p < 1.0 else likeliest.shape[0]
    return likeliest[:kept], ids[:kept]


def _draw_filtered(probabilities: Tensor, request: Draw) -> tuple[int, float]:
    """Draw from one row (V,) after top-k and top-p: token id and renormalised probability."""
    likeliest, ids = _kept(probabilities, request.sampling)
    index, likelihood = _invert(likeliest.unsqueeze(0), [request.random])
    return int(ids[index]), float(likelihood.double() / likeliest.sum(dtype=torch.float64))


def _draw_allowed(logits: Tensor, request: Draw, allowed: npt.NDArray[np.bool_]) -> tuple[int, bool]:
    """Draw from the allowed tokens of one row (V,): token id, and whether there was only this one."""
    ids = np.flatnonzero(allowed)
    if ids.size == 1:
        return int(ids[0]), True
    candidates = torch.from_numpy(ids).to(logits.device)
    sampling = request.sampling
    scores = _tempered(logits[candidates].float().unsqueeze(0), [sampling.temperature])
    probabilities = torch.softmax(scores, -1)
    if sampling.temperature == 0.0:
        index = int(scores[0].argmax())
        likelihood = float(probabilities[0, index])
    elif sampling.top_k or sampling.top_p < 1.0:
        index, likelihood = _draw_filtered(probabilities[0], request)
    else:
        chosen, likelihoods = _invert(probabilities, [request.random])
        index, likelihood = int(chosen), float(likelihoods)
    token = int(ids[index])
    _refuse_impossible(token, likelihood)
    return token, False


class _Policy:
    """The distribution of one row (V,) as `draw` defines it, without a grammar. Gives a drawn token the same bits."""

    def __init__(self, scores: Tensor, probabilities: Tensor, sampling: Sampling) -> None:
        if math.isnan(float(probabilities[0])):  # one number that is not finite makes all of them NaN
            _refuse_impossible(0, math.nan)
        self._scores = scores
        self._probabilities = probabilities
        self._kept: tuple[Tensor, Tensor] | None = None
        if sampling.temperature != 0.0 and (sampling.top_k or sampling.top_p < 1.0):
            self._kept = _kept(probabilities, sampling)
            self._mass = float(self._kept[0].sum(dtype=torch.float64))

    def logprob(self, token: int) -> float:
        if self._kept is None:
            likelihood = float(self._probabilities[token])
            if likelihood >= _SMALLEST_LIKELIHOOD:
                return min(0.0, math.log(likelihood))
            scores = self._scores.double()
            return max(UNLIKELY, float(scores[token] - scores.logsumexp(0)))
        likeliest, ids = self._kept
        found = torch.nonzero(ids == token)
        return self._filtered(float(likeliest[found[0, 0]])) if len(found) else UNLIKELY

    def top(self, count: int) -> tuple[tuple[int, float], ...]:
        """The `count` likeliest tokens with their logprobs, most likely first; equally likely ones by their ids."""
        if self._kept is None:
            ids = torch.topk(self._scores, min(count, self._scores.shape[0])).indices
            pairs = [(token, self.logprob(token)) for token in ids.tolist()]
        else:
            likeliest, kept_ids = self._kept
            values = zip(kept_ids[:count].tolist(), likeliest[:count].tolist(), strict=True)
            pairs = [(token, self._filtered(value)) for token, value in values]
        return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))

    def _filtered(self, likelihood: float) -> float:
        return max(UNLIKELY, min(0.0, math.log(likelihood / self._mass))) if likelihood > 0.0 else UNLIKELY
