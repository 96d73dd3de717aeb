"""The `art-mcp` command. Imports what a command needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from art_core.errors import ArtError, StorageError
from art_core.one_line import one_line_errors

if TYPE_CHECKING:
    from art_mcp.settings import RunSettings

app = typer.Typer(
    name="art-mcp",
    help="Make a small model good at using any MCP server, with no data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
T = TypeVar("T")

_Server = Annotated[
    str, typer.Argument(help="Command line that starts the MCP server, as one quoted word.", metavar="SERVER")
]
_AllowTool = Annotated[
    list[str] | None, typer.Option("--allow-tool", help="Call this tool though it is not marked read-only. Repeatable.")
]
_DenyTool = Annotated[list[str] | None, typer.Option("--deny-tool", help="Never call this tool. Repeatable.")]
_AllowWrites = Annotated[
    bool, typer.Option("--allow-writes", help="Call every tool, also those that may change things.")
]
_StartTimeout = Annotated[float, typer.Option(help="Seconds a server may take to start and list its tools.")]
_CallTimeout = Annotated[float, typer.Option(help="Seconds a tool call may take.")]
_Seed = Annotated[int, typer.Option(help="Decides scenarios, their order and every sampled token.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]


@app.command(
    epilog='Example: art-mcp train "uvx mcp-server-time" --model smollm2-135m --out runs/time',
)
def train(
    server: _Server,
    model: Annotated[str, typer.Option(help="smollm2-135m, a local folder, or a hub id.")] = "smollm2-135m",
    out: Annotated[Path | None, typer.Option(help="Output folder; by default runs/<name of the server>.")] = None,
    seed: _Seed = 0,
    scenarios: Annotated[Path | None, typer.Option(help="Use this scenarios.jsonl instead of proposing.")] = None,
    num_train: Annotated[int, typer.Option(help="Training scenarios to propose.")] = 112,
    num_held_out: Annotated[int, typer.Option(help="Held-out scenarios to propose.")] = 24,
    samples: Annotated[int, typer.Option(help="Attempts per held-out scenario in each evaluation.")] = 2,
    steps: Annotated[int, typer.Option(help="GRPO steps.")] = 5,
    groups_per_step: Annotated[int, typer.Option(help="Scenarios per step.")] = 6,
    group_size: Annotated[int, typer.Option(help="Attempts per scenario, compared with each other.")] = 4,
    loss: Annotated[str, typer.Option(help="dapo, ppo, dr_grpo, gspo, cispo or reinforce.")] = "dapo",
    learning_rate: Annotated[float, typer.Option(help="AdamW learning rate of the GRPO steps.")] = 5e-4,
    rank: Annotated[int, typer.Option(help="LoRA rank; alpha is twice the rank.")] = 16,
    warmup: Annotated[
        str, typer.Option(help="on, off, or auto: when the baseline success is below --warmup-threshold.")
    ] = "auto",
    warmup_threshold: Annotated[float, typer.Option(help="Baseline success below which auto warms up.")] = 0.2,
    warmup_demos: Annotated[int, typer.Option(help="Demonstrations, built from reference calls.")] = 48,
    warmup_batch: Annotated[int, typer.Option(help="Demonstrations per update.")] = 4,
    warmup_epochs: Annotated[int, typer.Option(help="Passes over the demonstrations.")] = 1,
    warmup_answer_every: Annotated[
        int, typer.Option(help="One in so many demonstrations of a tool goes on from the call to the answer.")
    ] = 3,
    warmup_learning_rate: Annotated[float, typer.Option(help="AdamW learning rate of the warm-up.")] = 1e-3,
    eval_temperature: Annotated[
        float, typer.Option(help="Sampling temperature of held-out attempts; training samples at 1.")
    ] = 0.7,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Longest completion of one model call; by default a little more than the references need."),
    ] = None,
    max_turns: Annotated[int, typer.Option(help="Model calls per attempt.")] = 2,
    max_context: Annotated[int, typer.Option(help="Longest prompt plus completion, in tokens.")] = 2048,
    concurrency: Annotated[int, typer.Option(help="Attempts in flight.")] = 48,
    server_processes: Annotated[int, typer.Option(help="Processes of the MCP server, at most.")] = 4,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the model; by default all cores.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    allow_tool: _AllowTool = None,
    deny_tool: _DenyTool = None,
    allow_writes: _AllowWrites = False,
    start_timeout: _StartTimeout = 30.0,
    call_timeout: _CallTimeout = 30.0,
    sink: Annotated[
        list[str] | None,
        typer.Option(help="Show metrics there, besides the output folder: tensorboard or wandb. Repeatable."),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Train a model on an MCP server and report the gain on held-out scenarios.

    Explores the server, proposes scenarios, measures the untrained model, warms it up if it never succeeds, trains it
    with GRPO, and measures again. Run the same command again to resume an unfinished run.
    """
    from art_mcp.settings import output_folder

    settings = _settings(
        server=server,
        model=model,
        seed=seed,
        scenarios=None if scenarios is None else str(scenarios),
        num_train=num_train,
        num_held_out=num_held_out,
        samples=samples,
        steps=steps,
        groups_per_step=groups_per_step,
        group_size=group_size,
        loss=loss,
        learning_rate=learning_rate,
        rank=rank,
        warmup=warmup,
        warmup_threshold=warmup_threshold,
        warmup_demos=warmup_demos,
        warmup_batch=warmup_batch,
        warmup_epochs=warmup_epochs,
        warmup_answer_every=warmup_answer_every,
        warmup_learning_rate=warmup_learning_rate,
        eval_temperature=eval_temperature,
        max_tokens=max_tokens,
        max_turns=max_turns,
        max_context=max_context,
        concurrency=concurrency,
        server_processes=server_processes,
        threads=threads,
        dtype=dtype,
        allow_tools=tuple(allow_tool or ()),
        deny_tools=tuple(deny_tool or ()),
        allow_writes=allow_writes,
        start_timeout_s=start_timeout,
        call_timeout_s=call_timeout,
    )
    folder = output_folder(out, server)
    report = _train(settings, folder, sink or [])
    if as_json:
        _print_json(report)
    else:
        from art_mcp.report import summary_table

        typer.echo(f"\n{summary_table(report)}\nreport: {folder / 'report.md'}")


