from __future__ import annotations

import asyncio
import contextlib
import math
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from art_core.errors import (
    AdapterMismatchError,
    ConfigError,
    ContextLengthError,
    DataError,
    NonFiniteLossError,
    StorageError,
)
from art_core.objective import LossName, Objective
from art_core.testing import write_tiny_model
from art_core.trainers.native import NativeTrainer, NativeTrainerConfig
from art_core.trainers.optimizer_state import OPTIMIZER_FILE, RandomState
from art_core.types import Checkpoint, TokenSample
from art_core.weights.lora import LoraConfig

Open = Callable[..., NativeTrainer]
RL = Objective(loss="ppo", learning_rate=1e-3)


@pytest.fixture
async def open_trainer(tiny: Path) -> AsyncIterator[Open]:
    opened: list[NativeTrainer] = []

    def make(folder: Path = tiny, **options: Any) -> NativeTrainer:
        config = {"lora": LoraConfig(rank=4, alpha=8.0), "seed": 0, **options}
        opened.append(NativeTrainer(NativeTrainerConfig(model_folder=folder, base_model="tiny", **config)))
        return opened[-1]

    yield make
    for trainer in opened:
        await trainer.aclose()


def row(completion: tuple[int, ...] = (30, 40, 50), *, advantage: float = 1.0, version: int = 0) -> TokenSample:
    prompt = (1, 10, 11, 12)
    return TokenSample(
        token_ids=prompt + completion,
        trained=(False,) * 4 + (True,) * len(completion),
        logprobs=(0.0,) * 4 + (-5.5,) * len(completion),
        advantage=advantage,
        policy_version=version,
        trajectory_id=str(completion),
    )


ROWS = [row((30, 40, 50)), row((31, 41), advantage=-0.5), row((30, 60, 61, 62), advantage=-0.5)]


def save(trainer: NativeTrainer, folder: Path) -> Checkpoint:
    folder.mkdir(parents=True)
    trainer.save(folder)
    return Checkpoint(trainer.step_count, folder)


def stored(folder: Path) -> dict[str, Tensor]:
    """Every number of a checkpoint, adapter and optimiser."""
    adapter = load_file(folder / "adapter_model.safetensors")
    return {**adapter, **{f"optimizer/{name}": value for name, value in load_file(folder / OPTIMIZER_FILE).items()}}


def assert_identical(left: Path, right: Path) -> None:
    first, second = stored(left), stored(right)
    assert set(first) == set(second)
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


async def test_micro_batches_change_the_step_only_by_rounding(open_trainer: Open, tmp_path: Path) -> None:
    reports = []
    for name, budget in (("whole", 10_000), ("split", 6), ("single", 1)):
        trainer = open_trainer(micro_batch_tokens=budget)
        # The second step is the first whose gradient reaches the factors A.
        await trainer.step(ROWS, RL)
        reports.append((await trainer.step(ROWS, RL)).metrics)
        save(trainer, tmp_path / name)
    assert [metrics["train/micro_batches"] for metrics in reports] == [1.0, 3.0, 3.0]
    same = ("train/loss", "train/grad_norm", "train/entropy", "train/ratio_mean", "train/clip_share", "mismatch/kl")
    for key in (*same, "mismatch/logprob_diff_max", "mismatch/corrected_share", "train/advantage_abs_mean"):
        values = [metrics[key] for metrics in reports]
        assert values[1:] == pytest.approx([values[0]] * 2, rel=1e-5), key
    whole, single = stored(tmp_path / "whole"), stored(tmp_path / "single")
    for name, tensor in whole.items():
        if "exp_avg" in name:
            torch.testing.assert_close(single[name], tensor, rtol=1e-4, atol=1e-6)


async def test_the_order_of_rows_does_not_matter(open_trainer: Open, tmp_path: Path) -> None:
    for name, rows in (("forward", ROWS), ("backward", ROWS[::-1])):
        trainer = open_trainer()
        await trainer.step(rows, RL)
        save(trainer, tmp_path / name)
    assert_identical(tmp_path / "forward", tmp_path / "backward")


async def test_the_report_says_what_was_computed(open_trainer: Open) -> None:
    metrics = (await open_trainer().step([*ROWS, row(())], RL)).metrics
    assert metrics["train/rows"] == 4.0
    assert metrics["train/rows_untrained"] == 1.0
    assert metrics["train/trained_tokens"] == 9.0
    assert metrics["train/row_tokens"] == 6.0 + 5.0 + 7.0
    # The prompt once, 30 once, then 40, 60 61, and 31.
    assert metrics["train/computed_tokens"] == 4.0 + 1.0 + 1.0 + 2.0 + 1.0
    assert metrics["train/learning_rate"] == 1e-3
    assert metrics["train/tokens_per_s"] == pytest.approx(9.0 / metrics["train/step_s"])


@pytest.mark.parametrize(("loss", "of_rows"), [("ppo", 0.0), ("gspo", 1.0)])
async def test_the_report_says_whether_the_clip_is_of_rows(open_trainer: Open, loss: LossName, of_rows: float) -> None:
    assert (await open_trainer().step(ROWS, Objective(loss=loss))).metrics["train/row_ratio"] == of_rows


async def test_policy_lag_is_the_steps_since_the_oldest_row_was_sampled(open_trainer: Open) -> None:
    trainer = open_trainer()
    for _ in range(2):
        await trainer.step(ROWS, RL)
    report = await trainer.step([row(version=1), row((31,), version=2)], RL)
    assert report.metrics["train/policy_lag_max"] == 1.0


async def test_statistics_of_the_sampler_are_absent_from_supervised_steps(open_trainer: Open) -> None:
    metrics = (await open_trainer().step(ROWS, Objective(loss="sft", learning_rate=1e-3))).metrics
    assert "mismatch/kl" not in metrics
    assert metrics["train/loss"] > 0.0


async def test_supervised_steps_lower_the_loss_of_their_rows(open_trainer: Open) -> None:
    trainer = open_trainer()
    objective = Objective(loss="sft", learning_rate=2e-2)
    losses = [(await trainer.step(ROWS, objective)).metrics["train/loss"] for _ in range(20)]
    # Rows that go on differently after equal tokens cannot all be certain: nats of first and second tokens, over nine.
    floor = (2 * math.log(3 / 2) + math.log(3) + 2 * math.log(2)) / 9
    assert losses[0] > 4.0
    assert floor < losses[-1] < 0.4 * losses[0]


@pytest.mark.parametrize("loss", ["ppo", "cispo"])
async def test_rl_raises_what_was_better_and_lowers_what_was_worse(open_trainer: Open, loss: LossName) -> None:
    trainer = open_trainer()

    async def logp(sample: TokenSample) -> float:
        return sum(await trainer.logprobs(sample.token_ids, num_completion=sample.num_trained))

    async def on_policy(sample: TokenSample) -> TokenSample:
        values = await trainer.logprobs(sample.token_ids, num_completion=sample.num_trained)
        return TokenSample(
            sample.token_ids,
            sample.trained,
            (*([0.0] * (len(sample.token_ids) - len(values))), *values),
            sample.advantage,
            trainer.step_count,
            sample.trajectory_id,
        )

    better, worse = row((30, 40), advantage=1.0), row((31, 41), advantage=-1.0)
    before = [await logp(better), await logp(worse)]
    for _ in range(5):
        report = await trainer.step(
            [await on_policy(better), await on_policy(worse)], Objective(loss=loss, learning_rate=5e-3)
        )
        assert report.metrics["train/ratio_mean"] == pytest.approx(1.0, abs=1e-4)
        assert report.metrics["mismatch/logprob_diff_max"] < 1e-4
    assert await logp(better) > before[0] + 0.2
    assert await logp(worse) < before[1] - 0.2


async def test_rows_without_advantage_move_nothing_but_weigh_in_the_mean(open_trainer: Open) -> None:
    alone = (await open_trainer().step([row()], RL)).metrics
    diluted = (await open_trainer().step([row(), row((70, 71, 72), advantage=0.0)], RL)).metrics
    assert diluted["train/loss"] == pytest.approx(alone["train/loss"] / 2, rel=1e-5)
    assert diluted["train/grad_norm"] == pytest.approx(alone["train/grad_norm"] / 2, rel=1e-5)


async def test_the_gradient_is_clipped_to_its_norm(open_trainer: Open, tmp_path: Path) -> None:
    trainer = open_trainer(grad_clip=1e-3)
    metrics = (await trainer.step(ROWS, RL)).metrics
    assert metrics["train/grad_norm"] > 1e-2
    save(trainer, tmp_path / "clipped")
    first_moments = [value for name, value in stored(tmp_path / "clipped").items() if name.endswith("exp_avg")]
    # After one step the first moment is (1 - 0.9) times the gradient.
    norm = math.sqrt(sum(float(value.square().sum()) for value in first_moments)) / 0.1
    assert norm == pytest.approx(1e-3, rel=1e-3)


async def test_a_refused_step_leaves_weights_and_optimiser_bit_for_bit(open_trainer: Open, tmp_path: Path) -> None:
    trainer = open_trainer()
    await trainer.step(ROWS, RL)
    save(trainer, tmp_path / "before")
    with pytest.raises(DataError, match="none of the 1 rows has a trained token"):
        await trainer.step([row(())], RL)
    with pytest.raises(NonFiniteLossError, match="the advantage is nan"):
        await trainer.step([*ROWS, row((90, 91), advantage=math.nan)], RL)
    with pytest.raises(NonFiniteLossError, match="gradient's norm is inf"):
        await trainer.step([*ROWS, row((90, 91), advantage=1e38)], Objective(loss="cispo", clip_high=1e3))
    save(trainer, tmp_path / "after")
    assert_identical(tmp_path / "before", tmp_path / "after")
    # And no remains of their gradients are in the next step.
    await trainer.step(ROWS, RL)
    save(trainer, tmp_path / "continued")
    fresh = open_trainer()
    for _ in range(2):
        await fresh.step(ROWS, RL)
    save(fresh, tmp_path / "fresh")
    assert_identical(tmp_path / "continued", tmp_path / "fresh")


async def test_a_ratio_beyond_all_numbers_names_the_trajectory(open_trainer: Open) -> None:
    bad = TokenSample((1, 10, 11), (False, False, True), (0.0, 0.0, -200.0), 1.0, 0, "culprit")
    with pytest.raises(
        NonFiniteLossError, match=r"trajectory 'culprit': a recorded logprob is -200 where the policy says"
    ):
        await open_trainer().step([*ROWS, bad], RL)


async def test_a_row_longer_than_the_model_reads_is_refused(tmp_path: Path, open_trainer: Open) -> None:
    folder = write_tiny_model(tmp_path, max_context_tokens=16)
    trainer = open_trainer(folder)
    assert (await trainer.step([row(tuple(range(20, 32)))], RL)).step == 1
    with pytest.raises(ContextLengthError, match="17 tokens, but the model reads at most 16"):
        await trainer.step([row(tuple(range(20, 33)))], RL)


async def test_logprobs_are_the_numbers_of_the_training_forward(open_trainer: Open) -> None:
    trainer = open_trainer()
    await trainer.step(ROWS, RL)
    recorded = await trainer.logprobs(ROWS[0].token_ids, num_completion=3)
    sample = TokenSample(
        ROWS[0].token_ids,
        ROWS[0].trained,
        (0.0,) * 4 + tuple(recorded),
        advantage=1.0,
        policy_version=1,
        trajectory_id="t",
    )
    metrics = (await trainer.step([sample], RL)).metrics
    assert metrics["mismatch/logprob_diff_max"] == pytest.approx(0.0, abs=1e-6)


async def test_a_cancelled_step_was_never_made(open_trainer: Open, tmp_path: Path) -> None:
    trainer = open_trainer()
    await trainer.step(ROWS, RL)
    save(trainer, tmp_path / "before")
    reached, go_on = threading.Event(), threading.Event()
    forward = trainer._policy.logprobs

    def slow_forward(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        reached.set()
        assert go_on.wait(10)
        return forward(*arguments, **options)

    trainer._policy.logprobs = slow_forward  # type: ignore[method-assign]
    task = asyncio.create_task(trainer.step(ROWS, RL))
    assert await asyncio.to_thread(reached.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert trainer.step_count == 1
    go_on.set()
    trainer._policy.logprobs = forward  # type: ignore[method-assign]
    save(trainer, tmp_path / "after")
    assert trainer.step_count == 1
    assert_identical(tmp_path / "before", tmp_path / "after")
    assert (await trainer.step(ROWS, RL)).step == 2


async def test_a_step_cancelled_while_it_is_being_made_was_made_whole(open_trainer: Open, tmp_path: Path) -> None:
    trainer, whole = open_trainer(), open_trainer()
    reached, go_on = threading.Event(), threading.Event()
    refresh = trainer._policy.refresh

    def slow_refresh() -> None:
        reached.set()
        assert go_on.wait(10)
        refresh()

    trainer._policy.refresh = slow_refresh  # type: ignore[method-assign]
    task = asyncio.create_task(trainer.step(ROWS, RL))
    assert await asyncio.to_thread(reached.wait, 10)
    threading.Timer(0.05, go_on.set).start()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert trainer.step_count == 1
    await whole.step(ROWS, RL)
    save(trainer, tmp_path / "cancelled")
    save(whole, tmp_path / "whole")
    assert_identical(tmp_path / "cancelled", tmp_path / "whole")


def test_random_numbers_of_two_trainers_in_one_process_are_their_own() -> None:
    alone, one, other = RandomState(1), RandomState(1), RandomState(2)
    with alone.used():
        torch.rand(3)
    entered = threading.Event()

    def draw() -> None:
        with one.used():
            entered.set()
            time.sleep(0.05)
            torch.rand(3)

    thread = threading.Thread(target=draw)
    thread.start()
    assert entered.wait(10)
    with other.used():
        time.sleep(0.15)
        torch.rand(5)
    thread.join()
    assert torch.equal(one.state, alone.state)


async def test_a_queued_step_that_is_cancelled_is_not_made(open_trainer: Open) -> None:
    trainer = open_trainer()
    first, second = (asyncio.create_task(trainer.step(ROWS, RL)) for _ in range(2))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert (await first).step == 1
    await trainer.logprobs([1, 2], num_completion=1)
    assert trainer.step_count == 1


async def test_three_steps_are_two_and_a_restored_one_bit_for_bit(open_trainer: Open, tmp_path: Path) -> None:
    unbroken, first = open_trainer(), open_trainer()
    for _ in range(3):
        await unbroken.step(ROWS, RL)
    for _ in range(2):
        await first.step(ROWS, RL)
    checkpoint = save(first, tmp_path / "two")
    second = open_trainer(seed=123)
    await second.step([row((99, 98))], RL)
    second.restore(checkpoint)
    report = await second.step(ROWS, RL)
    assert report.step == 3
    save(unbroken, tmp_path / "unbroken")
    save(second, tmp_path / "restored")
    assert_identical(tmp_path / "unbroken", tmp_path / "restored")
    probe = {"token_ids": [1, 10, 11, 12, 30, 40], "num_completion": 2}
    assert await second.logprobs(**probe) == await unbroken.logprobs(**probe)  # type: ignore[arg-type]


_CONTINUE = """
import asyncio, sys
from pathlib import Path
import torch
from art_core.trainers.native import NativeTrainer, NativeTrainerConfig
from art_core.objective import Objective
from art_core.types import Checkpoint, TokenSample
from art_core.weights.lora import LoraConfig

model, checkpoint, out = map(Path, sys.argv[1:])
torch.set_num_threads(1)
trainer = NativeTrainer(
    NativeTrainerConfig(model_folder=model, base_model="tiny", seed=77, lora=LoraConfig(rank=4, alpha=8.0))
)
trainer.restore(Checkpoint(2, checkpoint))
rows = [TokenSample(**row) for row in eval((out / "rows").read_text())]
asyncio.run(trainer.step(rows, Objective(loss="ppo", learning_rate=1e-3)))
trainer.save(out)
"""


@pytest.mark.slow
async def test_a_new_process_goes_on_bit_for_bit(open_trainer: Open, tiny: Path, tmp_path: Path) -> None:
    trainer = open_trainer()
    for _ in range(2):
        await trainer.step(ROWS, RL)
    checkpoint = save(trainer, tmp_path / "two")
    await trainer.step(ROWS, RL)
    save(trainer, tmp_path / "three")
    out = tmp_path / "other"
    out.mkdir()
    (out / "rows").write_text(repr([vars(sample) for sample in ROWS]))
    command = [sys.executable, "-c", _CONTINUE, str(tiny), str(checkpoint.path), str(out)]
    await asyncio.to_thread(lambda: subprocess.run(command, check=True, timeout=120))
    assert_identical(tmp_path / "three", out)


def test_random_numbers_of_a_trainer_do_not_depend_on_what_else_the_process_draws() -> None:
    one, same, other = RandomState(4), RandomState(4), RandomState(5)
    with torch.random.fork_rng(devices=[]):
        with one.used():
            first = torch.rand(3)
        torch.rand(7)
        with one.used():
            second = torch.rand(3)
        outside = torch.get_rng_state()
        with same.used():
            assert torch.equal(torch.rand(6), torch.cat([first, second]))
        with other.used():
            assert not torch.equal(torch.rand(3), first)
        assert torch.equal(torch.get_rng_state(), outside)
    with contextlib.suppress(RuntimeError), one.used():  # as before, where it fails
        torch.rand(3)
        raise RuntimeError
    assert torch.equal(one.state, same.state)


async def test_restoring_brings_back_the_random_state(open_trainer: Open, tmp_path: Path) -> None:
    first, second = open_trainer(), open_trainer(seed=1)
    checkpoint = save(first, tmp_path / "first")
    second.restore(checkpoint)
    save(second, tmp_path / "second")
    assert_identical(tmp_path / "first", tmp_path / "second")


async def test_a_full_disk_is_an_error_of_the_store_that_says_what_to_do(open_trainer: Open, tmp_path: Path) -> None:
    trainer = open_trainer()
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # as if the disk were full after 1000 bytes
    try:
        with pytest.raises(StorageError, match=r"could not save step 0 .* free some space"):
            save(trainer, tmp_path / "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def _remove(path: Path) -> None:
    path.unlink()


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def _drop_moment(path: Path) -> None:
    tensors = load_file(path)
    del tensors["model.layers.0.self_attn.q_proj.lora_B.exp_avg_sq"]
    save_file(tensors, path)


def _drop_step(path: Path) -> None:
    tensors = load_file(path)
    del tensors["step_count"]
    save_file(tensors, path)


@pytest.mark.parametrize("damage", [_remove, _truncate, _drop_moment, _drop_step])
async def test_a_damaged_optimiser_file_is_named_and_nothing_restarts(
    open_trainer: Open, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    trainer = open_trainer()
    await trainer.step(ROWS, RL)
    checkpoint = save(trainer, tmp_path / "checkpoint")
    await trainer.step(ROWS, RL)
    save(trainer, tmp_path / "before")
    damage(checkpoint.path / OPTIMIZER_FILE)
    with pytest.raises(StorageError, match=OPTIMIZER_FILE):
        trainer.restore(checkpoint)
    assert trainer.step_count == 2
    save(trainer, tmp_path / "after")
    assert_identical(tmp_path / "before", tmp_path / "after")


async def test_the_optimiser_of_other_parameters_is_refused(open_trainer: Open, tmp_path: Path) -> None:
    trainer = open_trainer()
    await trainer.step(ROWS, RL)
    checkpoint = save(trainer, tmp_path / "checkpoint")
    path = checkpoint.path / OPTIMIZER_FILE
    tensors = load_file(path)
    save_file({name.replace("q_proj", "qkv_proj"): tensor for name, tensor in tensors.items()}, path)
    with pytest.raises(AdapterMismatchError, match="qkv_proj"):
        trainer.restore(checkpoint)


@pytest.mark.parametrize(
    "lora",
    [
        LoraConfig(rank=2, alpha=8.0),
        LoraConfig(rank=4, alpha=4.0),
        LoraConfig(rank=4, alpha=8.0, target_modules=("q_proj",)),
    ],
    ids=["rank", "alpha", "layers"],
)
async def test_a_checkpoint_of_another_configuration_is_refused(
    open_trainer: Open, tmp_path: Path, lora: LoraConfig
) -> None:
    checkpoint = save(open_trainer(lora=lora), tmp_path / "checkpoint")
    with pytest.raises(AdapterMismatchError, match="continue with the settings it was trained with"):
        open_trainer().restore(checkpoint)


async def test_a_checkpoint_of_another_model_is_refused(open_trainer: Open, tmp_path: Path) -> None:
    deeper = write_tiny_model(tmp_path / "deeper", num_layers=3)
    checkpoint = save(open_trainer(deeper), tmp_path / "checkpoint")
    with pytest.raises(AdapterMismatchError, match=r"'model\.layers\.2\..*it was trained for another base model"):
        open_trainer().restore(checkpoint)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"micro_batch_tokens": 0}, "micro_batch_tokens is 0"),
        ({"grad_clip": 0.0}, "grad_clip is 0.0"),
        ({"grad_clip": math.nan}, "grad_clip is nan"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
        ({"betas": (0.9, 1.0)}, "betas is"),
        ({"betas": (0.9,)}, "betas is"),
        ({"num_threads": 0}, "num_threads is 0"),
        ({"num_threads": 1.5}, "num_threads is 1.5; wanted a whole number"),
        ({"micro_batch_tokens": True}, "micro_batch_tokens is True"),
        ({"grad_clip": "1"}, "grad_clip is '1'; wanted a number above 0"),
        ({"betas": 0.9}, "betas is 0.9; wanted two numbers"),
        ({"dtype": "float16"}, "dtype is 'float16'; wanted one of 'auto', 'float32', 'bfloat16'"),
    ],
)
def test_impossible_options_are_refused(tiny: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NativeTrainer(NativeTrainerConfig(model_folder=tiny, base_model="tiny", seed=0, **options))
