"""`art runs`: what the run folders of models hold."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art_core.runs import DEFAULT_PATH, Run, RunSummary, StoredTrajectory, run, runs
from art_core.runs.reader import foreign_kind

if TYPE_CHECKING:
    from rich.console import Console

PathOption = Annotated[Path, typer.Option("--path", help="Folder below which the models have their run folders.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
_COLUMNS = (
    *("step", "split", "groups", "trajectories", "reward", "excluded", "no signal", "forks"),
    *("prompt tokens", "sampled"),
)
_WIDEST = 500
"""Characters of a line of a table."""

app = typer.Typer(name="runs", help="List models and what was logged for them.", invoke_without_command=True)


@app.callback(epilog="Example: art runs --path .art")
def list_runs(context: typer.Context, path: PathOption = DEFAULT_PATH, as_json: _Json = False) -> None:
    """List the models that have a run folder; `art runs show NAME` looks into one."""
    if context.invoked_subcommand is not None:
        context.obj = path
        return
    summaries = runs(path)
    if as_json:
        print_json([_run_data(summary) for summary in summaries])
        return
    _list_foreign(path)
    rows = [
        [
            f"{summary.project}/{summary.name}",
            summary.base_model,
            str(summary.step),
            " ".join(f"{split} {number}" for split, number in summary.num_trajectories.items()) or "-",
            " ".join(f"{split} {reward:.3f}" for split, reward in summary.reward.items()) or "-",
            f"{summary.size_bytes / 1e6:.1f} MB",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(summary.updated_at)) if summary.updated_at else "-",
        ]
        for summary in summaries
        if not summary.fault
    ]
    if rows:
        print_table(["model", "base model", "step", "trajectories", "reward (newest)", "size", "updated"], rows)
    for summary in summaries:
        if summary.fault:
            typer.echo(f"{summary.project}/{summary.name} is damaged: {summary.fault}", err=True)
    if not summaries:
        typer.echo(f"no runs in {path}")


@app.command(epilog="Example: art runs show shop/clerk --step 7", short_help="Show a run, a step or a trajectory.")
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="project/name, or the name where it is unique.")],
    step: Annotated[int | None, typer.Option(min=0, help="List the trajectories of this step.")] = None,
    split: Annotated[str | None, typer.Option(help="Only of this split, for instance train or val.")] = None,
    trajectory: Annotated[str | None, typer.Option(metavar="ID", help="Show this one as a conversation.")] = None,
    path: Annotated[Path | None, typer.Option(help="As of `art runs`.")] = None,
    as_json: _Json = False,
) -> None:
    """Show the steps of a run, the trajectories of one step, or one trajectory."""
    chosen = run(path or context.obj or DEFAULT_PATH, name)
    if trajectory is not None:
        stored = chosen.find(trajectory, split=split, step=step)
        if as_json:
            print_json(stored.as_record())
        else:
            from art_core.cli.conversation import print_trajectory

            print_trajectory(_console(), stored)
    elif step is not None:
        _show_step(chosen, step, split, as_json)
    else:
        _show_run(chosen, split, as_json)


def _show_run(chosen: Run, split: str | None, as_json: bool) -> None:
    summary = chosen.summary()
    steps = [one for one in chosen.summaries() if split in (None, one.split)]
    if as_json:
        data = [
            {
                "split": one.split,
                "step": one.step,
                "metrics": one.metrics,
                "counts": {**vars(one.counts), "excluded": one.counts.excluded},
            }
            for one in steps
        ]
        training = [{"step": report.step, "metrics": report.metrics} for report in chosen.steps()]
        print_json({**_run_data(summary), "logged": data, "steps": training})
        return
    checkpoints = ", ".join(str(step) for step in summary.checkpoint_steps) or "none"
    typer.echo(f"{summary.project}/{summary.name}  {summary.base_model}  step {summary.step}  {summary.folder}")
    typer.echo(f"checkpoints of steps: {checkpoints}")
    rows = [
        [
            str(one.step),
            one.split,
            *(str(n) for n in (one.counts.groups, one.counts.trajectories)),
            "-" if one.reward is None else f"{one.reward:.3f}",
            *(str(n) for n in (one.counts.excluded, one.counts.without_signal, one.counts.forks)),
            str(one.counts.prompt_tokens),
            str(one.counts.completion_tokens),
        ]
        for one in sorted(steps, key=lambda one: (one.step, one.split))
    ]
    if not rows:
        typer.echo("nothing was logged" + (f" for split {split}" if split else ""))
        return
    print_table(_COLUMNS, rows)


def _show_step(chosen: Run, step: int, split: str | None, as_json: bool) -> None:
    stored = chosen.stored(split, step)
    if as_json:
        print_json([_trajectory_data(one) for one in stored])
        return
    for summary in chosen.summaries(step):
        if split in (None, summary.split):
            figures = ", ".join(f"{name} {value:.4g}" for name, value in sorted(summary.metrics.items()))
            typer.echo(f"{summary.split}: {figures or 'no metrics'}")
    for report in chosen.steps():
        if report.step == step:
            figures = ", ".join(f"{name} {value:.4g}" for name, value in sorted(report.metrics.items()))
            typer.echo(f"training step {step}: {figures}")
    console = _console()
    group = ""
    for one in stored:  # printed as they are read: a step may have any number
        data = _trajectory_data(one)
        if one.group.id != group:
            group = one.group.id
            console.print(f"\n{one.split} group {group}  scenario {one.group.scenario_id!r}", style="bold")
        outcome = f"error {data['error']}" if data["error"] else f"reward {data['reward']}"
        console.print(
            f"  {data['id']}  {outcome}  {data['exchanges']} calls, {data['completion_tokens']} tokens sampled"
            + (f", {data['forks']} forks" if data["forks"] else "")
        )


def _trajectory_data(stored: StoredTrajectory) -> dict[str, Any]:
    trajectory = stored.trajectory
    return {
        "split": stored.split,
        "step": stored.step,
        "group": stored.group.id,
        "id": trajectory.id,
        "scenario_id": trajectory.scenario_id,
        "reward": trajectory.reward,
        "metrics": trajectory.metrics,
        "error": None if trajectory.error is None else f"{trajectory.error.kind}: {trajectory.error.message}",
        "exchanges": len(trajectory.exchanges),
        "forks": sum(exchange.forked for exchange in trajectory.exchanges),
        "prompt_tokens": sum(len(exchange.prompt_ids) for exchange in trajectory.exchanges),
        "completion_tokens": trajectory.num_trained_tokens,
    }


def _run_data(summary: RunSummary) -> dict[str, Any]:
    return {**vars(summary), "folder": str(summary.folder)}


def _list_foreign(path: Path) -> None:
    for folder in sorted(path.iterdir()):
        if kind := foreign_kind(folder):
            typer.echo(f"not listed: {folder} is {kind}", err=True)


def print_json(value: Any) -> None:
    """`value` on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Iterable[str], rows: Iterable[list[str]]) -> None:
    """A table that fits the terminal; whole lines where nobody looks."""
    from rich import box
    from rich.table import Table

    from art_core.cli.conversation import shown

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(shown(cell) for cell in row))
    console = _console()
    needed = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
    if needed > console.width:
        if console.is_terminal or "COLUMNS" in os.environ:
            table.padding = 0
            for heading in table.columns:  # two words take two lines
                heading.header = str(heading.header).replace(" ", "\n")
        else:
            console.width = needed  # what is piped has no width
    console.print(table)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
