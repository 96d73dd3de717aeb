"""The `art` command. A command's module imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import io
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from art_core.cli import checkpoints, doctor, export, runs, selftest, serve
from art_core.one_line import one_line_errors

app = typer.Typer(
    name="art",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(
    epilog=serve.EPILOG,
    short_help="Serve models to any OpenAI client, and train them.",
    context_settings={"allow_extra_args": True},  # to say how a model is given
)(serve.serve)
app.add_typer(runs.app)
app.add_typer(checkpoints.app)
app.command(epilog=export.EPILOG, short_help="Write the trajectories of a run to one file.")(export.export)
app.command(epilog=doctor.EPILOG, short_help="Say what is wrong with this machine, or with a run.")(doctor.doctor)
app.command(epilog=selftest.EPILOG, short_help="Show that weights are trained, served, and learn.")(selftest.selftest)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"art-core {version('art-core')}")
        raise typer.Exit


@app.callback(epilog="Example: art serve --model shop/clerk=smollm2-135m")
def _art(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train LLM agents with reinforcement learning."""


def main() -> None:
    """Entry point of the `art` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the terminal cannot show, or is no text at all, is escaped
            stream.reconfigure(errors="backslashreplace")
    with one_line_errors("art"):
        app()
