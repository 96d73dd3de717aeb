"""The seams. Everything behind them is an adapter, named only in `art_core.registry`.

One suite per seam in `tests/contract` runs on every adapter and on the fake in `art_core.testing`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from art_core.config import TrainConfig
from art_core.control import ForkRequest, MetricRecord, ModelState, RegisterRequest, SftRequest
from art_core.objective import Objective
from art_core.trajectories import Trajectory, TrajectoryGroup
from art_core.types import Checkpoint, Exchange, Sampling, StepReport, TokenChunk, TokenSample


@runtime_checkable
class Engine(Protocol):
    """Serves a policy: token ids in, sampled ids with their logprobs out."""

    @property
    def policy_version(self) -> int:
        """Step of the checkpoint that new requests are served from; 0 is the untrained model."""
        ...

    @property
    def max_context_tokens(self) -> int:
        """Longest prompt plus completion, in tokens."""
        ...

    def stream(self, prompt_ids: Sequence[int], sampling: Sampling) -> AsyncIterator[TokenChunk]:
        """Sample a completion of `prompt_ids`.

        Chunks arrive as tokens are drawn; the last one carries the finish reason. A stop token that was drawn is part
        of the completion. All chunks come from one policy version. Closing the iterator early cancels the request and
        frees its place.

        With a grammar, every chunk marks which of its tokens were forced. `top_logprobs` are of the distribution that
        `logprobs` are of; there are fewer than asked for where top-k or top-p keep no more.

        Raises:
            ContextLengthError: before the first chunk, when prompt plus `max_tokens` exceed `max_context_tokens`.
            ConfigError: before the first chunk, when the grammar cannot be used, or comes without a stop token.
            DataError: the grammar has become too complex to follow.
            EngineClosedError: the engine was closed, or broke, before the completion was finished.
        """
        ...

    async def load(self, checkpoint: Checkpoint) -> None:
        """Serve `checkpoint` from now on.

        Requests in flight finish on the weights they began with; requests that arrive meanwhile wait and are served
        by the new ones. When this returns, no later request is answered from older weights or caches.

        Raises:
            AdapterMismatchError: the adapter does not fit the model; what was served before is served still.
        """
        ...

    async def aclose(self) -> None:
        """Fail what is in flight with `EngineClosedError` and free everything. May be called twice."""
        ...


@runtime_checkable
class Trainer(Protocol):
    """Turns rows into one optimiser step."""

    @property
    def step_count(self) -> int:
        """Steps made so far; 0 for the untrained policy."""
        ...

    async def step(self, rows: Sequence[TokenSample], objective: Objective) -> StepReport:
        """Make exactly one step on all `rows`: the optimiser updates that `objective` says, all of them or none.

        The report's `step` is the new `step_count`.

        Raises:
            DataError: no row has a trained token, so there is nothing to learn from.
            NonFiniteLossError: loss or gradient is not finite; weights and optimiser are as before the call.
        """
        ...

    async def logprobs(self, token_ids: Sequence[int], *, num_completion: int) -> list[float]:
        """Log-probabilities (temperature 1) of the last `num_completion` tokens under the current policy."""
        ...

    def save(self, folder: Path) -> None:
        """Write adapter (PEFT's file format), optimiser and RNG state into `folder`, which exists and is empty."""
        ...

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue as if the process that wrote `checkpoint` had never stopped: bit for bit on the same machine."""
        ...

    async def aclose(self) -> None:
        """Free everything. May be called twice."""
        ...


@runtime_checkable
class Judge(Protocol):
    """Gives a group of trajectories of the same scenario their rewards."""

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[float | None]:
        """One finite score per trajectory, in the order given; None where it cannot be scored, never a guess."""
        ...


@runtime_checkable
class Backend(Protocol):
    """Where models are served and trained: a server on this machine, or on another. `async with` closes it.

    Its methods may be called from any event loop; those that a capture uses also from several at the same time.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    @property
    def base_url(self) -> str:
        """Root of the server, without `/v1`."""
        ...

    @property
    def api_key(self) -> str | None:
        """What the server wants as bearer token; None where it wants none."""
        ...

    async def register(self, request: RegisterRequest) -> ModelState:
        """Begin to serve a model, or find it again at the step it has reached. May be called again.

        Raises:
            ConfigError: the model exists with another base model or other options.
            ModelNotFoundError: no weights under that name.
        """
        ...

    async def state(self, project: str, name: str) -> ModelState:
        """The model as it is now."""
        ...

    async def open_trajectory(self, project: str, name: str, trajectory_id: str) -> str:
        """Begin to record under `trajectory_id`, and return the base URL whose calls are recorded there."""
        ...

    async def close_trajectory(self, trajectory_id: str) -> list[Exchange]:
        """End the record, and return its exchanges in the order in which they finished."""
        ...

    async def find_exchanges(
        self, project: str, name: str, ids: Sequence[str], *, missing_ok: bool = False
    ) -> list[Exchange]:
        """Recorded calls by their ids, in the order of `ids`; with `missing_ok`, those that there are.

        Raises:
            DataError: an id of no recorded call, without `missing_ok`; the message names it.
        """
        ...

    async def train(
        self,
        project: str,
        name: str,
        groups: Sequence[TrajectoryGroup],
        config: TrainConfig,
        *,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> StepReport:
        """One training step on `groups`, committed, served and checked when this returns.

        Where they teach nothing, or there are none, no step is made: the report says `step/skipped`, and the run folder
        counts the batch.

        Raises:
            DataError: a group cannot be trained on; weights are as before.
        """
        ...

    async def train_sft(
        self, project: str, name: str, request: SftRequest, *, on_progress: Callable[[str], None] = lambda _: None
    ) -> StepReport:
        """Supervised training on examples: committed now and then and at the end, then served and checked.

        Interrupted, it goes on where it was when the same is asked for again; finished, it is not made twice.

        Raises:
            DataError: an example cannot be trained on; nothing was begun.
            ConfigError: an impossible option, or another such training was interrupted.
        """
        ...

    async def log(
        self,
        project: str,
        name: str,
        groups: Sequence[TrajectoryGroup],
        *,
        split: str,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Keep `groups` and `metrics`, by their full names, in the model's run folder.

        Raises:
            DataError: a metric has the name of one that training reports, or is not finite.
        """
        ...

    async def logged_metrics(self, project: str, name: str) -> list[MetricRecord]:
        """The metrics of every `log`, in the order in which they came; also those of processes before this one."""
        ...

    async def delete_checkpoints(self, project: str, name: str, *, keep: Sequence[int]) -> ModelState:
        """Delete all checkpoints but the newest, those whose step is in `keep`, and those that are served or read."""
        ...

    async def fork(self, project: str, name: str, request: ForkRequest) -> ModelState:
        """Make a new model from a checkpoint of this one, and begin to serve it. The same fork again finds it as it is.

        Raises:
            ConfigError: there is a model of that name already, which is not this fork.
            DataError: no such checkpoint.
        """
        ...

    async def close(self) -> None:
        """Let go of the server; one that this backend started ends. May be called twice."""
        ...


@runtime_checkable
class Recorder(Protocol):
    """Receives every finished exchange once, in the order in which they finished."""

    def record(self, *exchanges: Exchange) -> None:
        """Keep `exchanges`, the choices of one call: all of them, or none where it raises.

        Must be cheap: it is called on the event loop of the server.
        """
        ...


@runtime_checkable
class Store(Protocol):
    """Keeps what a run has earned. A checkpoint is visible only when whole."""

    def append(self, kind: str, record: dict[str, Any]) -> None:
        """Add one JSON record to the log named `kind`. A record is either whole after a crash, or absent.

        Raises:
            DataError: it holds what JSON cannot. Nothing was written.
            StorageError: the disk is full or the folder not writable.
        """
        ...

    def records(self, kind: str) -> list[dict[str, Any]]:
        """All whole records of the log named `kind`, in the order they were added."""
        ...

    def commit(self, trainer: Trainer, cursor: dict[str, Any]) -> Checkpoint:
        """Save the trainer's state with `cursor` as one checkpoint, atomically.

        Raises:
            DataError: the cursor holds what JSON cannot. Nothing was written.
            StorageError: the disk is full or the folder not writable. There is no checkpoint of this step.
        """
        ...

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint, or None."""
        ...

    def load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """The cursor that `checkpoint` was committed with.

        Raises:
            StorageError: the checkpoint is not there, or not whole.
        """
        ...


@dataclass(frozen=True)
class SinkRun:
    """The run whose metrics a sink shows.

    `folder` is the sink's own below the run folder, the same whenever the run goes on; it need not exist. `details` is
    plain data about the run, without secrets.
    """

    folder: Path
    project: str
    name: str
    details: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class MetricSink(Protocol):
    """Shows metrics somewhere besides the run folder, where they are kept in any case.

    Opened again with the same `SinkRun`, it goes on with what it shows. Its methods may block, and are called by one
    thread at a time.
    """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show `metrics` at `step`. A step may come again, with other metrics or the same, and after later ones.

        Raises:
            Exception: it could not; the caller opens the sink again later.
        """
        ...

    def close(self) -> None:
        """Write out what is left and free everything. May be called twice."""
        ...
