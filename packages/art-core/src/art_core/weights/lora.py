"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685): train them, store them in PEFT's format, merge them.

Engine and trainer both compute with the *merged* weight `W + scale * B @ A`, rounded once to the compute type. So a
checkpoint that is loaded into the engine gives the very numbers the trainer used, a forward pass costs no more than
the plain model's, and only the backward pass sees two factors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from art_core.errors import AdapterMismatchError, ConfigError
from art_core.options import Kind, check_options, number, whole

_PEFT_PREFIX = "base_model.model."
_MORE_THAN_FACTORS = (
    "modules_to_save",
    "use_dora",
    "lora_bias",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "trainable_token_indices",
)
"""Settings of PEFT's that change what an adapter computes, beyond one pair of factors with one scale per module."""
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Shape of the adapter. `scale` = alpha / rank multiplies the product of its factors."""

    rank: int = 16
    alpha: float = 32.0
    target_modules: tuple[str, ...] = ALL_LINEAR

    def __post_init__(self) -> None:
        check_options(self, _KINDS)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


_KINDS = {
    "rank": whole(1),
    "alpha": number(0.0, above=True),
    "target_modules": Kind(
        lambda value: bool(value) and isinstance(value, tuple) and all(isinstance(name, str) for name in value),
        "names of linear layers, one at least, such as ('q_proj', 'v_proj')",
    ),
}


@dataclass(frozen=True)
class Adapter:
    """A stored adapter: for each target module its factors `A` (rank, in) and `B` (out, rank), float32."""

    config: LoraConfig
    factors: Mapping[str, tuple[Tensor, Tensor]]


def merged_weight(base: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """`base + scale * b @ a`, summed in float32 and rounded once to the type of `base` (out, in)."""
    return torch.addmm(base.float(), b.float(), a.float(), alpha=scale).to(base.dtype)


def lora_gradients(x: Tensor, grad_y: Tensor, a: Tensor, b: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Gradients of the factors of `y = x (W + scale B A)^T`, for `x` (tokens, in) and `grad_y` (tokens, out)."""
    a_cast, b_cast = a.to(grad_y.dtype), b.to(grad_y.dtype)
    grad_b = (grad_y.T @ (x @ a_cast.T)).to(b.dtype) * scale
    grad_a = ((grad_y @ b_cast).T @ x).to(a.dtype) * scale
    return grad_a, grad_b


class _MergedLinear(torch.autograd.Function):
    """y = x W^T with the merged W, and the exact gradients of x, A and B. W itself gets none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor, merged: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x, a, b, merged)
        ctx.scale = scale
        return nn.functional.linear(x, merged)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x, a, b, merged = ctx.saved_tensors
        grad_y = grad_outputs[0].flatten(0, -2)  # (tokens, out)
        flat_x = x.flatten(0, -2)  # (tokens, in)
        grad_a, grad_b = lora_gradients(flat_x, grad_y, a, b, ctx.scale)
        grad_x = (grad_y @ merged).view_as(x) if ctx.needs_input_grad[0] else None
        return grad_x, grad_a, grad_b, None, None


class LoraLinear(nn.Module):
    """Stands in for a frozen `nn.Linear`. Call `refresh()` after each change of `lora_A` or `lora_B`."""

    base: Tensor
    merged: Tensor
    lora_A: nn.Parameter  # noqa: N815 - PEFT's names
    lora_B: nn.Parameter  # noqa: N815

    def __init__(self, base: nn.Linear, config: LoraConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.register_buffer("base", _smallest_exact(base.weight.detach()), persistent=False)
        self.register_buffer("merged", base.weight.detach().clone(), persistent=False)
        self.bias = None if base.bias is None else nn.Parameter(base.bias.detach(), requires_grad=False)
        self.scale = config.scale
        a = torch.empty(config.rank, base.in_features, dtype=torch.float32)
        # PEFT's start: A uniform as nn.Linear's own, B zero, so that the first policy is the base model exactly.
        nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=generator)
        device = base.weight.device
        self.lora_A = nn.Parameter(a.to(device))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, config.rank, dtype=torch.float32, device=device))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _MergedLinear.apply(x, self.lora_A, self.lora_B, self.merged, self.scale)  # type: ignore[no-untyped-call]
        return y if self.bias is None else y + self.bias

    @torch.no_grad()
    def refresh(self) -> None:
        base = self.base.to(self.merged.dtype)
        self.merged.copy_(merged_weight(base, self.lora_A, self.lora_B, self.scale))


def _smallest_exact(weight: Tensor) -> Tensor:
    """`weight`, in bfloat16 if that changes no value, as for every model that was published in bfloat16."""
    short = weight.bfloat16()
    return short if torch.equal(short.to(weight.dtype), weight) else weight


def target_linears(model: nn.Module, config: LoraConfig) -> Iterator[tuple[str, nn.Linear]]:
    """The linear layers of `model` that `config` names, by their full dotted name, in the model's order.

    Raises:
        ConfigError: a target name matches nothing, or something that is not a linear layer.
    """
    unmatched = set(config.target_modules)
    for name, module in model.named_modules():
        leaf = name.rpartition(".")[2]
        if leaf not in config.target_modules:
            continue
        if not isinstance(module, nn.Linear):
            raise ConfigError(
                f"LoRA target {leaf!r} is {name!r}, a {type(module).__name__}; only linear layers can be trained"
            )
        unmatched.discard(leaf)
        yield name, module
    if unmatched:
        present = sorted(
            {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        )
        raise ConfigError(
            f"LoRA target_modules {sorted(unmatched)} match no layer of {type(model).__name__}; "
            f"its linear layers are called {present}"
        )


def inject(model: nn.Module, config: LoraConfig, *, seed: int) -> dict[str, LoraLinear]:
    """Freeze `model`, replace its target layers by `LoraLinear` in place and return them by name."""
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    layers: dict[str, LoraLinear] = {}
    # By name: a list of the layers would keep the weights of all until the last is replaced.
    for name in [name for name, _ in target_linears(model, config)]:
        layers[name] = LoraLinear(cast(nn.Linear, model.get_submodule(name)), config, generator)
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, layers[name])
    return layers


def write_adapter(folder: Path, config: LoraConfig, layers: Mapping[str, LoraLinear], *, base_model: str) -> None:
    """Store the adapter in `folder` in PEFT's format, so that PEFT, vLLM and others can load it as it is."""
    tensors = {}
    for name, layer in layers.items():
        tensors[f"{_PEFT_PREFIX}{name}.lora_A.weight"] = layer.lora_A.detach().cpu().contiguous()
        tensors[f"{_PEFT_PREFIX}{name}.lora_B.weight"] = layer.lora_B.detach().cpu().contiguous()
    save_file(tensors, folder / "adapter_model.safetensors")
    description = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "target_modules": list(config.target_modules),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(description, indent=2) + "\n")


