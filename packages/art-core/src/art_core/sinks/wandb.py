"""Metrics in Weights & Biases. Its own environment variables say where: WANDB_API_KEY, WANDB_ENTITY, WANDB_MODE, ..."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping

import wandb

from art_core.errors import ConfigError
from art_core.protocols import SinkRun

_FINISH_S = 10.0
"""How long the end of a run may wait for uploads; what is left then stays on disk, for `wandb sync`."""
_STEP = "step"
_starting = threading.Lock()  # the library looks up its session without one


class WandbSink:
    """Satisfies `art_core.protocols.MetricSink`: a run of W&B, found again by the id that is kept in its folder.

    Nothing but metrics and `run.details` leaves the machine: neither the console, the command line, the environment,
    source code nor figures of the machine.

    Raises:
        ConfigError: W&B wants an API key, and knows none.
    """

    def __init__(self, run: SinkRun) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        id_file = run.folder / "run_id"
        if not id_file.exists():
            id_file.write_text(uuid.uuid4().hex[:16])
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            save_code=False,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            finish_timeout=_FINISH_S,
        )
        with _starting:
            given = wandb.setup().settings
            if given.mode not in ("offline", "disabled", "dryrun") and not wandb.login(prompt=False, verify=False):
                raise ConfigError("W&B knows no API key; set WANDB_API_KEY, or WANDB_MODE=offline")
            self._run: wandb.Run | None = wandb.init(
                project=run.project,
                name=run.name,
                id=id_file.read_text(),
                resume="allow",
                dir=str(run.folder),
                config=dict(run.details),
                reinit="create_new",
                settings=settings,
            )
        self._run.define_metric(_STEP, hidden=True)
        self._run.define_metric("*", step_metric=_STEP)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._run is None:
            raise ValueError("this sink was closed")
        self._run.log({_STEP: step, **metrics})

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()
