"""Losses and gradients against TRL's own, computed on the same rows by its `GRPOTrainer` in float32.

Two comparisons. The first hands the log-probabilities of one small model to our losses and to TRL's, and compares the
gradients of all its weights. The second goes the whole way: our packed forward pass with merged low-rank factors, and
TRL over PEFT's, compared on the gradients of the factors.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from art_core.objective import Objective
from art_core.trainers.batch import pack
from art_core.trainers.gradient import KnownRow, accumulate_gradient
from art_core.trainers.loss import ScoredTokens, correction_weights, kl_estimate, objective_loss
from art_core.trainers.policy import LoraPolicy
from art_core.types import TokenSample
from art_core.weights.lora import LoraConfig, write_adapter

pytestmark = pytest.mark.slow  # importing TRL takes seconds

V, P, C, B = 32, 4, 6, 3
CONSTANT = 8
ADVANTAGE = torch.tensor([1.0, -0.5, 0.25])
TOKENS = (torch.arange(B * (P + C)).reshape(B, P + C) * 7 + 3) % 30 + 2
COMPLETION = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
TRAINED = torch.tensor([[1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
OFF_POLICY = ((torch.arange(B * C).reshape(B, C) % 5) - 2) * 0.2
"""By how much log-probabilities have risen since the step began: from -0.4 to 0.4, so that clips bite."""
MISMATCH = ((torch.arange(B * C).reshape(B, C) % 7) - 2) * 0.25
REFERENCE = ((torch.arange(B * C).reshape(B, C) % 3) - 1) * 0.3


@dataclasses.dataclass(frozen=True)
class Pair:
    """One of our objectives, and what TRL calls it."""

    objective: Objective
    loss_type: str
    level: str = "token"

    @property
    def options(self) -> dict[str, Any]:
        high = self.objective.clip_high or 0.0
        return {
            "loss_type": self.loss_type,
            "importance_sampling_level": self.level,
            "epsilon": self.objective.clip_low or 0.2,
            "epsilon_high": 1.0 + high if self.loss_type == "cispo" else high,  # for cispo TRL names the ratio itself
        }


CLIP: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.28, "constant_length": CONSTANT}
PAIRS = {
    "grpo": Pair(Objective(loss="ppo", aggregation="row", **CLIP), "grpo"),
    "grpo by trajectory": Pair(Objective(loss="ppo", **CLIP), "grpo"),
    "bnpo": Pair(Objective(loss="ppo", aggregation="token", **CLIP), "bnpo"),
    "dapo": Pair(Objective(loss="dapo", **CLIP), "dapo"),
    "dr_grpo": Pair(Objective(loss="dr_grpo", **CLIP), "dr_grpo"),
    "gspo": Pair(Objective(loss="gspo", **CLIP), "grpo", "sequence"),
    "gspo by token": Pair(Objective(loss="gspo", aggregation="token", **CLIP), "dapo", "sequence"),
    "gspo by a constant": Pair(Objective(loss="gspo", aggregation="constant", **CLIP), "dr_grpo", "sequence"),
    "cispo": Pair(Objective(loss="cispo", clip_high=0.2), "cispo"),
    "grpo with KL": Pair(Objective(loss="ppo", kl_coef=0.3, **CLIP), "grpo"),
    "dapo with KL": Pair(Objective(loss="dapo", kl_coef=0.3, **CLIP), "dapo"),
    "cispo with KL": Pair(Objective(loss="cispo", clip_high=0.2, kl_coef=0.3), "cispo"),
    "gspo with KL": Pair(Objective(loss="gspo", kl_coef=0.3, **CLIP), "grpo", "sequence"),
}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what other libraries say about each other
        yield


def small_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
        initializer_range=0.5,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).float().eval()


def trl_trainer(model: Any, folder: Path, pair: Pair) -> Any:
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(V)}, unk_token="t0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="t0", eos_token="t1", unk_token="t0")
    config = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=CONSTANT,
        report_to="none",
        gradient_checkpointing=False,
        gradient_accumulation_steps=1,
        **pair.options,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda **_: [0.0],
        args=config,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": ["t2"] * 4}),
    )
    trainer.model.eval()  # no dropout, as we have none; TRL leaves out its divisions by accumulated steps then
    trainer.current_gradient_accumulation_steps = 1
    trainer.beta = pair.objective.kl_coef  # told earlier, it would look for the reference model on a hub
    return trainer


def trl_inputs(**more: Any) -> dict[str, Any]:
    ids = TOKENS.clone()
    ids[:, P:][COMPLETION == 0] = 0
    return {
        "prompt_ids": ids[:, :P],
        "prompt_mask": torch.ones(B, P, dtype=torch.long),
        "completion_ids": ids[:, P:],
        "completion_mask": COMPLETION,
        "tool_mask": TRAINED,
        "advantages": ADVANTAGE,
        "num_items_in_batch": (COMPLETION * TRAINED).sum(),
        **more,
    }


def completion_logprobs(model: Any) -> Tensor:
    ids = trl_inputs()
    whole = torch.cat([ids["prompt_ids"], ids["completion_ids"]], dim=1)
    mask = torch.cat([ids["prompt_mask"], ids["completion_mask"]], dim=1)
    logp = model(input_ids=whole, attention_mask=mask).logits.log_softmax(-1)[:, P - 1 : -1]
    found: Tensor = logp.gather(-1, ids["completion_ids"][..., None])[..., 0]
    return found


def samples(logprobs: Tensor) -> list[TokenSample]:
    """The rows of TRL's tensors, cut after their last completion token."""
    rows = []
    for index in range(B):
        length = P + int(COMPLETION[index].sum())
        trained = [False] * P + TRAINED[index].bool().tolist()
        recorded = [0.0] * P + logprobs[index].tolist()
        rows.append(
            TokenSample(
                token_ids=tuple(TOKENS[index, :length].tolist()),
                trained=tuple(trained[:length]),
                logprobs=tuple(p if own else 0.0 for p, own in zip(recorded[:length], trained[:length], strict=True)),
                advantage=float(ADVANTAGE[index]),
                policy_version=0,
                trajectory_id=str(index),
            )
        )
    return rows


