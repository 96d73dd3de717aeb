"""`art serve`: an OpenAI-compatible server of trainable models."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art_core.errors import ConfigError, MissingExtraError
from art_core.one_line import INTERRUPTED

if TYPE_CHECKING:
    from art_core.control import RegisterRequest
    from art_core.hosting.server import HostServer

EPILOG = "Example: art serve --model clerk=smollm2-135m --path runs"
_DEFAULT_PROJECT = "default"


def serve(
    context: typer.Context,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Serve this model from the start: BASE, NAME=BASE or PROJECT/NAME=BASE, where BASE is smollm2-135m, a "
            "folder or a hub id. Repeatable; clients can register more.",
            metavar="[NAME=]BASE",
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="What samples.")] = "embedded",
    trainer: Annotated[str, typer.Option(help="What makes training steps.")] = "native",
    host: Annotated[str, typer.Option(help="Address to listen on. Any but loopback needs an API key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8400,
    path: Annotated[Path, typer.Option(help="Folder of the runs: PATH/PROJECT/NAME/.")] = Path(".art"),
    sink: Annotated[
        list[str] | None,
        typer.Option(help="Show metrics there, besides the run folder: tensorboard or wandb. Repeatable."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Key that requests must carry as bearer token. Better given as ART_API_KEY: others can see arguments.",
            envvar="ART_API_KEY",
            show_envvar=False,
        ),
    ] = None,
    options: Annotated[
        str, typer.Option(help="JSON object with options of the server and defaults of its models.", metavar="JSON")
    ] = "{}",
    grace: Annotated[float, typer.Option(help="Seconds that calls in flight may take at shutdown.", min=0.0)] = 10.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON with the url when it listens.")
    ] = False,
    announce_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    end_with_stdin: Annotated[bool, typer.Option("--end-with-stdin", hidden=True)] = False,
) -> None:
    """Serve models to any OpenAI client, record what they are asked, and train them.

    A model is called PROJECT/NAME in requests, which always means its newest weights; PROJECT/NAME@STEP pins a step.
    Runs are kept in PATH and go on where they were.
    """
    if context.args:
        given = context.args[0]
        raise ConfigError(f"{given!r} belongs to no option; a model is served with --model {given}")
    if end_with_stdin:
        _end_with_parent()
    requests = [_request(text) for text in model or ()]
    server = _made(
        path=path,
        engine=engine,
        trainer=trainer,
        options=options,
        sinks=sink or [],
        address=host,
        port=port,
        api_key=api_key,
        grace_s=grace,
    )

    def announce(url: str) -> None:
        line = json.dumps({"url": url, "pid": os.getpid(), "path": str(path.resolve())})
        if announce_fd is not None:
            with os.fdopen(announce_fd, "w") as pipe:
                pipe.write(line + "\n")
        typer.echo(line if as_json else f"serving on {url} (runs in {path})")

    if asyncio.run(_run(server, requests, announce)) == signal.SIGINT:
        sys.exit(INTERRUPTED)


def _made(*, path: Path, engine: str, trainer: str, options: str, sinks: list[str], **listening: Any) -> HostServer:
    try:
        from art_core.hosting.host import ModelHost
        from art_core.hosting.options import HostOptions
        from art_core.hosting.server import HostServer
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "art_core":
            raise
        raise MissingExtraError(
            f"`art serve` needs {error.name!r}, which is not installed; run: pip install 'art-core[train]'"
        ) from error
    try:
        values = json.loads(options)
    except ValueError as error:
        raise ConfigError(f"--options is not JSON: {error}; wanted an object like '{{\"seed\": 1}}'") from error
    if not isinstance(values, dict):
        raise ConfigError(f"--options is {values!r}; wanted a JSON object like '{{\"seed\": 1}}'")
    if sinks and "sinks" in values:
        raise ConfigError("sinks are given both as --sink and in --options; leave one of them out")
    chosen = HostOptions.made({"sinks": sinks, **values}, of="the server")
    return HostServer(ModelHost(path, engine=engine, trainer=trainer, options=chosen), **listening)


async def _run(server: HostServer, requests: Sequence[RegisterRequest], announce: Any) -> int:
    """Serve until a signal comes, and return it. A second one ends what is still in flight at once."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(number: int) -> None:
        if stopped.done():
            server.hurry()
        else:
            stopped.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    async with server:
        for request in requests:
            registering = asyncio.create_task(server.host.register(request))
            ends: set[asyncio.Future[Any]] = {registering, stopped}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                registering.cancel()
                return stopped.result()
            state = registering.result()
            typer.echo(f"model {state.inference_name} at step {state.step}", err=True)
        announce(server.url)
        return await stopped


def _request(text: str) -> RegisterRequest:
    """The registration that `--model TEXT` stands for."""
    from art_core.control import RegisterRequest

    full, found, base = text.partition("=")
    if not found:
        base, full = text, Path(text).name
    project, has_project, name = full.partition("/")
    if not has_project:
        project, name = _DEFAULT_PROJECT, full
    if not base or not name:
        raise ConfigError(f"--model is {text!r}; wanted BASE, NAME=BASE or PROJECT/NAME=BASE")
    return RegisterRequest(project=project, name=name, base_model=base)


def _end_with_parent() -> None:
    """End this process when standard input does, or when the parent is another: nobody is left to serve.

    Everything on disk is whole at any moment, so it ends at once.
    """
    parent = os.getppid()

    def wait_for_end() -> None:
        while os.read(0, 4096):
            pass
        os._exit(0)

    def wait_for_parent() -> None:
        while os.getppid() == parent:  # whoever was forked from the parent holds the pipe open as well
            time.sleep(0.5)
        os._exit(0)

    for watch in (wait_for_end, wait_for_parent):
        threading.Thread(target=watch, name="art-parent-watch", daemon=True).start()
