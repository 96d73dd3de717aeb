"""A trajectory -> training rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from art_core.errors import DataError
from art_core.trajectories import Trajectory
from art_core.types import Exchange, TokenSample


@dataclass(frozen=True)
class Turn:
    """What was said after `prompt_ids`, or is to be: one flag and one logprob for each of `completion_ids`.

    The logprob of a token that is not trained plays no part.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    trained: Sequence[bool]
    logprobs: Sequence[float]
    policy_version: int = 0


@dataclass
class _Row:
    policy_version: int
    token_ids: list[int] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def is_prefix_of(self, prompt_ids: tuple[int, ...]) -> bool:
        return len(self.token_ids) <= len(prompt_ids) and self.token_ids == list(prompt_ids[: len(self.token_ids)])

    def append(self, turn: Turn) -> None:
        context = turn.prompt_ids[len(self.token_ids) :]
        self.token_ids += [*context, *turn.completion_ids]
        self.trained += [*[False] * len(context), *turn.trained]
        self.logprobs += [0.0] * len(context)
        self.logprobs += [logp if own else 0.0 for logp, own in zip(turn.logprobs, turn.trained, strict=True)]


def joined(turns: Iterable[Turn], *, advantage: float, trajectory_id: str) -> list[TokenSample]:
    """Rows that hold each turn once: it joins the longest row that its prompt extends, and else opens one.

    So a turn continues the conversation it belongs to. Turns of different policy versions never share a row: a row has
    one version, and its logprobs are those of that version. A row in which nothing is trained is left out.
    """
    rows: list[_Row] = []
    for turn in turns:
        candidates = [
            row for row in rows if row.policy_version == turn.policy_version and row.is_prefix_of(turn.prompt_ids)
        ]
        row = max(candidates, key=lambda candidate: len(candidate.token_ids), default=None)
        if row is None:
            rows.append(row := _Row(turn.policy_version))
        row.append(turn)
    return [
        TokenSample(
            token_ids=tuple(row.token_ids),
            trained=tuple(row.trained),
            logprobs=tuple(row.logprobs),
            advantage=advantage,
            policy_version=row.policy_version,
            trajectory_id=trajectory_id,
        )
        for row in rows
        if any(row.trained)
    ]


def to_samples(trajectory: Trajectory, advantage: float, *, roles: Sequence[str] = ()) -> list[TokenSample]:
    """The calls of `trajectory` as rows, see `joined`: history that was edited, or agents in parallel, open new ones.

    Tokens that a grammar forced were no choice of the policy, and are context. With `roles`, so is what was sampled in
    others.

    Raises:
        DataError: an exchange was sampled from another distribution than the policy's own.
    """
    turns = [_sampled(exchange, is_trained=not roles or exchange.role in roles) for exchange in trajectory.exchanges]
    return joined(turns, advantage=advantage, trajectory_id=trajectory.id)


def _sampled(exchange: Exchange, *, is_trained: bool) -> Turn:
    if is_trained:
        _refuse_tempered(exchange)
    forced = exchange.forced or (False,) * len(exchange.completion_ids)
    chosen = [is_trained and not was_forced for was_forced in forced]
    return Turn(exchange.prompt_ids, exchange.completion_ids, chosen, exchange.logprobs, exchange.policy_version)


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
