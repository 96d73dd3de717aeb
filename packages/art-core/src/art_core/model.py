"""What a user's script holds of a model that is trained."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art_core.asked import CLIENT_TIMEOUT_S
from art_core.capturing import NO_KEY, served_model
from art_core.checkpoints.of_model import WithCheckpoints
from art_core.claims import attach_exchanges, attach_known_exchanges
from art_core.config import TrainConfig
from art_core.control import ModelState, RegisterRequest
from art_core.errors import ConfigError, DataError
from art_core.lines import progress_line, step_figures
from art_core.logged import logged_metrics
from art_core.moving import missing_method, refuse_unknown
from art_core.options import check_value, shown, whole
from art_core.outcomes import error_counts, shadowed_metrics, skip_reason
from art_core.progress import lines_now_and_then
from art_core.protocols import Backend
from art_core.scope import ServedModel, current_scope
from art_core.sft.client import train_sft
from art_core.sft_config import SftConfig
from art_core.trajectories import PendingGroup, Trajectory, TrajectoryGroup
from art_core.types import Exchange, Finding
from art_core.values import check_callable, check_name, json_value

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

    from art_core.transport import AsyncModelTransport, ModelTransport

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """What `train`, or `train_sft`, did. `step` is the step that is served now.

    `skipped` says why no step was made, and is None when one was. `metrics` are named `area/name`; docs/metrics.md says
    what they mean. `findings` tell what has gone wrong with this step; each was logged as a warning, and comes again
    only after it was gone. As text it is a line for people: `step 3: reward 0.512 · loss 0.0021 · ...`.
    """

    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    skipped: str | None = None
    findings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        skipped = f"skipped: {self.skipped}" if self.skipped else ""
        return progress_line(f"step {self.step}", step_figures(self.metrics), skipped)


@dataclass(frozen=True)
class _Registered:
    """What is known from `register` on."""

    backend: Backend
    state: ModelState
    served: ServedModel
    transport: AsyncModelTransport
    sync_transport: ModelTransport


class TrainableModel(WithCheckpoints):
    """A model that a backend serves and trains. Its name is unique in its project.

    `base_model` says which weights it begins with; `config` holds options for its engine and trainer. Everything but
    these needs `await model.register(backend)` first.
    """

    trainable = True

    def __init__(
        self,
        *,
        name: str,
        project: str,
        base_model: str,
        config: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        refuse_unknown("TrainableModel", unknown, TrainableModel)
        check_name("name", name)
        check_name("project", project)
        self.name = name
        self.project = project
        self.base_model = base_model
        self.config = _plain(config)
        self._registered: _Registered | None = None
        self._told_of_missing = False
        self._told_of_shadowed = False

    def __getattr__(self, name: str) -> Any:
        raise missing_method("TrainableModel", name)

    def __repr__(self) -> str:
        return f"TrainableModel(name={self.name!r}, project={self.project!r}, base_model={self.base_model!r})"

    async def register(self, backend: Backend) -> None:
        """Have `backend` serve this model, at the step it has reached. May be called again, also with another backend.

        Raises:
            ConfigError: the model exists with another base model or other options.
            ModelNotFoundError: no weights under the name `base_model`.
        """
        from art_core.transport import AsyncModelTransport, ModelTransport

        request = RegisterRequest(project=self.project, name=self.name, base_model=self.base_model, config=self.config)
        state = await backend.register(request)
        for problem in state.damaged:
            _logger.warning("model %s goes on from step %d: its checkpoint of %s", self.name, state.step, problem)
        served = served_model(backend, self.project, self.name)
        self._registered = _Registered(
            backend,
            state,
            served,
            AsyncModelTransport(served),
            ModelTransport(served),
        )

    @property
    def is_registered(self) -> bool:
        return self._registered is not None

    def unregister(self) -> None:
        """Forget the backend, which is about to be closed. What it keeps of the model stays there."""
        self._registered = None

    def backend(self) -> Backend:
        """Where the model is registered."""
        return self._known().backend

    def _known(self) -> _Registered:
        if self._registered is None:
            raise ConfigError(f"{self!r} is not registered; call `await model.register(backend)` first")
        return self._registered

    @property
    def inference_base_url(self) -> str:
        """What an OpenAI client takes as `base_url`: inside a capture of this model, where calls are recorded in it."""
        served = self._known().served
        scope = current_scope(served)
        return f"{served.root}/v1" if scope is None else scope.base_url

    @property
    def inference_api_key(self) -> str:
        """What an OpenAI client takes as `api_key`."""
        return self._known().backend.api_key or NO_KEY

    def get_inference_name(self, step: int | None = None) -> str:
        """What a request says as `model`: the newest weights at the time of the call, or those of `step`."""
        check_value("step", step, whole(0).or_none("the newest weights"))
        name = self._known().state.inference_name
        return name if step is None else f"{name}@{step}"

    def openai_client(self) -> AsyncOpenAI:
        """A client of this model, for any event loop.

        Each call is recorded into the capture that it is made in, wherever the client was made. Clients share their
        connections: make as many as you like, and close them or not.
        """
        import httpx2
        from openai import AsyncOpenAI

        known = self._known()
        return AsyncOpenAI(
            base_url=f"{known.served.root}/v1",
            api_key=self.inference_api_key,
            timeout=CLIENT_TIMEOUT_S,
            http_client=httpx2.AsyncClient(transport=known.transport, timeout=CLIENT_TIMEOUT_S),
        )

    def sync_openai_client(self) -> OpenAI:
        """As `openai_client`, for code that is not asynchronous, in any thread."""
        import httpx2
        from openai import OpenAI

        known = self._known()
        return OpenAI(
            base_url=f"{known.served.root}/v1",
            api_key=self.inference_api_key,
            timeout=CLIENT_TIMEOUT_S,
            http_client=httpx2.Client(transport=known.sync_transport, timeout=CLIENT_TIMEOUT_S),
        )

    async def get_step(self) -> int:
        """The step of the newest checkpoint; 0 for the untrained model. A `train` that was skipped makes none."""
        return (await self.backend().state(self.project, self.name)).step

    async def get_num_batches(self) -> int:
        """How many batches `train` was called with: the steps it made, and those it skipped. Not those of `train_sft`.

        The `initial_step` of `iterate_dataset` for a script that is started again. Where checkpoints were lost, what
        came behind the newest that is left is not counted: those batches are to be made again.
        """
        state = await self.backend().state(self.project, self.name)
        return state.step - state.supervised_updates + state.skipped_batches

    async def train(
        self,
        groups: Iterable[TrajectoryGroup],
        config: TrainConfig | None = None,
        *,
        verbose: bool | None = None,
        **options: Any,
    ) -> TrainResult:
        """One training step on `groups`; when it returns, its weights are served.

        `options` are those of `TrainConfig`, and go before `config`. Choices in `messages_and_choices` and
        `additional_histories` are looked up at the server by their ids, and put into `exchanges`. Members that failed,
        and groups whose rewards are all equal, are left out and counted. Where nothing is left, no step is made: the
        result says why, a warning is logged, and the run folder keeps the report, which says `step/skipped`.

        With `verbose`, by default on a terminal, a line on stderr tells of the step; it is also logged at level INFO.

        Raises:
            ConfigError: an option that does not exist.
            DataError: a reward is missing, or a trajectory cannot be trained on. Weights are as before.
        """
        backend = self.backend()
        made = TrainConfig.made(config, options)
        whole = _whole_groups(groups)
        await attach_exchanges(whole, lambda ids: backend.find_exchanges(self.project, self.name, ids))
        scored = [group.with_rewards() for group in whole]
        report = await backend.train(self.project, self.name, whole, made)
        if report.metrics.get("roles/absent"):
            _logger.warning(
                "model %s: %d of the roles %s made no call in this step",
                self.name,
                report.metrics["roles/absent"],
                made.roles,
            )
        for finding in report.findings:
            _logger.warning("model %s: %s", self.name, finding)
        if not report.metrics.get("step/skipped"):
            result = TrainResult(report.step, report.metrics, findings=report.findings)
            self._tell(result, verbose)
            return result
        reason = skip_reason(scored, report.metrics)
        if failures := error_counts(whole):
            reason += f" ({failures})"
        _logger.warning("model %s: no training step was made: %s", self.name, reason)
        return TrainResult(report.step, report.metrics, reason, report.findings)

    async def train_sft(
        self,
        data: str | Path | Iterable[Trajectory | TrajectoryGroup],
        config: SftConfig | None = None,
        *,
        validation: str | Path | Iterable[Trajectory | TrajectoryGroup] | None = None,
        on_progress: Callable[[str], None] | None = None,
        **options: Any,
    ) -> TrainResult:
        """Supervised training on demonstrations; when it returns, its weights are served.

        `data` is a file of conversations, one JSON object in a line, as OpenAI's fine-tuning takes it; or trajectories,
        of which those that failed are left out. A trajectory with recorded calls of this model is trained on the tokens
        that were sampled; another one, on the answers of its messages. `options` are those of `SftConfig`, and go
        before `config`. The loss of `validation` is told before and after.

        Called again with the same data and options, it goes on where it was interrupted, also within an epoch, and ends
        with the same weights; finished, it is not made twice: the result is that of the first time, with `skipped`.
        `on_progress` gets a line for each update; without it, some are written to standard error.

        Raises:
            DataError: an example cannot be trained on, as `file:line` with the reason; nothing was begun.
            ConfigError: an option that does not exist, or another such training was interrupted.
        """
        backend = self.backend()
        made = SftConfig.made(config, options)
        if on_progress is not None:
            check_callable("on_progress", on_progress, "a function that takes a line of text")
        told = on_progress or lines_now_and_then(f"sft {self.name}")
        try:
            report = await train_sft(backend, self.project, self.name, data, validation, made, on_progress=told)
        except asyncio.CancelledError:
            told("interrupted; the same call goes on from the newest checkpoint")
            raise
        finished = report.metrics.get("sft/already_finished")
        return TrainResult(report.step, report.metrics, "the same training was finished before" if finished else None)

    def _tell(self, result: TrainResult, verbose: bool | None) -> None:
        _logger.info("model %s: %s", self.name, result)
        if sys.stderr.isatty() if verbose is None else verbose:
            print(f"{self.name}: {result}", file=sys.stderr, flush=True)  # noqa: T201

    async def log(
        self,
        groups: Iterable[TrajectoryGroup] | Iterable[Trajectory] | None = None,
        split: str = "val",
        *,
        metrics: Mapping[str, float] | None = None,
        step: int | None = None,
    ) -> None:
        """Keep `groups` and `metrics` in the model's run folder.

        They belong to `step`: without one, to the newest step that the groups' exchanges were sampled at, however far
        training has gone meanwhile; and where there are none, to the step the model is at.

        Choices are looked up as in `train`, so that what is kept can be trained on. Those of calls that the server does
        not know are kept without token ids, and counted in the metric `<split>/calls_not_found`.

        Means over the groups are logged with them: `<split>/reward`, `<split>/exception_rate`,
        `<split>/reward_std_dev`, each metric of trajectories, and those of groups as `<split>/group_<name>`.
        Trajectories without a group are kept as one.

        Raises:
            DataError: a metric is not a finite number, or would have a name that training itself reports, as a
                trajectory's `loss` with the split `train` would; nothing was logged.
        """
        if metrics is not None and not isinstance(metrics, Mapping):
            raise ConfigError(f"metrics is {shown(metrics)}; wanted numbers by name, such as metrics={{'cost': 0.5}}")
        check_value("step", step, whole(0).or_none("the step that the groups were sampled at"))
        given = _whole_groups(groups or (), allow_trajectories=True)
        named = logged_metrics(split, given, metrics or {})
        backend = self.backend()

        async def find(ids: Sequence[str]) -> list[Exchange]:
            return await backend.find_exchanges(self.project, self.name, ids, missing_ok=True)

        num_missing = await attach_known_exchanges(given, find)
        if num_missing and not self._told_of_missing:
            self._told_of_missing = True
            _logger.warning(
                "model %s: %d answers of these groups are of calls that the server does not know (another model's, or "
                "dropped from its log); they are kept without token ids, and nothing can be trained on them later",
                self.name,
                num_missing,
            )
        counted = {"calls_not_found": float(num_missing)} if num_missing else {}
        if (shadowed := shadowed_metrics(given)) and not self._told_of_shadowed:
            self._told_of_shadowed = True
            _logger.warning(
                "model %s: trajectories have metrics named %s, which mean something else in a log; they are kept with "
                "the trajectories and no mean is logged: give them other names",
                self.name,
                shadowed,
            )
        named = {f"{split}/{name}": value for name, value in counted.items()} | named
        if step is None:
            versions = (e.policy_version for group in given for t in group for e in t.exchanges)
            step = max(versions, default=None)
        await backend.log(self.project, self.name, given, split=split, step=step, metrics=named)


def _whole_groups(groups: Any, *, allow_trajectories: bool = False) -> list[TrajectoryGroup]:
    if not isinstance(groups, Iterable):
        awaitable = isinstance(groups, Awaitable)
        remedy = "await it first" if awaitable else "give a list of them, such as gather_trajectory_groups returns"
        if inspect.iscoroutine(groups):
            groups.close()
        raise DataError(f"groups is a {type(groups).__name__}; wanted TrajectoryGroups: {remedy}")
    items: list[Any] = [groups] if isinstance(groups, TrajectoryGroup) else list(groups)
    if allow_trajectories and items and all(isinstance(item, Trajectory) for item in items):
        return [TrajectoryGroup(items)]
    for number, item in enumerate(items):
        if isinstance(item, PendingGroup):
            raise DataError(f"group {number} has not been run; await gather_trajectory_groups(groups) first")
        if not isinstance(item, TrajectoryGroup):
            raise DataError(f"group {number} is a {type(item).__name__}; wanted a TrajectoryGroup")
    return items


def _plain(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """`config` as JSON data, which is how it goes to the server."""
    if not isinstance(config or {}, Mapping):
        raise ConfigError(f"config is a {type(config).__name__}; wanted a dict of options")
    try:
        return dict(json_value(config or {}, "config"))
    except DataError as error:
        raise ConfigError(str(error)) from None
