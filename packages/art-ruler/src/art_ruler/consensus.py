"""Orders to show a group in, groups too large to show at once, and what several passes say together. Pure.

A member is known here by its index. Scores of a pass are `{index: score}`; who is not in it got no valid score.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise

Scores = Mapping[int, float]
AUTO_PASSES = 6
"""The most passes that `passes="auto"` makes."""
MIN_AUTO_PASSES = 2
_TIE = 1e-9


def orders(count: int, num_passes: int, draw: random.Random, *, in_turn: bool = False) -> list[list[int]]:
    """One order of `count` members for each pass.

    Rows of a Williams design (Williams 1949) under random names: `count` rows show each member at each place once. Of
    an even count, half of the rows are the other half reversed; an odd count needs the reversed rows as well, `2 *
    count` in all. Passes are spread evenly over the rows, an even number of them for an odd count as orders and their
    reverses, so that places even out. With `in_turn` they always come as an order and its reverse, so that stopping
    after any even number evens out places too. When the rows are used up, new names are drawn.
    """
    if count < 2:
        return [list(range(count)) for _ in range(num_passes)]
    zigzag = [(i + 1) // 2 if i % 2 else (count - i // 2) % count for i in range(count)]
    made: list[list[int]] = []
    while (left := num_passes - len(made)) > 0:
        names = list(range(count))
        draw.shuffle(names)
        in_pairs = in_turn or (count % 2 == 1 and left % 2 == 0)
        num_rows = min(count if count % 2 else count // 2, (left + 1) // 2) if in_pairs else min(count, left)
        for row in range(num_rows):
            shift = row if in_turn else row * count // num_rows
            order = [names[(place + shift) % count] for place in zigzag]
            made += [order, order[::-1]] if in_pairs else [order]
    return made[:num_passes]


def average(passes: Sequence[Scores]) -> dict[int, float]:
    """The mean of the passes that scored everybody who has any score.

    Each pass has a scale of its own: a member that a low one left out would gain by that. Where every pass left
    somebody out, the members that all of them scored get their mean, and the others what the passes that scored them
    say on the scale of those means. A pass that has nobody in common with larger ones is not heard.
    """
    passes = [scores for scores in passes if scores]
    if len(passes) == 1:
        return dict(passes[0])
    everybody = sorted({member for scores in passes for member in scores})
    whole = [scores for scores in passes if len(scores) == len(everybody)]
    if whole:
        return {member: math.fsum([scores[member] for scores in whole]) / len(whole) for member in everybody}
    heard: list[Scores] = []
    common = set(everybody)
    for scores in sorted(passes, key=len, reverse=True):
        if shared := common & scores.keys():
            heard.append(scores)
            common = shared
    means = {member: math.fsum([scores[member] for scores in heard]) / len(heard) for member in sorted(common)}
    scaled = [on_scale(scores, means) for scores in heard]
    return means | {
        member: math.fsum(found) / len(found)
        for member in everybody
        if member not in means and (found := [scores[member] for scores in scaled if member in scores])
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


def _order(scores: Scores) -> list[list[int]]:
    """The members from the lowest score to the highest; those that are level stand together."""
    levels: list[list[int]] = []
    last = -math.inf
    for member in sorted(scores, key=lambda member: scores[member]):
        if scores[member] - last >= _TIE:
            levels.append([])
        levels[-1].append(member)
        last = scores[member]
    return [sorted(level) for level in levels]
