"""Scored groups -> the rows of a step, and counters of everything that gives none. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from art_core.advantage import has_signal, step_advantages
from art_core.config import TrainConfig
from art_core.errors import DataError
from art_core.samples import to_samples
from art_core.trajectories import ScoredGroup, Trajectory, TrajectoryGroup
from art_core.types import Exchange, TokenSample

_COUNTERS = (
    "groups/total",
    "groups/without_signal",
    "groups/too_small",
    "trajectories/excluded",
    "trajectories/trained",
    "trajectories/without_tokens",
    "trajectories/forks",
    "trajectories/truncated",
    "trajectories/masked_truncated",
    "trajectories/masked_overlong",
    "trajectories/dropped_truncated",
    "trajectories/dropped_overlong",
    "rows/cut",
    "rows/cut_untrained",
    "tokens/cut",
    "exchanges/other_roles",
    "roles/absent",
)


_Fate = Literal["train", "mask", "drop"]


@dataclasses.dataclass
class _Member:
    """A trajectory of a group with its rows, whose advantage is not yet known, and what becomes of it."""

    trajectory: Trajectory
    reward: float
    rows: list[TokenSample]
    fate: _Fate
    reason: str


def scored_groups(groups: Sequence[TrajectoryGroup]) -> list[ScoredGroup]:
    """`groups` with the rewards of their trajectories.

    Raises:
        DataError: a trajectory has a reward and no recorded call, or a call is there more than once.
    """
    scored = [group.with_rewards() for group in groups]
    silent = [t.id for group in scored for t, _ in group.members if not t.exchanges]
    if silent:
        shown = ", ".join(silent[:3]) + (", ..." if len(silent) > 3 else "")
        raise DataError(
            f"{len(silent)} trajectories have a reward and no recorded call ({shown}); make their calls inside "
            "capture(model), or append the answers' choices, or set trajectory.error where the rollout failed"
        )
    counted = Counter(exchange.id for group in scored for t, _ in group.members for exchange in t.exchanges)
    twice = [exchange_id for exchange_id, count in counted.items() if count > 1]
    if twice:
        raise DataError(
            f"{len(twice)} recorded calls are there more than once, the first of them {twice[0]!r}; each answer is "
            "trained once: give every exchange to one trajectory, and no trajectory to two groups"
        )
    return scored


def training_rows(
    groups: Sequence[ScoredGroup], *, policy_version: int, config: TrainConfig | None = None
) -> tuple[list[TokenSample], dict[str, float]]:
    """The rows that `groups` give, and counters of everything that gives none.

    A group of fewer than two scored members, or without signal, gives no row, and no account is taken of its members.
    Of the other groups each scored member is counted once: `trajectories/trained`, `without_tokens`,
    `masked_<reason>` (its reward counts, none of its tokens is trained) or `dropped_<reason>` (the group is compared
    without it); where that leaves a group without two members or without signal, it is counted as such and the rest
    of its members nowhere. A trajectory that is masked gives no row, so all that is said of rows agrees.

    Raises:
        DataError: a trajectory was sampled from another policy than the one about to be updated, has a row that is
            longer than `config` allows, or no call has any of the roles.
    """
    config = config or TrainConfig()
    counters = dict.fromkeys(_COUNTERS, 0)
    counters["groups/total"] = len(groups)
    counters["trajectories/excluded"] = sum(group.num_excluded for group in groups)
    counters["roles/absent"] = len(_absent_roles(groups, config.roles))
    compared: list[list[_Member]] = []
    for group in groups:
        counters["trajectories/truncated"] += sum(_is_truncated(member, config) for member, _ in group.members)
        if not _is_comparable(group.rewards, counters):
            continue
        members = [_member(*member, policy_version, config) for member in group.members]
        kept = [member for member in members if member.fate != "drop"]
        for member in members:
            if member.fate == "drop":
                counters[f"trajectories/dropped_{member.reason}"] += 1
        if len(kept) == len(members) or _is_comparable([member.reward for member in kept], counters):
            compared.append(kept)
    advantages = step_advantages(
        [[member.reward for member in members] for members in compared],
        scale_rewards=config.scaling,
        baseline=config.baseline,
    )
    rows: list[TokenSample] = []
    for members, of_group in zip(compared, advantages, strict=True):
        for member, advantage in zip(members, of_group, strict=True):
            exchanges = member.trajectory.exchanges
            counters["exchanges/other_roles"] += len(exchanges) - len(_of_roles(member.trajectory, config.roles))
            if member.fate == "mask":
                counters[f"trajectories/masked_{member.reason}"] += 1
                continue
            kept_rows = _cut(member.rows, config, counters)
            rows += [dataclasses.replace(row, advantage=advantage) for row in kept_rows]
            counters["trajectories/trained" if kept_rows else "trajectories/without_tokens"] += 1
            counters["trajectories/forks"] += max(0, len(member.rows) - 1)
    return rows, {name: float(value) for name, value in counters.items()}


def _is_comparable(rewards: Sequence[float], counters: dict[str, int]) -> bool:
    if len(rewards) < 2:
        counters["groups/too_small"] += 1
        return False
    if not has_signal(rewards):
        counters["groups/without_signal"] += 1
        return False
    return True


def _member(trajectory: Trajectory, reward: float, policy_version: int, config: TrainConfig) -> _Member:
    _check_version(trajectory.id, _of_roles(trajectory, config.roles), policy_version)
    rows = to_samples(trajectory, 0.0, roles=config.roles)
    if config.truncated != "train" and _is_truncated(trajectory, config):
        return _Member(trajectory, reward, rows, config.truncated, "truncated")
    return _Member(trajectory, reward, rows, _fate_of_overlong(trajectory.id, rows, config), "overlong")


def _fate_of_overlong(trajectory_id: str, rows: Sequence[TokenSample], config: TrainConfig) -> _Fate:
    longest = max((len(row.token_ids) for row in rows), default=0)
    if config.max_row_tokens is None or longest <= config.max_row_tokens or config.overlong == "cut":
        return "train"
    if config.overlong in ("mask", "drop"):
        return config.overlong
    raise DataError(
        f"trajectory {trajectory_id!r} has a row of {longest} tokens, and max_row_tokens is {config.max_row_tokens}; "
        "shorten the rollouts, or say what to do with such rows: overlong='cut', 'mask' or 'drop'"
    )


def _cut(rows: list[TokenSample], config: TrainConfig, counters: dict[str, int]) -> list[TokenSample]:
    """`rows` with at most `max_row_tokens` tokens each, without those in which nothing trained is left."""
    limit = config.max_row_tokens
    if limit is None:
        return rows
    kept: list[TokenSample] = []
    for row in rows:
        if len(row.token_ids) > limit:
            counters["rows/cut"] += 1
            counters["tokens/cut"] += len(row.token_ids) - limit
            row = dataclasses.replace(
                row, token_ids=row.token_ids[:limit], trained=row.trained[:limit], logprobs=row.logprobs[:limit]
            )
            if not row.num_trained:
                counters["rows/cut_untrained"] += 1
                continue
        kept.append(row)
    return kept


def _of_roles(trajectory: Trajectory, roles: Sequence[str]) -> list[Exchange]:
    return [exchange for exchange in trajectory.exchanges if not roles or exchange.role in roles]


def _is_truncated(trajectory: Trajectory, config: TrainConfig) -> bool:
    """Whether an answer that is to be trained ended at its token limit."""
    return any(exchange.finish_reason == "length" for exchange in _of_roles(trajectory, config.roles))


def _absent_roles(groups: Sequence[ScoredGroup], roles: Sequence[str]) -> list[str]:
    """Those of `roles` that no call has: a role may have made no call by chance, but not all of them."""
    known = {exchange.role for group in groups for trajectory, _ in group.members for exchange in trajectory.exchanges}
    absent = [role for role in roles if role not in known]
    if known and roles and len(absent) == len(roles):
        raise DataError(
            f"no call of these groups has the role {' or '.join(map(repr, absent))}, which is to be trained; their "
            f"roles are {sorted(known)}, where '' is a call without one: name the role in each call, "
            "as metadata={'role': ...}"
        )
    return absent


def _check_version(trajectory_id: str, exchanges: Sequence[Exchange], policy_version: int) -> None:
    stale = {exchange.policy_version for exchange in exchanges} - {policy_version}
    if stale:
        raise DataError(
            f"trajectory {trajectory_id!r} was sampled from policy version {sorted(stale)[0]}, but version "
            f"{policy_version} is about to be updated; training on it would be off-policy: gather new "
            "groups, with the weights that are served now"
        )
