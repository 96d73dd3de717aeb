from __future__ import annotations

import pytest
import torch

from art_core.trainers.head import token_logprobs


@pytest.mark.parametrize("chunk_tokens", [1, 3, 7, 100])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_log_softmax_with_its_gradient_and_entropy(chunk_tokens: int, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, generator=generator)
    weight = torch.randn(11, 5, generator=generator)
    bias = torch.randn(11, generator=generator) if with_bias else None
    token_ids = torch.tensor([0, 10, 3, 3, 7, 1, 2])
    upstream = torch.randn(7, generator=generator)

    ours = hidden.clone().requires_grad_()
    logprobs, entropies = token_logprobs(ours, weight, bias, token_ids, chunk_tokens=chunk_tokens)
    (logprobs * upstream).sum().backward()  # type: ignore[no-untyped-call]

    plain = hidden.clone().requires_grad_()
    distribution = torch.nn.functional.linear(plain, weight, bias).log_softmax(-1)
    expected = distribution[torch.arange(7), token_ids]
    (expected * upstream).sum().backward()  # type: ignore[no-untyped-call]

    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropies, -(distribution.exp() * distribution).sum(-1))
    torch.testing.assert_close(ours.grad, plain.grad)
    assert not entropies.requires_grad


def test_a_uniform_distribution_has_the_entropy_of_its_size() -> None:
    logprobs, entropies = token_logprobs(torch.zeros(1, 4), torch.ones(8, 4), None, torch.tensor([5]))
    assert logprobs.item() == pytest.approx(-2.0794415, abs=1e-6)
    assert entropies.item() == pytest.approx(2.0794415, abs=1e-6)


def test_bfloat16_is_summed_in_float32() -> None:
    hidden, weight = torch.ones(1, 4, dtype=torch.bfloat16), torch.zeros(1000, 4, dtype=torch.bfloat16)
    logprobs, _ = token_logprobs(hidden, weight, None, torch.tensor([0]))
    assert logprobs.dtype == torch.float32
    assert logprobs.item() == pytest.approx(-6.9077553, abs=1e-5)
