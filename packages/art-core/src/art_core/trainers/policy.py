"""A causal language model with a trainable low-rank adapter, read through packed micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from art_core.errors import AdapterMismatchError, ConfigError
from art_core.trainers.allocator import return_freed_memory
from art_core.trainers.attention import SegmentLayout, use_segment_attention
from art_core.trainers.batch import TokenBatch, pack
from art_core.trainers.gated_mlp import fuse_gated_mlps
from art_core.trainers.head import token_logprobs
from art_core.trainers.memory import DEFAULT_ACTIVATION_BYTES
from art_core.trainers.recompute import RecomputableLayers, measure_activations
from art_core.types import DtypeName, TokenSample
from art_core.weights.loading import best_device, compute_dtype, load_causal_lm
from art_core.weights.lora import Adapter, LoraConfig, LoraLinear, inject

_PROBE_TOKENS = 12


class LoraPolicy:
    """The model of `folder` with a fresh adapter. Its first distribution is exactly the base model's.

    `memory` says what its forward passes keep; a micro-batch that would take more than `activation_bytes` has layers
    computed again during its backward pass, with the same result bit for bit.

    Raises:
        ModelNotFoundError: `folder` holds no loadable model.
        ConfigError: the adapter does not go with the model, or the model computes something that the packed forward
            pass does not reproduce.
    """

    def __init__(
        self,
        folder: Path,
        lora: LoraConfig,
        *,
        seed: int,
        dtype: DtypeName,
        activation_bytes: int = DEFAULT_ACTIVATION_BYTES,
    ) -> None:
        return_freed_memory()
        self.device = best_device()
        self.dtype = compute_dtype(dtype, self.device)
        self.lora = lora
        self._model = cast(Any, load_causal_lm(folder, dtype=self.dtype, device=self.device))
        limit = getattr(self._model.config, "max_position_embeddings", None)
        self.max_context_tokens: int | None = int(limit) if limit else None
        self.vocabulary_size = int(self._model.get_input_embeddings().weight.shape[0])
        probe = [7919 * (index + 1) % self.vocabulary_size for index in range(_PROBE_TOKENS)]
        with torch.no_grad():
            expected: Tensor = self._model(torch.tensor([probe], device=self.device), use_cache=False).logits[0].float()
        self.layers: dict[str, LoraLinear] = inject(self._model, lora, seed=seed)
        head = self._model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise ConfigError(
                f"{folder}: the output layer is a {type(head).__name__}; wanted a plain linear layer that the adapter "
                "leaves alone (take it out of the LoRA target_modules)"
            )
        self._head = head
        use_segment_attention(self._model)
        fuse_gated_mlps(self._model)
        self._layers = RecomputableLayers(self._model)
        (batch,) = pack([plain_row([*probe, 0], num_completion=1)], max_tokens=len(probe))
        self.memory = measure_activations(
            self._model,
            self._layers,
            lambda: self._hidden(batch, on_layer=lambda: None),
            num_tokens=len(batch),
            budget_bytes=activation_bytes,
        )
        self._check_against(expected.log_softmax(-1), probe)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable factors by name, in a fixed order."""
        return {
            f"{name}.{kind}": factor
            for name, layer in self.layers.items()
            for kind, factor in (("lora_A", layer.lora_A), ("lora_B", layer.lora_B))
        }

    def logprobs(self, batch: TokenBatch, *, on_layer: Callable[[], None] = lambda: None) -> tuple[Tensor, Tensor]:
        """For each of `batch.predictions`: its log-probability and the entropy it was drawn from, float32, in order.

        `on_layer` is called in every layer, forward and backward; what it raises ends the computation.
        """
        self._layers.recomputed = self.memory.recomputed_layers(len(batch))
        hidden = self._hidden(batch, on_layer=on_layer)
        parents = torch.tensor([parent for parent, _ in batch.predictions], device=self.device)
        token_ids = torch.tensor([token_id for _, token_id in batch.predictions], device=self.device)
        return token_logprobs(hidden[parents], self._head.weight, self._head.bias, token_ids)

    def _hidden(self, batch: TokenBatch, *, on_layer: Callable[[], None]) -> Tensor:
        """The hidden state after each packed token (T, D)."""
        segments = SegmentLayout(batch.segments, device=self.device, on_layer=on_layer)
        hidden: Tensor = self._model.base_model(
            input_ids=torch.tensor([batch.token_ids], device=self.device),
            position_ids=torch.tensor([batch.positions], device=self.device),
            segments=segments,
            use_cache=False,
        ).last_hidden_state[0]
        return hidden

    def refresh(self) -> None:
        """Compute with the factors as they are now. To be called after each change of `parameters`."""
        for layer in self.layers.values():
            layer.refresh()

    def check_adapter(self, adapter: Adapter, *, source: str) -> None:
        """Refuse an adapter that was not made by a policy of this model and configuration.

        Raises:
            AdapterMismatchError: naming what differs.
        """
        found, wanted = adapter.config, self.lora
        if (found.rank, found.alpha, set(found.target_modules)) != (
            wanted.rank,
            wanted.alpha,
            set(wanted.target_modules),
        ):
            raise AdapterMismatchError(
                f"{source}: the adapter has {found}, this trainer {wanted}; "
                "continue with the settings it was trained with"
            )
        if set(adapter.factors) != set(self.layers):
            different = sorted(set(adapter.factors) ^ set(self.layers))
            raise AdapterMismatchError(
                f"{source}: adapter and model do not have the same trained layers, {different[0]!r} for one; "
                "it was trained for another base model"
            )
        for name, (a, b) in adapter.factors.items():
            shapes = (tuple(a.shape), tuple(b.shape))
            expected = (tuple(self.layers[name].lora_A.shape), tuple(self.layers[name].lora_B.shape))
            if shapes != expected:
                raise AdapterMismatchError(
                    f"{source}: the factors of {name!r} have shapes {shapes}, the model's {expected}; "
                    "the adapter was trained for another base model"
                )

    @torch.no_grad()
    def set_factors(self, factors: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Take over the factors of an adapter that `check_adapter` has passed."""
        for name, (a, b) in factors.items():
            self.layers[name].lora_A.copy_(a)
            self.layers[name].lora_B.copy_(b)
        self.refresh()

    @contextmanager
    def with_factors(self, factors: Mapping[str, tuple[Tensor, Tensor]] | None) -> Iterator[None]:
        """Compute with factors that `check_adapter` has passed, for a while; with None, without an adapter."""
        own = {
            name: (layer.lora_A.detach().clone(), layer.lora_B.detach().clone()) for name, layer in self.layers.items()
        }
        try:
            self.set_factors(factors or {name: (a, torch.zeros_like(b)) for name, (a, b) in own.items()})
            yield
        finally:
            self.set_factors(own)

    def _check_against(self, expected_TV: Tensor, probe: list[int]) -> None:
        """Compare a packed forward pass over two rows that fork with what the untouched model said."""
        half = len(probe) // 2
        rows = [
            plain_row(probe, num_completion=len(probe) - 1),
            plain_row([*probe[:half], (probe[half] + 1) % self.vocabulary_size], num_completion=half),
        ]
        (batch,) = pack(rows, max_tokens=4 * len(probe))
        with torch.no_grad():
            found, _ = self.logprobs(batch)
        positions = batch.positions
        wanted = torch.stack([expected_TV[positions[parent], token_id] for parent, token_id in batch.predictions])
        difference = float((found - wanted).abs().mean())
        if not difference < (1e-3 if self.dtype == torch.float32 else 0.1):
            raise ConfigError(
                f"{type(self._model).__name__}: log-probabilities of a packed forward pass differ from the model's own "
                f"by {difference:.2g} on average; the native trainer does not support this architecture"
            )


def plain_row(token_ids: list[int], *, num_completion: int) -> TokenSample:
    """A row whose last `num_completion` tokens are to be predicted, with nothing recorded about them."""
    untrained = len(token_ids) - num_completion
    return TokenSample(
        token_ids=tuple(token_ids),
        trained=(False,) * untrained + (True,) * num_completion,
        logprobs=(0.0,) * len(token_ids),
        advantage=0.0,
        policy_version=0,
        trajectory_id="",
    )