def scored(objective: Objective, logp: Tensor, old: Tensor, sampler: Tensor, reference: Tensor) -> ScoredTokens:
    from art_core.trainers.aggregation import token_weights

    mask = TRAINED.bool()
    row = torch.arange(B)[:, None].expand(B, C)[mask]
    return ScoredTokens(
        logp=logp[mask],
        old_logp=old[mask],
        sampler_logp=sampler[mask],
        advantage=ADVANTAGE[row],
        weight=torch.tensor(token_weights(samples(sampler), objective))[row],
        row=row,
        num_rows=B,
        reference_logp=reference[mask] if objective.kl_coef else None,
    )


def gradients(model: Any) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("name", PAIRS)
def test_loss_and_gradient_of_all_weights(name: str, tmp_path: Path) -> None:
    pair = PAIRS[name]
    ours = small_model()
    logp = completion_logprobs(ours)
    old = logp.detach() - OFF_POLICY
    reference = logp.detach() + REFERENCE
    loss = objective_loss(pair.objective, scored(pair.objective, logp, old, old, reference))
    loss.backward()  # type: ignore[no-untyped-call]

    theirs = trl_trainer(small_model(), tmp_path, pair)
    inputs = trl_inputs(old_per_token_logps=old)
    if pair.objective.kl_coef:
        inputs["ref_per_token_logps"] = reference
    trl_loss = theirs.compute_loss(theirs.model, inputs)
    trl_loss.backward()
    assert loss.item() == pytest.approx(trl_loss.item(), abs=1e-5)
    assert float((gradients(ours) - gradients(theirs.model)).abs().max()) < 1e-5
    assert float(gradients(ours).norm()) > 0.1


