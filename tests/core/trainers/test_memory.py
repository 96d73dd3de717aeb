"""Micro-batches within a memory budget, and layers that are computed again."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from art_core.errors import ConfigError
from art_core.objective import Objective
from art_core.testing import write_tiny_model
from art_core.trainers.batch import pack
from art_core.trainers.gradient import accumulate_gradient
from art_core.trainers.memory import ActivationMemory
from art_core.trainers.policy import LoraPolicy, plain_row
from art_core.weights.lora import LoraConfig

# A layer keeps 100 bytes per token, or 10 when it is computed again; computing it takes 200.
MEMORY = ActivationMemory(num_layers=4, kept_bytes=400.0, input_bytes=10.0, budget_bytes=6000)


def test_bytes_of_a_token() -> None:
    assert [MEMORY.token_bytes(layers) for layers in range(5)] == [600.0, 510.0, 420.0, 330.0, 240.0]


def test_as_few_layers_are_computed_again_as_the_budget_allows() -> None:
    assert [MEMORY.recomputed_layers(tokens) for tokens in (1, 10, 11, 14, 15, 18, 19, 25, 26)] == [
        0, 0, 1, 2, 3, 3, 4, 4, 4,
    ]  # fmt: skip


def test_more_tokens_than_the_budget_holds_have_all_layers_computed_again() -> None:
    assert MEMORY.recomputed_layers(1000) == 4


def test_a_model_without_such_layers_has_none_computed_again() -> None:
    memory = ActivationMemory(num_layers=0, kept_bytes=400.0, input_bytes=10.0, budget_bytes=6000)
    assert memory.recomputed_layers(1000) == 0
    assert [len(batch) for batch in memory.micro_batches([plain_row([1, 2, 3], num_completion=2)])] == [2]


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="a memory budget of 0 bytes holds nothing"):
        ActivationMemory(num_layers=1, kept_bytes=1.0, input_bytes=1.0, budget_bytes=0)


def test_rows_that_share_little_are_kept_in_small_micro_batches() -> None:
    rows = [plain_row([first, *range(100, 105)], num_completion=1) for first in range(8)]
    assert [len(batch) for batch in MEMORY.micro_batches(rows)] == [10, 10, 10, 10]


def test_rows_that_share_much_are_put_together_though_layers_are_computed_again() -> None:
    rows = [plain_row([*range(100, 108), last, 1], num_completion=1) for last in range(8)]
    batches = MEMORY.micro_batches(rows)
    assert [len(batch) for batch in batches] == [16]
    assert MEMORY.recomputed_share(batches) == 3 / 4


def test_a_stated_size_is_kept_to() -> None:
    rows = [plain_row([*range(100, 108), last, 1], num_completion=1) for last in range(8)]
    assert [len(batch) for batch in MEMORY.micro_batches(rows, max_tokens=11)] == [11, 11, 10]


def test_computing_layers_again_changes_no_bit(tiny: Path) -> None:
    rows = [plain_row([*range(5, 40), first, *range(50, 60)], num_completion=11) for first in range(3, 6)]
    (batch,) = pack(rows, max_tokens=1000)
    policy = LoraPolicy(tiny, LoraConfig(rank=4), seed=0, dtype="float32")
    for layer in policy.layers.values():
        layer.lora_B.data.normal_(0.0, 0.05, generator=torch.Generator().manual_seed(1))
    policy.refresh()
    losses, results = [], []
    calls: list[int] = []
    for recomputed in range(3):
        budget = math.ceil(len(batch) * policy.memory.token_bytes(recomputed))
        policy.memory = replace(policy.memory, budget_bytes=budget)
        assert policy.memory.recomputed_layers(len(batch)) == recomputed
        before = len(calls)
        sums = accumulate_gradient(policy, rows, [batch], Objective(loss="sft"), on_layer=lambda: calls.append(1))
        assert len(calls) - before == 4 + recomputed
        losses.append(sums.loss)
        results.append([each.grad for each in policy.parameters.values() if each.grad is not None])
        for each in policy.parameters.values():
            each.grad = None
    assert losses == [losses[0]] * 3
    assert [len(gradients) for gradients in results] == [28] * 3
    for other in results[1:]:
        assert all(torch.equal(*pair) for pair in zip(results[0], other, strict=True))


def test_what_a_model_keeps_is_measured(tiny: Path) -> None:
    """Hidden size 32, feed-forward 64, 4 heads of 8 over 2: float32, so four bytes a number."""
    memory = LoraPolicy(tiny, LoraConfig(rank=4), seed=0, dtype="float32").memory
    assert (memory.num_layers, memory.input_bytes) == (2, 4 * 32)
    layer = memory.kept_bytes / 2
    # At the least its input, the two normed inputs, queries, keys, values, attention's output, gate and up projection.
    assert 4 * (3 * 32 + 2 * 32 + 2 * 16 + 2 * 64) < layer < 4 * 3 * (3 * 32 + 2 * 32 + 2 * 16 + 2 * 64)


_LONG_ROW = r"""
import re, sys, torch
from pathlib import Path
from art_core.trainers.gradient import accumulate_gradient
from art_core.trainers.policy import LoraPolicy, plain_row
from art_core.objective import Objective
from art_core.weights.lora import LoraConfig

torch.set_num_threads(1)
policy = LoraPolicy(Path(sys.argv[1]), LoraConfig(), seed=0, dtype="float32", activation_bytes=16 * 2**20)
def peak():  # of this process alone: `ru_maxrss` begins with what the process that started it has
    return int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
def step(length):
    row = plain_row([3 + at % 200 for at in range(length)], num_completion=length // 2)
    accumulate_gradient(policy, [row], policy.memory.micro_batches([row]), Objective(loss="sft"))
    return peak()
before = step(512)
print(step(8192) - before, policy.memory.kept_bytes * 8192)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of one process is told on Linux only")
def test_a_row_of_8k_tokens_stays_near_the_budget(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "m", max_context_tokens=8192, num_layers=6)
    done = subprocess.run(
        [sys.executable, "-c", _LONG_ROW, str(folder)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    grown, kept_without = (float(number) for number in done.stdout.split())
    assert kept_without > 4 * 16 * 2**20
    # One float32 number for each pair of tokens would be 268 MB more.
    assert grown < 16 * 2**20 + 64 * 2**20
