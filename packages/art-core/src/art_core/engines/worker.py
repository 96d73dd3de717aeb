"""The thread that runs everything in torch, and what crosses between it and event loops."""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from art_core.engines.batcher import Batcher, Counts, Failed, Request, Sampled
from art_core.engines.cache import PrefixCache
from art_core.engines.invariance import attention_rows_agree, linear_rows_agree, requests_agree
from art_core.engines.products import use_few_rows_products, use_plain_products
from art_core.engines.served import ModelFacts, ServedModel
from art_core.errors import ArtError, EngineClosedError
from art_core.memory import return_free_memory
from art_core.types import Checkpoint, TokenChunk

if TYPE_CHECKING:
    from art_core.engines.embedded import EmbeddedEngineConfig

_log = logging.getLogger(__name__)
_REST_S = 1.0
"""After so long without requests the memory for them is freed: a trainer in the same process can use it meanwhile."""
Arrival = TokenChunk | ArtError


@dataclass(frozen=True, eq=False)
class Client:
    """Who waits for a request: the queue is touched on its own event loop only."""

    loop: asyncio.AbstractEventLoop
    arrivals: asyncio.Queue[Arrival]


@dataclass(eq=False)
class _Load:
    checkpoint: Checkpoint
    done: Future[None] = field(default_factory=Future)