@pytest.mark.parametrize("how", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_correction_of_the_mismatch(how: Any, tmp_path: Path) -> None:
    """TRL makes its ratio while it generates, with this arithmetic; its loss takes it from the inputs."""
    objective = Objective(loss="dapo", correction=how, correction_max=1.5)
    ours = small_model()
    logp = completion_logprobs(ours)
    old = logp.detach() - OFF_POLICY
    sampler = old - MISMATCH
    tokens = scored(objective, logp, old, sampler, old)
    loss = objective_loss(objective, tokens)
    loss.backward()  # type: ignore[no-untyped-call]

    difference = (old - sampler) * TRAINED
    summed = difference.sum(-1, keepdim=True) if how.startswith("sequence") else difference
    ratio = torch.exp(summed)
    ratio = ratio.clamp(max=1.5) if how.endswith("truncate") else ratio.masked_fill(ratio > 1.5, 0.0)
    assert int((correction_weights(objective, tokens) != 1.0).sum()) > 0

    theirs = trl_trainer(small_model(), tmp_path, Pair(objective, "dapo"))
    theirs.use_vllm = theirs.vllm_importance_sampling_correction = True  # it reads the ratio only then
    inputs = trl_inputs(old_per_token_logps=old, importance_sampling_ratio=ratio)
    trl_loss = theirs.compute_loss(theirs.model, inputs)
    trl_loss.backward()
    assert loss.item() == pytest.approx(trl_loss.item(), abs=1e-5)
    assert float((gradients(ours) - gradients(theirs.model)).abs().max()) < 1e-5


@pytest.mark.parametrize("name", PAIRS)
def test_gradient_of_the_adapter_through_packed_rows(name: str, tmp_path: Path) -> None:
    """Ours: rows packed, weights merged, the head on trained tokens only. TRL: padded rows through PEFT's layers."""
    from peft import PeftModel

    pair = PAIRS[name]
    folder, adapter = tmp_path / "model", tmp_path / "adapter"
    base = small_model()
    base.save_pretrained(folder)
    adapter.mkdir()
    lora = LoraConfig(rank=4, alpha=8.0)
    policy = LoraPolicy(folder, lora, seed=0, dtype="float32")
    with torch.no_grad():
        for index, (factor, parameter) in enumerate(sorted(policy.parameters.items())):
            if factor.endswith("lora_B"):  # a fresh adapter is zero, and then half of the gradients are
                parameter.copy_(torch.sin(torch.arange(parameter.numel()) + index).view_as(parameter) * 0.05)
    policy.refresh()
    write_adapter(adapter, lora, policy.layers, base_model=str(folder))
    model = PeftModel.from_pretrained(small_model(), adapter, is_trainable=True).eval()
    logp = completion_logprobs(model).detach()
    old, reference = logp - OFF_POLICY, logp + REFERENCE

    rows = samples(old)
    mask = TRAINED.bool()
    known = [
        KnownRow(old=old[i][mask[i]], reference=reference[i][mask[i]] if pair.objective.kl_coef else None)
        for i in range(B)
    ]
    sums = accumulate_gradient(policy, rows, pack(rows, max_tokens=12), pair.objective, known=known)

    theirs = trl_trainer(model, tmp_path / "trl", pair)
    inputs = trl_inputs(old_per_token_logps=old)
    if pair.objective.kl_coef:
        inputs["ref_per_token_logps"] = reference
        estimate = kl_estimate(logp[mask], reference[mask], "k3")
        assert sums.shift.kl_reference == pytest.approx(float(estimate.sum()), abs=1e-4)
    trl_loss = theirs.compute_loss(theirs.model, inputs)
    trl_loss.backward()
    assert sums.loss == pytest.approx(trl_loss.item(), abs=1e-5)
    expected = {
        name.split("base_model.model.")[-1].removesuffix(".default.weight"): parameter.grad
        for name, parameter in theirs.model.named_parameters()
        if parameter.grad is not None
    }
    assert set(expected) == set(policy.parameters)
    for name, gradient in expected.items():
        found = policy.parameters[name].grad
        assert found is not None
        assert float((found - gradient).abs().max()) < 1e-5, name
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-2
