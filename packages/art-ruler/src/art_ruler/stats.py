"""Figures on orders and scores. Pure; None stands for a score that is missing and for a figure that has no value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

Scores = Sequence[float | None]


def kendall_tau(xs: Scores, ys: Scores) -> float | None:
    """Kendall's tau-b (Kendall 1945) over the positions where both have a value.

    None where one of them tells no two positions apart.
    """
    concordant = untied_x = untied_y = 0
    for (x1, y1), (x2, y2) in combinations(_both(xs, ys), 2):
        concordant += _sign(x1 - x2) * _sign(y1 - y2)
        untied_x += x1 != x2
        untied_y += y1 != y2
    return concordant / math.sqrt(untied_x * untied_y) if untied_x and untied_y else None


def mean_kendall_tau(passes: Sequence[Scores]) -> float | None:
    """The mean tau-b over all pairs of passes that have one."""
    taus = [tau for a, b in combinations(passes, 2) if (tau := kendall_tau(a, b)) is not None]
    return sum(taus) / len(taus) if taus else None


def flip_rate(passes: Sequence[Scores]) -> float | None:
    """Of all pairs of items that both of two passes tell apart, over all pairs of passes, the share put in opposite
    orders by the two."""
    flips = compared = 0
    for a, b in combinations(passes, 2):
        for (x1, y1), (x2, y2) in combinations(_both(a, b), 2):
            agreement = _sign(x1 - x2) * _sign(y1 - y2)
            compared += agreement != 0
            flips += agreement < 0
    return flips / compared if compared else None


def ranks(scores: Scores) -> list[int | None]:
    """1 for the highest; equal scores share the better rank; None keeps None."""
    known = sorted((score for score in scores if score is not None), reverse=True)
    best = {score: rank for rank, score in reversed(list(enumerate(known, 1)))}
    return [None if score is None else best[score] for score in scores]


def num_beaten(scores: Scores) -> list[float | None]:
    """How many of the others each one beats, a tie counting half; None keeps None."""
    known = [score for score in scores if score is not None]
    return [
        None
        if score is None
        else sum(other < score for other in known) + (sum(other == score for other in known) - 1) / 2
        for score in scores
    ]


def pairwise_accuracy(scores: Scores, truth: Scores) -> float | None:
    """Of the pairs that `truth` tells apart, the share that `scores` put in the same order; a tie counts half.

    Pairs with a missing value are left out. None where no pair is left.
    """
    right = total = 0.0
    for (s1, t1), (s2, t2) in combinations(_both(scores, truth), 2):
        if t1 != t2:
            total += 1
            right += (1 + _sign(s1 - s2) * _sign(t1 - t2)) / 2
    return right / total if total else None


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


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
