"""What each step answered the canary's probe, kept in the run folder for engines that serve it later."""

from __future__ import annotations

import logging

from art_core.canary import ProbeAnswer, WeightSyncCanary
from art_core.errors import DataError, StorageError
from art_core.storage import RunStore

_log = logging.getLogger(__name__)
_KIND = "canary"


def remember_answers(canary: WeightSyncCanary, store: RunStore) -> None:
    """Give `canary` the answers that `store` has, and let it add those to come.

    A log that is damaged or cannot be written costs no step: a warning says what is not checked.
    """
    log = store.folder / f"{_KIND}.jsonl"

    def keep(step: int, answer: ProbeAnswer) -> None:
        try:
            store.append(_KIND, {"step": step, **answer.as_json()})
        except StorageError as error:
            _log.warning("%s; after a restart, engines of step %d are not checked", error, step)

    try:
        canary.answers = {record["step"]: ProbeAnswer.from_json(record) for record in store.records(_KIND)}
    except (DataError, KeyError, TypeError, ValueError) as error:
        _log.warning("%s: %r; engines for its older steps are not checked", log, error)
    canary.on_answer = keep
