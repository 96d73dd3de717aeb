"""The values that travel along the data path, one type per arrow.

    agent -> Exchange* -> Trajectory -> TrajectoryGroup -> ScoredGroup -> TokenSample* -> StepReport, Checkpoint

Everything here is a plain value: no torch, no I/O. Records that are written to disk are pydantic models, so that a
field that is unknown, missing or of the wrong kind is refused when a file is read back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from art_core.errors import TokenAlignmentError
from art_core.values import readable

FinishReason = Literal["stop", "length"]
DtypeName = Literal["auto", "float32", "bfloat16"]
"""Type of weights and activations; "auto" is the one that this machine computes fastest in."""
ChatMessage = dict[str, Any]
"""One chat message in the OpenAI wire shape: `role`, `content`, and for some roles `tool_calls` or `tool_call_id`."""
ToolSpec = dict[str, Any]
"""One tool in the OpenAI wire shape: `{"type": "function", "function": {"name", "description", "parameters"}}`."""


def _finite(value: float) -> float:
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{value} is not a finite number")
    return value


Finite = Annotated[float, AfterValidator(_finite)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Sampling(_Record):
    """How completion tokens are drawn.

    `temperature` 0 means greedy decoding. `top_k` 0 and `top_p` 1 switch those filters off. With a `seed`, the same
    prompt, policy and parameters give the same tokens whatever else the engine is doing.

    `grammar`, in llguidance's dialect of Lark, restricts the whole completion: only tokens that keep it satisfiable
    are drawn, and a stop token only where it is satisfied. `top_logprobs` asks for that many of the likeliest
    alternatives at each position.
    """

    max_tokens: int = Field(gt=0)
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0)
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    grammar: str | None = None
    top_logprobs: int = Field(default=0, ge=0, le=20)


class Exchange(_Record):
    """One finished model call, exactly as it was served.

    `logprobs[i]` is the log-probability of `completion_ids[i]` under the distribution it was drawn from (temperature,
    top-p and top-k included; a grammar not, see `TokenChunk`). `forced[i]` marks a token that the grammar left no
    alternative to; empty means none. `policy_version` is the step of the checkpoint that served all of it. Times are
    seconds since the epoch. `forked` tells that the prompt could not be built as an extension of the trajectory's
    record. `num_malformed_calls` counts attempted tool calls that could not be read; their text is part of the content.
    `metadata` is what the client said under that name, such as the `role` that an agent plays among others.

    Raises:
        TokenAlignmentError: there is no prompt, or not one logprob for each sampled token.
    """

    id: str
    trajectory_id: str
    messages: tuple[ChatMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    response: ChatMessage
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[Finite, ...]
    forced: tuple[bool, ...] = ()
    finish_reason: FinishReason
    sampling: Sampling
    policy_version: int = Field(ge=0)
    forked: bool = False
    num_malformed_calls: int = Field(default=0, ge=0)
    metadata: dict[str, str] = Field(default_factory=dict)
    started_at: float
    ended_at: float

    if not TYPE_CHECKING:  # type checkers see the fields instead

        def __init__(self, **fields: Any) -> None:
            try:
                super().__init__(**fields)
            except ValidationError as error:  # pydantic's wrapping around what `_aligned` says
                cause = error.errors()[0].get("ctx", {}).get("error")
                if isinstance(cause, TokenAlignmentError):
                    raise cause from None
                raise

    @property
    def role(self) -> str:
        """The role among several agents that the client named in `metadata`; empty where it named none."""
        return self.metadata.get("role", "")

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        if not self.prompt_ids:
            raise TokenAlignmentError(
                f"exchange {self.id!r}: no prompt ids; a completion can only be trained after the prompt it answered"
            )
        if len(self.completion_ids) != len(self.logprobs):
            raise TokenAlignmentError(
                f"exchange {self.id!r}: {len(self.completion_ids)} sampled tokens but {len(self.logprobs)} logprobs; "
                "record the ids the engine sampled, never text encoded again"
            )
        if self.forced and len(self.forced) != len(self.completion_ids):
            raise TokenAlignmentError(
                f"exchange {self.id!r}: {len(self.completion_ids)} sampled tokens but {len(self.forced)} marks of "
                "forced ones; wanted one for each token, or none at all"
            )
        return self


class RolloutError(_Record):
    """Why a rollout has no usable outcome. `kind` is the class of the exception.

    `source` is what failed: the rollout itself, or the judge that was to give it a reward.
    """

    kind: str
    message: Annotated[str, AfterValidator(readable)]
    source: Literal["rollout", "judge"] = "rollout"

    @classmethod
    def of(cls, error: BaseException, *, otherwise: str = "") -> Self:
        """What `error` says, or `otherwise` where it says nothing. An error that cannot even be printed is one too."""
        try:
            message = str(error)
        except Exception as failure:  # noqa: BLE001 - whatever a foreign class does in its __str__
            message = f"(its message cannot be read: {type(failure).__name__})"
        return cls(kind=type(error).__name__, message=message or otherwise)


@dataclass(frozen=True)
class TokenSample:
    """One training row: a token sequence of which some positions were sampled by the policy.

    `trained[i]` marks the sampled tokens; `logprobs[i]` is their log-probability at sampling time and 0.0 elsewhere.
    `advantage` is that of the whole trajectory and the same for all its rows.
    """

    token_ids: tuple[int, ...]
    trained: tuple[bool, ...]
    logprobs: tuple[float, ...]
    advantage: float
    policy_version: int
    trajectory_id: str

    def __post_init__(self) -> None:
        lengths = (len(self.token_ids), len(self.trained), len(self.logprobs))
        if len(set(lengths)) != 1:
            raise TokenAlignmentError(
                f"row of trajectory {self.trajectory_id!r}: {lengths[0]} token ids, {lengths[1]} mask entries and "
                f"{lengths[2]} logprobs; all three describe the same tokens and must be equally long"
            )
        if self.trained and self.trained[0]:
            raise TokenAlignmentError(
                f"row of trajectory {self.trajectory_id!r}: its first token is marked as sampled, but nothing comes "
                "before it that could have predicted it"
            )

    @property
    def num_trained(self) -> int:
        return sum(self.trained)


Severity = Literal["problem", "warning", "note"]


class Finding(_Record):
    """Something that is wrong with a run, with its evidence and what to do. docs/doctor.md lists them by `name`.

    `steps` are the training steps it was seen at, the last at most 100; `current` tells that the newest is one of them.
    """

    name: str
    severity: Severity
    evidence: str
    remedy: str
    steps: tuple[int, ...] = ()
    current: bool = True

    def __str__(self) -> str:
        return f"{self.severity} {self.name}: {self.evidence}. {self.remedy}"


@dataclass(frozen=True)
class StepReport:
    """What one call of the trainer did: `metrics` are plain numbers, named `area/name`.

    `findings` are those that became true with this step, worst first.
    """

    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A committed state of the policy: the folder `path` holds adapter, optimiser, RNG and cursor of `step`."""

    step: int
    path: Path


@dataclass(frozen=True)
class TokenChunk:
    """Newly sampled tokens of one request. The last chunk of a stream, and only it, has a `finish_reason`.

    `policy_version` is the same in every chunk of one stream: a completion never mixes weights.

    With a grammar, `logprobs` are those of the policy before the grammar removed anything: what the policy itself
    would have said, which is what training compares with. (That the allowed tokens had only a part of its mass is a
    factor of the state, not of the choice, so it cancels against the baseline.) `forced[i]` marks a token that the
    grammar left no alternative to; empty means none. `top_logprobs[i]` are the likeliest `(token id, logprob)` at
    that position, most likely first; empty unless they were asked for.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_version: int
    finish_reason: FinishReason | None = None
    forced: tuple[bool, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
