"""What every command of `art-ruler` does at its rim: run or be stopped, tell how far it is, fail in one line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Coroutine, Iterator
from typing import Any, NoReturn, TypeVar

import typer

from art_ruler.errors import ConfigError, RulerError

T = TypeVar("T")
_MISUSED, _SIGNALLED = 2, 128
_PATIENCE_S = 0.7  # what is cancelled may take so long to end
_TERMINAL_INTERVAL_S, _LOG_INTERVAL_S = 1.0, 10.0
# What typer raises for options it cannot make sense of; it has no public name of its own.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
# Arguments of `Ruler` in its messages, by the name they have on the command line.
_OPTIONS = {
    "api_base": "--api-base",
    "context_tokens": "--context-tokens",
    "extra_headers": "--header",
    "judge_params": "--judge-param",
    "max_cost_usd": "--max-cost",
    "max_concurrency": "--concurrency",
    "max_group": "--max-group",
    "max_retries": "--max-retries",
    "max_tokens": "--max-tokens",
    "on_format_error": "--on-format-error",
    "timeout_s": "--timeout",
    "total_timeout_s": "--total-timeout",
}
_ARGUMENT = re.compile(rf"\b({'|'.join(_OPTIONS)})\b(=?)")


class Interrupted(Exception):  # noqa: N818 - not an error
    """Ctrl-C or SIGTERM while judging, with what is left of the work in words."""

    def __init__(self, kept: str, number: int) -> None:
        super().__init__(kept)
        self.number = number


def run(work: Coroutine[Any, Any, T], kept: str) -> T:
    """Run `work` to its end.

    Ctrl-C and SIGTERM cancel it. Then `Interrupted` is raised within a second, whether or not it has ended: a thread
    that imports a library ends when it likes, and `one_line_errors` does not wait for it.
    """
    loop = asyncio.new_event_loop()
    stopped: list[int] = []

    async def supervised() -> T:
        task = asyncio.ensure_future(work)

        def stop(number: int) -> None:
            stopped.append(number)
            task.cancel()
            loop.call_later(_PATIENCE_S, ended.set)

        ended = asyncio.Event()
        task.add_done_callback(lambda _: ended.set())
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C is a KeyboardInterrupt, nothing else comes
                loop.add_signal_handler(number, stop, number)
        await ended.wait()
        if stopped and (task.cancelled() or not task.done()):
            raise Interrupted(kept, stopped[0])
        return task.result()

    try:
        return loop.run_until_complete(supervised())
    except KeyboardInterrupt:
        stopped.append(signal.SIGINT)
        raise Interrupted(kept, signal.SIGINT) from None
    finally:
        if not stopped:
            with contextlib.suppress(NotImplementedError):
                for number in (signal.SIGINT, signal.SIGTERM):
                    loop.remove_signal_handler(number)
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


class Progress:
    """Says on standard error how many groups are done: on a terminal in one line that changes, else in a line now and
    then. Quick work says nothing."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._interval_s = _TERMINAL_INTERVAL_S if self._is_terminal else _LOG_INTERVAL_S
        self._last = time.monotonic()
        self._is_line_open = False

    def show(self, done: int, of: int) -> None:
        if time.monotonic() - self._last >= self._interval_s:
            self._last = time.monotonic()
            text = f"{done} of {of} groups"
            self._is_line_open = self._is_terminal
            typer.echo(f"\r{text}" if self._is_terminal else text, nl=not self._is_terminal, err=True)

    def end(self) -> None:
        """Give what is printed next a line of its own."""
        if self._is_line_open:
            self._is_line_open = False
            typer.echo(err=True)


def print_json(value: Any, *, err: bool = False) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False), err=err)


class _Warnings(logging.Handler):
    """Shows what a `Ruler` warns of, with the options of the command line."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"art-ruler: {in_options(record.getMessage())}", file=sys.stderr)  # noqa: T201 - meant for a user


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with one line for what a user can mend. A fault of ours keeps its traceback."""
    for stream in (sys.stdout, sys.stderr):  # judges and files may hold what no terminal can show
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    logger, handler = logging.getLogger("art_ruler"), _Warnings(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    except KeyboardInterrupt:
        _fail("interrupted", _SIGNALLED + signal.SIGINT, at_once=True)
    except Interrupted as end:
        _fail(f"interrupted; {end}", _SIGNALLED + end.number, at_once=True)
    except _UsageError as error:
        words: str = getattr(error, "format_message", error.__str__)()
        _fail(f"{words.rstrip('.')}; see `art-ruler --help`", _MISUSED)
    except BrokenPipeError:
        sys.exit(1)
    except ConfigError as error:
        _fail(in_options(str(error), quotes_others=False), _MISUSED)
    except RulerError as error:
        _fail(in_options(str(error)), 1)
    except OSError as error:
        _fail(f"{error.filename or 'the system'}: {error.strerror or error}; mend it and run again", 1)
    finally:
        logger.removeHandler(handler)


def in_options(message: str, *, quotes_others: bool = True) -> str:
    """`message` with options where it names arguments of `Ruler`. One that `quotes_others`, such as a provider, may
    mean another `max_tokens`."""

    def option(found: re.Match[str]) -> str:
        if quotes_others and found[1] == "max_tokens" and not found[2]:
            return found[0]
        return _OPTIONS[found[1]] + (" " if found[2] else "")

    ours = r"(?<=key with |der with |ver with )api_key\b" if quotes_others else r"\bapi_key\b=?"
    message = re.sub(ours, "--api-key-env", message)
    return _ARGUMENT.sub(option, message)


def _fail(message: str, code: int, *, at_once: bool = False) -> NoReturn:
    print(f"art-ruler: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 - the one line a user sees
    if at_once:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # threads that are still busy would be waited for
    sys.exit(code)
