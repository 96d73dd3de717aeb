"""What the user of a command sees of an error: one line, and an exit code other than 0."""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Iterator

from art_core.errors import ArtError, StorageError

INTERRUPTED = 130


@contextlib.contextmanager
def one_line_errors(command: str, *, interrupted: str = "interrupted") -> Iterator[None]:
    """End the process with one line, which `command` begins, for what a user can mend.

    `interrupted` is what is said after Ctrl-C. A fault of ours keeps its traceback.
    """
    try:
        yield
    except SystemExit as end:
        if end.code == INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            _fail(command, interrupted, INTERRUPTED)
        raise
    except BaseException as error:
        if isinstance(error, BrokenPipeError) and _reader_has_gone():
            sys.stderr.close()
            sys.exit(1)
        known = _known_error(error)
        if known is None:
            raise
        _fail(command, str(known), 1)


def _reader_has_gone() -> bool:
    """Whoever read our output has seen enough; any other pipe that broke is an error to be told."""
    with contextlib.suppress(OSError, ValueError):  # closed, or no file of the system's
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    return False


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


def _fail(command: str, message: str, code: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(f"{command}: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 - the one line a user sees
    sys.exit(code)
