"""A trajectory -> training rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from art_core.errors import DataError
from art_core.trajectories import Trajectory
from art_core.types import Exchange, TokenSample


@dataclass
class _Row:
    policy_version: int
    token_ids: list[int] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def is_prefix_of(self, prompt_ids: tuple[int, ...]) -> bool:
        return len(self.token_ids) <= len(prompt_ids) and self.token_ids == list(prompt_ids[: len(self.token_ids)])

    def append(self, exchange: Exchange, *, is_trained: bool) -> None:
        context = exchange.prompt_ids[len(self.token_ids) :]
        self.token_ids += [*context, *exchange.completion_ids]
        chosen = [is_trained] * len(exchange.completion_ids)
        if exchange.forced:
            chosen = [is_trained and not forced for forced in exchange.forced]
        self.trained += [False] * len(context) + chosen
        self.logprobs += [0.0] * len(context)
        self.logprobs += [logp if own else 0.0 for logp, own in zip(exchange.logprobs, chosen, strict=True)]


def to_samples(trajectory: Trajectory, advantage: float, *, roles: Sequence[str] = ()) -> list[TokenSample]:
    """Join each turn to the row its prompt extends; open a new row where history was edited or agents run in parallel.

    The longest matching row wins, so a turn continues the conversation it belongs to. Exchanges of different policy
    versions never share a row: a row has one version, and its logprobs are those of that version. Tokens that a
    grammar forced were no choice of the policy, and are context. With `roles`, so is what was sampled in others.

    Raises:
        DataError: an exchange was sampled from another distribution than the policy's own.
    """
    rows: list[_Row] = []
    for exchange in trajectory.exchanges:
        is_trained = not roles or exchange.role in roles
        if is_trained:
            _refuse_tempered(exchange)
        candidates = [
            row
            for row in rows
            if row.policy_version == exchange.policy_version and row.is_prefix_of(exchange.prompt_ids)
        ]
        row = max(candidates, key=lambda candidate: len(candidate.token_ids), default=None)
        if row is None:
            rows.append(row := _Row(exchange.policy_version))
        row.append(exchange, is_trained=is_trained)
    return [
        TokenSample(
            token_ids=tuple(row.token_ids),
            trained=tuple(row.trained),
            logprobs=tuple(row.logprobs),
            advantage=advantage,
            policy_version=row.policy_version,
            trajectory_id=trajectory.id,
        )
        for row in rows
        if any(row.trained)
    ]


def _refuse_tempered(exchange: Exchange) -> None:
    """A trainer compares recorded logprobs with those of the policy itself; of anything else it would learn wrongly."""
    sampling = exchange.sampling
    if (sampling.temperature, sampling.top_p, sampling.top_k) != (1.0, 1.0, 0):
        raise DataError(
            f"exchange {exchange.id!r} of trajectory {exchange.trajectory_id!r} was sampled at temperature "
            f"{sampling.temperature}, top_p {sampling.top_p}, top_k {sampling.top_k}; training would take the policy "
            "for another than it was: let rollouts that are trained on sample at temperature 1 without top_p and top_k"
        )


def demonstration(trajectory_id: str, segments: Iterable[tuple[tuple[int, ...], bool]]) -> TokenSample:
    """A supervised row from consecutive `(token_ids, trained)` segments, for the `sft` objective.

    Raises:
        DataError: no segment is trained.
    """
    token_ids: list[int] = []
    trained: list[bool] = []
    for ids, is_trained in segments:
        token_ids += ids
        trained += [is_trained] * len(ids)
    if not any(trained):
        raise DataError(
            f"demonstration {trajectory_id!r} has no trained token; mark the completion's tokens as trained"
        )
    return TokenSample(
        token_ids=tuple(token_ids),
        trained=tuple(trained),
        logprobs=(0.0,) * len(token_ids),
        advantage=1.0,
        policy_version=0,
        trajectory_id=trajectory_id,
    )
