"""Orders to show a group in, groups too large to show at once, and what several passes say together. Pure.

A member is known here by its index. Scores of a pass are `{index: score}`; who is not in it got no valid score.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise

Scores = Mapping[int, float]
AUTO_PASSES = 6
"""The most passes that `passes="auto"` makes."""
MIN_AUTO_PASSES = 2
_TIE = 1e-9


def orders(count: int, num_passes: int, draw: random.Random, *, in_turn: bool = False) -> list[list[int]]:
    """One order of `count` members for each pass.

    Rows of a Williams design (Williams 1949) under random names: in a full cycle of `count` passes each member is shown
    at each place once, and half a cycle apart the order is reversed. The passes are spread evenly over the cycle, so
    that any number of them evens out places; with `in_turn` they come as an order and its reverse, so that stopping
    after any even number does. Every further cycle draws new names.
    """
    if count < 2:
        return [list(range(count)) for _ in range(num_passes)]
    zigzag = [(i + 1) // 2 if i % 2 else (count - i // 2) % count for i in range(count)]
    made: list[list[int]] = []
    while len(made) < num_passes:
        names = list(range(count))
        draw.shuffle(names)
        length = count if in_turn else min(count, num_passes - len(made))
        for step in range(min(length, num_passes - len(made))):
            shift = step // 2 + (step % 2) * (count // 2) if in_turn else step * count // length
            made.append([names[(place + shift) % count] for place in zigzag])
    return made


def average(passes: Sequence[Scores]) -> dict[int, float]:
    """The mean of the passes that scored a member."""
    if len(passes) == 1:
        return dict(passes[0])
    members = sorted({member for scores in passes for member in scores})
    return {
        member: math.fsum(found) / len(found)
        for member in members
        if (found := [scores[member] for scores in passes if member in scores])
    }


def is_settled(passes: Sequence[Scores]) -> bool:
    """Whether the order is settled: no single pass, if it were left out, would change the order of the averages.

    Two passes are settled when they agree. Passes that scored different members are not.
    """
    if len(passes) < MIN_AUTO_PASSES or len({frozenset(scores) for scores in passes}) > 1:
        return False
    order = _order(average(passes))
    return all(_order(average([*passes[:i], *passes[i + 1 :]])) == order for i in range(len(passes)))


def weighted(judges: Sequence[Scores], weights: Sequence[float]) -> dict[int, float]:
    """The weighted mean over judges, for the members that every judge scored.

    Judges use the scale differently: a member that one of them left out would gain or lose against the others only
    for being judged by fewer. A judge that scored nobody at all is left out instead.
    """
    heard = [(scores, weight) for scores, weight in zip(judges, weights, strict=True) if scores and weight > 0]
    if not heard:
        return {}
    if len(heard) == 1:
        return dict(heard[0][0])
    total = math.fsum(weight for _, weight in heard)
    return {
        member: math.fsum(scores[member] * weight for scores, weight in heard) / total
        for member in sorted(set.intersection(*(set(scores) for scores, _ in heard)))
    }


def num_anchors(group_size: int) -> int:
    """How many members the chunks of a group share."""
    return 1 if group_size < 4 else 2


def chunk_sizes(count: int, group_size: int) -> list[int]:
    """How many new members each chunk shows, so that none shows more than `group_size` with its anchors.

    The first chunk has no anchors: they are chosen among its members. Chunks are about equally large.
    """
    if count <= group_size:
        return [count]
    shared = num_anchors(group_size)
    num_chunks = math.ceil((count - shared) / (group_size - shared))
    share, rest = divmod(count - shared, num_chunks)
    sizes = [share + (i < rest) for i in range(num_chunks)]
    return [sizes[0] + shared, *sizes[1:]]


def choose_anchors(scores: Scores, count: int) -> list[int]:
    """The members that span the scale best: the highest and the lowest, or the one in the middle if it is only one."""
    by_score = sorted(scores, key=lambda member: (scores[member], member))
    if count == 1 or len(by_score) < 2:
        return [by_score[len(by_score) // 2]] if by_score else []
    return [by_score[0], by_score[-1]]


_TINY = 1e-9
"""Scores closer than this are one point of a scale: a line between them would be steeper than floats can follow."""


def on_scale(chunk: Scores, reference: Scores) -> dict[int, float]:
    """The scores of `chunk` on the scale of `reference`, by the members both have; empty where they share none.

    Linear between anchors, and from the outer anchors to 0 and 1, so that the result is in [0, 1] and in the order of
    the chunk. Anchors that the chunk puts in the opposite order are pooled (as in isotonic regression).
    """
    knots = sorted((chunk[member], reference[member]) for member in chunk if member in reference)
    if not knots:
        return {}
    pools: list[list[tuple[float, float]]] = []
    for knot in knots:
        pools.append([knot])
        while len(pools) > 1 and not _precedes(pools[-2], pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    points = [_middle(pool) for pool in pools]
    if points[0][0] > _TINY:
        points.insert(0, (0.0, 0.0))
    if points[-1][0] < 1 - _TINY:
        points.append((1.0, 1.0))
    return {member: _interpolated(score, points) for member, score in chunk.items()}


def _precedes(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> bool:
    (x1, y1), (x2, y2) = _middle(first), _middle(second)
    return x2 - x1 > _TINY and y1 <= y2


def _middle(pool: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(x for x, _ in pool) / len(pool), sum(y for _, y in pool) / len(pool)


def _interpolated(x: float, points: Sequence[tuple[float, float]]) -> float:
    for (x1, y1), (x2, y2) in pairwise(points):
        if x <= x2:
            return min(1.0, max(0.0, y1 + (y2 - y1) * (max(x, x1) - x1) / (x2 - x1)))
    return points[-1][1]


def _order(scores: Scores) -> list[int]:
    """For each pair of members whether the first is above (1), below (-1) or level with (0) the second."""
    gaps = (scores[a] - scores[b] for a, b in combinations(sorted(scores), 2))
    return [0 if abs(gap) < _TIE else 1 if gap > 0 else -1 for gap in gaps]
