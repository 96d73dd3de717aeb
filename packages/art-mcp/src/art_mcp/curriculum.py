"""Which scenarios a step trains on: most of those tools where attempts still differ. Pure.

A group whose attempts all earn the same teaches nothing. Once a tool is mastered, its groups mostly are of that kind,
and rollouts are better spent on the tools that are not.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, islice
from statistics import pstdev

from art_mcp.scenarios import Scenario

_GROUPS, _SPREAD = "tool_groups/", "tool_spread/"
_FORGETTING = 0.8
"""What a step counts for, relative to the one after it."""
_FIRST_GUESS = 0.25
"""Spread of one group that every tool is taken to have shown before the first step."""


def observed(groups: Iterable[tuple[Scenario, Sequence[float]]]) -> dict[str, float]:
    """For the metrics of a step: how many groups each tool had, and the sum of their rewards' standard deviations."""
    metrics: dict[str, float] = {}
    for scenario, rewards in groups:
        spread = pstdev(rewards) if rewards else 0.0
        metrics[_GROUPS + scenario.tool] = metrics.get(_GROUPS + scenario.tool, 0.0) + 1.0
        metrics[_SPREAD + scenario.tool] = metrics.get(_SPREAD + scenario.tool, 0.0) + spread
    return metrics


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
    weights = {tool: _mean_spread(tool, earlier) for tool in by_tool}
    rng = random.Random(f"{seed}/step-{len(earlier) + 1}")
    shares = _shares(weights, {tool: len(own) for tool, own in by_tool.items()}, num_groups, rng.random())
    chosen = []
    for tool, share in shares.items():
        used = int(sum(metrics.get(_GROUPS + tool, 0.0) for metrics in earlier))
        chosen += _next_of(by_tool[tool], used, share, seed=f"{seed}/{tool}")
    return chosen


def _mean_spread(tool: str, earlier: Sequence[Mapping[str, float]]) -> float:
    groups, spread = 1.0, _FIRST_GUESS
    for metrics in earlier:
        groups = groups * _FORGETTING + metrics.get(_GROUPS + tool, 0.0)
        spread = spread * _FORGETTING + metrics.get(_SPREAD + tool, 0.0)
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


def _next_of(own: Sequence[Scenario], used: int, share: int, *, seed: str) -> list[Scenario]:
    def endless() -> Iterable[Scenario]:
        for cycle in count():
            order = list(own)
            random.Random(f"{seed}/cycle-{cycle}").shuffle(order)
            yield from order

    chosen: list[Scenario] = []
    for scenario in islice(endless(), used, None):
        if len(chosen) == share:
            break
        if scenario not in chosen:
            chosen.append(scenario)
    return chosen
