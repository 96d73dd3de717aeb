"""`art export`: the trajectories of a run as one file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from art_core.cli.runs import PathOption
from art_core.errors import ConfigError
from art_core.runs import DEFAULT_PATH, Run, run
from art_core.saved import explained
from art_core.staging import staged

EPILOG = "Example: art export shop/clerk --format parquet --out clerk.parquet"


def export(
    name: Annotated[str, typer.Argument(metavar="NAME", help="project/name, or the name where it is unique.")],
    format: Annotated[Literal["parquet", "jsonl"], typer.Option(help="Kind of file.")],
    split: Annotated[str | None, typer.Option(help="Only of this split, for instance train or val.")] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="By default NAME.FORMAT here; - is standard output (jsonl).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    path: PathOption = DEFAULT_PATH,
) -> None:
    """Write the trajectories of a run, their exchanges included, to one file."""
    chosen = run(path, name)
    if out == "-":
        if format == "parquet":
            raise ConfigError("a Parquet file cannot go to standard output; give --out a file, or --format jsonl")
        for line in _lines(chosen, split):
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        return
    file = Path(out if out is not None else f"{chosen.identity['name']}.{format}")
    if file.exists() and not (force and file.is_file()):
        raise ConfigError(f"{file} exists; give --out another file" + ("" if file.is_dir() else ", or --force"))
    if not file.parent.is_dir():
        raise ConfigError(f"{file.parent} is no folder; make it, or give --out another file")
    with explained(file, "write"), staged(file) as staging:
        number = _write(chosen, split, format, staging)
        staging.replace(file)
    typer.echo(f"{number} trajectories written to {file}", err=True)


def _write(chosen: Run, split: str | None, format: str, file: Path) -> int:
    if format == "parquet":
        from art_core.runs.parquet import write_parquet

        return write_parquet(chosen.stored(split), file)
    number = 0
    with file.open("wb") as stream:
        for line in _lines(chosen, split):
            stream.write(line)
            number += 1
    return number


def _lines(chosen: Run, split: str | None) -> Iterator[bytes]:
    return (_line(record) for record in chosen.records(split))


def _line(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, ensure_ascii=False) + "\n").encode(errors="backslashreplace")
