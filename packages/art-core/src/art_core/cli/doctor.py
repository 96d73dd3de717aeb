"""`art doctor`: what is wrong with this machine, or with a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art_core.errors import ConfigError
from art_core.runs import DEFAULT_PATH

if TYPE_CHECKING:
    from art_core.types import Finding

EPILOG = "Examples: art doctor; art doctor shop/clerk --path runs"
_MARKS = {"ok": "ok     ", "warning": "warning", "problem": "PROBLEM"}


def doctor(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="A model's run, as project/name or as its folder; or one of art-mcp."),
    ] = None,
    path: Annotated[Path, typer.Option(help="Folder of the runs.")] = DEFAULT_PATH,
    model: Annotated[
        str | None, typer.Option(help="Look for the weights of this model; without a run only. [default: smollm2-135m]")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port that shall be free; without a run only. [default: 8400]", min=1, max=65535),
    ] = None,
    reward_range: Annotated[
        str | None, typer.Option(metavar="LOW,HIGH", help="What the rewards of the run should lie in.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")] = False,
) -> None:
    """Say what is wrong with this machine, or with RUN, and what to do. Exit code 1 where there is a problem."""
    if run is None:
        if reward_range is not None:
            raise ConfigError("--reward-range is that of a run; give the run's name as well")
        _machine(path, model, port, as_json)
    else:
        if model is not None or port is not None:
            raise ConfigError("--model and --port are looked at without a run; leave RUN out, or leave them out")
        _run(path, run, reward_range, as_json)


def _machine(path: Path, model: str | None, port: int | None, as_json: bool) -> None:
    from art_core.doctor.machine import check_machine
    from art_core.weights.source import BUILTIN_MODEL

    checks = check_machine(path, model=model or BUILTIN_MODEL, port=port or 8400)
    if as_json:
        typer.echo(json.dumps([vars(check) for check in checks], indent=2))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            typer.echo(f"{_MARKS[check.status]}  {check.name:<{width}}  {check.evidence}")
            if check.remedy:
                typer.echo(f"{'':<{width + 11}}-> {check.remedy}")
        counts = {status: sum(check.status == status for check in checks) for status in _MARKS}
        typer.echo(f"{counts['problem']} problems, {counts['warning']} warnings, {counts['ok']} checks passed")
    if any(check.status == "problem" for check in checks):
        raise typer.Exit(1)


def _run(path: Path, name: str, reward_range: str | None, as_json: bool) -> None:
    from art_core.doctor.reading import open_folder, read_findings, read_history

    stated = None if reward_range is None else _range(reward_range)
    folder = open_folder(path, name)
    findings = read_findings(folder, reward_range=stated)
    if as_json:
        data = [{**f.model_dump(mode="json"), "told_at_step": told} for f, told in findings]
        typer.echo(json.dumps({"folder": str(folder), "findings": data}, indent=2, ensure_ascii=False))
    else:
        history = read_history(folder) if not findings else None
        for finding, told in findings:
            typer.echo(_shown(finding, told))
        if history is not None:
            warm_up = f" and the {len(history.supervised)} supervised updates" if history.supervised else ""
            typer.echo(f"nothing is wrong with the {len(history.steps)} training steps{warm_up} of {folder}")
    if any(finding.severity == "problem" for finding, _ in findings):
        raise typer.Exit(1)


def _shown(finding: Finding, told: int | None) -> str:
    when = "" if finding.current else "  (not any more)"
    since = f"\n    told at step {told}" if told is not None else ""
    return f"{finding.severity}  {finding.name}{when}\n    {finding.evidence}\n    -> {finding.remedy}{since}"


def _range(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--reward-range is {text!r}; wanted two numbers like 0,1") from None
    if not low < high:
        raise ConfigError(f"--reward-range is {text!r}; wanted the lower number first")
    return low, high
