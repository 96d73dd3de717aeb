"""`ruler` and `ruler_score_group`, with the names and arguments that users of ART know."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from art_ruler._litellm import OWN_OPTIONS
from art_ruler._ruler import Ruler
from art_ruler._secrets import scrubbed
from art_ruler.errors import ConfigError, DataError, JudgeFormatError
from art_ruler.prompt import DEFAULT_RUBRIC
from art_ruler.types import JudgeModel

Group = TypeVar("Group")
logger = logging.getLogger("art_ruler")


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

    What `extra_litellm_params` says of time-out, retries, key, headers and address becomes the option of `Ruler`; the
    rest goes to the provider.

    Raises:
        JudgeFormatError: one of them could not be scored. No score is made up.
        JudgeUnavailableError, DataError, ConfigError: as `Ruler`.
    """
    own, params = _sorted_out(extra_litellm_params or {})
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
    try:
        return await _scored_group(group, judge_model, extra_litellm_params, rubric, debug)
    except Exception as error:
        if not swallow_exceptions:
            raise
        logger.warning("group not scored: %s: %s", type(error).__name__, scrubbed(str(error)))
        return None


async def _scored_group(
    group: Group,
    judge_model: str | JudgeModel,
    extra_litellm_params: Mapping[str, Any] | None,
    rubric: str,
    debug: bool,
) -> Group:
    trajectories = getattr(group, "trajectories", None)
    if trajectories is None:
        raise DataError(f"group is a {type(group).__name__} without `trajectories`; wanted a group of trajectories")
    # The copies are made first: what cannot hold a score is to be known before a judge is paid.
    made = [_copy_with_reward(trajectory, 0.0) for trajectory in trajectories]
    copied: Group = _copied(group, copy.copy)
    _set(copied, "trajectories", tuple(made) if isinstance(trajectories, tuple) else made)
    scores = await ruler(list(trajectories), judge_model, extra_litellm_params, rubric, debug=debug)
    for scored, trajectory, score in zip(made, trajectories, scores, strict=True):
        _write(scored, getattr(trajectory, "reward", None), score)
    return copied


def _sorted_out(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What litellm is to be told, as options of `Ruler` and as parameters of the provider."""
    own: dict[str, Any] = {}
    params: dict[str, Any] = {}
    for name, value in given.items():
        if (option := OWN_OPTIONS.get(name)) is None:
            params[name] = value
        elif value is not None and own.setdefault(option, value) != value:
            raise ConfigError(f"extra_litellm_params holds {option} twice, under two names; leave {name!r} out")
    return own, params


def _copied(value: Any, make: Callable[[Any], Any]) -> Any:
    try:
        return make(value)
    except Exception as error:
        raise DataError(f"a {type(value).__name__} cannot be copied: {type(error).__name__}: {error}") from error


def _copy_with_reward(trajectory: Any, reward: float) -> Any:
    copied = _copied(trajectory, copy.deepcopy)
    _set(copied, "reward", reward)
    return copied


def _set(value: Any, name: str, new: Any) -> None:
    """Set an attribute of a copy that is ours, though its class be frozen."""
    try:
        setattr(value, name, new)
    except (AttributeError, TypeError, ValueError) as error:
        if not hasattr(value, name):
            raise DataError(
                f"a {type(value).__name__} cannot hold `{name}`; wanted an object with that attribute"
            ) from error
        object.__setattr__(value, name, new)


def _write(scored: Any, before: float | None, score: TrajectoryScore) -> None:
    _set(scored, "reward", score.score)
    if isinstance(metrics := getattr(scored, "metrics", None), dict):
        if before is not None:
            metrics["independent_reward"] = before
        metrics["ruler_score"] = score.score
    if isinstance(logs := getattr(scored, "logs", None), list):
        logs.append(f"RULER explanation: {score.explanation}")
