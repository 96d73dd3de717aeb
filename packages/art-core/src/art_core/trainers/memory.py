"""How large micro-batches may be, and how much of their forward pass is computed again to stay within memory. Pure.

A layer either keeps what its backward pass needs, or only its input, and is then computed a second time during the
backward pass. The second takes more time, the first more memory; a larger micro-batch, in turn, shares more prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from art_core.errors import ConfigError
from art_core.trainers.batch import RowForest, TokenBatch
from art_core.types import TokenSample

DEFAULT_ACTIVATION_BYTES = 2 * 1024**3

_WORKING_LAYERS = 2.0
"""What computing one layer's gradients needs at a time, in units of what a layer keeps."""
_COST_OF_RECOMPUTING = 0.4
"""Time of a forward pass, in units of a forward and a backward pass with frozen weights."""
_STEPS = 4


@dataclass(frozen=True)
class ActivationMemory:
    """Bytes per packed token of one model, and the bytes that a micro-batch may take.

    `kept_bytes` is what all `num_layers` layers together keep when nothing is computed again, `input_bytes` what one
    layer keeps that is. A model without layers that can be computed again has `num_layers` 0.
    """

    num_layers: int
    kept_bytes: float
    input_bytes: float
    budget_bytes: int = DEFAULT_ACTIVATION_BYTES

    def __post_init__(self) -> None:
        if self.budget_bytes < 1:
            raise ConfigError(f"a memory budget of {self.budget_bytes} bytes holds nothing; wanted 1 or more")

    def token_bytes(self, recomputed: int) -> float:
        """Bytes per packed token when `recomputed` layers are computed again."""
        layer = self.kept_bytes / max(self.num_layers, 1)
        return self.kept_bytes + _WORKING_LAYERS * layer - recomputed * (layer - self.input_bytes)

    def recomputed_layers(self, num_tokens: int) -> int:
        """The fewest layers to compute again for a micro-batch of `num_tokens` to stay within the budget.

        All of them where it cannot: such a micro-batch takes more than the budget.
        """
        fits = (each for each in range(self.num_layers) if num_tokens * self.token_bytes(each) <= self.budget_bytes)
        return next(fits, self.num_layers)

    def recomputed_share(self, batches: Sequence[TokenBatch]) -> float:
        """Share of the forward pass over `batches` that is computed twice."""
        tokens = sum(len(batch) for batch in batches)
        twice = sum(len(batch) * self.recomputed_layers(len(batch)) for batch in batches)
        return twice / max(tokens * self.num_layers, 1)

    def micro_batches(self, rows: Sequence[TokenSample], *, max_tokens: int | None = None) -> list[TokenBatch]:
        """`rows` packed as by `pack`, into micro-batches of the size that takes the least time within the budget.

        Small ones keep all they need; large ones compute shared prefixes less often. `max_tokens` sets the
        size instead.
        """
        forest = RowForest(rows)
        if max_tokens is None:
            recomputed = sorted({self.num_layers * step // _STEPS for step in range(_STEPS + 1)})
            candidates = [max(1, int(self.budget_bytes / self.token_bytes(layers))) for layers in recomputed]
            max_tokens = min(candidates, key=lambda size: self._cost(forest.sizes(max_tokens=size)))
        return forest.pack(max_tokens=max_tokens)

    def _cost(self, sizes: Sequence[int]) -> float:
        layers = max(self.num_layers, 1)
        return sum(size * (1 + _COST_OF_RECOMPUTING * self.recomputed_layers(size) / layers) for size in sizes)