def _train(settings: RunSettings, folder: Path, sinks: list[str]) -> dict[str, Any]:
    from art_mcp.progress import Progress
    from art_mcp.runfolder import RunFolder

    if folder.exists() and not folder.is_dir():
        raise ArtError(f"{folder} is a file; give a folder with --out")
    finished = RunFolder(folder).finished_report
    if finished is not None:
        RunFolder(folder).claim(settings)
        typer.echo(f"{folder} is finished already; nothing to do", err=True)
        return finished
    from art_mcp.train import train as run_training

    _make_folder(folder)
    with Progress(folder / "run.log") as progress:
        return _run(run_training(settings, folder, progress, sinks=sinks)).as_json()


@app.command(name="eval", epilog='Example: art-mcp eval "uvx mcp-server-time" --run runs/time')
def evaluate(
    server: _Server,
    run: Annotated[Path, typer.Option(help="Output folder of a run of `art-mcp train`.")],
    samples: Annotated[int | None, typer.Option(min=1, help="Attempts per scenario; by default as in the run.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Sampling seed; by default that of the run.")] = None,
    as_json: _Json = False,
) -> None:
    """Score the newest checkpoint of a run on its held-out scenarios again."""
    from art_mcp.evaluate import evaluate_run
    from art_mcp.progress import Progress

    with Progress() as progress:
        result = _run(evaluate_run(server, run, samples=samples, seed=seed, progress=progress))
    if as_json:
        _print_json(result)
    else:
        from art_mcp.stats import shown

        typer.echo(
            f"step {result['step']}: success {shown(result['success'], *result['ci95'])} on "
            f"{result['held_out']['scenarios']} held-out scenarios, {result['held_out']['samples']} samples each"
        )


