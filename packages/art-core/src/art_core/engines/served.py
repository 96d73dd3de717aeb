"""The model an engine serves: base weights, the adapter merged into them, and what its configuration allows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from art_core.engines.attention import use_packed_attention
from art_core.engines.cache import SlotStore
from art_core.errors import AdapterMismatchError, ConfigError
from art_core.types import Checkpoint, DtypeName
from art_core.weights.loading import best_device, compute_dtype, load_causal_lm
from art_core.weights.lora import check_fits, merged_weight, read_adapter

DEFAULT_MAX_CONTEXT_TOKENS = 8192


@dataclass(frozen=True)
class ModelFacts:
    """What requests are checked against, and the shape of attention."""

    vocab_size: int
    max_context_tokens: int
    num_query_heads: int


class ServedModel:
    """A causal language model with packed attention, whose linear layers can take one adapter after another.

    Sampling defaults that the folder may hold (`generation_config.json`) are not read: a request says all.
    """

    def __init__(self, folder: Path, *, dtype: DtypeName, max_context_tokens: int | None) -> None:
        self.device = best_device()
        self.model = load_causal_lm(folder, dtype=compute_dtype(dtype, self.device), device=self.device)
        config: Any = self.model.config
        self._config = config.get_text_config()
        _refuse_unsupported(self._config)
        vocab_size = self.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        self.facts = ModelFacts(
            vocab_size=int(vocab_size),
            max_context_tokens=_context(self._config, max_context_tokens),
            num_query_heads=self._config.num_attention_heads,
        )
        use_packed_attention(self.model)
        self._linears = {name: module for name, module in self.model.named_modules() if isinstance(module, nn.Linear)}
        self._base: dict[str, Tensor] = {}  # weights as loaded, of the layers that an adapter has changed

    def new_store(self, max_slots: int) -> SlotStore:
        """Empty key/value storage of this model's shape, for `max_slots` requests of its context."""
        config = self._config
        heads = config.num_attention_heads
        return SlotStore(
            num_layers=config.num_hidden_layers,
            num_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            max_slots=max_slots,
            max_length=self.facts.max_context_tokens,
            device=self.device,
        )

    @torch.inference_mode()
    def apply(self, checkpoint: Checkpoint) -> None:
        """Merge the adapter of `checkpoint` into the base weights, in place of the adapter before it.

        Raises:
            AdapterMismatchError: it does not fit, or holds numbers that are not finite; the weights are as before.
        """
        try:
            adapter = read_adapter(checkpoint.path)
        except (KeyError, TypeError, ConfigError) as error:
            raise AdapterMismatchError(
                f"{checkpoint.path}: adapter_config.json is not that of a LoRA adapter ({error!r}); "
                "wanted PEFT's format with r, lora_alpha and target_modules"
            ) from error
        check_fits(adapter, self._linears, source=str(checkpoint.path))
        for name, factors in adapter.factors.items():
            if not all(bool(torch.isfinite(factor).all()) for factor in factors):
                raise AdapterMismatchError(
                    f"{checkpoint.path}: the adapter for {name!r} holds NaN or infinite numbers; "
                    "load an earlier checkpoint"
                )
        for name in self._base.keys() - adapter.factors.keys():
            self._linears[name].weight.data.copy_(self._base[name])
        for name, (a, b) in adapter.factors.items():
            linear = self._linears[name]
            if name not in self._base:
                # From here on the layer has a weight of its own, also where it was tied to another (embeddings).
                self._base[name] = linear.weight.data
                linear.weight = nn.Parameter(torch.empty_like(linear.weight.data), requires_grad=False)
            base = self._base[name]
            merged = merged_weight(base, a.to(base.device), b.to(base.device), adapter.config.scale)
            linear.weight.data.copy_(merged)


def _context(config: Any, wanted: int | None) -> int:
    """The context to serve: what was asked for, or the model's own up to `DEFAULT_MAX_CONTEXT_TOKENS`."""
    limits = [int(config.max_position_embeddings)]
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None) or []
    if window and (not layer_types or "sliding_attention" in layer_types):
        limits.append(int(window))
    if wanted is None:
        return min(*limits, DEFAULT_MAX_CONTEXT_TOKENS)
    if wanted > min(limits):
        raise ConfigError(
            f"max_context_tokens is {wanted}, but the model reads at most {min(limits)} tokens "
            "(its positions, or its sliding window); lower it or leave it out"
        )
    return wanted


def _refuse_unsupported(config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or []) - {"full_attention", "sliding_attention"}
    if kinds:
        raise ConfigError(
            f"model type {config.model_type!r} has layers of kind {sorted(kinds)}; the embedded engine serves "
            "decoder-only models with full attention"
        )
    scaling = str(getattr(config, "rope_parameters", None) or "")
    for kind in ("dynamic", "longrope"):
        if f"'{kind}'" in scaling:
            raise ConfigError(
                f"model type {config.model_type!r} scales positions by {kind!r}, which depends on the longest text in "
                "a batch; the embedded engine needs positions that depend on one text alone"
            )
