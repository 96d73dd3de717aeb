"""Explicit choices -> the exchanges they are the answers of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from art_core.choices import exchange_id_of, has_logprobs, is_answer
from art_core.errors import DataError
from art_core.trajectories import Trajectory, TrajectoryGroup
from art_core.types import Exchange

Find = Callable[[Sequence[str]], Awaitable[list[Exchange]]]


@dataclass(frozen=True)
class Claim:
    """A choice of a trajectory says that it is the answer of exchange `id`."""

    trajectory: Trajectory
    where: str
    id: str


async def attach_exchanges(groups: Sequence[TrajectoryGroup], find: Find) -> None:
    """Give every trajectory that can be trained on the exchanges of its choices, looked up with one call of `find`.

    Exchanges that a trajectory has already, from a capture, stay first. Members that failed are left alone.

    Raises:
        DataError: a trajectory holds nothing that the model sampled, a choice without id or of a call that the server
            does not know, one exchange is claimed by two trajectories, or two have one id. The message names them;
            nothing was changed.
    """
    claims = claims_of(groups)
    found: dict[str, Exchange] = {}
    if claims:
        ids = list(dict.fromkeys(claim.id for claim in claims))
        try:
            exchanges = await find(ids)
        except DataError as error:
            culprits = [claim for claim in claims if claim.id in str(error)]
            places = "; ".join(f"{claim.where} says exchange {claim.id!r}" for claim in culprits[:3])
            raise DataError(
                f"{error} ({places or f'asked for by {claims[0].where} and others'}): append choices that this model "
                "answered with at this server, and no others"
            ) from error
        found = dict(zip(ids, exchanges, strict=True))
    for claim in claims:
        claim.trajectory.exchanges = [*claim.trajectory.exchanges, found[claim.id]]


async def attach_known_exchanges(groups: Sequence[TrajectoryGroup], find: Find) -> int:
    """As `attach_exchanges`, for groups that are kept and need not be fit to train on, failed members included.

    `find` leaves out ids that it does not know. Returns how many there were of these.
    """
    claims = [
        Claim(trajectory, place, exchange_id)
        for group in groups
        for trajectory in group
        for place, _, exchange_id in _new_answers(trajectory)
        if exchange_id is not None
    ]
    ids = list(dict.fromkeys(claim.id for claim in claims))
    found = {exchange.id: exchange for exchange in (await find(ids) if ids else [])}
    for claim in claims:
        if claim.id in found:
            claim.trajectory.exchanges = [*claim.trajectory.exchanges, found[claim.id]]
    return len(ids) - len(found)


def claims_of(groups: Sequence[TrajectoryGroup]) -> list[Claim]:
    """What has to be looked up, each exchange once.

    Raises:
        DataError: see `attach_exchanges`.
    """
    claims: list[Claim] = []
    owners: dict[str, str] = {}
    named: dict[str, str] = {}
    for number, group in enumerate(groups):
        for position, trajectory in enumerate(group):
            if trajectory.error is not None:
                continue
            where = f"trajectory {position} of group {number} (id {trajectory.id!r})"
            new = list(_claims_of_one(trajectory, where))
            if not new and not trajectory.exchanges:
                raise DataError(
                    f"{where}: nothing in it was sampled by the model: it holds message dicts only and has no recorded "
                    "call; append completion.choices[0] instead of a dict, or make the calls inside "
                    "art_core.capture(model)"
                )
            ids = [*(exchange.id for exchange in trajectory.exchanges), *(claim.id for claim in new)]
            for exchange_id in dict.fromkeys(ids):
                if exchange_id in owners:
                    raise DataError(
                        f"exchange {exchange_id!r} is in {owners[exchange_id]} and in {where}; each answer is trained "
                        "once: call the model for each rollout, without a cache of responses in between"
                    )
                owners[exchange_id] = where
            if trajectory.id in named:
                raise DataError(
                    f"{named[trajectory.id]} and {where} have the same id and other answers; the tokens of one id are "
                    "weighted as one trajectory: give each rollout an id of its own"
                )
            named[trajectory.id] = where
            claims += new
    return claims


def _claims_of_one(trajectory: Trajectory, where: str) -> Iterator[Claim]:
    for place, item, exchange_id in _new_answers(trajectory):
        if exchange_id is None:
            lacks = "exchange id" if has_logprobs(item) else "exchange id, no logprobs and no token ids"
            raise DataError(
                f"{where}, {place} is a choice that carries no {lacks}: another server answered it, or a library "
                "between dropped the id; call the model through model.openai_client(), make the calls inside "
                "art_core.capture(model), or write the answer as a message dict where it is only context"
            )
        yield Claim(trajectory, f"{where}, {place}", exchange_id)


def _new_answers(trajectory: Trajectory) -> Iterator[tuple[str, Any, str | None]]:
    """Answers that are of none of the trajectory's exchanges: where each stands, itself, and its exchange's id."""
    known = {exchange.id for exchange in trajectory.exchanges}
    histories = [("", trajectory.messages_and_choices)] + [
        (f"additional_histories[{index}].", history.messages_and_choices)
        for index, history in enumerate(trajectory.additional_histories)
    ]
    for prefix, items in histories:
        for index, item in enumerate(items):
            exchange_id = exchange_id_of(item) if is_answer(item) else None
            if is_answer(item) and exchange_id not in known:
                known.update([exchange_id] if exchange_id else [])
                yield f"{prefix}messages_and_choices[{index}]", item, exchange_id
