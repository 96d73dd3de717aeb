"""The `art` command. A command's module imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import io
import sys

import typer

from art_core.cli import export, runs, serve
from art_core.one_line import one_line_errors

app = typer.Typer(
    name="art",
    help="Train LLM agents with reinforcement learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(epilog=serve.EPILOG)(serve.serve)
app.add_typer(runs.app)
app.command(epilog=export.EPILOG)(export.export)


def main() -> None:
    """Entry point of the `art` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the terminal cannot show, or is no text at all, is escaped
            stream.reconfigure(errors="backslashreplace")
    with one_line_errors("art"):
        app()
