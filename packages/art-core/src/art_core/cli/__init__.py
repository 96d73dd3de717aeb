"""The `art` command. A command's module imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator

import typer

from art_core.cli import export, runs, serve
from art_core.errors import ArtError, StorageError

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
_INTERRUPTED = 130


def main() -> None:
    """Entry point of the `art` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the terminal cannot show, or is no text at all, is escaped
            stream.reconfigure(errors="backslashreplace")
    with _one_line_errors():
        app()


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """End the process with one line for what a user can mend. A fault of ours keeps its traceback."""
    try:
        yield
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            _fail("interrupted", _INTERRUPTED)
        raise
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stderr.close()
        sys.exit(1)
    except BaseException as error:
        known = _known_error(error)
        if known is None:
            raise
        _fail(str(known), 1)


def _known_error(error: BaseException) -> ArtError | None:
    """The error of ours that `error` is, or that a group of errors holds.

    What the system refuses (a disk, a permission) is the machine's fault and not ours, so it counts as known.
    """
    if isinstance(error, ArtError):
        return error
    if isinstance(error, OSError):
        return StorageError(f"{error.filename or 'the system'}: {error.strerror or error}; mend it and run again")
    if isinstance(error, BaseExceptionGroup):
        return next((known for inner in error.exceptions if (known := _known_error(inner))), None)
    return None


def _fail(message: str, code: int) -> None:
    print(f"art: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 - the one line a user sees
    sys.exit(code)
