"""What the rollouts of one step are like and cost, in numbers. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from art_core.advantage import has_signal
from art_core.trajectories import Trajectory, TrajectoryGroup

GRAM = 4
"""Tokens in a row that repeated text is looked for by."""
LEAST_TOKENS = 32
"""A shorter completion is not looked at: it has too few grams to tell."""
DISTINCT_SHARE = 0.5
"""A completion repeats itself when fewer of its grams are different ones; ordinary text and code have over 0.7."""
_ALIKE = ("groups/identical", "groups/identical_not_best", "groups/mixed")
_KINDS = 8
"""Kinds of errors that are counted by name."""
_JUDGE_COSTS = {
    "judge_cost_usd": "cost/judge_usd",
    "judge_tokens": "cost/judge_tokens",
    "judge_calls": "cost/judge_calls",
}


def rollout_metrics(groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
    """What `groups`, failed members included, amount to: rewards, tokens, time, costs, and counts of what they hold.

    `groups/all_best`, `groups/all_worst` and `groups/all_tied` divide the groups whose scored members all have the same
    reward: the best of the scale, the worst, or one between. The scale is 0 to 1 where all rewards lie in it, and else
    that of these groups. `groups/identical` said the same in each attempt, `groups/identical_not_best` and did not all
    earn the best reward: what is solved may be said in one way. Of `groups/mixed` no prompt is in all members, so that
    they may be attempts at different tasks. `trajectories/unscored` have no reward although they did not fail, or
    failed because a judge did. `errors/<kind>` counts failures by the class of the exception. Completions are model
    calls; `tools/offered` counts trajectories.

    `tokens/prompt` counts each call's whole prompt. `time/rollout_s` is how long at least one rollout was between the
    start of its first call and the end of its last. Costs are those that groups, or else trajectories, carry as metrics
    `judge_cost_usd`, `judge_tokens` and `judge_calls`; what nobody carries is left out.
    """
    groups = list(groups)
    members = [member for group in groups for member in group]
    rewards = [member.reward for member in members if member.reward is not None and member.error is None]
    metrics = {
        **_of_groups(groups, rewards),
        **_of_rewards(rewards),
        **_completions(members),
        **_failures(members),
        **_tokens_and_time(members),
        **_costs([*(group.metrics for group in groups), *(member.metrics for member in members)]),
    }
    return {name: float(value) for name, value in metrics.items()}


def is_repetitive(token_ids: Sequence[int]) -> bool:
    """Whether a completion goes in circles."""
    if len(token_ids) < LEAST_TOKENS:
        return False
    grams = [tuple(token_ids[start : start + GRAM]) for start in range(len(token_ids) - GRAM + 1)]
    return len(set(grams)) < DISTINCT_SHARE * len(grams)


def _of_groups(groups: Sequence[TrajectoryGroup], rewards: Sequence[float]) -> dict[str, int]:
    metrics = Counter[str]()
    for name in ("groups/all_best", "groups/all_worst", "groups/all_tied", *_ALIKE):
        metrics[name] = 0
    low, high = min([0.0, *rewards]), max([1.0, *rewards])
    if rewards and (low < 0.0 or high > 1.0):
        low, high = min(rewards), max(rewards)
    for group in groups:
        _count_group(metrics, group, low, high)
    return dict(metrics)


def _of_rewards(rewards: Sequence[float]) -> dict[str, float]:
    if not rewards:
        return {}
    mean = sum(rewards) / len(rewards)
    variance = sum((reward - mean) ** 2 for reward in rewards) / len(rewards)
    return {"reward/mean": mean, "reward/min": min(rewards), "reward/max": max(rewards), "reward/std": variance**0.5}


def _count_group(metrics: Counter[str], group: TrajectoryGroup, low: float, high: float) -> None:
    compared = [member for member in group if member.error is None and member.reward is not None]
    said = [tuple(exchange.completion_ids for exchange in member.exchanges) for member in compared]
    if len(compared) < 2:
        return
    rewards = [member.reward for member in compared if member.reward is not None]
    prompts = [{exchange.prompt_ids for exchange in member.exchanges} for member in compared if member.exchanges]
    metrics["groups/mixed"] += len(prompts) > 1 and not set.intersection(*prompts)
    near = 1e-6 * max(1.0, high - low)
    if any(map(any, said)) and len(set(said)) == 1:
        metrics["groups/identical"] += 1
        metrics["groups/identical_not_best"] += min(rewards) < high - near
    if has_signal(rewards):
        return
    if rewards[0] >= high - near:
        metrics["groups/all_best"] += 1
    elif rewards[0] <= low + near:
        metrics["groups/all_worst"] += 1
    else:
        metrics["groups/all_tied"] += 1


def _completions(members: Sequence[Trajectory]) -> dict[str, float]:
    exchanges = [exchange for member in members for exchange in member.exchanges]
    return {
        "completions/total": len(exchanges),
        "completions/truncated": sum(exchange.finish_reason == "length" for exchange in exchanges),
        "completions/repetitive": sum(is_repetitive(exchange.completion_ids) for exchange in exchanges),
        "tools/offered": sum(any(exchange.tools for exchange in member.exchanges) for member in members),
        "tools/calls": sum(len(exchange.response.get("tool_calls") or ()) for exchange in exchanges),
        "tools/malformed": sum(exchange.num_malformed_calls for exchange in exchanges),
    }


def _failures(members: Sequence[Trajectory]) -> dict[str, float]:
    errors = [member.error for member in members if member.error is not None]
    judged = [error for error in errors if error.source == "judge"]
    silent = sum(member.reward is None and member.error is None for member in members)
    kinds = Counter(re.sub(r"\W+", "_", error.kind) or "unknown" for error in errors)
    return {
        "trajectories/total": len(members),
        "trajectories/unscored": silent + len(judged),
        "trajectories/failed": len(errors) - len(judged),
        **{f"errors/{kind}": count for kind, count in kinds.most_common(_KINDS)},
        **({"errors/other": rest} if (rest := sum(count for _, count in kinds.most_common()[_KINDS:])) else {}),
    }


def _tokens_and_time(members: Sequence[Trajectory]) -> dict[str, float]:
    calls = [exchange for member in members for exchange in member.exchanges]
    if not calls:
        return {}
    sampled = sum(len(call.completion_ids) for call in calls)
    seconds = _covered(
        (min(call.started_at for call in member.exchanges), max(call.ended_at for call in member.exchanges))
        for member in members
        if member.exchanges
    )
    metrics = {
        "tokens/sampled": float(sampled),
        "tokens/prompt": float(sum(len(call.prompt_ids) for call in calls)),
        "time/rollout_s": seconds,
    }
    return {**metrics, "tokens/sampled_per_s": sampled / seconds} if seconds > 0 else metrics


def _costs(carriers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    found = {
        name: [float(carrier[carried]) for carrier in carriers if carried in carrier]
        for carried, name in _JUDGE_COSTS.items()
    }
    return {name: sum(values) for name, values in found.items() if values}


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of what the intervals `spans` cover together."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