@app.command(epilog='Example: art-mcp inspect "uvx mcp-server-time"')
def inspect(
    server: _Server,
    allow_tool: _AllowTool = None,
    deny_tool: _DenyTool = None,
    allow_writes: _AllowWrites = False,
    start_timeout: _StartTimeout = 30.0,
    as_json: _Json = False,
) -> None:
    """Show a server's tools, what they say of themselves, and which of them would be called."""
    settings = _settings(
        server=server,
        allow_tools=tuple(allow_tool or ()),
        deny_tools=tuple(deny_tool or ()),
        allow_writes=allow_writes,
        start_timeout_s=start_timeout,
    )
    from art_mcp.describe import inspect_server

    description = _run(inspect_server(settings, _say))
    if as_json:
        _print_json(description.as_json())
    else:
        typer.echo(description.as_text())


@app.command(name="scenarios", epilog='Example: art-mcp scenarios "uvx mcp-server-time" --out scenarios.jsonl')
def propose_only(
    server: _Server,
    out: Annotated[Path, typer.Option(help="File to write, one scenario per line.")],
    seed: _Seed = 0,
    num_train: Annotated[int, typer.Option(help="Training scenarios to propose.")] = 112,
    num_held_out: Annotated[int, typer.Option(help="Held-out scenarios to propose.")] = 24,
    allow_tool: _AllowTool = None,
    deny_tool: _DenyTool = None,
    allow_writes: _AllowWrites = False,
    start_timeout: _StartTimeout = 30.0,
    call_timeout: _CallTimeout = 30.0,
    as_json: _Json = False,
) -> None:
    """Only propose scenarios, to look at them, edit them, and use them with `train --scenarios`."""
    settings = _settings(
        server=server,
        seed=seed,
        num_train=num_train,
        num_held_out=num_held_out,
        groups_per_step=1,
        allow_tools=tuple(allow_tool or ()),
        deny_tools=tuple(deny_tool or ()),
        allow_writes=allow_writes,
        start_timeout_s=start_timeout,
        call_timeout_s=call_timeout,
    )
    if out.is_dir() or not out.parent.is_dir():
        raise ArtError(f"{out} is not a file that could be written; give --out a file in a folder that exists")
    if out.exists():
        raise ArtError(f"{out} exists, and may have been edited; remove it, or give --out another file")
    from art_mcp.progress import Progress
    from art_mcp.runfolder import propose_for_file

    with Progress() as progress:
        scenarios = _run(propose_for_file(settings, out, progress))
    if as_json:
        _print_json([scenario.model_dump(mode="json") for scenario in scenarios])
    else:
        for scenario in scenarios:
            typer.echo(f"{scenario.split:<9} {scenario.tool:<18} {' '.join(scenario.task.split())}")
        typer.echo(f"written to {out}")


# -- what every command shares ----------------------------------------------------------------------------------------


def _settings(**values: Any) -> RunSettings:
    from pydantic import ValidationError

    from art_core.errors import ConfigError
    from art_mcp.settings import RunSettings

    try:
        return RunSettings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        if isinstance(cause := first.get("ctx", {}).get("error"), ConfigError):
            raise cause from error
        option = "--" + str(first["loc"][0] if first["loc"] else "?").replace("_", "-").removesuffix("-s")
        raise ConfigError(f"{option} is {first['input']!r}: {first['msg'].lower()}") from error


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the output folder {folder}: {error.strerror}; give another --out") from error


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end. SIGTERM cancels it as Ctrl-C does, so that everything it opened is closed."""

    async def supervised() -> T:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    return asyncio.run(supervised())


_INTERRUPTION = "interrupted; what was earned is kept, run the same command again to go on"


def main() -> None:
    """Entry point of the `art-mcp` command."""
    # Threads of GNU OpenMP spin for milliseconds before they sleep. As soon as another process, here the MCP server,
    # wants the same cores, that slows everything down by an order of magnitude; never spinning costs a third of the
    # speed on an idle machine. A few microseconds serve both. Read when torch is first imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    with one_line_errors("art-mcp", interrupted=_INTERRUPTION):
        app()


if __name__ == "__main__":
    main()
