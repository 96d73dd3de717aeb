"""Continuous batching: which rows the next forward pass computes, and what they mean. Synchronous, one thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from art_core.engines.attention import (
    PIECE,
    ROW_MULTIPLE,
    Chunk,
    DecodeGroup,
    Plan,
    Segment,
    round_up,
)
from art_core.engines.cache import Match, PrefixCache, Segments, SlotStore, Tokens, common_length
from art_core.engines.grammar import Matcher
from art_core.engines.sampler import Draw, Drawn, draw, uniform
from art_core.errors import DataError
from art_core.types import FinishReason, Sampling

PROMPT_ROWS = 256
"""Prompt positions computed per pass, over all requests: bounds how long decoding requests wait for new prompts."""
MIN_READERS = 4
"""Readers a prefix needs before it is read jointly: for fewer, the extra products cost more than they save."""
_GROUP_COST = 4 * PIECE  # what one more group of decoded rows costs, in keys read


@dataclass(eq=False)
class Request:
    """One completion being made. `seed` is always set: drawn at random where the caller gave none.

    `matcher` belongs to `sampling.grammar`, and is None without one.
    """

    prompt: Tokens
    sampling: Sampling
    seed: int
    matcher: Matcher | None = None
    tokens: list[int] = field(default_factory=list)  # prompt, then completion
    computed: int = 0  # positions whose keys and values are stored
    segment: Segment | None = None
    leader: Request | None = None  # computes a prefix that this request waits for

    def __post_init__(self) -> None:
        self.tokens = self.prompt.tolist()

    @property
    def prefix_length(self) -> int:
        return self.segment.length if self.segment else 0

    @property
    def prefilling(self) -> bool:
        return self.computed < self.prompt.size

    @property
    def num_sampled(self) -> int:
        return len(self.tokens) - self.prompt.size


@dataclass(frozen=True)
class Sampled:
    """One token drawn for `request`."""

    request: Request
    token: int
    logprob: float
    finish_reason: FinishReason | None
    forced: bool = False
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Failed:
    """`request` cannot go on, for a reason of its own; it has given up its place."""

    request: Request
    error: DataError


@dataclass
class Counts:
    """What the batcher has done so far, in tokens and forward passes."""

    prompt_tokens: int = 0
    prompt_tokens_reused: int = 0
    completion_tokens: int = 0
    passes: int = 0


@dataclass(frozen=True)
class _Rows:
    request: Request
    slot: int
    start: int
    count: int


class Batcher:
    """Runs requests on `model`, which uses `packed_attention`. Slot i holds `running[i]`; there are no gaps."""

    def __init__(
        self, model: nn.Module, store: SlotStore, cache: PrefixCache, *, device: torch.device, max_running: int
    ) -> None:
        self._model: Any = model
        self._store = store
        self._device = device
        self._max_running = max_running
        self._segments = Segments()
        self.cache = cache
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.counts = Counts()

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    @torch.inference_mode()
    def cancel(self, request: Request) -> None:
        """Forget `request`, wherever it is. Nothing happens when it is not known (any more)."""
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.running:
            self._release(request)

    @torch.inference_mode()
    def clear(self) -> None:
        """Forget all requests and everything computed: after this, nothing depends on the weights used before."""
        for request in list(self.running):
            self._release(request)
        self.waiting.clear()
        self.cache.clear()
        self._store.clear()

    def free_slots(self) -> None:
        """Free the memory for running requests, which must be none. Later ones get new memory, and the same results."""
        assert self.idle
        self._store.clear()

    @torch.inference_mode()
    def step(self) -> list[Sampled | Failed]:
        """Admit what fits, compute one pass and draw the tokens that are due."""
        self._admit()
        parts = self._choose_rows()
        if not parts:
            return []
        due = [part for part in parts if part.start + part.count == len(part.request.tokens)]
        logits = self._forward(parts, due)
        for part in parts:
            part.request.computed = part.start + part.count
        for part in due:
            if part.request.num_sampled == 0:
                self._remember(part.request)
        if logits is None:
            return []
        drawn = draw(logits[: len(due)], [_draw_of(part.request) for part in due])
        sampled = [self._append(part.request, result) for part, result in zip(due, drawn, strict=True)]
        failed = [failure for event in sampled if (failure := _advance(event)) is not None]
        for request in [*(event.request for event in sampled if event.finish_reason), *(f.request for f in failed)]:
            self._remember(request)
            self._release(request)
        return [*sampled, *failed]

    # Admission

    def _admit(self) -> None:
        for request in list(self.waiting):
            if len(self.running) >= self._max_running:
                return
            leader = request.leader
            if leader is not None and leader in self.running and leader.prefilling:
                continue
            # The last prompt token is always computed: its logits give the first sampled token.
            wanted = request.prompt[:-1]
            match = self.cache.match(wanted)
            request.leader = self._leader(wanted, match.length)
            if request.leader is None:
                self._start(request, match)

    def _leader(self, wanted: Tokens, found: int) -> Request | None:
        """A running request that is about to compute more of `wanted` than the cache holds, if there is one."""
        if not self.cache.enabled:
            return None
        for request in self.running:
            if request.prefilling and common_length(wanted, request.prompt) > found:
                return request
        return None

    def _start(self, request: Request, match: Match) -> None:
        num_shared = self._num_shared_blocks(request, len(match.blocks))
        slot = len(self.running)
        self.waiting.remove(request)
        self.running.append(request)
        if num_shared:
            tokens = request.prompt[: num_shared * PIECE]
            request.segment = self._segments.acquire(tokens, match.blocks[:num_shared])
        private = [*match.blocks[num_shared:]]
        if match.tail is not None:
            private.append(match.tail[:, :, : match.tail_length])
        self._store.ensure(slot + 1, match.length - request.prefix_length)
        column = 0
        for block in private:
            self._store.write(slot, column, block)
            column += block.shape[2]
        request.computed = match.length
        self.counts.prompt_tokens += request.prompt.size
        self.counts.prompt_tokens_reused += match.length

    def _num_shared_blocks(self, request: Request, num_blocks: int) -> int:
        """How many of the leading cached blocks to read jointly with other requests: where most reading is saved.

        With `r` readers of `b` blocks, each reader is spared (r - 1) / r of reading `b` blocks. The choice changes
        speed only: attention gives the same bits for any split.
        """
        if not num_blocks:
            return 0
        others = [other for other in (*self.running, *self.waiting) if other is not request]
        shared = [min(num_blocks, common_length(request.prompt, other.prompt) // PIECE) for other in others]
        best, best_saving = 0, 0.0
        for blocks in sorted({*shared, num_blocks} - {0}):
            readers = 1 + sum(count >= blocks for count in shared)
            saving = blocks * (readers - 1) / readers
            if readers >= MIN_READERS and saving > best_saving:
                best, best_saving = blocks, saving
        return best

    # One forward pass

    def _choose_rows(self) -> list[_Rows]:
        """All decoding requests with one row each, and prompts in order of arrival up to `PROMPT_ROWS` rows."""
        budget = PROMPT_ROWS
        parts = []
        for slot, request in enumerate(self.running):
            pending = len(request.tokens) - request.computed
            if request.prefilling:
                pending = min(pending, budget)
                budget -= pending
            if pending:
                parts.append(_Rows(request, slot, request.computed, pending))
        return parts

    def _forward(self, parts: Sequence[_Rows], due: Sequence[_Rows]) -> Tensor | None:
        """Logits of the last row of each of `due`, in order, perhaps followed by padding; None where nothing is due."""
        lengths = [part.start + part.count - part.request.prefix_length for part in parts]
        self._store.ensure(len(self.running), round_up(max(lengths), PIECE))
        ordered = [part for part in parts if part.count > 1] + [part for part in parts if part.count == 1]
        first_row: dict[int, int] = {}
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        columns: list[int] = []
        for part in ordered:
            stop = part.start + part.count
            first_row[part.slot] = len(ids)
            ids += part.request.tokens[part.start : stop]
            positions += range(part.start, stop)
            slots += [part.slot] * part.count
            columns += range(part.start - part.request.prefix_length, stop - part.request.prefix_length)
        num_rows = len(ids)
        padding = [0] * (round_up(num_rows, ROW_MULTIPLE) - num_rows)
        plan = Plan(
            keys=self._store.keys,
            values=self._store.values,
            num_rows=num_rows,
            slots=self._tensor(slots),
            columns=self._tensor(columns),
            chunks=[self._chunk(part, first_row[part.slot]) for part in ordered if part.count > 1],
            groups=[
                self._group(group, first_row[group[0].slot])
                for group in _decode_groups([part for part in ordered if part.count == 1])
            ],
        )
        inputs = {
            "input_ids": self._tensor(ids + padding).unsqueeze(0),
            "position_ids": self._tensor(positions + padding).unsqueeze(0),
            "use_cache": False,
            "plan": plan,
        }
        self.counts.passes += 1
        if not due:
            self._model.base_model(**inputs)
            return None
        wanted = [first_row[part.slot] + part.count - 1 for part in due]
        wanted += [0] * (round_up(len(wanted), ROW_MULTIPLE) - len(wanted))
        logits: Tensor = self._model(**inputs, logits_to_keep=self._tensor(wanted)).logits[0]
        return logits

    def _chunk(self, part: _Rows, row: int) -> Chunk:
        stop = part.start + part.count
        private_length = round_up(stop - part.request.prefix_length, PIECE)
        keys = torch.arange(part.request.prefix_length + private_length, device=self._device)
        hidden = keys.unsqueeze(0) > torch.arange(part.start, stop, device=self._device).unsqueeze(1)
        return Chunk(row, part.count, part.slot, part.request.segment, private_length, hidden)

    def _group(self, group: Sequence[_Rows], row: int) -> DecodeGroup:
        lengths = [_private_length(part) for part in group]
        private_length = round_up(max(lengths), PIECE)
        hidden = torch.arange(private_length, device=self._device) >= self._tensor(lengths).view(-1, 1, 1, 1)
        readers: dict[int, tuple[Segment, list[int]]] = {}
        for index, part in enumerate(group):
            if part.request.segment is not None:
                readers.setdefault(id(part.request.segment), (part.request.segment, []))[1].append(index)
        segments = [
            (None if len(indices) == len(group) else self._tensor(indices), segment)
            for segment, indices in readers.values()
        ]
        return DecodeGroup(row, len(group), group[0].slot, private_length, hidden, segments)

    def _tensor(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)

    # After the pass

    def _append(self, request: Request, drawn: Drawn) -> Sampled:
        token = drawn.token
        request.tokens.append(token)
        self.counts.completion_tokens += 1
        reason: FinishReason | None = None
        if token in request.sampling.stop_token_ids:
            reason = "stop"
        elif request.num_sampled == request.sampling.max_tokens:
            reason = "length"
        return Sampled(request, token, drawn.logprob, reason, drawn.forced, drawn.top_logprobs)

    def _remember(self, request: Request) -> None:
        """Put what was computed for `request` into the prefix cache."""
        if not self.cache.enabled:
            return
        slot = self.running.index(request)
        tokens = np.asarray(request.tokens[: request.computed], dtype=np.int64)
        for start, stop in self.cache.missing(tokens):
            if start < request.prefix_length:  # dropped from the cache while this request was reading it
                assert request.segment is not None
                block = request.segment.key_values[:, :, start:stop].clone()
            else:
                block = self._store.read(slot, start - request.prefix_length, stop - request.prefix_length)
            self.cache.insert(tokens[:stop], start, block)

    def _release(self, request: Request) -> None:
        """Free the slot of `request`; the last running request moves into it."""
        slot = self.running.index(request)
        last = self.running.pop()
        if last is not request:
            self._store.move(len(self.running), slot, last.computed - last.prefix_length)
            self.running[slot] = last
        if request.segment is not None:
            self._segments.release(request.prompt[: request.prefix_length])
            request.segment = None


def _draw_of(request: Request) -> Draw:
    allowed = None if request.matcher is None else request.matcher.allowed
    return Draw(request.sampling, uniform(request.seed, request.num_sampled), allowed)


def _advance(event: Sampled) -> Failed | None:
    """Find what the grammar allows behind a token that was not the last."""
    if event.finish_reason is None and event.request.matcher is not None:
        try:
            event.request.matcher.advance(event.token)
        except DataError as error:
            return Failed(event.request, error)
    return None


def _private_length(part: _Rows) -> int:
    return part.start + part.count - part.request.prefix_length


def _decode_groups(parts: Sequence[_Rows]) -> Iterator[list[_Rows]]:
    """Split single rows, in slot order, into runs of neighbouring slots that are worth padding to one length."""
    group: list[_Rows] = []
    longest = 0
    for part in parts:
        length = round_up(_private_length(part), PIECE)
        joined = (len(group) + 1) * max(longest, length)
        apart = len(group) * longest + _GROUP_COST + length
        if group and (part.slot != group[-1].slot + 1 or joined > apart):
            yield group
            group, longest = [], 0
        group.append(part)
        longest = max(longest, length)
    if group:
        yield group
