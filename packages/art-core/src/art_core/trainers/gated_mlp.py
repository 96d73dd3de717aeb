"""A gated feed-forward block (Shazeer 2020, arXiv 2002.05202) with low-rank adapters, as one autograd function.

The block makes up most of what a layer keeps for its backward pass. Done in one piece it keeps gate and up projection
only, in place of four tensors of that width, and multiplies by both weights at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from art_core.weights.lora import LoraLinear, lora_gradients

_LAYERS = ("gate_proj", "up_proj", "down_proj")


class _GatedMlp(torch.autograd.Function):
    """y = (silu(x Wg^T) * (x Wu^T)) Wd^T with merged weights, and the exact gradients of x and the six factors."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gate_a: Tensor,
        gate_b: Tensor,
        up_a: Tensor,
        up_b: Tensor,
        down_a: Tensor,
        down_b: Tensor,
        gate_up: Tensor,
        down: Tensor,
        scales: tuple[float, float, float],
    ) -> Tensor:
        projected = nn.functional.linear(x, gate_up)
        gate, up = projected.chunk(2, dim=-1)
        ctx.save_for_backward(x, projected, gate_a, gate_b, up_a, up_b, down_a, down_b, gate_up, down)
        ctx.scales = scales
        return nn.functional.linear(nn.functional.silu(gate).mul_(up), down)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x, projected, gate_a, gate_b, up_a, up_b, down_a, down_b, gate_up, down = ctx.saved_tensors
        gate_scale, up_scale, down_scale = ctx.scales
        grad_y = grad_outputs[0].flatten(0, -2)
        flat_x = x.flatten(0, -2)
        gate, up = projected.flatten(0, -2).chunk(2, dim=-1)
        activated = nn.functional.silu(gate)
        grad_down = lora_gradients(activated * up, grad_y, down_a, down_b, down_scale)
        grad_hidden = grad_y @ down
        grad_projected = torch.empty_like(projected).flatten(0, -2)
        grad_gate, grad_up = grad_projected.chunk(2, dim=-1)
        torch.mul(grad_hidden, activated, out=grad_up)
        grad_gate.copy_(torch.ops.aten.silu_backward(grad_hidden.mul_(up), gate))
        grads_gate = lora_gradients(flat_x, grad_gate, gate_a, gate_b, gate_scale)
        grads_up = lora_gradients(flat_x, grad_up, up_a, up_b, up_scale)
        grad_x = (grad_projected @ gate_up).view_as(x) if ctx.needs_input_grad[0] else None
        return grad_x, *grads_gate, *grads_up, *grad_down, None, None, None


class GatedMlp(nn.Module):
    """Stands in for a feed-forward block whose three layers are `LoraLinear`s without bias; they stay its children."""

    gate_up: Tensor

    def __init__(self, gate_proj: LoraLinear, up_proj: LoraLinear, down_proj: LoraLinear) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = gate_proj, up_proj, down_proj
        self.register_buffer("gate_up", torch.cat([gate_proj.merged, up_proj.merged]), persistent=False)
        # The layers' merged weights become the halves of one, so that refreshing them refreshes both.
        gate_proj.merged, up_proj.merged = self.gate_up.chunk(2)

    def forward(self, x: Tensor) -> Tensor:
        gate, up, down = self.gate_proj, self.up_proj, self.down_proj
        y: Tensor = _GatedMlp.apply(  # type: ignore[no-untyped-call]
            x,
            gate.lora_A,
            gate.lora_B,
            up.lora_A,
            up.lora_B,
            down.lora_A,
            down.lora_B,
            self.gate_up,
            down.merged,
            (gate.scale, up.scale, down.scale),
        )
        return y


def fuse_gated_mlps(model: nn.Module) -> int:
    """Replace the blocks of `model` that compute what `GatedMlp` computes, in place; returns how many.

    A block qualifies by its children, three adapted layers without bias and an activation that gives SiLU's
    values. Others stay as they are.
    """
    fused = 0
    probe = torch.linspace(-4.0, 4.0, 33)
    for path, block in list(model.named_modules()):
        children = dict(block.named_children())
        layers = [child for name in _LAYERS if isinstance(child := children.pop(name, None), LoraLinear)]
        if len(layers) != len(_LAYERS) or any(layer.bias is not None for layer in layers):
            continue
        activation = children.pop("act_fn", None)
        if children or activation is None or not torch.equal(activation(probe), nn.functional.silu(probe)):
            continue
        parent, _, leaf = path.rpartition(".")
        setattr(model.get_submodule(parent), leaf, GatedMlp(*layers))
        fused += 1
    return fused
