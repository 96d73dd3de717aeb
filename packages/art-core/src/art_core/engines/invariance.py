"""Does this machine compute a row the same way whatever else is in the batch? Checked on the model's real shapes."""

from __future__ import annotations

from types import SimpleNamespace
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
    packed_attention,
)
from art_core.engines.batcher import Batcher, Request, Sampled
from art_core.engines.cache import SlotStore
from art_core.engines.products import FEW_ROWS
from art_core.types import Sampling

_ROWS = (ROW_MULTIPLE, 3 * ROW_MULTIPLE, FEW_ROWS + ROW_MULTIPLE)  # both orders of factors
_PROMPT_LENGTHS = (21, 9, 33)


@torch.inference_mode()
def linear_rows_agree(model: nn.Module) -> bool:
    """Whether each shape of linear layer gives equal bits for the same rows in batches of different sizes."""
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for module in model.modules():
        if not isinstance(module, nn.Linear) or module.weight.shape in seen:
            continue
        seen.add(module.weight.shape)
        # The output layer is by far the widest; it sees few rows, so few are checked.
        sizes = _ROWS if module.out_features < 8 * module.in_features else _ROWS[:2]
        x = torch.randn(sizes[-1], module.in_features, generator=generator).to(module.weight)
        whole = module(x)
        for size in sizes[:-1]:
            if not torch.equal(module(x[-size:].contiguous()), whole[-size:]):
                return False
    return True


@torch.inference_mode()
def attention_rows_agree(store: SlotStore, num_query_heads: int) -> bool:
    """Whether the last of many positions gets equal bits from a prompt's chunk, decoded alone, and decoded in a group.

    In the group, two of three requests read their first `PIECE` keys from a shared segment. Leaves `store` empty.
    """
    length = PIECE + 60
    _, H, _, D = store.keys[0].shape
    device = store.keys[0].device
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, num_query_heads, length, D, generator=generator).to(device)
    k, v = (torch.randn(1, H, length, D, generator=generator).to(device) for _ in "kv")
    segment = Segment(torch.cat([k[:, :, :PIECE], v[:, :, :PIECE]]), PIECE)
    store.ensure(3, 2 * PIECE)
    layer = SimpleNamespace(layer_idx=0)

    def attend(rows: Tensor, slots: list[int], columns: Tensor, **parts: Any) -> Tensor:
        positions = rows.repeat(len(slots))
        plan = Plan(
            keys=store.keys,
            values=store.values,
            num_rows=positions.numel(),
            slots=torch.tensor(slots, device=device).repeat_interleave(rows.numel()),
            columns=columns,
            **parts,
        )
        return packed_attention(
            layer, q[:, :, positions], k[:, :, positions], v[:, :, positions], None, scaling=0.1, plan=plan
        )[0][0]

    every, last = torch.arange(length, device=device), torch.tensor([length - 1], device=device)
    hidden = torch.arange(2 * PIECE, device=device) > every.unsqueeze(1)
    chunk = attend(every, [0], every, chunks=[Chunk(0, length, 0, None, 2 * PIECE, hidden)])[-1]
    alone = attend(last, [0], last, groups=[DecodeGroup(0, 1, 0, 2 * PIECE, hidden[-1:, None, None], ())])[0]
    # Slots 1 and 2 hold what follows the segment, slot 0 holds everything.
    for tensors, new in ((store.keys, k), (store.values, v)):
        tensors[0][1:, :, : length - PIECE] = new[:, :, PIECE:]
    columns = last - torch.tensor([0, PIECE, PIECE], device=device)
    hidden = (torch.arange(2 * PIECE, device=device) > columns.unsqueeze(1))[:, None, None]
    readers = torch.tensor([1, 2], device=device)
    group = attend(last, [0, 1, 2], columns, groups=[DecodeGroup(0, 3, 0, 2 * PIECE, hidden, [(readers, segment)])])
    store.clear()
    return all(torch.equal(row, chunk) for row in (alone, *group))


def requests_agree(batcher: Batcher, vocab_size: int) -> bool:
    """Whether short requests give equal tokens and logprobs alone and together, from a cold and a warm cache.

    Leaves `batcher` empty.
    """
    rng = np.random.default_rng(0)  # a stream of its own: nobody's global random state moves
    text = rng.integers(0, vocab_size, size=max(_PROMPT_LENGTHS))

    def make(length: int, seed: int) -> Request:
        return Request(text[:length], Sampling(max_tokens=2), seed)

    batcher.clear()
    alone = _run(batcher, [make(_PROMPT_LENGTHS[0], seed=0)])
    batcher.clear()
    cold = _run(batcher, [make(length, seed) for seed, length in enumerate(_PROMPT_LENGTHS)])
    warm = _run(batcher, [make(_PROMPT_LENGTHS[0], seed=0)])
    batcher.clear()
    return alone == cold[:1] == warm


def _run(batcher: Batcher, requests: list[Request]) -> list[list[tuple[int, float]]]:
    results: dict[Request, list[tuple[int, float]]] = {request: [] for request in requests}
    batcher.waiting.extend(requests)
    while not batcher.idle:
        for event in batcher.step():
            assert isinstance(event, Sampled)  # only a grammar can fail
            results[event.request].append((event.token, event.logprob))
    return list(results.values())
