"""The script's half of `train_sft`: read and check the data, look choices up, ask the backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from art_core.claims import attach_known_exchanges
from art_core.control import SftRequest
from art_core.errors import DataError
from art_core.protocols import Backend
from art_core.sft.reading import Examples, examples_of_file, examples_of_trajectories, flattened
from art_core.sft_config import SftConfig
from art_core.threads import in_thread
from art_core.trajectories import TrajectoryGroup
from art_core.types import Exchange, StepReport


async def train_sft(
    backend: Backend,
    project: str,
    name: str,
    data: Any,
    validation: Any,
    config: SftConfig,
    *,
    on_progress: Callable[[str], None],
) -> StepReport:
    """See `TrainableModel.train_sft`."""

    async def find(ids: Sequence[str]) -> list[Exchange]:
        return await backend.find_exchanges(project, name, ids, missing_ok=True)

    async def read(given: Any) -> Examples:
        if isinstance(given, str | Path):
            return await in_thread(examples_of_file, Path(given))
        trajectories = flattened(given)
        await attach_known_exchanges([TrajectoryGroup([t for t in trajectories if t.error is None])], find)
        return await in_thread(examples_of_trajectories, trajectories)

    training = await read(data)
    try:
        held_out = None if validation is None else await read(validation)
    except DataError as error:
        raise DataError(f"validation: {error}") from error
    request = SftRequest(
        examples=training.examples,
        validation=[] if held_out is None else held_out.examples,
        num_failed=training.num_failed,
        num_validation_failed=0 if held_out is None else held_out.num_failed,
        options=dataclasses.asdict(config),
    )
    return await backend.train_sft(project, name, request, on_progress=on_progress)
