"""`ruler` and `ruler_score_group`, with the names and arguments that users of ART know."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from art_ruler._ruler import Ruler
from art_ruler.errors import DataError, JudgeFormatError, RulerError
from art_ruler.prompt import DEFAULT_RUBRIC
from art_ruler.types import JudgeModel

Group = TypeVar("Group")
_OWN_NAMES = ("api_base", "api_key", "extra_headers", "timeout_s")


@dataclass(frozen=True)
class TrajectoryScore:
    """One score in [0, 1]; `trajectory_id` counts from 1 in the order given."""

    trajectory_id: str
    explanation: str
    score: float


async def ruler(
    message_lists: Sequence[Sequence[Any]],
    judge_model: str | JudgeModel = "openai/o3",
    extra_litellm_params: Mapping[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    tools: Sequence[Any] | None = None,
    *,
    debug: bool = False,
) -> list[TrajectoryScore]:
    """A score for each list of messages, in their order. `debug` prints them.

    Raises:
        JudgeFormatError: one of them could not be scored. No score is made up.
        JudgeUnavailableError, DataError, ConfigError: as `Ruler`.
    """
    params = dict(extra_litellm_params or {})
    own = {name: params.pop(name) for name in _OWN_NAMES if name in params}
    judge = Ruler(judge_model, rubric=rubric, on_format_error="raise", judge_params=params or None, **own)
    result = await judge.score(message_lists, tools=tools)
    scores = []
    for number, verdict in enumerate(result.verdicts, 1):
        if verdict.score is None:
            raise JudgeFormatError(f"trajectory {number} could not be scored: {verdict.problem}")
        scores.append(TrajectoryScore(str(number), verdict.explanation, verdict.score))
        if debug:
            print(f"[RULER] {scores[-1]}")  # noqa: T201 - what the caller asked for
    return scores


async def ruler_score_group(
    group: Group,
    judge_model: str | JudgeModel = "openai/o3",
    extra_litellm_params: Mapping[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    *,
    swallow_exceptions: bool = False,
    debug: bool = False,
) -> Group | None:
    """A copy of `group` whose trajectories have the judge's score as `reward`; `group` itself is not changed.

    The copy keeps all that the group and its trajectories hold: class, fields, exceptions, metadata, metrics, logs.
    The reward a trajectory had is kept as the metric `independent_reward`, the score is the metric `ruler_score` as
    well, and the explanation is added to the logs. With `swallow_exceptions`, None where the group cannot be scored.

    Raises:
        DataError: `group` has no trajectories, or they cannot hold a reward.
        RulerError: as `ruler`.
    """
    trajectories = getattr(group, "trajectories", None)
    if trajectories is None:
        raise DataError(f"group is a {type(group).__name__} without `trajectories`; wanted a group of trajectories")
    try:
        scores = await ruler(list(trajectories), judge_model, extra_litellm_params, rubric, debug=debug)
    except RulerError:
        if swallow_exceptions:
            return None
        raise
    scored = [_scored(trajectory, score) for trajectory, score in zip(trajectories, scores, strict=True)]
    kind = tuple if isinstance(trajectories, tuple) else list
    if dataclasses.is_dataclass(group) and not isinstance(group, type):
        return dataclasses.replace(group, trajectories=kind(scored))
    copied = copy.copy(group)
    copied.trajectories = kind(scored)  # type: ignore[attr-defined]
    return copied


def _scored(trajectory: Any, score: TrajectoryScore) -> Any:
    scored = copy.deepcopy(trajectory)
    metrics = getattr(scored, "metrics", None)
    before = getattr(scored, "reward", None)
    if isinstance(metrics, dict):
        if before is not None:
            metrics["independent_reward"] = before
        metrics["ruler_score"] = score.score
    try:
        scored.reward = score.score
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"a {type(trajectory).__name__} cannot hold a reward: {error}") from error
    if isinstance(logs := getattr(scored, "logs", None), list):
        logs.append(f"RULER explanation: {score.explanation}")
    return scored
