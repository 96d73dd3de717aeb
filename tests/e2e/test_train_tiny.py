"""Whole runs of `art-mcp` on a tiny model and a real server: everything but ability."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_sink import tensorboard_events
from tests.core.test_metrics import unknown
from tests.e2e.support import CLERK, CLERK_ADD, ArtMcp, art_mcp_command, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = (
    *("--num-train", "6", "--num-held-out", "3", "--samples", "2"),
    *("--warmup", "on", "--warmup-demos", "4", "--warmup-epochs", "1", "--warmup-learning-rate", "1e-4"),
    *("--steps", "3", "--groups-per-step", "2", "--group-size", "4", "--learning-rate", "1e-3"),
    *("--concurrency", "8", "--server-processes", "2", "--max-context", "1024", "--seed", "3"),
)


def train_arguments(model: Path, out: Path) -> tuple[str | Path, ...]:
    return ("train", CLERK, *CLERK_ADD, "--model", model, "--out", out, *SMALL)


def lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def adapter_digest(out: Path) -> str:
    newest = max((out / "checkpoints").glob("step-*"))
    return hashlib.sha256((newest / "adapter_model.safetensors").read_bytes()).hexdigest()


def processes_naming(text: str) -> list[str]:
    listing = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if text in line]


@pytest.fixture(scope="module")
def unbroken(tiny_clerk: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("runs") / "unbroken"
    done = subprocess.run(
        art_mcp_command(*train_arguments(tiny_clerk, out), "--sink", "tensorboard"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=400,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out


def test_a_run_leaves_everything_it_promises(unbroken: Path) -> None:
    report = json.loads((unbroken / "report.json").read_text())
    assert set(report) == {
        *("server", "model", "seed", "held_out", "baseline", "warmup", "final", "gain", "steps", "wall_s", "counters")
    }
    assert report["held_out"] == {"scenarios": 3, "samples": 2}
    assert report["steps"] == 3
    assert report["seed"] == 3
    assert report["counters"]["rollouts"] == 3 * 6 + 3 * 8
    assert report["counters"]["rollouts_failed"] == 0
    assert json.loads((unbroken / "run.json").read_text())["settings"]["group_size"] == 4
    assert len(lines(unbroken / "scenarios.jsonl")) == 9
    assert "| step | reward |" in (unbroken / "report.md").read_text()
    assert "final: success" in (unbroken / "run.log").read_text()
    assert [record["event"] for record in lines(unbroken / "sft.jsonl")] == ["begun", "finished"]


def test_reinforcement_had_something_to_do_and_changed_the_weights(unbroken: Path) -> None:
    steps = [record for record in lines(unbroken / "metrics.jsonl") if record["phase"] == "train"]
    updates = [record for record in steps if not record["metrics"]["step/skipped"]]
    assert len(steps) == 3
    assert updates, "no group of this run had a signal; the tiny model is too good or too bad for the test to say much"
    for record in updates:
        metrics = record["metrics"]
        assert metrics["train/trained_tokens"] > 0
        assert metrics["train/grad_norm"] > 0
        assert metrics["mismatch/logprob_diff_max"] < 1e-3, (
            "the engine sampled from other weights than the trainer holds"
        )
        assert metrics["canary/error"] < 2e-3
        assert metrics["canary/movement"] > 0


def test_its_metrics_are_those_of_the_table_and_tensorboard_has_each_step_once(unbroken: Path) -> None:
    steps, evaluations = lines(unbroken / "metrics.jsonl"), lines(unbroken / "evaluations.jsonl")
    assert [record["phase"] for record in evaluations] == ["baseline", "warmup", "final"]
    for record in [*steps, *evaluations]:
        split = "val" if record in evaluations else "train"
        assert unknown(record["metrics"], splits=(split,)) == set()
    for record in evaluations:
        assert {"val/reward", "val/success"} <= set(record["metrics"])
    for record in steps:
        if record["phase"] == "train":
            assert {"train/reward", "train/success", "tokens/sampled", "time/rollout_s"} <= set(record["metrics"])
    shown = tensorboard_events(unbroken / "tensorboard")
    assert sorted(step for step, metrics in shown if "train/loss" in metrics) == sorted(
        record["policy_version"] for record in steps if "train/loss" in record["metrics"]
    )


def test_every_exchange_of_a_training_rollout_carries_the_version_that_sampled_it(unbroken: Path) -> None:
    versions = {record["done"]: record["policy_version"] for record in lines(unbroken / "metrics.jsonl")[1:]}
    for trajectory in lines(unbroken / "trajectories.jsonl"):
        if trajectory["metadata"]["phase"] != "train":
            continue
        step = trajectory["metadata"]["step"]
        before = versions.get(step - 1, 1)
        assert {exchange["policy_version"] for exchange in trajectory["exchanges"]} == {before}


def test_a_following_turn_extends_the_recorded_ids(unbroken: Path) -> None:
    extended = 0
    for trajectory in lines(unbroken / "trajectories.jsonl"):
        exchanges = trajectory["exchanges"]
        for earlier, later in itertools.pairwise(exchanges):
            recorded = earlier["prompt_ids"] + earlier["completion_ids"]
            assert later["prompt_ids"][: len(recorded)] == recorded
            extended += 1
    assert extended > 0


def test_a_finished_run_says_so_and_exits_with_zero(unbroken: Path, tiny_clerk: Path, art_mcp: ArtMcp) -> None:
    again = art_mcp(*train_arguments(tiny_clerk, unbroken), "--json")
    assert again.returncode == 0
    assert "is finished already" in again.stderr
    assert json.loads(again.stdout) == json.loads((unbroken / "report.json").read_text())


def test_another_command_line_on_the_same_folder_is_refused(unbroken: Path, tiny_clerk: Path, art_mcp: ArtMcp) -> None:
    other = art_mcp(*train_arguments(tiny_clerk, unbroken), "--group-size", "5")
    assert other.returncode == 1
    assert "belongs to another command line: group_size was 4 and is now 5" in other.stderr
    assert other.stderr.count("\n") == 1


def test_eval_scores_a_finished_run_again(unbroken: Path, art_mcp: ArtMcp) -> None:
    result = art_mcp("eval", CLERK, "--run", unbroken, "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads((unbroken / "report.json").read_text())
    again = json.loads(result.stdout)
    assert again["held_out"] == report["held_out"]
    assert again["success"] == report["final"]["success"]
    wrong = art_mcp("eval", "other-server", "--run", unbroken)
    assert wrong.returncode == 1
    assert "was trained on" in wrong.stderr


def test_eval_of_a_run_without_a_checkpoint_scores_the_untrained_model(
    unbroken: Path, tmp_path: Path, art_mcp: ArtMcp
) -> None:
    young = tmp_path / "young"
    shutil.copytree(unbroken, young, ignore=shutil.ignore_patterns("checkpoints"))
    result = art_mcp("eval", CLERK, "--run", young, "--json")
    assert result.returncode == 0, result.stderr
    assert "this is the untrained model" in result.stderr
    again = json.loads(result.stdout)
    assert again["step"] == 0
    assert again["success"] == json.loads((unbroken / "report.json").read_text())["baseline"]["success"]


def test_a_run_that_lost_attempts_of_an_evaluation_is_not_gone_on_with(
    unbroken: Path, tiny_clerk: Path, tmp_path: Path, art_mcp: ArtMcp
) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(unbroken, torn)
    (torn / "report.json").unlink()
    kept = (torn / "trajectories.jsonl").read_text().split("\n")[2:]
    (torn / "trajectories.jsonl").write_text("\n".join(kept))
    again = art_mcp(*train_arguments(tiny_clerk, torn))
    assert again.returncode == 1
    assert "no longer holds 2 attempts of the baseline evaluation" in again.stderr
    assert "Traceback" not in again.stderr


def test_a_damaged_report_is_named(unbroken: Path, tiny_clerk: Path, tmp_path: Path, art_mcp: ArtMcp) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(unbroken, torn)
    (torn / "report.json").write_text("{}")
    again = art_mcp(*train_arguments(tiny_clerk, torn))
    assert again.returncode == 1
    assert "report.json is damaged" in again.stderr
    assert again.stderr.count("\n") == 1


def count_of(out: Path, name: str) -> int:
    return len(lines(out / f"{name}.jsonl")) if (out / f"{name}.jsonl").exists() else 0


MOMENTS = [
    ("trajectories", 2),  # in the baseline
    ("metrics", 1),  # at the end of the warm-up's only update
    ("trajectories", 15),  # in the first training step's rollouts
    ("metrics", 2),  # just after the first training step
    ("trajectories", 30),  # in a later step
    ("events", 6),  # about the last step and the final evaluation
]


def of_the_policy(out: Path) -> dict[str, Any]:
    """The report, but for times, and for tool servers that had to be started again, as a busy machine may need."""
    report = json.loads((out / "report.json").read_text())
    of_servers = ("servers_replaced", "server_start_failures", "noise_lines")
    counters = {name: count for name, count in report["counters"].items() if name not in of_servers}
    return {**report, "counters": counters, "wall_s": 0}


@pytest.mark.parametrize(("log", "count"), MOMENTS)
def test_killed_and_started_again_a_run_ends_with_the_same_adapter(
    tiny_clerk: Path, unbroken: Path, tmp_path: Path, art_mcp: ArtMcp, log: str, count: int
) -> None:
    out = tmp_path / "broken"
    process = subprocess.Popen(
        art_mcp_command(*train_arguments(tiny_clerk, out)),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 300
    while count_of(out, log) < count and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    killed = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert killed, "the run ended before the moment at which it was to be killed"
    resumed = art_mcp(*train_arguments(tiny_clerk, out), timeout_s=400)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming" in resumed.stderr
    assert adapter_digest(out) == adapter_digest(unbroken)
    assert of_the_policy(out) == of_the_policy(unbroken)
    ids = [trajectory["id"] for trajectory in lines(out / "trajectories.jsonl")]
    assert len(ids) == len(set(ids)), "a finished rollout was made twice"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_an_interrupt_ends_with_one_line_and_leaves_no_process(
    tiny_clerk: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "interrupted"
    marker = f"--num-held-out-marker-{os.getpid()}-{number.value}"
    server = f"env MARKER={marker} {CLERK}"
    process = subprocess.Popen(
        art_mcp_command(
            "train", server, *CLERK_ADD, "--model", tiny_clerk, "--out", out, *SMALL, "--steps", "200", "--seed", "4"
        ),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 200
    while count_of(out, "trajectories") < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert errors.strip().splitlines()[-1].startswith("art-mcp: interrupted")
    deadline = time.monotonic() + 10
    while processes_naming(marker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_naming(marker) == []
