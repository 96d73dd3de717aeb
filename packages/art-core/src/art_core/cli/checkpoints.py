"""`art checkpoints`: what there is, which to keep, forks of a run, and folders for other programs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from art_core.cli.runs import PathOption, print_json, print_table
from art_core.errors import ConfigError, DataError, RunLockedError, StorageError
from art_core.runs import DEFAULT_PATH, Run, run
from art_core.runs.reader import run_folders

if TYPE_CHECKING:
    from art_core.checkpoints.listing import CheckpointInfo
    from art_core.control import Origin

_DEFAULT_BEST = "val/reward"
_Name = Annotated[str, typer.Argument(metavar="NAME", help="project/name, or the name where it is unique.")]
_At = Annotated[str, typer.Argument(metavar="NAME@STEP", help="A checkpoint; without @STEP the newest one.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]


class _ListsByDefault(TyperGroup):
    """`art checkpoints [NAME]` is `art checkpoints list [NAME]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="checkpoints",
    cls=_ListsByDefault,
    help="List the checkpoints of runs (the default), delete, fork and export them.",
    short_help="List, delete, fork and export checkpoints.",
    epilog="Example: art checkpoints shop/clerk",
)


@app.command(
    "list", epilog="Example: art checkpoints shop/clerk --best val/reward", short_help="List checkpoints (the default)."
)
def list_them(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Of this run; otherwise of all.")] = None,
    best: Annotated[
        str | None,
        typer.Option(metavar="METRIC", help=f"Mark the best by this metric. {_DEFAULT_BEST} where it was logged."),
    ] = None,
    lowest: Annotated[bool, typer.Option("--lowest", help="The lowest value is the best.")] = False,
    path: PathOption = DEFAULT_PATH,
    as_json: _Json = False,
) -> None:
    """List checkpoints: when, how large, whether whole, which is the newest, the best, and in use."""
    if lowest and best is None:
        raise ConfigError("--lowest is a direction of --best; name the metric with --best METRIC")
    chosen = [run(path, name)] if name is not None else [run(path, full) for full in _all(path)]
    listed: list[_Listed] = []
    lacking: list[ConfigError] = []
    for one in chosen:
        try:
            listed.append(_listed(one, best, lowest, lacking))
        except (DataError, StorageError) as error:
            if name is not None:
                raise
            typer.echo(f"{one.folder.parent.name}/{one.folder.name} is damaged: {error}", err=True)
    if lacking and not any(info.best for one in listed for info in one.infos):
        raise lacking[0]
    if as_json:
        print_json([data for one in listed for data in one.data()])
        return
    if rows := [row for one in listed for row in one.rows()]:
        print_table(["checkpoint", "base model", "saved", "size", "state", "which", "metrics"], rows)
    else:
        typer.echo(f"no checkpoints in {path if name is None else chosen[0].folder}")
    for stray in (stray for one in listed for stray in one.strays):
        typer.echo(f"not a checkpoint: {stray}", err=True)


@dataclass(frozen=True)
class _Listed:
    """What is told of the checkpoints of one run; `strays` lie among them and are none."""

    model: str
    base_model: str
    forked_from: Origin | None
    metric: str
    infos: list[CheckpointInfo]
    strays: list[str]

    def data(self) -> list[dict[str, Any]]:
        forked_from = None if self.forked_from is None else self.forked_from.model_dump()
        of_run = {"model": self.model, "base_model": self.base_model, "forked_from": forked_from}
        return [
            {**of_run, **vars(info), "path": str(info.path), "best": self.metric if info.best else None}
            for info in self.infos
        ]

    def rows(self) -> list[list[str]]:
        return [
            [
                f"{self.model}@{info.step}",
                self.base_model,
                time.strftime("%Y-%m-%d %H:%M", time.localtime(info.saved_at)),
                f"{info.size_bytes / 1e6:.1f} MB",
                f"not whole: {info.fault}" if info.fault else "whole",
                ", ".join(self._marks(info)) or "-",
                _shown(info.metrics),
            ]
            for info in self.infos
        ]

    def _marks(self, info: CheckpointInfo) -> list[str]:
        marks = [mark for mark, holds in (("newest", info.newest), (f"best {self.metric}", info.best)) if holds]
        if self.forked_from is not None and self.forked_from.step == info.step:
            marks.append(f"from {self.forked_from.model}@{info.step}")
        return [*marks, info.use] if info.use else marks


def _listed(one: Run, best: str | None, lowest: bool, lacking: list[ConfigError]) -> _Listed:
    """What is told of `one`. That none of its checkpoints has a value of `best` goes to `lacking`."""
    from art_core.checkpoints.forking import origin_of
    from art_core.checkpoints.listing import list_checkpoints, mark_best

    identity = one.identity
    metric = _DEFAULT_BEST if best is None else best
    infos = list_checkpoints(one)
    try:
        infos = mark_best(one, infos, metric, lowest=lowest)
    except ConfigError as error:
        if best is not None:
            lacking.append(error)
    name, base_model = f"{identity['project']}/{identity['name']}", str(identity.get("base_model", ""))
    return _Listed(name, base_model, origin_of(one.folder), metric, infos, _strays(one))


@app.command(epilog="Example: art checkpoints delete shop/clerk --keep-best val/reward --keep-last 3")
def delete(
    name: _Name,
    keep_best: Annotated[
        str | None, typer.Option(metavar="METRIC", help="Keep the one with the highest mean of this metric.")
    ] = None,
    lowest: Annotated[bool, typer.Option("--lowest", help="The lowest value is the best.")] = False,
    keep_every: Annotated[
        int | None, typer.Option(metavar="K", min=1, help="Keep those of every step that K divides.")
    ] = None,
    keep_last: Annotated[int | None, typer.Option(metavar="N", min=1, help="Keep the newest N.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    path: PathOption = DEFAULT_PATH,
    as_json: _Json = False,
) -> None:
    """Delete the checkpoints that nothing keeps. The newest always stays, and so does what is being read.

    A run that is being served is refused: there, call model.delete_checkpoints in Python.
    """
    from art_core.checkpoints.keeping import KeepCheckpoints, kept_steps
    from art_core.checkpoints.listing import list_checkpoints, logged_metrics
    from art_core.saved import references
    from art_core.storage import RunStore
    from art_core.types import Checkpoint

    if keep_best is None and keep_every is None and keep_last is None:
        raise ConfigError(
            "nothing says which checkpoints to keep; give --keep-last N, --keep-best METRIC or --keep-every K; "
            "all others of the run are deleted"
        )
    policy = KeepCheckpoints.made({"last": keep_last or 1, "best": keep_best, "lowest": lowest, "every": keep_every})
    chosen = run(path, name)
    infos = {info.step: info for info in list_checkpoints(chosen)}
    whole = [step for step, info in infos.items() if not info.fault]
    if infos and not whole:
        raise ConfigError(f"none of the {len(infos)} checkpoints of {chosen.folder} is whole; nothing was deleted")
    kept = kept_steps(policy, whole, logged_metrics(chosen))
    newest = Checkpoint(max(whole), infos[max(whole)].path) if whole else None
    needed = references(newest) if newest is not None else set()
    kept |= dict.fromkeys(needed & set(whole) - set(kept), ("kl_reference of the newest",))
    in_use = {step: ("in use",) for step, info in infos.items() if info.use == "read" and step not in kept}
    kept = dict(sorted({**kept, **in_use}.items()))
    going = [step for step in infos if step not in kept]
    if not dry_run:
        try:
            with RunStore(chosen.folder) as store:
                going = store.prune(kept.keys())
        except RunLockedError as error:
            raise RunLockedError(
                f"{error}. While it serves the run, delete with `await model.delete_checkpoints(...)` in Python"
            ) from error
    freed = sum(infos[step].size_bytes for step in going if step in infos)
    if as_json:
        print_json({"deleted": going, "kept": {str(step): list(why) for step, why in kept.items()}, "dry_run": dry_run})
        return
    for step, why in kept.items():
        typer.echo(f"kept step {step}: {', '.join(why)}")
    verb = "would delete" if dry_run else "deleted"
    typer.echo(f"{verb} {len(going)} of {len(infos)} checkpoints, {freed / 1e6:.1f} MB" + _steps(going))


@app.command(
    epilog="Example: art checkpoints fork shop/clerk@7 clerk-b", short_help="Begin a new run with a checkpoint."
)
def fork(
    source: _At,
    new_name: Annotated[str, typer.Argument(metavar="NEW_NAME", help="project/name, or a name in the same project.")],
    optimizer: Annotated[
        bool, typer.Option("--optimizer/--no-optimizer", help="Take over the optimiser's moments, or begin anew.")
    ] = True,
    path: PathOption = DEFAULT_PATH,
) -> None:
    """Make a new run that begins with a checkpoint of another, and counts its steps on from there."""
    from art_core.checkpoints.finding import find_checkpoint
    from art_core.checkpoints.forking import fork_run

    chosen, checkpoint = find_checkpoint(path, source)
    project, found, name = new_name.partition("/")
    if not found:
        project, name = str(chosen.identity["project"]), new_name
    origin = fork_run(chosen, checkpoint.step, path, project, name, optimizer=optimizer)
    typer.echo(f"{project}/{name} is {origin.model}@{origin.step}" + ("" if optimizer else " with a new optimiser"))
    typer.echo(f"its next step is {origin.step + 1}; it is trained as base model {chosen.identity.get('base_model')}")


@app.command(
    epilog="Example: art checkpoints export shop/clerk@7 --out clerk", short_help="Write merged weights or an adapter."
)
def export(
    source: _At,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to make.")],
    merged: Annotated[
        bool, typer.Option("--merged/--adapter", help="Base weights with the adapter in them, or the adapter alone.")
    ] = True,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="auto (as the base model is stored), float32, bfloat16 or float16."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
    path: PathOption = DEFAULT_PATH,
    as_json: _Json = False,
) -> None:
    """Write a checkpoint as a folder that transformers and vLLM load, or as an adapter for PEFT."""
    from art_core.checkpoints.exporting import DTYPES, export_checkpoint
    from art_core.checkpoints.finding import find_checkpoint

    if dtype is not None and not merged:
        raise ConfigError("--dtype is of merged weights; an adapter stays in float32")
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"--dtype is {dtype!r}; wanted one of {', '.join(DTYPES)}")
    chosen, checkpoint = find_checkpoint(path, source)
    done = export_checkpoint(chosen, checkpoint.step, out, merged=merged, dtype=DTYPES[dtype or "auto"], force=force)
    if as_json:
        print_json({**vars(done), "folder": str(done.folder)})
        return
    kind = "merged weights" if merged else "adapter"
    typer.echo(f"{kind} of {done.model}@{done.step} written to {out} ({done.size_bytes / 1e6:.1f} MB)")


def _all(path: Path) -> list[str]:
    if not path.is_dir():
        raise DataError(f"{path} is no folder; give --path the folder that `art serve` or the backend writes to")
    return list(run_folders(path))


def _strays(chosen: Run) -> list[str]:
    """What lies among the checkpoints and is none."""
    from art_core.saved import STEP_NAME

    folder = chosen.folder / "checkpoints"
    try:
        return sorted(str(path) for path in folder.iterdir() if not STEP_NAME.fullmatch(path.name))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"could not read {folder}: {error.strerror or error}") from error


def _shown(metrics: dict[str, float]) -> str:
    """The metrics that say most: what was measured of the checkpoint, then how its step went."""
    first = [name for name in sorted(metrics) if name.endswith("/reward")]
    rest = [name for name in ("reward/mean", "train/loss") if name in metrics]
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in [*first, *rest][:4]) or "-"


def _steps(steps: list[int]) -> str:
    if not steps:
        return ""
    shown = ", ".join(map(str, steps[:20])) + (", ..." if len(steps) > 20 else "")
    return f" (steps {shown})" if len(steps) > 1 else f" (step {shown})"
