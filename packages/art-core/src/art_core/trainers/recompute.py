"""Layers of a transformers model that can be computed again during the backward pass instead of kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from art_core.trainers.memory import ActivationMemory


class RecomputableLayers:
    """The decoder layers of `model`, whose calls go through this object from now on.

    The first `recomputed` of them keep only their input for the backward pass, which computes them again: the same
    operations on the same numbers, so the result is the same bit for bit. It is the first ones because the backward
    pass comes to them last, when the others have given their memory back.
    """

    def __init__(self, model: nn.Module) -> None:
        from transformers.modeling_layers import GradientCheckpointingLayer

        found = {name: each for name, each in model.named_modules() if isinstance(each, GradientCheckpointingLayer)}
        outermost = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
        for index, name in enumerate(outermost):
            layer: Any = found[name]
            layer.forward = partial(self._call, index, layer.forward)
        self.recomputed = 0
        self._count = len(outermost)

    def __len__(self) -> int:
        return self._count

    def _call(self, index: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if index >= self.recomputed or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        # Models draw nothing at random here: they are in evaluation mode.
        return checkpoint(partial(forward, **kwargs), *args, use_reentrant=False, preserve_rng_state=False)


def measure_activations(
    model: nn.Module, layers: RecomputableLayers, run: Callable[[], Tensor], *, num_tokens: int, budget_bytes: int
) -> ActivationMemory:
    """What `model` keeps per token, from the forward pass `run` over `num_tokens`, which returns hidden states."""
    sizes: dict[int, int] = {}
    owned = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
    with torch.enable_grad(), _saved(sizes):
        hidden = run()
    kept = sum(size for pointer, size in sizes.items() if pointer not in owned)
    return ActivationMemory(
        num_layers=len(layers),
        kept_bytes=kept / num_tokens,
        input_bytes=hidden.shape[-1] * hidden.element_size(),
        budget_bytes=budget_bytes,
    )


@contextmanager
def _saved(sizes: dict[int, int]) -> Iterator[None]:
    """Collects the storages that operations save for their backward pass: address -> bytes."""

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield
