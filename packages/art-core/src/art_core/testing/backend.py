"""A backend inside this process: a real host on a real socket, with an engine and a trainer that need no weights."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from math import log
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from art_core.backends.http import HttpBackend
from art_core.canary import ProbeAnswer, WeightSyncCanary
from art_core.control import RegisterRequest
from art_core.errors import BackendError, ConfigError
from art_core.hosting.exchanges import ExchangeLog
from art_core.hosting.host import ModelHost
from art_core.hosting.model import HostedModel
from art_core.hosting.opening import Parts
from art_core.hosting.options import ModelOptions
from art_core.hosting.record import ModelRecord
from art_core.hosting.server import HostServer
from art_core.protocols import Engine, Trainer
from art_core.render import ChatMLHermesRenderer, ChatRenderer, TextTokenizer
from art_core.storage import RunStore
from art_core.testing.engine import ScriptedEngine
from art_core.testing.tiny import SPECIAL_TOKENS
from art_core.testing.trainer import RecordingTrainer
from art_core.trajectories import TrajectoryGroup
from art_core.types import Checkpoint, Sampling, TokenChunk
from art_core.weights.source import ModelSource

Say = Callable[[str], str]
"""Given a prompt as text, with its special tokens, what the model answers."""

_END = SPECIAL_TOKENS.index("<|im_end|>")
_VOCABULARY_SIZE = 259
_PROBE = (_END, _END)
"""What the canary asks; no conversation is rendered like this."""


@dataclass(frozen=True)
class Logged:
    """One call of `log`."""

    groups: tuple[TrajectoryGroup, ...]
    split: str
    step: int
    metrics: dict[str, float]


class InProcessBackend(HttpBackend):
    """Satisfies `art_core.protocols.Backend`, with models whose answers are `say(prompt)`. Use it as `async with`.

    The server is that of `art serve`, over a real socket of this machine, and wants `api_key` where there is one; but
    a base model may have any name, what its `config` says of engine, trainer and adapter plays no part, each byte of
    text is a token, and every answer has the same log-probabilities.
    `engine` and `trainer` are those of the model that is registered first: `trainer.steps` holds the rows of each step
    that was made. `logged` is what was logged. Runs are kept in `path`, or else in a temporary folder. Needs the extra
    `art-core[train]`, but no torch.
    """

    def __init__(
        self, say: Say = lambda _: "ok", *, api_key: str | None = None, path: str | Path | None = None
    ) -> None:
        super().__init__(timeout_s=60.0)
        self._tokenizer = _byte_tokenizer()
        self.trainer = RecordingTrainer(vocabulary_size=_VOCABULARY_SIZE)
        self.engine = self._new_engine()
        self.logged: list[Logged] = []
        self._say = say
        self._api_key = api_key
        self._path = Path(path) if path is not None else Path(tempfile.mkdtemp(prefix="art-in-process-"))
        if path is None:
            weakref.finalize(self, shutil.rmtree, self._path, ignore_errors=True)
        self._server: HostServer | None = None
        self._starting = asyncio.Lock()

    @property
    def base_url(self) -> str:
        if self._server is None:
            raise ConfigError("no model is registered; call `await model.register(backend)` first")
        return self._server.url

    @property
    def api_key(self) -> str | None:
        return self._api_key

    def folder(self, project: str, name: str) -> Path:
        """The run folder of a model."""
        return self._path / project / name

    async def start(self) -> None:
        """Start the server, unless it runs. It runs in the event loop that this is first called in."""
        if self._server is not None:
            return
        async with self._starting:
            if self._server is None:
                host = _Host(self._path, _Parts.given(self._tokenizer, self._new_engine, self.engine, self.trainer))
                self._server = await HostServer(host, api_key=self._api_key, grace_s=0.0).__aenter__()

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
        await super().log(project, name, groups, split=split, step=step, metrics=metrics)
        at = (await self.state(project, name)).step if step is None else step
        self.logged.append(Logged(tuple(groups), split, at, dict(metrics or {})))

    async def close(self) -> None:
        await super().close()
        server, self._server = self._server, None
        if server is not None:
            await server.__aexit__(None, None, None)

    async def _explained(self, problem: str) -> BackendError:
        return BackendError(f"no answer from the server in this process: {problem}")

    def _new_engine(self) -> ScriptedEngine:
        return _Engine(self._script, logprob=-log(_VOCABULARY_SIZE))

    def _script(self, prompt_ids: tuple[int, ...], _: Sampling) -> Sequence[int]:
        if prompt_ids == _PROBE:
            return [_END]
        return [*self._tokenizer.encode(self._say(self._tokenizer.decode(prompt_ids))), _END]


class _Engine(ScriptedEngine):
    """Leaves the canary's question, which no agent asked, out of `requests`."""

    async def stream(self, prompt_ids: Sequence[int], sampling: Sampling) -> AsyncIterator[TokenChunk]:
        chunks = super().stream(prompt_ids, sampling)
        assert isinstance(chunks, AsyncGenerator), "it is closed when this is"
        async with aclosing(chunks):
            async for chunk in chunks:
                if tuple(prompt_ids) == _PROBE:
                    self.requests = [request for request in self.requests if request[0] != _PROBE]
                yield chunk


