"""The outcome of a run, for programs (`report.json`) and for people (`report.md`)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_core.trajectories import Trajectory
from art_mcp.files import write_atomically
from art_mcp.progress import format_duration
from art_mcp.scenarios import Scenario
from art_mcp.settings import RunSettings
from art_mcp.stats import Estimate, difference, shown, success_rate


@dataclass(frozen=True)
class Report:
    """Success on held-out scenarios at each point of a run, and what was gained between them."""

    server: str
    model: str
    seed: int
    num_scenarios: int
    num_samples: int
    baseline: Estimate
    warmup: Estimate | None
    final: Estimate
    gain: Estimate
    rl_gain: Estimate
    steps: int
    wall_s: float
    counters: dict[str, int]

    @classmethod
    def build(
        cls,
        *,
        settings: RunSettings,
        held_out: Sequence[Scenario],
        baseline: Sequence[Trajectory],
        warmup: Sequence[Trajectory] | None,
        final: Sequence[Trajectory],
        wall_s: float,
        counters: dict[str, int],
    ) -> Report:
        before, after = outcomes(baseline, held_out), outcomes(final, held_out)
        warm = None if warmup is None else outcomes(warmup, held_out)
        return cls(
            server=settings.server,
            model=settings.model,
            seed=settings.seed,
            num_scenarios=len(held_out),
            num_samples=settings.samples,
            baseline=success_rate(before),
            warmup=None if warm is None else success_rate(warm),
            final=success_rate(after),
            gain=difference(before, after),
            rl_gain=difference(before if warm is None else warm, after),
            steps=settings.steps,
            wall_s=wall_s,
            counters=counters,
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "server": self.server,
            "model": self.model,
            "seed": self.seed,
            "held_out": {"scenarios": self.num_scenarios, "samples": self.num_samples},
            "baseline": self.baseline.as_json("success"),
            "warmup": None if self.warmup is None else self.warmup.as_json("success"),
            "final": self.final.as_json("success"),
            "gain": {**self.gain.as_json("total"), **self.rl_gain.as_json("rl", "rl_ci95")},
            "steps": self.steps,
            "wall_s": round(self.wall_s, 1),
            "counters": self.counters,
        }


def summary_table(report: Mapping[str, Any]) -> str:
    """The figures of `report.json` as a small text table."""
    rows = [("untrained", report["baseline"]), ("after warm-up", report["warmup"]), ("after RL", report["final"])]
    held_out = report["held_out"]
    lines = [
        f"success on {held_out['scenarios']} held-out scenarios, {held_out['samples']} samples each (95 % interval)",
        *(f"  {name:<14} {shown(point['success'], *point['ci95'])}" for name, point in rows if point is not None),
    ]
    gain = report["gain"]
    lines.append(f"  {'gain':<14} {shown(gain['total'], *gain['ci95'], sign='+')}")
    lines.append(f"  {'  of it by RL':<14} {shown(gain['rl'], *gain['rl_ci95'], sign='+')}")
    lines.append(f"{report['steps']} GRPO steps, {format_duration(report['wall_s'])} in all")
    return "\n".join(lines)


_COUNTERS = (
    "rollouts",
    "rollouts_failed",
    "tool_calls",
    "tool_errors",
    "tool_results_cut",
    "malformed_calls",
    "truncated",
    "forks",
    "cut_completions",
    "groups_without_signal",
    "groups_too_small",
    "steps_skipped",
    "servers_replaced",
    "server_start_failures",
    "noise_lines",
)


def count_outcomes(
    trajectories: Sequence[Mapping[str, Any]],
    metrics: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
) -> dict[str, int]:
    """Everything that was dropped, cut, failed or skipped in a run, and how many rollouts there were."""
    counters: dict[str, int] = defaultdict(int)
    for record in trajectories:
        counters["rollouts"] += 1
        if record["error"] is not None:
            counters["rollouts_failed"] += 1
            continue
        for name in ("tool_calls", "tool_errors", "tool_results_cut", "truncated"):
            counters[name] += int(record["metrics"].get(name, 0))
        counters["malformed_calls"] += sum(exchange["num_malformed_calls"] for exchange in record["exchanges"])
        counters["forks"] += sum(bool(exchange["forked"]) for exchange in record["exchanges"])
        counters["cut_completions"] += sum(exchange["finish_reason"] == "length" for exchange in record["exchanges"])
    for record in metrics:
        values = record["metrics"]
        counters["steps_skipped"] += int(values.get("step/skipped", 0))
        counters["groups_without_signal"] += int(values.get("groups/without_signal", 0))
        counters["groups_too_small"] += int(values.get("groups/too_small", 0))
    for event in events:
        for name, count in event["servers"].items():
            counters[name] += count
    return {name: counters[name] for name in _COUNTERS}


def write_report(
    folder: Path,
    report: Report,
    metrics: Sequence[Mapping[str, Any]],
    final: Sequence[Trajectory],
    held_out: Sequence[Scenario],
) -> None:
    """Write `report.md`, then `report.json`, whose presence means that the run is finished."""
    data = report.as_json()
    write_atomically(folder / "report.md", _markdown(data, metrics, final, held_out))
    write_atomically(folder / "report.json", json.dumps(data, indent=2, allow_nan=False) + "\n")


def _markdown(
    report: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    final: Sequence[Trajectory],
    held_out: Sequence[Scenario],
) -> str:
    lines = [
        f"# {report['model']} on `{report['server']}`",
        "",
        "```text",
        summary_table(report),
        "```",
        "",
        "## Training steps",
        "",
        "| step | reward | success | groups without signal | loss | KL to sampler | s rollouts | s training |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for record in metrics:
        if record["phase"] != "train":
            continue
        m = record["metrics"]
        kl = m.get("mismatch/kl", m.get("train/kl_sampler", 0.0))  # its name in older run folders
        lines.append(
            f"| {record['done']} | {m['reward']:.3f} | {m['success']:.3f} | {m['groups/without_signal']:.0f} | "
            f"{m.get('train/loss', 0.0):.4f} | {kl:.5f} | {m['time/rollout_s']:.1f} | "
            f"{m.get('time/train_s', 0.0):.1f} |"
        )
    lines += ["", "## Success by tool, after training", "", "| tool | success | samples |", "|---|---:|---:|"]
    by_tool: dict[str, list[float]] = defaultdict(list)
    for trajectory in final:
        if trajectory.error is None:
            by_tool[str(trajectory.metadata["tool"])].append(trajectory.metrics["success"])
    lines += [f"| {tool} | {sum(v) / len(v):.2f} | {len(v)} |" for tool, v in sorted(by_tool.items())]
    lines += ["", "## Counters", "", "| what | how often |", "|---|---:|"]
    lines += [f"| {name.replace('_', ' ')} | {count} |" for name, count in report["counters"].items()]
    lines += ["", "## Held-out attempts after training", ""]
    tasks = {scenario.id: scenario for scenario in held_out}
    shown: set[str] = set()
    for trajectory in final:
        if trajectory.scenario_id in shown or trajectory.error is not None:
            continue
        shown.add(trajectory.scenario_id)
        scenario = tasks[trajectory.scenario_id]
        mark = "success" if trajectory.metrics["success"] else "failure"
        answer = " ".join(str(trajectory.metadata.get("answer") or "(no answer)").split())
        lines.append(f"- {mark}: {' '.join(scenario.task.split())} **→** {answer[:300]}")
    return "\n".join(lines) + "\n"


def outcomes(trajectories: Sequence[Trajectory], scenarios: Sequence[Scenario]) -> list[list[bool]]:
    """Success of each sample by scenario, in the order of `scenarios`; failed rollouts are left out."""
    by_scenario: dict[str, list[bool]] = {scenario.id: [] for scenario in scenarios}
    for trajectory in trajectories:
        if trajectory.error is None:
            by_scenario[trajectory.scenario_id].append(trajectory.metrics["success"] == 1.0)
    return list(by_scenario.values())
