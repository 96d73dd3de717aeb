"""Which scenarios a step trains on: most of those tools where attempts still differ. Pure.

A group whose attempts all earn the same teaches nothing. Once a tool is mastered, its groups mostly are of that kind,
and rollouts are better spent on the tools that are not.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from statistics import pstdev

from art_mcp.scenarios import Scenario

_GROUPS, _SCORED, _SPREAD = "tool_groups/", "tool_scored/", "tool_spread/"
_FORGETTING = 0.8
"""What a step counts for, relative to the next one that had groups of the tool."""
_FIRST_GUESS = 0.25
"""Spread of one group that every tool is taken to have shown before the first step."""
_LEAST_SHARE = 0.1
"""No tool weighs less, relative to the heaviest: attempts that all fail may differ again once the policy is better."""


def observed(groups: Iterable[tuple[Scenario, Sequence[float]]]) -> dict[str, float]:
    """For the metrics of a step, by tool: its groups, those with two rewards or more, and the sum of their spreads.

    The spread of a group is the standard deviation of its rewards. A group that lost its attempts to failures of the
    infrastructure says nothing about the tool.
    """
    metrics: dict[str, float] = defaultdict(float)
    for scenario, rewards in groups:
        scored = len(rewards) > 1
        metrics[_GROUPS + scenario.tool] += 1.0
        metrics[_SCORED + scenario.tool] += float(scored)
        metrics[_SPREAD + scenario.tool] += pstdev(rewards) if scored else 0.0
    return dict(metrics)


def choose(
    pool: Sequence[Scenario], earlier: Sequence[Mapping[str, float]], *, num_groups: int, seed: int
) -> list[Scenario]:
    """The scenarios of the next step, each at most once; `earlier` holds the metrics of all steps before it, in order.

    Tools get groups in proportion to how far apart the attempts of a group at them were so far. The scenarios of a tool
    come in a seeded order, all of them before one comes again. The choice depends on nothing but the arguments.
    """
    by_tool: dict[str, list[Scenario]] = {}
    for scenario in pool:
        by_tool.setdefault(scenario.tool, []).append(scenario)
    spreads = {tool: _mean_spread(tool, earlier) for tool in by_tool}
    least = _LEAST_SHARE * max(spreads.values())
    weights = {tool: max(spread, least) if least > 0.0 else 1.0 for tool, spread in spreads.items()}
    rng = random.Random(f"{seed}/step-{len(earlier) + 1}")
    shares = _shares(weights, {tool: len(own) for tool, own in by_tool.items()}, num_groups, rng.random())
    chosen = []
    for tool, share in shares.items():
        before = [int(metrics.get(_GROUPS + tool, 0.0)) for metrics in earlier]
        chosen += _dealt(by_tool[tool], [*before, share], seed=f"{seed}/{tool}")
    return chosen


def _mean_spread(tool: str, earlier: Sequence[Mapping[str, float]]) -> float:
    groups, spread = 1.0, _FIRST_GUESS
    for metrics in earlier:
        if metrics.get(_SCORED + tool, 0.0):
            groups = groups * _FORGETTING + metrics[_SCORED + tool]
            spread = spread * _FORGETTING + metrics[_SPREAD + tool]
    return spread / groups


def _shares(weights: Mapping[str, float], sizes: Mapping[str, int], num_groups: int, offset: float) -> dict[str, int]:
    """`num_groups` divided in proportion to `weights`, in whole numbers and none above its size.

    Systematic sampling: equally spaced ticks, the first at `offset` (0 to 1) of a space, fall on the tools' intervals.
    """
    shares = dict.fromkeys(weights, 0)
    left = min(num_groups, sum(sizes.values()))
    while left:
        room = {tool: weight for tool, weight in weights.items() if shares[tool] < sizes[tool]}
        step = sum(room.values()) / left
        tick, end = offset * step, 0.0
        for tool, weight in room.items():
            end += weight
            while tick < end and left and shares[tool] < sizes[tool]:
                shares[tool] += 1
                left -= 1
                tick += step
            tick = max(tick, end)  # ticks that found no room are drawn again among the others
    return shares


def _dealt(own: Sequence[Scenario], shares: Sequence[int], *, seed: str) -> list[Scenario]:
    """The last of several hands dealt from `own`, of `shares` scenarios each, none twice in a hand.

    The cards are shuffled anew when all are dealt; one that the hand being dealt holds already waits for the next hand.
    """
    cards: deque[Scenario] = deque()
    shuffles = count()
    hand: list[Scenario] = []
    for share in shares:
        hand = []
        waiting: list[Scenario] = []
        while len(hand) < min(share, len(own)):
            if not cards:
                order = list(own)
                random.Random(f"{seed}/shuffle-{next(shuffles)}").shuffle(order)
                cards.extend(order)
            card = cards.popleft()
            (waiting if card in hand else hand).append(card)
        cards.extendleft(reversed(waiting))
    return hand
