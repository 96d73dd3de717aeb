"""The `art` command. A command's module imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import typer

from art_core.cli.running import one_line_errors
from art_core.cli.serve import serve

app = typer.Typer(
    name="art",
    help="Train LLM agents with reinforcement learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _commands() -> None:
    """Train LLM agents with reinforcement learning."""


app.command(epilog="Example: art serve --model clerk=smollm2-135m --path runs")(serve)


def main() -> None:
    """Entry point of the `art` command."""
    with one_line_errors():
        app()
