"""`art selftest`: show that weights are trained, served, and learn."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from art_core.errors import MissingExtraError

EPILOG = "Example: art selftest --model smollm2-135m"


def selftest(
    model: Annotated[str, typer.Option(help="smollm2-135m, a folder, or a hub id.")] = "smollm2-135m",
    engine: Annotated[str, typer.Option(help="What samples.")] = "embedded",
    trainer: Annotated[str, typer.Option(help="What makes training steps.")] = "native",
    steps: Annotated[int, typer.Option(help="Steps of the toy task at most.", min=3)] = 12,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")] = False,
) -> None:
    """Train a model on a toy task, and compare engine and trainer before, while and after.

    A step of learning rate zero must change nothing, and the reward of the toy task must rise. Nothing is kept.
    """
    try:
        from art_core.selftest import selftest as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "art_core":
            raise
        raise MissingExtraError(
            f"`art selftest` needs {error.name!r}, which is not installed; run: pip install 'art-core[train]'"
        ) from error
    say = (lambda text: typer.echo(text, err=True)) if as_json else typer.echo
    result = asyncio.run(run(model, engine=engine, trainer=trainer, steps=steps, say=say))
    if as_json:
        typer.echo(json.dumps(result.as_data(), indent=2))
    else:
        for fault in result.faults:
            typer.echo(f"FAILED  {fault}")
        if result.passed:
            typer.echo(f"passed: the reward rose by {result.gain:.3f}, wanted {result.wanted_gain:g} or more")
    if not result.passed:
        raise typer.Exit(1)