def read_adapter(folder: Path) -> Adapter:
    """The adapter stored in `folder`.

    Raises:
        AdapterMismatchError: files are missing or damaged, or hold what cannot be merged into linear layers.
    """
    try:
        description = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise AdapterMismatchError(
            f"{folder}: no readable adapter ({error}); wanted a folder in PEFT's format"
        ) from error
    return Adapter(_read_config(folder, description), _read_factors(folder, tensors))


def _read_config(folder: Path, description: Any) -> LoraConfig:
    if not isinstance(description, dict):
        raise AdapterMismatchError(f"{folder}: adapter_config.json holds no object; wanted one in PEFT's format")
    more = [key for key in _MORE_THAN_FACTORS if description.get(key)]
    if description.get("bias", "none") != "none":
        more.append("bias")
    if more:
        raise AdapterMismatchError(
            f"{folder}: the adapter uses {', '.join(more)}; only plain LoRA with one rank and one alpha can be served "
            "and trained here"
        )
    rank, alpha, targets = (description.get(key) for key in ("r", "lora_alpha", "target_modules"))
    if not (
        isinstance(rank, int)
        and isinstance(alpha, int | float)
        and isinstance(targets, list)
        and all(isinstance(target, str) for target in targets)
    ):
        raise AdapterMismatchError(
            f"{folder}: adapter_config.json has r={rank!r}, lora_alpha={alpha!r}, target_modules={targets!r}; "
            "wanted a whole number, a number and a list of names"
        )
    if description.get("use_rslora"):
        alpha *= rank**0.5
    try:
        return LoraConfig(rank=rank, alpha=alpha, target_modules=tuple(targets))
    except ConfigError as error:
        raise AdapterMismatchError(f"{folder}: {error}") from error


def _read_factors(folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    halves: dict[str, dict[str, Tensor]] = {}
    strays = []
    for key, tensor in tensors.items():
        name, _, kind = key.removeprefix(_PEFT_PREFIX).removesuffix(".weight").rpartition(".")
        if kind in ("lora_A", "lora_B") and key.endswith(".weight") and tensor.ndim == 2:
            halves.setdefault(name, {})[kind] = tensor.float()
        else:
            strays.append(key)
    strays += [name for name, half in halves.items() if len(half) != 2]
    if strays or not halves:
        raise AdapterMismatchError(
            f"{folder}: {len(halves)} modules with LoRA factors, and these that belong to no pair of them: {strays[:5]}"
        )
    return {name: (half["lora_A"], half["lora_B"]) for name, half in halves.items()}


def check_fits(adapter: Adapter, linears: Mapping[str, nn.Linear], *, source: str) -> None:
    """Refuse an adapter whose modules or shapes are not those of `linears`.

    Raises:
        AdapterMismatchError: naming the first module that does not fit and both shapes.
    """
    for name, (a, b) in adapter.factors.items():
        if name not in linears:
            raise AdapterMismatchError(f"{source}: the adapter changes {name!r}, which this model does not have")
        wanted = tuple(linears[name].weight.shape)
        got = (b.shape[0], a.shape[1])
        if got != wanted or a.shape[0] != b.shape[1]:
            raise AdapterMismatchError(
                f"{source}: the adapter for {name!r} fits a weight of shape {got}, the model's is {wanted}; "
                "it was trained for another base model"
            )
