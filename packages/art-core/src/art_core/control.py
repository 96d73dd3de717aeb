"""What client and server say to each other about models, trajectories and training: the bodies below `/api`.

    GET    /api/models                                      -> {"models": [ModelState]}
    POST   /api/models                      RegisterRequest -> ModelState
    GET    /api/models/{project}/{name}                     -> ModelState
    POST   /api/models/{project}/{name}/trajectories     OpenRequest -> {}     calls go to /t/{id}/v1 from now on
    POST   /api/trajectories/{id}/close                     -> ExchangeList    whole record, in order
    POST   /api/models/{project}/{name}/exchanges    LookupRequest -> ExchangeList   of calls outside any trajectory
    POST   /api/models/{project}/{name}/train        TrainRequest  -> JSON lines of TrainEvent
    POST   /api/models/{project}/{name}/train_sft    SftRequest    -> JSON lines of TrainEvent
    POST   /api/models/{project}/{name}/log          LogRequest    -> {}
    GET    /api/models/{project}/{name}/metrics             -> MetricHistory
    POST   /api/models/{project}/{name}/checkpoints/delete   DeleteRequest -> ModelState
    POST   /api/models/{project}/{name}/fork         ForkRequest   -> ModelState    of the new model

The last line of a training is a `result` or an `error`. Every request carries `Authorization: Bearer <key>` where the
server has a key. An error is an OpenAI error object whose `code` names the class in `art_core.errors` where it is one
of these, so that the client raises what the server raised.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field

from art_core.trajectories import Trajectory
from art_core.types import ChatMessage, Exchange, Finding, ToolSpec

T = TypeVar("T")
_Many = Annotated[list[T], FailFast()]
"""A list that is refused at its first wrong item: to describe a million of them would take the server a minute."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Origin(_Body):
    """Where a fork comes from: its first checkpoint is that of `model` (`project/name`) at `step`.

    Without the `optimizer`, its first step began with fresh moments. Up to there, `supervised_updates` of the steps
    were made by `train_sft`, and `skipped_batches` were given to `train`, which made no step of them.
    """

    model: str
    step: int
    optimizer: bool = True
    supervised_updates: int = 0
    skipped_batches: int = 0


class ModelState(_Body):
    """A registered model. `inference_name` is what a request's `model` says; it always means the newest step.

    `supervised_updates` of its steps were made by `train_sft`, and `skipped_batches` were given to `train`, which made
    no step of them; both count from the untrained model, through forks. `damaged` says of checkpoints that are not
    whole what is wrong with them; they are not used.
    """

    project: str
    name: str
    base_model: str
    inference_name: str
    step: int
    checkpoint_steps: list[int]
    folder: str
    supervised_updates: int = 0
    skipped_batches: int = 0
    damaged: list[str] = Field(default_factory=list)
    forked_from: Origin | None = None


class RegisterRequest(_Body):
    """`config` holds options for the model's engine and trainer; the server refuses those it does not know."""

    project: str
    name: str
    base_model: str
    config: dict[str, Any] = Field(default_factory=dict)


class OpenRequest(_Body):
    id: str


class LookupRequest(_Body):
    """Ids of no recorded call are an error, or with `missing_ok` left out."""

    ids: _Many[str]
    missing_ok: bool = False


class ExchangeList(_Body):
    exchanges: _Many[Exchange]


class GroupBody(_Body):
    scenario_id: str
    trajectories: _Many[Trajectory]
    metadata: dict[str, Any] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)
    logs: list[str] = Field(default_factory=list)


class TrainRequest(_Body):
    """Groups whose trajectories carry rewards (or errors) and their exchanges.

    `options` are fields of `art_core.config.TrainConfig`, which refuses what it does not know.
    """

    groups: _Many[GroupBody]
    options: dict[str, Any] = Field(default_factory=dict)


class SftExample(_Body):
    """A demonstration: recorded calls, or a conversation whose answers of the assistant are learned.

    `source` names it in messages of errors: `train.jsonl:12`. An answer with `weight` 0 is context.
    """

    source: str
    messages: list[ChatMessage] = Field(default_factory=list)
    tools: list[ToolSpec] = Field(default_factory=list)
    exchanges: _Many[Exchange] = Field(default_factory=list)


class SftRequest(_Body):
    """`options` are the fields of `art_core.SftConfig`.

    The client left out `num_failed` trajectories, and `num_validation_failed` of the held-out ones.
    """

    examples: _Many[SftExample]
    validation: _Many[SftExample] = Field(default_factory=list)
    num_failed: int = Field(default=0, ge=0)
    num_validation_failed: int = Field(default=0, ge=0)
    options: dict[str, Any] = Field(default_factory=dict)


class TrainEvent(_Body):
    """One line of the answer to a request that trains.

    `progress`: still at work (also sent every few seconds, so that a dead connection is noticed). `result`: `step`,
    `metrics` and new `findings` of the finished step. `error`: an error object, see above.
    """

    event: Literal["progress", "result", "error"]
    phase: str = ""
    step: int | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    findings: list[Finding] = Field(default_factory=list)
    error: dict[str, Any] | None = None


class LogRequest(_Body):
    """Keep `groups` (and `metrics`) under `split`, for the step that the model is at, or `step`."""

    split: str
    step: int | None = None
    groups: _Many[GroupBody] = Field(default_factory=list)
    metrics: dict[str, float] = Field(default_factory=dict)


class MetricRecord(_Body):
    """The metrics of one log request, by their full names (`val/reward`), and the step they were logged for."""

    step: int
    metrics: dict[str, float]


class MetricHistory(_Body):
    records: list[MetricRecord]


class DeleteRequest(_Body):
    """Delete all checkpoints but the newest, those in `keep`, and those that are being served or read."""

    keep: list[int]


class ForkRequest(_Body):
    """Make the model `name` (of `project`, or of the same) from the checkpoint of `step`, or the newest."""

    name: str
    project: str | None = None
    step: int | None = None
    optimizer: bool = True
