"""The embedded engine: a transformers model in this process, served by one worker thread."""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from art_core.engines.batcher import Counts, Request
from art_core.engines.cache import Tokens
from art_core.engines.grammar import Grammars
from art_core.engines.served import ModelFacts
from art_core.engines.worker import Arrival, Client, Worker
from art_core.errors import ArtError, ContextLengthError, DataError
from art_core.options import check_options, one_of, whole
from art_core.types import Checkpoint, DtypeName, Sampling, TokenChunk


@dataclass(frozen=True, kw_only=True)
class EmbeddedEngineConfig:
    """How to serve the model in `model_folder`.

    dtype: "auto" | "float32" | "bfloat16": type of weights and activations; attention is float32 always.
    max_concurrency: requests computed side by side; more wait their turn.
    max_context_tokens: longest prompt plus completion. None: the model's own limit, at most 8192. Keys and values take
        at most `max_concurrency` times this, rounded up to 128, allocated as requests grow
        (SmolLM2-135M: 45 KiB a token).
    prefix_cache_bytes: memory for keys and values of finished requests and prompts; 0 switches the cache off.
    num_threads: torch's intra-op threads. None leaves torch's choice. The number holds for the whole process.
    """

    model_folder: Path
    dtype: DtypeName = "auto"
    max_concurrency: int = 32
    max_context_tokens: int | None = None
    prefix_cache_bytes: int = 1 << 30
    num_threads: int | None = None

    def __post_init__(self) -> None:
        check_options(self, _KINDS)


_KINDS = {
    "dtype": one_of(DtypeName),
    "max_concurrency": whole(1),
    "max_context_tokens": whole(2).or_none("the model's own limit, at most 8192"),
    "prefix_cache_bytes": whole(0),
    "num_threads": whole(1).or_none("torch's choice"),
}


class EmbeddedEngine:
    """Satisfies `art_core.protocols.Engine`. Construction loads the model and blocks until it is ready.

    All torch work happens in one thread that the engine owns. Requests join and leave between decoding steps; a prompt
    prefix that several requests share is computed once.

    Tokens and logprobs of a request with a seed are equal bit for bit whatever else the engine does, in whatever order
    requests arrive, and whatever its cache holds, on machines where `batch_invariant` is true. Logprobs are float32
    and those of the distribution the token was drawn from; at temperature 0, of the one at temperature 1. With a
    grammar, they are those of the distribution that it restricts, and -9999.0 where top-k or top-p alone would have
    removed the token.

    Raises:
        ModelNotFoundError: no model in the folder.
        ConfigError: the model's architecture or the context asked for is not supported.
    """

    def __init__(self, config: EmbeddedEngineConfig) -> None:
        self._worker = Worker(config)
        self._facts = self._worker.start()
        self._grammars = Grammars(config.model_folder, self._facts.vocab_size)
        weakref.finalize(self, self._worker.close)  # when nobody holds the engine any more

    @property
    def policy_version(self) -> int:
        return self._worker.policy_version

    @property
    def max_context_tokens(self) -> int:
        return self._facts.max_context_tokens

    @property
    def batch_invariant(self) -> bool:
        """Whether results do not depend on load on this machine; checked at start on the model's own shapes."""
        return self._worker.batch_invariant

    @property
    def counts(self) -> Counts:
        """Tokens and forward passes so far, a snapshot."""
        return replace(self._worker.counts)

    @property
    def num_active(self) -> int:
        """Requests that hold a slot or wait for one."""
        return self._worker.num_active

    async def stream(self, prompt_ids: Sequence[int], sampling: Sampling) -> AsyncIterator[TokenChunk]:
        """Sample a completion; see `Engine.stream`. Each chunk holds one token.

        Raises:
            DataError: the prompt is empty, or holds an id that the model has no embedding for; or, possibly after
                some chunks, the grammar has become too complex, or no token of the model can continue it.
            ContextLengthError: prompt plus `max_tokens` exceed `max_context_tokens`. Nothing is ever cut off.
            ConfigError: the grammar cannot be used, or comes without a stop token.
            MissingExtraError: a grammar needs llguidance, which is not installed.
            EngineClosedError: the engine was closed, or broke.
        """
        prompt = _checked_prompt(prompt_ids, sampling, self._facts)
        loop = asyncio.get_running_loop()
        arrivals: asyncio.Queue[Arrival] = asyncio.Queue()
        seed = sampling.seed if sampling.seed is not None else secrets.randbits(64)
        matcher = None
        if sampling.grammar is not None:
            matcher = await asyncio.to_thread(self._grammars.matcher, sampling.grammar, sampling.stop_token_ids)
        request = Request(prompt, sampling, seed, matcher)
        self._worker.submit(request, Client(loop, arrivals))
        try:
            while True:
                arrival = await arrivals.get()
                if isinstance(arrival, ArtError):
                    raise arrival
                yield arrival
                if arrival.finish_reason is not None:
                    return
        finally:
            self._worker.cancel(request)

    async def load(self, checkpoint: Checkpoint) -> None:
        """Serve the adapter of `checkpoint`, merged into the base weights; see `Engine.load`."""
        await asyncio.wrap_future(self._worker.load(checkpoint))

    async def aclose(self) -> None:
        self._worker.close()
        await asyncio.to_thread(self._worker.join)


def _checked_prompt(prompt_ids: Sequence[int], sampling: Sampling, facts: ModelFacts) -> Tokens:
    """The prompt as an array, once it is certain that the model can read it and what is to follow."""
    if len(prompt_ids) == 0:
        raise DataError("the prompt is empty; wanted at least one token id, since a completion follows something")
    needed = len(prompt_ids) + sampling.max_tokens
    if needed > facts.max_context_tokens:
        raise ContextLengthError(
            f"the prompt has {len(prompt_ids)} tokens and up to {sampling.max_tokens} are to be sampled, {needed} "
            f"together; the context holds {facts.max_context_tokens}. Shorten the prompt or lower max_tokens to "
            f"{facts.max_context_tokens - len(prompt_ids)}"
            if len(prompt_ids) < facts.max_context_tokens
            else f"the prompt has {len(prompt_ids)} tokens; the context holds {facts.max_context_tokens}, prompt and "
            "completion together. Shorten the prompt: it is never cut off here"
        )
    prompt = np.asarray(prompt_ids)
    if prompt.ndim != 1 or not np.issubdtype(prompt.dtype, np.integer):
        raise DataError(f"the prompt is an array of {prompt.dtype} in {prompt.ndim} dimensions; wanted a list of ids")
    if prompt.min() < 0 or prompt.max() >= facts.vocab_size:
        wrong = int(prompt[(prompt < 0) | (prompt >= facts.vocab_size)][0])
        raise DataError(
            f"the prompt holds token id {wrong}; this model's ids are 0 to {facts.vocab_size - 1}. "
            "Was it encoded with another model's tokenizer?"
        )
    return prompt.astype(np.int64)