@dataclass(frozen=True)
class _Parts(Parts):
    """Parts of any model. `engines` and `trainers` are given out first, then new ones."""

    tokenizer: TextTokenizer
    new_engine: Callable[[], ScriptedEngine]
    engines: list[ScriptedEngine] = field(default_factory=list)
    trainers: list[RecordingTrainer] = field(default_factory=list)

    @classmethod
    def given(
        cls,
        tokenizer: TextTokenizer,
        new_engine: Callable[[], ScriptedEngine],
        engine: ScriptedEngine,
        trainer: RecordingTrainer,
    ) -> _Parts:
        source = ModelSource(Path(), "scripted", "a script", sha256="")
        return cls(source, ModelOptions(), "scripted", "recording", tokenizer, new_engine, [engine], [trainer])

    async def open_renderer(self) -> ChatRenderer:
        return ChatMLHermesRenderer(self.tokenizer)

    async def open_engine(self, checkpoint: Checkpoint | None = None) -> Engine:
        engine = self.engines.pop() if self.engines else self.new_engine()
        if checkpoint is not None:
            await engine.load(checkpoint)
        return engine

    async def open_trainer(self) -> Trainer:
        return self.trainers.pop() if self.trainers else RecordingTrainer(vocabulary_size=_VOCABULARY_SIZE)

    def canary(self, _: ChatRenderer, on_answer: Callable[[int, ProbeAnswer], None] | None = None) -> WeightSyncCanary:
        return WeightSyncCanary(_PROBE, tolerance=1e-6, on_answer=on_answer)


class _Host(ModelHost):
    """A host whose models all have the same `parts`, whatever their base model is called."""

    def __init__(self, folder: Path, parts: _Parts) -> None:
        super().__init__(folder)
        self._parts = parts

    async def _opened(self, request: RegisterRequest) -> HostedModel:
        folder = self.folder / request.project / request.name
        options = self.options.of_model(request.config)
        record = ModelRecord.read(folder) or ModelRecord(
            project=request.project,
            name=request.name,
            base_model=request.base_model,
            sha256=self._parts.source.sha256,
            trainer=self._parts.trainer,
            options=options,
            created=int(time.time()),
        )
        record.check_same(request.base_model, options, trained_only=True)
        record = record.model_copy(update={"options": options})
        store = RunStore(folder)
        bounds = {"max_bytes": self.options.exchange_log_bytes, "max_records": self.options.exchange_log_records}
        model = HostedModel(record, self._parts, store, ExchangeLog(folder, **bounds))
        try:
            await model.start()
            record.write(folder)
        except BaseException:
            await model.close()
            raise
        return model


def _byte_tokenizer() -> TextTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return TextTokenizer(tokenizer)
