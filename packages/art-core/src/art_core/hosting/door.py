"""Open one model of a host: what its folder says it is, the folder's lock, and what it needs, in this order."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_core.errors import RunLockedError
from art_core.hosting.exchanges import ExchangeLog
from art_core.hosting.model import HostedModel
from art_core.hosting.opening import Parts
from art_core.hosting.options import HostOptions
from art_core.hosting.record import ModelRecord
from art_core.storage import RunStore

_LOCK_WAIT_S = 5.0
"""A server whose parent was killed needs a moment to end; a new one waits so long for its folder."""


@dataclass(frozen=True)
class HostedBy:
    """What models have in common: the adapters and the options of their host."""

    engine: str
    trainer: str
    options: HostOptions


async def open_model(
    folder: Path, project: str, name: str, base_model: str, config: dict[str, Any], *, host: HostedBy
) -> HostedModel:
    """The model in `folder`, new or at its newest checkpoint, checked by the canary.

    Raises:
        ConfigError: it was registered with another base model or other options.
        ModelNotFoundError: no such weights.
        RunLockedError: another process has it open.
    """
    options = host.options.of_model(config)
    record = ModelRecord.read(folder)
    if record is not None:
        record.check_same(base_model, options, trained_only=True)
    parts = await Parts.resolve(base_model, options, engine=host.engine, trainer=host.trainer)
    if record is not None:
        record.check_weights(parts.source.sha256, host.trainer)
    else:
        record = ModelRecord(
            project=project,
            name=name,
            base_model=base_model,
            sha256=parts.source.sha256,
            trainer=host.trainer,
            options=options,
            created=int(time.time()),
        )
    async with contextlib.AsyncExitStack() as stack:
        store = await _locked(folder)
        stack.callback(store.close)
        log = await asyncio.to_thread(
            ExchangeLog,
            folder,
            max_bytes=host.options.exchange_log_bytes,
            max_records=host.options.exchange_log_records,
        )
        model = HostedModel(record.model_copy(update={"options": options}), parts, store, log)
        stack.push_async_callback(model.close)
        await model.start()
        model.record.write(folder)
        stack.pop_all()
    return model


async def _locked(folder: Path) -> RunStore:
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            return RunStore(folder)
        except RunLockedError:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(0.1)
