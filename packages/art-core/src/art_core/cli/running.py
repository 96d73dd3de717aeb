"""How every command of `art` ends: with one line for what a user can mend."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from art_core.errors import ArtError, StorageError

INTERRUPTED = 130


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with one line for what a user can mend. A fault of ours keeps its traceback."""
    try:
        yield
    except SystemExit as end:
        if end.code == INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            _fail("interrupted; what was recorded is kept", INTERRUPTED)
        raise
    except BrokenPipeError:
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
    sys.stderr.write(f"art: {' '.join(message.split())}\n")
    sys.exit(code)