class Worker:
    """Serves requests one forward pass after another, in the order in which they were submitted.

    A load is a barrier in that order: it is carried out when everything submitted before it is finished, and before
    anything submitted after it begins. Whatever ends the thread, everyone who waits for it is told.
    """

    def __init__(self, config: EmbeddedEngineConfig) -> None:
        self._config = config
        self._changed = threading.Condition()
        # Guarded by `_changed`:
        self._inbox: deque[Request | _Load] = deque()
        self._cancelled: list[Request] = []
        self._clients: dict[Request, Client] = {}
        self._closing = False
        self._ended = False
        self._failure: BaseException | None = None
        # Written by the thread only:
        self.policy_version = 0
        self.batch_invariant = False
        self.counts = Counts()
        self._ready: Future[ModelFacts] = Future()
        # A daemon that is stopped at exit: a process may end without closing its engine, but not in mid-computation.
        self._thread = threading.Thread(target=self._run, name="art-engine", daemon=True)

    def start(self) -> ModelFacts:
        """Load the model; returns when requests can be served, or raises what went wrong."""
        self._thread.start()
        atexit.register(self._end)
        return self._ready.result()

    @property
    def num_active(self) -> int:
        with self._changed:
            return len(self._clients)

    def submit(self, request: Request, client: Client) -> None:
        with self._changed:
            self._refuse_if_over()
            self._clients[request] = client
            self._inbox.append(request)
            self._changed.notify()

    def cancel(self, request: Request) -> None:
        """Free the place of `request`. Nothing happens when it is finished."""
        with self._changed:
            if self._clients.pop(request, None) is not None:
                self._cancelled.append(request)
                self._changed.notify()

    def load(self, checkpoint: Checkpoint) -> Future[None]:
        """Done when `checkpoint` is served. Cancelling it before it has begun leaves everything as it is."""
        load = _Load(checkpoint)
        with self._changed:
            self._refuse_if_over()
            self._inbox.append(load)
            self._changed.notify()
        return load.done

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()

    def join(self) -> None:
        """Wait until the thread has ended, which `close` asks for, and everything is freed."""
        self._thread.join()
        atexit.unregister(self._end)

    def _end(self) -> None:
        self.close()
        self._thread.join(timeout=30.0)

    def _refuse_if_over(self) -> None:
        if self._closing or self._ended:
            raise self._closed_error()

    def _closed_error(self) -> EngineClosedError:
        if self._failure is None:
            return EngineClosedError("the engine is closed; open a new one to go on")
        error = EngineClosedError(
            f"the engine broke with {type(self._failure).__name__}: {self._failure}; nothing more is served. "
            "Open a new engine; checkpoints already written are not affected"
        )
        error.__cause__ = self._failure
        return error

    # Below: the thread

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it must reach everyone who waits
            if not self._ready.done():
                self._ready.set_exception(error)
            else:
                _log.error("the embedded engine broke", exc_info=error)
                self._failure = error
        finally:
            self._tell_everyone()

    def _serve(self) -> None:
        # OpenMP keeps the number of threads per calling thread, so it is set where the model runs.
        if self._config.num_threads is not None:
            torch.set_num_threads(self._config.num_threads)
        config = self._config
        served = ServedModel(config.model_folder, dtype=config.dtype, max_context_tokens=config.max_context_tokens)
        batcher = Batcher(
            served.model,
            served.new_store(config.max_concurrency),
            PrefixCache(config.prefix_cache_bytes),
            device=served.device,
            max_running=config.max_concurrency,
        )
        use_few_rows_products(served.model)
        if not linear_rows_agree(served.model):
            use_plain_products(served.model)  # on this machine the two orders of factors round differently
        self.batch_invariant = (
            linear_rows_agree(served.model)
            and attention_rows_agree(served.new_store(3), served.facts.num_query_heads)
            and requests_agree(batcher, served.facts.vocab_size)
        )
        if not self.batch_invariant:
            _log.warning(
                "matrix products on this machine depend on the size of the batch, so sampled tokens depend on load, "
                "and a resumed run repeats an unbroken one only approximately"
            )
        batcher.counts = self.counts
        self._ready.set_result(served.facts)
        while True:
            load = self._next(batcher)
            if self._closing:
                return
            if load is not None:
                self._carry_out(load, served, batcher)
            else:
                self._hand_out(batcher.step())

    def _next(self, batcher: Batcher) -> _Load | None:
        """Wait for work, bring `batcher` up to date and return the load that is due, if any."""
        with self._changed:
            resting = False
            while not (self._closing or self._cancelled or self._inbox) and batcher.idle:
                if not self._changed.wait(None if resting else _REST_S) and not resting:
                    batcher.free_slots()
                    return_free_memory()
                    resting = True
            for request in self._cancelled:
                batcher.cancel(request)
                if request in self._inbox:
                    self._inbox.remove(request)
            self._cancelled.clear()
            while self._inbox:
                item = self._inbox[0]
                if isinstance(item, _Load):
                    if not batcher.idle:
                        return None
                    self._inbox.popleft()
                    return item
                batcher.waiting.append(item)
                self._inbox.popleft()
        return None

    def _carry_out(self, load: _Load, served: ServedModel, batcher: Batcher) -> None:
        if not load.done.set_running_or_notify_cancel():
            return
        try:
            served.apply(load.checkpoint)
        except ArtError as error:  # refused before any weight was touched
            load.done.set_exception(error)
        except BaseException as error:  # weights may be half merged: serving on would be a lie
            load.done.set_exception(error)
            raise
        else:
            batcher.clear()
            self.policy_version = load.checkpoint.step
            load.done.set_result(None)

    def _hand_out(self, events: Sequence[Sampled | Failed]) -> None:
        """Give each client its tokens: one wake-up per event loop and pass."""
        outgoing: dict[asyncio.AbstractEventLoop, list[tuple[Request, Client, Arrival]]] = {}
        with self._changed:
            for event in events:
                client = self._clients.get(event.request)
                if client is None:
                    continue  # cancelled meanwhile
                if isinstance(event, Failed) or event.finish_reason is not None:
                    del self._clients[event.request]
                arrival = event.error if isinstance(event, Failed) else self._chunk(event)
                outgoing.setdefault(client.loop, []).append((event.request, client, arrival))
        for loop, items in outgoing.items():
            if not _post(loop, [(client, arrival) for _, client, arrival in items]):
                for request, _, _ in items:
                    self.cancel(request)

    def _chunk(self, event: Sampled) -> TokenChunk:
        return TokenChunk(
            (event.token,),
            (event.logprob,),
            self.policy_version,
            event.finish_reason,
            forced=() if event.request.matcher is None else (event.forced,),
            top_logprobs=(event.top_logprobs,) if event.request.sampling.top_logprobs else (),
        )

    def _tell_everyone(self) -> None:
        with self._changed:
            self._ended = True
            clients, self._clients = list(self._clients.values()), {}
            loads = [item for item in self._inbox if isinstance(item, _Load)]
            self._inbox.clear()
            errors: dict[asyncio.AbstractEventLoop, list[tuple[Client, Arrival]]] = {}
            for client in clients:
                errors.setdefault(client.loop, []).append((client, self._closed_error()))
        for loop, items in errors.items():
            _post(loop, items)
        for load in loads:
            if load.done.set_running_or_notify_cancel():
                load.done.set_exception(self._closed_error())


def _post(loop: asyncio.AbstractEventLoop, items: list[tuple[Client, Arrival]]) -> bool:
    """Put each arrival into its client's queue, on their loop; False when that loop is gone."""

    def put_all() -> None:
        for client, arrival in items:
            client.arrivals.put_nowait(arrival)

    try:
        loop.call_soon_threadsafe(put_all)
    except RuntimeError:
        if not loop.is_closed():
            raise
        return False
    return True
