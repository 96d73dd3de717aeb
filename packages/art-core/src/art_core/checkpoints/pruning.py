"""Delete, after a step, the checkpoints that need not stay."""

from __future__ import annotations

import logging
from collections.abc import Collection

from art_core.checkpoints.keeping import KeepCheckpoints, kept_while_training
from art_core.checkpoints.listing import logged_metrics
from art_core.errors import ArtError
from art_core.runs import ModelRun

_logger = logging.getLogger(__name__)


def keep_only(policy: KeepCheckpoints, run: ModelRun, steps: Collection[int], *, also: Collection[int] = ()) -> None:
    """Delete those of `steps` that neither `policy` nor `also` keeps.

    Where that fails, a warning is logged: the step itself is made.
    """
    try:
        run.store.prune({*kept_while_training(policy, steps, logged_metrics(run)), *also})
    except ArtError as error:
        _logger.warning("%s: old checkpoints are not deleted: %s", run.folder, error)
