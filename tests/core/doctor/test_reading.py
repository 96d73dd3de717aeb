"""`art doctor RUN` on folders: of a served model, of art-mcp, and damaged ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from art_core.cli import app
from art_core.doctor import SYMPTOMS
from art_core.doctor.reading import SAMPLED_STEPS, _spread, read_findings, read_history
from art_core.errors import DataError
from art_core.types import StepReport
from tests.core.doctor.building import HEALTHY
from tests.core.runs.building import exchange, group, open_run, trajectory

PAGE = Path(__file__).resolve().parents[3] / "docs" / "doctor.md"


def lines(path: Path, *records: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def mcp_run(folder: Path, **changes: float) -> Path:
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    steps = [{"phase": "train", "done": n, "policy_version": n, "metrics": {**HEALTHY, **changes}} for n in range(1, 4)]
    update = {"phase": "warmup", "done": 1, "of": 1, "policy_version": 0, "metrics": {"sft/update": 1.0}}
    lines(folder / "metrics.jsonl", update, *steps)
    return folder


def test_a_run_of_a_served_model_is_read_by_its_name_and_by_its_folder(tmp_path: Path) -> None:
    with open_run(tmp_path, "p", "m") as run:
        for number in range(1, 4):
            run.log_step(StepReport(number, {**HEALTHY, "mismatch/kl": 0.5}))
    by_name = CliRunner().invoke(app, ["doctor", "m", "--path", str(tmp_path), "--json"])
    by_folder = CliRunner().invoke(app, ["doctor", str(tmp_path / "p" / "m"), "--json"])
    assert by_name.exit_code == 1
    assert by_name.stdout == by_folder.stdout
    (finding,) = json.loads(by_name.stdout)["findings"]
    assert (finding["name"], finding["severity"], finding["steps"]) == ("sampler-mismatch", "problem", [1, 2, 3])
    assert (finding["current"], finding["told_at_step"]) == (True, None)


def test_a_healthy_run_says_so_and_ends_with_zero(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", str(mcp_run(tmp_path / "run"))])
    assert result.exit_code == 0
    assert "nothing is wrong with the 3 training steps" in result.stdout


def test_a_run_of_art_mcp_is_read_with_what_its_steps_say(tmp_path: Path) -> None:
    folder = mcp_run(tmp_path / "run", **{"completions/truncated": 60.0})
    assert [finding.name for finding, _ in read_findings(folder)] == ["truncation"]
    history = read_history(folder)
    assert ([step.number for step in history.steps], [step.number for step in history.supervised]) == ([1, 2, 3], [0])


def test_a_run_of_art_mcp_whose_steps_do_not_say_is_read_from_its_rollouts(tmp_path: Path) -> None:
    folder = mcp_run(tmp_path / "run")
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in steps:
        record["metrics"] = {k: v for k, v in record["metrics"].items() if not k.startswith(("completions", "tools"))}
    lines(folder / "metrics.jsonl", *steps)
    made = [
        trajectory(
            f"train-{step}-{n}",
            float(n % 2),
            scenario_id=f"s{n // 4}",
            exchanges=[exchange(f"{step}-{n}", completion_ids=(n, step), finish_reason="length")],
            metadata={"phase": "train", "step": step},
        )
        for step in range(1, 4)
        for n in range(8)
    ]
    lines(folder / "trajectories.jsonl", *(t.model_dump(mode="json") for t in made))
    ((finding, _),) = read_findings(folder)
    assert (finding.name, finding.severity, finding.steps) == ("truncation", "problem", (1, 2, 3))
    assert "24 of 24 completions" in finding.evidence


def test_rollouts_of_a_step_are_those_that_were_sampled_before_it(tmp_path: Path) -> None:
    with open_run(tmp_path, "p", "m") as run:
        members = [trajectory(str(n), float(n), exchanges=[exchange(str(n), finish_reason="length")]) for n in range(8)]
        run.log_groups("train", 4, [group(*members)])
        run.log_step(StepReport(5, {"groups/total": 1.0}))
    (rollouts,) = read_history(tmp_path / "p" / "m").rollouts
    assert (rollouts.number, rollouts.metrics["completions/truncated"]) == (5, 8.0)


def test_what_was_told_and_cannot_be_derived_any_more_is_kept(tmp_path: Path) -> None:
    folder = mcp_run(tmp_path / "run")
    told = {"event": "began", "step": 2, "name": "clip-share", "severity": "warning", "evidence": "e", "remedy": "r"}
    lines(folder / "findings.jsonl", {**told, "current": True}, {"event": "ended", "step": 3, "name": "clip-share"})
    ((finding, step),) = read_findings(folder)
    assert (finding.name, finding.current, step) == ("clip-share", False, 2)
    assert "(not any more)" in CliRunner().invoke(app, ["doctor", str(folder)]).stdout


@pytest.mark.parametrize(
    "record",
    [{"event": "began"}, {"event": "began", "name": "x", "step": "soon"}, {"event": "other", "name": "x", "step": 1}],
)
def test_a_damaged_line_of_the_findings_is_named(tmp_path: Path, record: dict[str, Any]) -> None:
    folder = mcp_run(tmp_path / "run")
    lines(folder / "findings.jsonl", record)
    result = CliRunner().invoke(app, ["doctor", str(folder)])
    assert result.exit_code == 1
    assert isinstance(result.exception, DataError)
    assert f"{folder}/findings.jsonl:1: not a record" in str(result.exception)


def test_a_folder_that_is_no_run_is_named_as_that(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", str(tmp_path), "--path", str(tmp_path / "runs")])
    assert isinstance(result.exception, DataError)
    assert f"{tmp_path} is no run folder: it has no model.json" in str(result.exception)


def test_damaged_lines_are_named(tmp_path: Path) -> None:
    folder = mcp_run(tmp_path / "run")
    (folder / "metrics.jsonl").write_text("[]\n")
    with pytest.raises(DataError, match=r"metrics.jsonl:1: not a record"):
        read_findings(folder)
    lines(folder / "metrics.jsonl", {"phase": "train"})
    with pytest.raises(DataError, match="a record is not that of a step"):
        read_findings(folder)


def test_of_many_steps_some_are_read_the_first_and_the_last_among_them() -> None:
    chosen = _spread(range(1000))
    assert (len(chosen), chosen[0], chosen[-1]) == (SAMPLED_STEPS, 0, 999)
    assert _spread([3, 5]) == [3, 5]


def test_the_page_lists_every_finding_and_no_other() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Findings")[2].partition("\n\nA finding that")[0]
    told = {name for line in table.splitlines() for name in re.findall(r"`([a-z-]+)`", "".join(line.split("|")[1:2]))}
    source = Path(__file__).resolve().parents[3] / "packages/art-core/src/art_core/doctor"
    texts = "".join((source / f"{module}.py").read_text() for module in {s.__module__.split(".")[-1] for s in SYMPTOMS})
    named = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', texts))
    assert told == named | {"forks", "truncation"}
