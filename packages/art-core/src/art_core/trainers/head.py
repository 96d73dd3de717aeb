"""Log-probabilities of chosen tokens without a (tokens x vocabulary) tensor.

For a frozen output layer W, the gradient of log p(token) with respect to the hidden state is W[token] minus the mean of
W under p: it does not depend on the loss. So it is computed where the logits of a chunk exist anyway, and backward
only scales it: two matrix products per token in place of three with recomputation, and memory for one chunk of logits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, token_ids: Tensor, chunk_tokens: int
    ) -> tuple[Tensor, Tensor]:
        count = hidden.shape[0]
        logprobs = torch.empty(count, dtype=torch.float32, device=hidden.device)
        entropies = torch.empty_like(logprobs)
        needs_grad = ctx.needs_input_grad[0]
        jacobian = torch.empty_like(hidden) if needs_grad else None
        for start in range(0, count, chunk_tokens):
            part = slice(start, min(start + chunk_tokens, count))
            logits = torch.nn.functional.linear(hidden[part], weight, bias).float()
            targets = token_ids[part, None]
            log_p = logits.sub_(logits.logsumexp(-1, keepdim=True))
            logprobs[part] = log_p.gather(1, targets)[:, 0]
            p = log_p.exp()
            # 0 * -inf, of a token that the model rules out altogether, is 0 here and not NaN.
            entropies[part] = torch.special.entr(p).sum(-1)
            if jacobian is not None:
                torch.sub(weight[token_ids[part]], p.to(weight.dtype) @ weight, out=jacobian[part])
        ctx.save_for_backward(jacobian)
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (jacobian,) = ctx.saved_tensors
        return jacobian * grad_outputs[0][:, None].to(jacobian.dtype), None, None, None, None


def token_logprobs(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, token_ids_N: Tensor, *, chunk_tokens: int = 128
) -> tuple[Tensor, Tensor]:
    """Log-probability of `token_ids_N[i]` after hidden state `hidden_ND[i]`, and the entropy of its distribution.

    Both float32 (N,). The output layer is frozen: gradients flow to `hidden_ND` only, and none from the entropies. At
    no time do logits of more than `chunk_tokens` positions exist.
    """
    result: tuple[Tensor, Tensor] = _TokenLogprobs.apply(hidden_ND, weight_VD, bias_V, token_ids_N, chunk_tokens)  # type: ignore[no-untyped-call]
    return result
