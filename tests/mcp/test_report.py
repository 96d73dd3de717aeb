"""What a run reports: files for programs and for people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from art_core.trajectories import Trajectory
from art_core.types import RolloutError
from art_mcp.report import Report, summary_table, write_report
from art_mcp.scenarios import Scenario
from art_mcp.settings import RunSettings

HELD_OUT = [
    Scenario(id=f"held_out-{number}", split="held_out", tool="add", arguments={"a": number}, task=f"Add {number}.")
    for number in range(2)
]


def attempt(scenario: int, success: bool | None) -> Trajectory:
    """An attempt that succeeded, failed, or (None) was ended by something the policy is not responsible for."""
    trajectory = Trajectory(id=f"{scenario}-{success}", scenario_id=HELD_OUT[scenario].id, metadata={"tool": "add"})
    if success is None:
        trajectory.error = RolloutError(kind="InfrastructureError", message="the server died")
    else:
        trajectory.reward, trajectory.metrics = float(success), {"success": float(success)}
        trajectory.metadata = {"tool": "add", "answer": "It is\n3."}
    return trajectory


def report(baseline: list[Trajectory], final: list[Trajectory]) -> Report:
    return Report.build(
        settings=RunSettings(server="calc", model="m", samples=1, steps=2, seed=5),
        held_out=HELD_OUT,
        baseline=baseline,
        warmup=None,
        final=final,
        wall_s=61.26,
        counters={"rollouts": 4},
    )


def test_the_report_for_programs_has_every_promised_field() -> None:
    data = report([attempt(0, False), attempt(1, False)], [attempt(0, True), attempt(1, False)]).as_json()
    assert data["held_out"] == {"scenarios": 2, "samples": 1}
    assert data["baseline"]["success"] == 0.0
    assert data["warmup"] is None
    assert data["final"]["success"] == 0.5
    assert data["gain"]["total"] == data["gain"]["rl"] == 0.5
    assert data["gain"]["ci95"] == data["gain"]["rl_ci95"] == [-1.0, 1.0]
    assert (data["server"], data["model"], data["seed"], data["steps"]) == ("calc", "m", 5, 2)
    assert (data["wall_s"], data["counters"]) == (61.3, {"rollouts": 4})


def test_a_gain_that_no_scenario_can_tell_is_unknown_and_the_files_are_written(tmp_path: Path) -> None:
    # Each scenario lost its attempt at one of the two points.
    final = [attempt(0, None), attempt(1, True)]
    written = report([attempt(0, False), attempt(1, None)], final)
    write_report(tmp_path, written, [], final, HELD_OUT)
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["gain"] == {"total": None, "ci95": [-1.0, 1.0], "rl": None, "rl_ci95": [-1.0, 1.0]}
    assert "gain           unknown [-1.00, +1.00]" in summary_table(data)
    text = (tmp_path / "report.md").read_text()
    assert "- success: Add 1. **→** It is 3." in text
    assert "| add | 1.00 | 1 |" in text


@pytest.mark.parametrize(
    "names",
    [
        {"reward": "train/reward", "success": "train/success", "kl": "mismatch/kl"},
        {"reward": "reward", "success": "success", "kl": "train/kl_sampler"},  # of runs of version 0.1.0
    ],
)
def test_the_steps_of_a_run_are_told_whatever_version_made_them(tmp_path: Path, names: dict[str, str]) -> None:
    metrics = {
        **{names["reward"]: 0.5, names["success"]: 0.25, names["kl"]: 0.00125},
        **{"groups/without_signal": 1.0, "train/loss": 0.0625, "time/rollout_s": 12.25, "time/train_s": 3.5},
    }
    attempts = [attempt(0, True), attempt(1, False)]
    steps = [{"phase": "warmup", "done": 1, "metrics": {}}, {"phase": "train", "done": 1, "metrics": metrics}]
    write_report(tmp_path, report(attempts, attempts), steps, attempts, HELD_OUT)
    assert "| 1 | 0.500 | 0.250 | 1 | 0.0625 | 0.00125 | 12.2 | 3.5 |\n" in (tmp_path / "report.md").read_text()
