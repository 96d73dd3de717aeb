"""One optimiser step of the native trainer against TRL's GRPOTrainer, both on the same rows.

    python benchmarks/train_step.py [--model smollm2-135m] [--groups 1] [--members 8] [--prompt 512] [--new 64] \
        [--long 8192] [--repeats 2] [--threads N] [--dtype auto] [--trl-rows N]

A group is `--members` completions of `--new` tokens after the same prompt of `--prompt` tokens; every completion token
is trained. Both sides start from the same model and the same LoRA adapter on the same modules, take the loss `cispo`
as a mean over tokens, and make a whole step: gradient, clipping, AdamW. TRL runs its own loop (`trainer.train()`) and
is handed the rows where it would have generated them. It is tried first with micro-batches of 1, 2 and 4 rows, and with
gradient checkpointing and whole groups; the fastest is what is measured, in turns with ours, after a step of each that
is not. `--trl-rows` names a size of micro-batch that is known to be the fastest, which spares the trials. Both compute
in the same number type with the same threads.

Loss and gradient of the first step are compared. `--long` is the length of the row for which the peak memory of the
whole process is shown, each side in a process of its own, TRL with gradient checkpointing; 0 leaves it out. `--model`
is a name as `art serve` takes it, or a folder. Goal: 4.

The last line is `ratio train_step VALUE`: trained tokens per second, our median over TRL's.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from art_core.errors import ArtError
from art_core.objective import Objective
from art_core.trainers.gradient import accumulate_gradient
from art_core.trainers.native import NativeTrainer, NativeTrainerConfig
from art_core.trainers.policy import LoraPolicy
from art_core.types import DtypeName, TokenSample
from art_core.weights.loading import compute_dtype, load_causal_lm
from art_core.weights.lora import ALL_LINEAR, read_adapter
from art_core.weights.source import resolve_model

OBJECTIVE = Objective(loss="cispo", aggregation="token", correction="none", learning_rate=1e-5, clip_high=4.0)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Load:
    """How many rows there are, and the tokens of their parts."""

    groups: int
    members: int
    prompt: int
    new: int

    @property
    def trained(self) -> int:
        return self.groups * self.members * self.new


@dataclass(frozen=True)
class TrlSettings:
    """What is tried out for TRL: rows per micro-batch, and whether it computes activations again."""

    rows: int
    checkpointing: bool

    def __str__(self) -> str:
        return f"micro-batches of {self.rows}, gradient checkpointing {'on' if self.checkpointing else 'off'}"


@dataclass
class Timed:
    """Seconds of each measured step, and of the processor."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def add(self, work: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        self.wall_s.append(time.perf_counter() - wall)
        self.cpu_s.append(time.process_time() - cpu)
        return result


def rows_of(load: Load, vocabulary: int, *, seed: int) -> list[TokenSample]:
    rng = np.random.default_rng(seed)
    first = min(100, vocabulary // 2)

    def text(size: int) -> list[int]:
        ids: list[int] = rng.integers(first, vocabulary, size).tolist()
        return ids

    rows = []
    for group in range(load.groups):
        prompt = text(load.prompt)
        for member in range(load.members):
            rows.append(
                TokenSample(
                    token_ids=(*prompt, *text(load.new)),
                    trained=(False,) * load.prompt + (True,) * load.new,
                    logprobs=(0.0,) * load.prompt + (-10.0,) * load.new,
                    advantage=float(rng.normal()),
                    policy_version=0,
                    trajectory_id=f"{group}/{member}",
                )
            )
    return rows


def open_ours(folder: Path, dtype: DtypeName, threads: int | None) -> NativeTrainer:
    return NativeTrainer(
        NativeTrainerConfig(
            model_folder=folder, base_model=str(folder), seed=0, dtype=dtype, grad_clip=1e9, num_threads=threads
        )
    )


def our_gradient(folder: Path, adapter: Path, rows: list[TokenSample], dtype: DtypeName) -> dict[str, Tensor]:
    found = read_adapter(adapter)
    policy = LoraPolicy(folder, found.config, seed=0, dtype=dtype)
    policy.set_factors(found.factors)
    accumulate_gradient(policy, rows, policy.memory.micro_batches(rows), OBJECTIVE)
    return {name: each.grad for name, each in policy.parameters.items() if each.grad is not None}


def open_trl(
    folder: Path,
    adapter: Path,
    rows: Sequence[TokenSample],
    load: Load,
    settings: TrlSettings,
    *,
    dtype: DtypeName,
    steps: int,
) -> Any:
    """TRL's trainer for `steps` steps on `rows`, from a stored adapter or a fresh one; `first_loss` is its first."""
    from datasets import Dataset
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoTokenizer, PrinterCallback, ProgressCallback
    from trl import GRPOConfig, GRPOTrainer

    class Trainer(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, _inputs: Any) -> dict[str, Tensor]:
            ids = torch.tensor([row.token_ids for row in rows])
            return {
                "prompt_ids": ids[:, : load.prompt],
                "prompt_mask": torch.ones_like(ids[:, : load.prompt]),
                "completion_ids": ids[:, load.prompt :],
                "completion_mask": torch.ones_like(ids[:, load.prompt :]),
                "advantages": torch.tensor([row.advantage for row in rows]),
                "num_items_in_batch": torch.tensor(load.trained),
            }

        def compute_loss(self, *args: Any, **kwargs: Any) -> Tensor:
            loss: Tensor = super().compute_loss(*args, **kwargs)
            if self.state.global_step == 0:
                self.first_loss += loss.item()
            return loss

    base: Any = load_causal_lm(folder, dtype=compute_dtype(dtype, CPU), device=CPU)
    if (adapter / "adapter_config.json").exists():
        model = PeftModel.from_pretrained(base, adapter, is_trainable=True)
    else:
        model = get_peft_model(base, LoraConfig(r=16, lora_alpha=32, target_modules=list(ALL_LINEAR)))
    args = GRPOConfig(
        output_dir=str(adapter / "trl"),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=settings.rows,
        gradient_accumulation_steps=len(rows) // settings.rows,
        gradient_checkpointing=settings.checkpointing,
        num_generations=load.members,
        max_completion_length=load.new,
        max_steps=steps,
        loss_type="cispo",
        epsilon_high=5.0,
        beta=0.0,
        temperature=1.0,
        learning_rate=OBJECTIVE.learning_rate,
        lr_scheduler_type="constant",
        adam_beta2=0.99,
        weight_decay=0.0,
        max_grad_norm=1e9,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        reward_funcs=lambda **_: [0.0],
        args=args,
        processing_class=AutoTokenizer.from_pretrained(folder),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * load.groups}),
    )
    trainer.first_loss = 0.0
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return trainer


def run_trl(trainer: Any, timed: Timed, after: Callable[[], None] = lambda: None) -> dict[str, Tensor]:
    """Run the loop; note the time of each step, call `after` behind each, return the first step's gradient."""
    from transformers import TrainerCallback

    gradient: dict[str, Tensor] = {}
    started = [0.0, 0.0]

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_args: Any, **_kwargs: Any) -> None:
            started[:] = time.perf_counter(), time.process_time()

        def on_pre_optimizer_step(self, *_args: Any, model: Any, **_kwargs: Any) -> None:
            if not gradient:
                gradient.update(
                    {
                        name.removeprefix("base_model.model.").removesuffix(".default.weight"): each.grad.clone()
                        for name, each in model.named_parameters()
                        if each.requires_grad
                    }
                )

        def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
            timed.wall_s.append(time.perf_counter() - started[0])
            timed.cpu_s.append(time.process_time() - started[1])
            after()

    trainer.add_callback(Watch())
    trainer.train()
    return gradient


def measure(
    folder: Path, load: Load, *, repeats: int, threads: int | None, dtype: DtypeName, trl_rows: int | None
) -> tuple[Timed, Timed]:
    """The steps of both sides; prints what else there is to say."""
    rows = rows_of(load, vocabulary_of(folder), seed=0)
    with tempfile.TemporaryDirectory() as name:
        adapter = Path(name)
        ours = open_ours(folder, dtype, threads)
        # A step that moves the factors away from zero: where B is 0, A has no gradient to compare.
        asyncio.run(ours.step(rows, replace(OBJECTIVE, learning_rate=1e-2)))
        ours.save(adapter)
        ours_timed, trl_timed = Timed(), Timed()
        report = ours_timed.add(lambda: asyncio.run(ours.step(rows, OBJECTIVE)))
        computed, given = report.metrics["train/computed_tokens"], sum(len(row.token_ids) for row in rows)
        print(f"ours: rows of {given} tokens in all, {computed:.0f} of them computed")

        sizes = [size for size in (1, 2, 4) if len(rows) % size == 0]
        candidates = [*(TrlSettings(size, False) for size in sizes), TrlSettings(load.members, True)]
        if trl_rows is not None:
            candidates = [TrlSettings(trl_rows, False)]
        trials: dict[TrlSettings, float] = {}
        for settings in candidates:
            trial, seconds = open_trl(folder, adapter, rows, load, settings, dtype=dtype, steps=1), Timed()
            found = run_trl(trial, seconds)
            trials[settings] = seconds.wall_s[0]
            print(f"TRL with {settings}: {load.trained / seconds.wall_s[0]:.1f} trained tokens/s", flush=True)
            if settings == candidates[0]:
                loss = report.metrics["train/loss"]
                print(
                    f"loss: ours {loss:.6f}, TRL {trial.first_loss:.6f}, difference {abs(loss - trial.first_loss):.1e}"
                )
                difference, size = compare(our_gradient(folder, adapter, rows, dtype), found)
                print(f"gradient: norm {size:.5f}, norm of the difference {difference / size:.1e} of it", flush=True)
            del trial
            gc.collect()
        best = min(trials, key=lambda settings: trials[settings])
        print(f"TRL's best: {best}")
        trainer = open_trl(folder, adapter, rows, load, best, dtype=dtype, steps=repeats + 1)
        run_trl(trainer, trl_timed, lambda: ours_timed.add(lambda: asyncio.run(ours.step(rows, OBJECTIVE))))
        asyncio.run(ours.aclose())
    for timed, unmeasured in ((ours_timed, 2), (trl_timed, 1)):
        del timed.wall_s[:unmeasured], timed.cpu_s[:unmeasured]
    return ours_timed, trl_timed


