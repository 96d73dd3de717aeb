"""A backend inside this process: a real server on a real socket, with an engine and a trainer that need no weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from types import TracebackType
from typing import Self

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from art_core.canary import WeightSyncCanary
from art_core.config import TrainConfig
from art_core.control import MetricRecord, ModelState, RegisterRequest
from art_core.errors import ConfigError, DataError, ModelNotFoundError
from art_core.loop import train_step, training_rows
from art_core.model import also_takes_a_model
from art_core.render import ChatMLHermesRenderer, TextTokenizer
from art_core.serve.server import ModelServer
from art_core.testing.engine import ScriptedEngine
from art_core.testing.store import MemoryStore
from art_core.testing.tiny import SPECIAL_TOKENS
from art_core.testing.trainer import RecordingTrainer
from art_core.trajectories import TrajectoryGroup
from art_core.types import Exchange, Sampling, StepReport

Say = Callable[[str], str]
"""Given a prompt as text, with its special tokens, what the model answers."""

_APART = "apart"
_END = SPECIAL_TOKENS.index("<|im_end|>")


@dataclass(frozen=True)
class Logged:
    """One call of `log`."""

    groups: tuple[TrajectoryGroup, ...]
    split: str
    step: int
    metrics: dict[str, float]


class InProcessBackend:
    """Satisfies `art_core.protocols.Backend` for one model, whose answers are `say(prompt)`. Use it as `async with`.

    The server is the real one, over a real socket of this machine; each byte of text is a token, and every answer has
    the same log-probabilities. `trainer.steps` holds the rows of each step that was made, `logged` what was logged.
    With `api_key`, the backend hands it out as the key of its server, which wants none. Needs the extra
    `art-core[train]`, but no torch.
    """

    def __init__(self, say: Say = lambda _: "ok", *, api_key: str | None = None) -> None:
        self._tokenizer = _byte_tokenizer()
        self.trainer = RecordingTrainer()
        self.engine = ScriptedEngine(self._script, logprob=-log(259))
        self.logged: list[Logged] = []
        self._say = say
        self._api_key = api_key
        self._server: ModelServer | None = None
        self._store = MemoryStore()
        self._steps: list[int] = [0]
        self._request: RegisterRequest | None = None

    async def __aenter__(self) -> Self:
        # Until a model is registered nobody knows its name; the server answers to it from then on.
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _script(self, prompt_ids: tuple[int, ...], _: Sampling) -> Sequence[int]:
        return [*self._tokenizer.encode(self._say(self._tokenizer.decode(prompt_ids))), _END]

    @property
    def base_url(self) -> str:
        """Root of all calls. It is itself the address of a trajectory, so that calls outside any are recorded too."""
        if self._server is None:
            raise ConfigError("no model is registered; call `await model.register(backend)` first")
        return self._server.base_url(_APART).removesuffix("/v1")

    @property
    def api_key(self) -> str | None:
        return self._api_key

    async def register(self, request: RegisterRequest) -> ModelState:
        if self._request is None:
            server = ModelServer(
                self.engine,
                ChatMLHermesRenderer(self._tokenizer),
                model_name=f"{request.project}/{request.name}",
            )
            await server.__aenter__()
            server.open_trajectory(_APART)
            self._server, self._request = server, request
        if request != self._request:
            raise ConfigError(
                f"this backend serves {self._request.project}/{self._request.name} as it was first registered, and "
                "nothing else; make one backend for each model"
            )
        return await self.state(request.project, request.name)

    async def state(self, project: str, name: str) -> ModelState:
        self._check(project, name)
        assert self._request is not None
        return ModelState(
            project=project,
            name=name,
            base_model=self._request.base_model,
            inference_name=f"{project}/{name}",
            step=self.trainer.step_count,
            checkpoint_steps=list(self._steps),
            folder="",
        )

    async def open_trajectory(self, project: str, name: str, trajectory_id: str) -> str:
        return self._check(project, name).open_trajectory(trajectory_id)

    async def close_trajectory(self, trajectory_id: str) -> list[Exchange]:
        if self._server is None:
            raise ConfigError("the backend is closed")
        return self._server.close_trajectory(trajectory_id)

    async def find_exchanges(self, project: str, name: str, ids: Sequence[str]) -> list[Exchange]:
        known = {exchange.id: exchange for exchange in self._check(project, name).exchanges(_APART)}
        for exchange_id in ids:
            if exchange_id not in known:
                raise DataError(f"no call {exchange_id!r} of model {project}/{name} is recorded")
        return [known[exchange_id] for exchange_id in ids]

    @also_takes_a_model
    async def train(
        self,
        project: str,
        name: str,
        groups: Sequence[TrajectoryGroup],
        config: TrainConfig,
        *,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> StepReport:
        self._check(project, name)
        scored = [group.with_rewards() for group in groups]
        rows, counters = training_rows(
            scored,
            policy_version=self.trainer.step_count,
            scale_by_std=config.scale_rewards,
            roles=config.roles,
        )
        on_progress("train")
        report = await train_step(
            rows,
            config.objective,
            trainer=self.trainer,
            engine=self.engine,
            store=self._store,
            canary=WeightSyncCanary(self._tokenizer.encode("probe"), tolerance=1e-6),
            cursor={},
        )
        if report.step not in self._steps:
            self._steps.append(report.step)
        return StepReport(report.step, {**counters, **report.metrics})

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
        self._check(project, name)
        at = self.trainer.step_count if step is None else step
        self.logged.append(Logged(tuple(groups), split, at, dict(metrics or {})))

    async def logged_metrics(self, project: str, name: str) -> list[MetricRecord]:
        self._check(project, name)
        return [MetricRecord(step=entry.step, metrics=entry.metrics) for entry in self.logged]

    async def delete_checkpoints(self, project: str, name: str, *, keep: Sequence[int]) -> ModelState:
        self._check(project, name)
        self._steps = [step for step in self._steps if step in keep or step == max(self._steps)]
        return await self.state(project, name)

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.__aexit__(None, None, None)
            await self.engine.aclose()
            await self.trainer.aclose()

    def _check(self, project: str, name: str) -> ModelServer:
        known = self._request
        if self._server is None or known is None or (project, name) != (known.project, known.name):
            raise ModelNotFoundError(f"model {project}/{name} is not registered here")
        return self._server


def _byte_tokenizer() -> TextTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return TextTokenizer(tokenizer)
