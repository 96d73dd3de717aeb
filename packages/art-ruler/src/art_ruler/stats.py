"""Figures on orders and scores. Pure; None stands for a score that is missing and for a figure that has no value."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

Scores = Sequence[float | None]


def kendall_tau(xs: Scores, ys: Scores) -> float | None:
    """Kendall's tau-b (Kendall 1945) over the positions where both have a value.

    None where one of them tells no two positions apart.
    """
    return _counted(xs, ys).tau


def agreement(passes: Sequence[Scores]) -> tuple[float | None, float | None]:
    """Over all pairs of passes: the mean tau-b of those that have one, and the flip rate.

    The flip rate is the share of pairs of items put in opposite orders by two passes, of those that both tell apart.
    """
    pairs = [_counted(a, b) for a, b in combinations(passes, 2)]
    taus = [pair.tau for pair in pairs if pair.tau is not None]
    compared = sum(pair.concordant + pair.discordant for pair in pairs)
    flips = sum(pair.discordant for pair in pairs)
    return sum(taus) / len(taus) if taus else None, flips / compared if compared else None


def ranks(scores: Scores) -> list[int | None]:
    """1 for the highest; equal scores share the better rank; None keeps None."""
    known = sorted((score for score in scores if score is not None), reverse=True)
    best = {score: rank for rank, score in reversed(list(enumerate(known, 1)))}
    return [None if score is None else best[score] for score in scores]


def num_beaten(scores: Scores) -> list[float | None]:
    """How many of the others each one beats, a tie counting half; None keeps None."""
    known = sorted(score for score in scores if score is not None)
    return [
        None if score is None else (bisect_left(known, score) + bisect_right(known, score) - 1) / 2 for score in scores
    ]


def pairwise_accuracy(scores: Scores, truth: Scores) -> float | None:
    """Of the pairs that `truth` tells apart, the share that `scores` put in the same order; a tie counts half.

    Pairs with a missing value are left out. None where no pair is left.
    """
    pairs = _counted(scores, truth)
    return (1 + (pairs.concordant - pairs.discordant) / pairs.untied_y) / 2 if pairs.untied_y else None


def pearson(xs: Scores, ys: Scores) -> float | None:
    """Pearson's correlation over the positions where both have a value; None where one of them does not vary."""
    pairs = _both(xs, ys)
    if len(pairs) < 2:
        return None
    mean_x, mean_y = (math.fsum(values) / len(pairs) for values in zip(*pairs, strict=True))
    dxs, dys = [x - mean_x for x, _ in pairs], [y - mean_y for _, y in pairs]
    spread_x, spread_y = math.sqrt(math.fsum(d * d for d in dxs)), math.sqrt(math.fsum(d * d for d in dys))
    if len({x for x, _ in pairs}) == 1 or len({y for _, y in pairs}) == 1 or spread_x * spread_y == 0.0:
        return None
    return math.fsum(dx / spread_x * (dy / spread_y) for dx, dy in zip(dxs, dys, strict=True))


def spearman(xs: Scores, ys: Scores) -> float | None:
    """Pearson's correlation of the ranks, ties sharing their mean rank (Spearman 1904)."""
    pairs = _both(xs, ys)
    return pearson(num_beaten([x for x, _ in pairs]), num_beaten([y for _, y in pairs]))


def _both(xs: Scores, ys: Scores) -> list[tuple[float, float]]:
    return [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None]


@dataclass(frozen=True)
class _Pairs:
    """How two scorings order all pairs of positions: alike, oppositely; and how many pairs each of them tells apart."""

    concordant: int
    discordant: int
    untied_x: int
    untied_y: int

    @property
    def tau(self) -> float | None:
        if not self.untied_x or not self.untied_y:
            return None
        return (self.concordant - self.discordant) / math.sqrt(self.untied_x * self.untied_y)


def _counted(xs: Scores, ys: Scores) -> _Pairs:
    """By sorting (Knight 1966), since a large group has too many pairs to look at each."""
    both = sorted(_both(xs, ys))
    total = math.comb(len(both), 2)
    tied_x, tied_y, tied = (
        sum(math.comb(count, 2) for count in Counter(values).values())
        for values in ([x for x, _ in both], [y for _, y in both], both)
    )
    discordant = 0
    seen: list[float] = []
    for _, y in both:  # of equal x the smaller y comes first, so that no pair of them counts
        at = bisect_right(seen, y)
        discordant += len(seen) - at
        seen.insert(at, y)
    return _Pairs(total - tied_x - tied_y + tied - discordant, discordant, total - tied_x, total - tied_y)
