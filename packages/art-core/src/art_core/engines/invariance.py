"""Does this machine compute a row the same way whatever else is in the batch? Checked on the model's real shapes."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from art_core.engines.attention import ROW_MULTIPLE
from art_core.engines.batcher import Batcher, Request
from art_core.types import Sampling

_ROWS = (ROW_MULTIPLE, 3 * ROW_MULTIPLE, 8 * ROW_MULTIPLE)
_PROMPT_LENGTHS = (21, 9, 2, 33)


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


def requests_agree(batcher: Batcher, vocab_size: int) -> bool:
    """Whether short requests give equal tokens and logprobs alone and together, from a cold and a warm cache.

    Leaves `batcher` empty.
    """
    rng = np.random.default_rng(0)  # a stream of its own: nobody's global random state moves
    text = rng.integers(0, vocab_size, size=max(_PROMPT_LENGTHS))

    def make(length: int, seed: int) -> Request:
        return Request(text[:length], Sampling(max_tokens=3), seed)

    alone = []
    for seed, length in enumerate(_PROMPT_LENGTHS[:2]):
        batcher.clear()
        alone += _run(batcher, [make(length, seed)])
    batcher.clear()
    cold = _run(batcher, [make(length, seed) for seed, length in enumerate(_PROMPT_LENGTHS)])
    warm = _run(batcher, [make(length, seed) for seed, length in enumerate(_PROMPT_LENGTHS[:2])])
    batcher.clear()
    return alone == cold[: len(alone)] == warm


def _run(batcher: Batcher, requests: list[Request]) -> list[list[tuple[int, float]]]:
    results: dict[Request, list[tuple[int, float]]] = {request: [] for request in requests}
    batcher.waiting.extend(requests)
    while not batcher.idle:
        for event in batcher.step():
            results[event.request].append((event.token, event.logprob))
    return list(results.values())
