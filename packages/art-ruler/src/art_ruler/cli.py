"""The `art-ruler` command. Imports what a command needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from art_ruler.errors import ConfigError, RulerError

if TYPE_CHECKING:
    from art_ruler import Ruler
    from art_ruler.audit import LabelledGroup
    from art_ruler.batch import Summary
    from art_ruler.types import Usage

app = typer.Typer(
    name="art-ruler",
    help="Score attempts at the same task against each other with an LLM judge, and find out how good a judge is.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
T = TypeVar("T")
_INTERRUPTED = 130
# What typer raises for options it cannot make sense of; it has no public name of its own.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class _Interrupted(Exception):  # noqa: N818 - not an error
    """Ctrl-C or SIGTERM while judging, with what is left of the work in words."""


_ApiBase = Annotated[
    str | None, typer.Option(help="Base URL of an OpenAI-compatible server, for every judge and fall-back.")
]
_ApiKeyEnv = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Environment variable with the key; by default the one of the provider."),
]
_Rubric = Annotated[str | None, typer.Option(help="Criteria for the judge; by default four general ones.")]
_RubricFile = Annotated[Path | None, typer.Option(help="File with the criteria.")]
_Fallback = Annotated[
    list[str] | None, typer.Option("--fallback", metavar="MODEL", help="Asked where a judge fails. Repeatable.")
]
_Seed = Annotated[int, typer.Option(help="Decides the orders in which attempts are shown.")]
_MaxGroup = Annotated[int, typer.Option(help="Attempts shown at once; larger groups are judged in chunks.")]
_ContextTokens = Annotated[
    int | None, typer.Option(help="Longest prompt in tokens; by default what is known of the judge.")
]
_Concurrency = Annotated[int, typer.Option(min=1, help="Judge calls in flight.")]
_Timeout = Annotated[float, typer.Option(help="Seconds a judge call may take.")]
_MaxRetries = Annotated[int, typer.Option(min=0, help="Times a call is repeated that may succeed another time.")]
_Cache = Annotated[Path | None, typer.Option(help="Folder of the answers so far; equal calls are not made again.")]
_MaxCost = Annotated[float | None, typer.Option(help="Budget in US dollars.")]
_MaxTokens = Annotated[int | None, typer.Option(help="Budget in tokens, prompts and answers together.")]
_JudgeParam = Annotated[
    list[str] | None,
    typer.Option("--judge-param", metavar="NAME=JSON", help="Sent with each call, as in temperature=0. Repeatable."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]


@app.command(epilog="Example: art-ruler score groups.jsonl --judge openai/gpt-5-mini --passes 3 --out scored.jsonl")
def score(
    groups: Annotated[Path, typer.Argument(help='JSONL, one group a line: {"trajectories": [[message, ...], ...]}.')],
    judge: Annotated[
        list[str],
        typer.Option(
            "--judge", metavar="MODEL", help="Any model litellm knows, or `heuristic`. Repeatable: scores are averaged."
        ),
    ],
    out: Annotated[Path, typer.Option(help="JSONL to append to: each line of the input with the scores in `ruler`.")],
    weight: Annotated[
        list[float] | None, typer.Option("--weight", help="Weight of each --judge, in their order. Repeatable.")
    ] = None,
    fallback: _Fallback = None,
    rubric: _Rubric = None,
    rubric_file: _RubricFile = None,
    passes: Annotated[str, typer.Option(help="Orders in which a group is shown; auto stops once settled.")] = "1",
    reward: Annotated[str, typer.Option(help="score, rank, or normalized_rank.")] = "score",
    seed: _Seed = 0,
    max_group: _MaxGroup = 8,
    context_tokens: _ContextTokens = None,
    concurrency: _Concurrency = 8,
    timeout: _Timeout = 60.0,
    max_retries: _MaxRetries = 3,
    cache: _Cache = None,
    max_cost: _MaxCost = None,
    max_tokens: _MaxTokens = None,
    api_base: _ApiBase = None,
    api_key_env: _ApiKeyEnv = None,
    judge_param: _JudgeParam = None,
    as_json: _Json = False,
) -> None:
    """Score every group of a file.

    The file is checked whole before the first call. A group is written as soon as it is scored. Run the same command
    again after a stop: groups that are in the output are not judged again.
    """
    from art_ruler.batch import Summary, score_groups
    from art_ruler.files import ScoredFile, check_groups, read_groups
    from art_ruler.prompt import PROMPT_VERSION

    if out.exists() and groups.exists() and out.samefile(groups):
        raise ConfigError(f"--out {out} is the file to be scored; give another file")
    decides: dict[str, Any] = {
        "weights": weight or None,
        "rubric": _rubric(rubric, rubric_file),
        "passes": _passes(passes),
        "reward": reward,
        "seed": seed,
        "max_group": max_group,
        "context_tokens": context_tokens,
        "api_base": api_base,
        "judge_params": _judge_params(judge_param),
    }
    ruler = _ruler(
        judge,
        fallbacks=fallback,
        max_concurrency=concurrency,
        timeout_s=timeout,
        max_retries=max_retries,
        cache=cache,
        max_cost_usd=max_cost,
        max_tokens=max_tokens,
        api_key=_key(api_key_env),
        **decides,
    )
    summary = Summary(groups=check_groups(groups))
    settings = {"judges": judge, "fallbacks": fallback or [], "prompt_version": PROMPT_VERSION, **decides}
    with ScoredFile(out, settings) as scored:
        try:
            work = score_groups(
                ruler, read_groups(groups), scored, summary, concurrency=concurrency, progress=_progress()
            )
            _run(work, "what was scored is kept, run the same command again to go on")
        finally:
            _show(summary, out, as_json)
    _complain(summary)


def _show(summary: Summary, out: Path, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        _print_json({**asdict(summary), "not_tried": summary.not_tried, "out": str(out)})
        return
    before = f", {summary.already_done} were there before" if summary.already_done else ""
    unscored = f", {summary.unscored} trajectories in them without a score" if summary.unscored else ""
    typer.echo(f"{out}: {summary.scored} of {summary.groups} groups scored{before}{unscored}")
    typer.echo(_usage_line(summary.usage))


def _usage_line(usage: Usage) -> str:
    if not usage.calls:
        return "no calls" + (f", {usage.cache_hits} answers from the cache" if usage.cache_hits else "")
    cost = "price unknown" if usage.cost_usd is None else f"{usage.cost_usd:.4f} USD"
    if usage.cost_usd is not None and usage.unpriced_calls:
        cost += f" and {usage.unpriced_calls} answers of unknown price"
    parts = [f"calls: {usage.calls}", f"tokens: {usage.prompt_tokens} in, {usage.completion_tokens} out", cost]
    for name in ("cache_hits", "retries", "failed_calls", "repairs", "fallbacks", "downgrades", "cut_trajectories"):
        if value := getattr(usage, name):
            parts.append(f"{name.replace('_', ' ')}: {value}")
    return ", ".join(parts)


def _complain(summary: Summary) -> None:
    """End with an error where groups are left, since the output is then not what was asked for."""
    left = summary.failed + summary.stopped + summary.not_tried
    if summary.failed:
        raise RulerError(
            f"{left} of {summary.groups} groups got no answer and are not in the output, the last one being "
            f"{summary.problem}; when that is mended, run the same command again to try them"
        )
    if left:
        raise RulerError(
            f"the budget is spent, {left} of {summary.groups} groups are not scored; run the same command with a "
            "larger budget to go on"
        )


@app.command(
    epilog="Example: art-ruler audit good.jsonl --synthetic --attacks --judge openai/gpt-5-mini --judge openai/gpt-5"
)
def audit(
    groups: Annotated[
        Path, typer.Argument(help='JSONL, one group a line, with "labels": the true quality of each trajectory.')
    ],
    judge: Annotated[
        list[str],
        typer.Option(
            "--judge",
            metavar="MODEL",
            help="Any model litellm knows, `heuristic`, or `noisy`. Repeatable: judges are compared.",
        ),
    ],
    synthetic: Annotated[
        bool, typer.Option(help="All trajectories of the file are good: compare each with ever more damaged copies.")
    ] = False,
    size: Annotated[int, typer.Option(help="Trajectories in a synthetic group, at most.")] = 6,
    attacks: Annotated[
        bool, typer.Option(help="Also judge each group with its worst trajectory under five kinds of attack.")
    ] = False,
    rubric: _Rubric = None,
    rubric_file: _RubricFile = None,
    passes: Annotated[str, typer.Option(help="Orders in which a group is shown; the flip rate needs two.")] = "2",
    seed: _Seed = 0,
    max_group: _MaxGroup = 8,
    context_tokens: _ContextTokens = None,
    concurrency: _Concurrency = 8,
    timeout: _Timeout = 60.0,
    max_retries: _MaxRetries = 3,
    cache: _Cache = None,
    max_cost: _MaxCost = None,
    max_tokens: _MaxTokens = None,
    api_base: _ApiBase = None,
    api_key_env: _ApiKeyEnv = None,
    judge_param: _JudgeParam = None,
    as_json: _Json = False,
) -> None:
    """Find out how good judges are, from groups whose order is known.

    Prints for each judge: pairwise accuracy within groups, top-1, Kendall tau, flip rate between orders, agreement
    between passes, correlation with length, and cost. Budgets hold for each judge.
    """
    from art_ruler.audit import LabelledGroup, synthetic_groups
    from art_ruler.audit import audit as run_audit
    from art_ruler.auditview import as_json as report_json
    from art_ruler.auditview import as_table
    from art_ruler.files import check_groups, read_groups

    if len(set(judge)) < len(judge):
        raise ConfigError(f"--judge names one of {', '.join(judge)} twice; give each judge once")
    if not 2 <= size <= 64:
        raise ConfigError(f"--size is {size}; a synthetic group has 2 to 64 trajectories")
    options: dict[str, Any] = {
        "rubric": _rubric(rubric, rubric_file),
        "passes": _passes(passes),
        "seed": seed,
        "max_group": max_group,
        "context_tokens": context_tokens,
        "max_concurrency": concurrency,
        "timeout_s": timeout,
        "max_retries": max_retries,
        "cache": cache,
        "max_cost_usd": max_cost,
        "max_tokens": max_tokens,
        "api_base": api_base,
        "api_key": _key(api_key_env),
        "judge_params": _judge_params(judge_param),
    }
    rulers = {name: _ruler([name], **options) for name in judge}
    count = check_groups(groups, labelled=not synthetic)

    def labelled() -> Iterator[LabelledGroup]:
        for line in read_groups(groups):
            labels = line.labels if line.labels is not None else (None,) * len(line.trajectories)
            yield LabelledGroup(line.trajectories, labels, line.tools, line.where)

    def wanted() -> Iterator[LabelledGroup]:
        return synthetic_groups(labelled(), size=size, seed=seed) if synthetic else labelled()

    if synthetic:
        count = sum(1 for _ in wanted())  # what cannot be damaged is named before the first call
    progress = _progress(count)
    work = run_audit(rulers, wanted(), attacks=attacks, seed=seed, concurrency=concurrency, progress=progress)
    report = _run(work, "an audit keeps nothing but the answers in --cache")
    if as_json:
        _print_json(report_json(report))
    else:
        typer.echo(as_table(report))
    if all(judged.failed == judged.groups for judged in report.judges):
        raise RulerError(f"no judge scored any group; {_first_problem(report)}")


def _first_problem(report: Any) -> str:
    return next((problem for judged in report.judges for problem in judged.problems), "the budget may be too small")


# -- what both commands share -----------------------------------------------------------------------------------------


def _ruler(judges: list[str], *, fallbacks: list[str] | None = None, **options: Any) -> Ruler:
    from art_ruler import Ruler

    if options["rubric"] is None:
        del options["rubric"]
    if not all(name.strip() for name in (*judges, *(fallbacks or ()))):
        raise ConfigError("--judge is empty; name a model, as in openai/gpt-5-mini, or `heuristic` to try without one")
    return Ruler(judges, fallbacks=fallbacks or (), **options)


def _passes(text: str) -> Any:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--passes is {text!r}; give a number, or auto") from None


def _rubric(text: str | None, path: Path | None) -> str | None:
    if text is not None and path is not None:
        raise ConfigError("--rubric and --rubric-file are both given; give one of them")
    if path is None:
        return text
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigError(f"--rubric-file {path} cannot be read: {reason}") from None


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not (key := os.environ.get(variable, "").strip()):
        raise ConfigError(f"--api-key-env names {variable}, which is not set; put the key into that variable")
    return key


def _judge_params(pairs: list[str] | None) -> dict[str, Any] | None:
    params: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--judge-param is {pair!r}; wanted NAME=JSON, as in temperature=0")
        try:
            params[name] = json.loads(value)
        except ValueError:
            params[name] = value  # a plain word needs no quotes
    return params or None


def _progress(total: int | None = None) -> Any:
    """Says now and then on a terminal how far it is; a log file is spared."""
    if not sys.stderr.isatty():
        return None
    last = time.monotonic()

    def show(state: Any) -> None:
        nonlocal last
        if time.monotonic() - last >= 1.0:
            last = time.monotonic()
            done, of = (state, total) if total is not None else (state.already_done + state.scored, state.groups)
            typer.echo(f"\r{done} of {of} groups", nl=False, err=True)

    return show


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _run(work: Coroutine[Any, Any, T], kept: str) -> T:
    """Run `work` to its end. SIGTERM cancels it as Ctrl-C does, so that it ends in order."""

    async def supervised() -> T:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            raise _Interrupted(kept) from None
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    return asyncio.run(supervised())


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """End the process with one line for what a user can mend. A fault of ours keeps its traceback."""
    try:
        yield
    except KeyboardInterrupt:
        _fail("interrupted", _INTERRUPTED)
    except _Interrupted as end:
        _fail(f"interrupted; {end}", _INTERRUPTED)
    except _UsageError as error:
        words: str = getattr(error, "format_message", error.__str__)()
        _fail(f"{words.rstrip('.')}; see `art-ruler --help`", 2)
    except BrokenPipeError:
        sys.exit(1)
    except RulerError as error:
        _fail(str(error), 1)
    except OSError as error:
        _fail(f"{error.filename or 'the system'}: {error.strerror or error}; mend it and run again", 1)


def _fail(message: str, code: int) -> None:
    print(f"art-ruler: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 - the one line a user sees
    sys.exit(code)


def main() -> None:
    """Entry point of the `art-ruler` command."""
    with _one_line_errors():
        code = app(sys.argv[1:] or ["--help"], prog_name="art-ruler", standalone_mode=False)
        if code == _INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            raise KeyboardInterrupt


if __name__ == "__main__":
    main()