def compare(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> tuple[float, float]:
    """Norm of the difference of two gradients, and of the second."""
    if set(ours) != set(theirs):
        raise RuntimeError(f"the two train different factors: {sorted(set(ours) ^ set(theirs))[:3]}")
    difference = sum(float((ours[name] - theirs[name]).double().square().sum()) for name in ours)
    return difference**0.5, sum(float(each.double().square().sum()) for each in theirs.values()) ** 0.5


def peak_of_long_row(side: str, folder: Path, length: int, dtype: DtypeName, threads: int | None) -> float:
    """Make a step on one row of `length` tokens; returns the most memory that this process had, in GB."""
    load = Load(groups=1, members=1, prompt=length - length // 16, new=length // 16)
    rows = rows_of(load, vocabulary_of(folder), seed=1)
    if side == "ours":
        asyncio.run(open_ours(folder, dtype, threads).step(rows, OBJECTIVE))
    else:
        with tempfile.TemporaryDirectory() as name:
            # TRL wants two rows in a group: two micro-batches of one row.
            twice = replace(load, members=2)
            trainer = open_trl(folder, Path(name), rows * 2, twice, TrlSettings(1, True), dtype=dtype, steps=1)
            run_trl(trainer, Timed())
    return peak_memory()


def peak_memory() -> float:
    """The most memory that this process had, in GB; on Linux without that of the process that started it."""
    import resource

    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.is_file() else None
    return (int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1e6


def vocabulary_of(folder: Path) -> int:
    from transformers import AutoConfig

    size: int = AutoConfig.from_pretrained(folder).vocab_size
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--members", type=int, default=8, help="rows of a group")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a group's prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens of each completion")
    parser.add_argument("--long", type=int, default=8192, help="tokens of the row whose memory is shown; 0 for none")
    parser.add_argument("--long-only", choices=["ours", "trl"], help="show that memory of one side, and nothing else")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=None, help="torch's threads, for both; default: torch's choice")
    parser.add_argument("--dtype", choices=["auto", "bfloat16", "float32"], default="auto")
    parser.add_argument("--trl-rows", type=int, default=None, help="rows of TRL's micro-batches; default: the fastest")
    options = parser.parse_args()
    if min(options.groups, options.prompt, options.new, options.repeats) < 1 or options.members < 2:
        parser.error("wanted counts of 1 or more, and 2 members or more")
    if options.trl_rows is not None and (options.trl_rows < 1 or options.groups * options.members % options.trl_rows):
        parser.error("--trl-rows must divide the number of rows")
    if options.long and options.long < 32:
        parser.error("--long is less than 32 tokens; wanted more, or 0")
    # TRL and PEFT call transformers by names that it has deprecated.
    warnings.filterwarnings("ignore", "`(is_)?gradient_checkpointing` is deprecated", FutureWarning)
    os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    load = Load(options.groups, options.members, options.prompt, options.new)
    try:
        if torch.cuda.is_available():
            raise RuntimeError("this compares the two on a CPU; hide the GPU with CUDA_VISIBLE_DEVICES=''")
        folder = resolve_model(options.model).folder
        if options.long_only:
            peak = peak_of_long_row(options.long_only, folder, options.long, options.dtype, options.threads)
            print(f"{options.long_only}: peak memory {peak:.2f} GB with a row of {options.long} tokens")
            return
        ours, trl = measure(
            folder,
            load,
            repeats=options.repeats,
            threads=options.threads,
            dtype=options.dtype,
            trl_rows=options.trl_rows,
        )
    except (ArtError, RuntimeError) as error:
        sys.exit(f"train_step: {error}")
    if options.long:
        for side in ("ours", "trl"):
            given = ("--long", options.long, "--dtype", options.dtype, "--model", options.model)
            threads = () if options.threads is None else ("--threads", options.threads)
            command = [sys.executable, __file__, "--long-only", side, *map(str, (*given, *threads))]
            subprocess.run(command, check=True)
    number = str(compute_dtype(options.dtype, CPU)).removeprefix("torch.")
    print(
        f"{load.groups} groups of {load.members} rows in {number}, prompts of {load.prompt} tokens, completions of "
        f"{load.new}"
    )
    for name, timed in (("ours", ours), ("TRL", trl)):
        speeds = [load.trained / seconds for seconds in timed.wall_s]
        rounds = " ".join(f"{speed:.1f}" for speed in speeds)
        print(
            f"{name}: median {statistics.median(speeds):.1f} trained tokens/s, rounds {rounds}; "
            f"processor time of a step {statistics.median(timed.cpu_s):.2f} s"
        )
    print(f"ratio train_step {statistics.median(trl.wall_s) / statistics.median(ours.wall_s):.3f}")


if __name__ == "__main__":
    main()
