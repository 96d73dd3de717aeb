"""Packed forward and backward against plain transformers, row by row, with PEFT's own LoRA and torch's autograd."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from art_core.errors import ConfigError
from art_core.objective import LossName, Objective
from art_core.trainers.aggregation import token_weights
from art_core.trainers.batch import pack
from art_core.trainers.gated_mlp import GatedMlp
from art_core.trainers.gradient import accumulate_gradient
from art_core.trainers.loss import ScoredTokens, objective_loss
from art_core.trainers.policy import LoraPolicy
from art_core.types import DtypeName, TokenSample
from art_core.weights.lora import LoraConfig, write_adapter

LORA = LoraConfig(rank=4, alpha=8.0)


def step_rows(size: int = 250) -> list[TokenSample]:
    """Two groups that share a system prompt, whose rows share a task; two rows sampled the same beginning."""
    generator = torch.Generator().manual_seed(3)

    def draw(count: int) -> list[int]:
        return [int(token) for token in torch.randint(3, size, (count,), generator=generator)]

    system, rows = draw(9), []
    for group in range(2):
        prompt = system + draw(4)
        common = draw(2)
        for member in range(3):
            first = (common if member < 2 else draw(2)) + draw(3 + member)
            result, second = draw(5), draw(2)
            marks = [False] * len(prompt) + [True] * len(first) + [False] * len(result) + [True] * len(second)
            ids = prompt + first + result + second
            logprobs = (-5.0 - torch.rand(len(ids), generator=generator)).tolist()
            rows.append(
                TokenSample(
                    token_ids=tuple(ids),
                    trained=tuple(marks),
                    logprobs=tuple(p if is_trained else 0.0 for p, is_trained in zip(logprobs, marks, strict=True)),
                    advantage=(1.0, -0.25, -0.75)[member],
                    policy_version=0,
                    trajectory_id=f"{group}/{member}",
                )
            )
    return rows


def open_policy(folder: Path, *, dtype: DtypeName = "float32") -> LoraPolicy:
    """A policy whose adapter already does something: with B = 0, A would have no gradient."""
    policy = LoraPolicy(folder, LORA, seed=0, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    for layer in policy.layers.values():
        layer.lora_B.data.normal_(0.0, 0.05, generator=generator)
    policy.refresh()
    return policy


def packed_gradients(
    policy: LoraPolicy, rows: list[TokenSample], objective: Objective, *, max_tokens: int
) -> tuple[float, dict[str, Tensor]]:
    for parameter in policy.parameters.values():
        parameter.grad = None
    sums = accumulate_gradient(policy, rows, pack(rows, max_tokens=max_tokens), objective)
    gradients = {}
    for name, parameter in policy.parameters.items():
        assert parameter.grad is not None
        gradients[name] = parameter.grad.clone()
    return sums.loss, gradients


def peft_model(folder: Path, policy: LoraPolicy, adapter_folder: Path) -> Any:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    write_adapter(adapter_folder, LORA, policy.layers, base_model=str(folder))
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with warnings.catch_warnings():
        # PEFT asks for it under the name that transformers 5.24 has deprecated.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        return PeftModel.from_pretrained(base, adapter_folder, is_trainable=True).eval()


def peft_gradients(model: Any, rows: list[TokenSample], objective: Objective) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients from one full forward pass per row, everything left to autograd."""
    total = 0.0
    model.zero_grad()
    for row, weight in zip(rows, token_weights(rows, objective), strict=True):
        logits = model(torch.tensor([row.token_ids])).logits[0, :-1]
        trained = torch.tensor(row.trained[1:])
        logp = logits.log_softmax(-1)[torch.arange(len(row.token_ids) - 1), torch.tensor(row.token_ids[1:])][trained]
        tokens = ScoredTokens(
            logp=logp,
            old_logp=logp.detach(),
            sampler_logp=torch.tensor(row.logprobs[1:])[trained],
            advantage=torch.full_like(logp, row.advantage),
            weight=torch.full_like(logp, weight),
            row=torch.zeros_like(logp, dtype=torch.int64),
            num_rows=1,
        )
        loss = objective_loss(objective, tokens)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    gradients = {
        name.removeprefix("base_model.model.").removesuffix(".default.weight"): parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    return total, gradients


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(found) == set(expected)
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    for name, gradient in expected.items():
        assert float((found[name] - gradient).abs().max()) < min(1e-5, 2e-5 * scale), name


@pytest.mark.parametrize("loss", get_args(LossName))
def test_gradients_are_those_of_plain_autograd(tiny: Path, tmp_path: Path, loss: LossName) -> None:
    policy, rows, objective = open_policy(tiny), step_rows(), Objective(loss=loss)
    expected_loss, expected = peft_gradients(peft_model(tiny, policy, tmp_path), rows, objective)
    for max_tokens in (10_000, 40, 1):
        found_loss, found = packed_gradients(policy, rows, objective, max_tokens=max_tokens)
        assert found_loss == pytest.approx(expected_loss, rel=1e-5)
        assert_same(found, expected)


def test_sharing_is_real_in_that_comparison() -> None:
    (whole,) = pack(step_rows(), max_tokens=10_000)
    assert len(whole) < 0.6 * whole.row_tokens
    assert max(len(segment.ancestors) for segment in whole.segments) >= 2
    assert len(whole.predictions) < len(whole.targets)
    assert len(pack(step_rows(), max_tokens=1)) == 6


def _write(folder: Path, model_class: str, config_class: str, **options: Any) -> Path:
    import transformers

    config = getattr(transformers, config_class)(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        pad_token_id=0,
        **options,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        getattr(transformers, model_class)(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("model_class", "config_class", "options"),
    [
        ("Qwen2ForCausalLM", "Qwen2Config", {}),
        ("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 8, "tie_word_embeddings": True}),
        ("MistralForCausalLM", "MistralConfig", {"sliding_window": 5}),
    ],
    ids=["biased projections", "normalised queries and keys", "sliding window"],
)
def test_other_architectures_give_the_same_gradients(
    tmp_path: Path, model_class: str, config_class: str, options: dict[str, Any]
) -> None:
    folder = _write(tmp_path / "model", model_class, config_class, **options)
    (tmp_path / "adapter").mkdir()
    policy, rows, objective = open_policy(folder), step_rows(100), Objective(loss="cispo")
    expected_loss, expected = peft_gradients(peft_model(folder, policy, tmp_path / "adapter"), rows, objective)
    found_loss, found = packed_gradients(policy, rows, objective, max_tokens=10_000)
    assert found_loss == pytest.approx(expected_loss, abs=5e-6)  # a sum of terms of either sign, each about 1
    assert_same(found, expected)


def test_an_architecture_with_other_attention_is_refused(tmp_path: Path) -> None:
    folder = _write(tmp_path, "Gemma2ForCausalLM", "Gemma2Config", head_dim=8)
    with pytest.raises(ConfigError, match="softcap"):
        LoraPolicy(folder, LORA, seed=0, dtype="float32")


def test_an_architecture_with_another_output_layer_is_refused(tmp_path: Path) -> None:
    folder = _write(tmp_path, "GraniteForCausalLM", "GraniteConfig", logits_scaling=8.0)
    with pytest.raises(ConfigError, match="GraniteForCausalLM: log-probabilities of a packed forward pass differ"):
        LoraPolicy(folder, LORA, seed=0, dtype="float32")


def test_an_adapter_on_the_output_layer_is_refused(tmp_path: Path) -> None:
    folder = _write(tmp_path, "LlamaForCausalLM", "LlamaConfig", tie_word_embeddings=False)
    with pytest.raises(ConfigError, match="output layer is a LoraLinear"):
        LoraPolicy(folder, LoraConfig(target_modules=("q_proj", "lm_head")), seed=0, dtype="float32")


def test_without_an_adapter_on_the_whole_feed_forward_block_it_is_left_as_it_is(tiny: Path) -> None:
    partly = LoraPolicy(tiny, LoraConfig(target_modules=("q_proj", "up_proj")), seed=0, dtype="float32")
    whole = LoraPolicy(tiny, LORA, seed=0, dtype="float32")
    assert sum(isinstance(module, GatedMlp) for module in partly._model.modules()) == 0
    assert sum(isinstance(module, GatedMlp) for module in whole._model.modules()) == 2


def test_the_first_policy_is_the_base_model(tiny: Path) -> None:
    from transformers import AutoModelForCausalLM

    (row,) = step_rows()[:1]
    (batch,) = pack([row], max_tokens=1000)
    with torch.no_grad():
        found, _ = LoraPolicy(tiny, LORA, seed=0, dtype="float32").logprobs(batch)
        plain: Any = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
        logp = plain(torch.tensor([row.token_ids])).logits[0].log_softmax(-1)
    expected = torch.stack([logp[parent, token_id] for parent, token_id in batch.predictions])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_bfloat16_comes_close_to_float32(tiny: Path) -> None:
    (batch,) = pack(step_rows(), max_tokens=10_000)
    with torch.no_grad():
        exact, _ = open_policy(tiny).logprobs(batch)
        short, _ = open_policy(tiny, dtype="bfloat16").logprobs(batch)
    assert float((exact - short).abs().mean()) < 0.05


def test_the_callback_runs_in_every_layer_forward_and_backward(tiny: Path) -> None:
    policy, rows, calls = open_policy(tiny), step_rows(), []
    accumulate_gradient(policy, rows, pack(rows, max_tokens=10_000), Objective(), on_layer=lambda: calls.append(1))
    assert len(calls) == 4
