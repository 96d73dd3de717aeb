"""The `art-ruler` command. Imports what a command needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art_ruler.errors import ConfigError, DataError, RulerError
from art_ruler.options import JudgeOptions, with_judge_options
from art_ruler.terminal import Progress, in_options, one_line_errors, print_json, run

if TYPE_CHECKING:
    from art_ruler.audit import AuditReport
    from art_ruler.batch import Summary
    from art_ruler.types import Usage

app = typer.Typer(
    name="art-ruler",
    help="Score attempts at the same task against each other with an LLM judge, and find out how good a judge is.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_STREAM = Path("-")
_INTERRUPTED = 130  # what typer makes of a KeyboardInterrupt


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"art-ruler {version('art-ruler')}")
        raise typer.Exit


@app.callback()
def _whole_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the command itself."""


_Judge = Annotated[
    list[str],
    typer.Option(
        "--judge",
        metavar="MODEL",
        help="Any model litellm knows, or a fake: `heuristic`, `noisy`. Repeatable: several are averaged by score, and "
        "compared by audit.",
    ),
]


@app.command(epilog="Example: art-ruler score groups.jsonl --judge openai/gpt-5-mini --passes 3 --out scored.jsonl")
@with_judge_options
def score(
    groups: Annotated[
        Path,
        typer.Argument(help='JSONL, one group a line: {"trajectories": [[message, ...], ...]}; - is standard input.'),
    ],
    judge: _Judge,
    out: Annotated[
        Path,
        typer.Option(
            help="JSONL to append to: each line of the input with the scores in `ruler`; - is standard output."
        ),
    ],
    options: JudgeOptions,
    weight: Annotated[
        list[float] | None, typer.Option("--weight", help="Weight of each --judge, in their order. Repeatable.")
    ] = None,
    fallback: Annotated[
        list[str] | None, typer.Option("--fallback", metavar="MODEL", help="Asked where a judge fails. Repeatable.")
    ] = None,
    passes: Annotated[str, typer.Option(help="Orders in which a group is shown; auto stops once settled.")] = "1",
    reward: Annotated[str, typer.Option(help="score, rank, or normalized_rank.")] = "score",
    on_format_error: Annotated[
        str,
        typer.Option(
            metavar="none|raise",
            help="What an answer that stays faulty after one repair leads to: null scores, or the end of the run.",
        ),
    ] = "none",
    retry_unscored: Annotated[
        bool, typer.Option("--retry-unscored", help="Judge groups of --out again in which a trajectory has no score.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary (counts and usage, no scores) as JSON.")
    ] = False,
) -> None:
    """Score every group of a file.

    The file is checked whole before the first call. A group is written as soon as it is scored. Run the same command
    again after a stop: groups that are in the output are not judged again. Ends with code 1 where anything has no
    score.
    """
    from art_ruler.batch import Summary, score_groups
    from art_ruler.files import check_groups, read_groups
    from art_ruler.prompt import PROMPT_VERSION
    from art_ruler.scored import ScoredFile, ScoredStream
    from art_ruler.types import Usage

    if out.exists() and groups.exists() and out.samefile(groups):
        raise ConfigError(f"--out {out} is the file to be scored; give another file")
    if retry_unscored and out == _STREAM:
        raise ConfigError("--retry-unscored is given with --out -, which holds no groups yet; give the file with them")
    own = {"weights": weight or None, "passes": _passes(passes), "reward": reward}
    ruler = options.ruler(judge, fallback or (), on_format_error=on_format_error, **own)
    with _seekable(groups) as (path, name):
        summary = Summary(groups=check_groups(path, name=name))
        kept = "what was scored is kept, run the same command again to go on"
        settings = {"judges": judge, "fallbacks": fallback or None, "prompt_version": PROMPT_VERSION}
        settings |= {**own, **options.settings([*judge, *(fallback or ())])}
        progress = Progress()

        def show(state: Summary) -> None:
            progress.show(state.already_done + state.tried, state.groups)

        opened = (
            ScoredStream(sys.stdout.buffer, settings)
            if out == _STREAM
            else ScoredFile(out, settings, retry_unscored=retry_unscored)
        )
        is_refused = False
        with opened as scored:
            try:
                work = score_groups(
                    ruler, read_groups(path, name), scored, summary, concurrency=options.concurrency, progress=show
                )
                run(work, kept)
                summary.stale = scored.finish()
            except ConfigError:
                is_refused = not summary.tried and summary.usage == Usage()
                raise
            finally:
                progress.end()
                if not is_refused:
                    _show(summary, out, as_json)
    _complain(summary, out)


def _show(summary: Summary, out: Path, as_json: bool) -> None:
    from dataclasses import asdict

    is_stream = out == _STREAM
    if as_json:
        print_json({**asdict(summary), "not_tried": summary.not_tried, "out": str(out)}, err=is_stream)
        return
    text = f"{'standard output' if is_stream else out}: {summary.scored} of {summary.groups} groups scored"
    for count, words in (
        (summary.already_done, "were there before"),
        (summary.unscored, "without any valid score"),
        (summary.kept, "judged again with fewer scores, so that the old ones stay"),
        (summary.failed, "not answered"),
        (summary.stopped, "beyond the budget"),
        (summary.not_tried, "not tried"),
        (summary.unscored_trajectories, "trajectories in the output without a score"),
        (summary.stale, "lines of the output belong to no group of the input (their `line` is null)"),
    ):
        text += f", {count} {words}" if count else ""
    typer.echo(text, err=is_stream)
    typer.echo(_usage_line(summary.usage), err=is_stream)


def _usage_line(usage: Usage) -> str:
    if not usage.calls:
        return "no calls" + (f", {usage.cache_hits} answers from the cache" if usage.cache_hits else "")
    cost = "price unknown" if usage.cost_usd is None else f"{usage.cost_usd:.4f} USD"
    if usage.cost_usd is not None and usage.unpriced_calls:
        cost += f" and {usage.unpriced_calls} answers of unknown price"
    parts = [f"calls: {usage.calls}", f"tokens: {usage.prompt_tokens} in, {usage.completion_tokens} out", cost]
    for name in (
        *("cache_hits", "retries", "failed_calls", "failed_passes", "repairs", "fallbacks", "downgrades"),
        *("cut_trajectories", "estimated_calls", "cache_failures"),
    ):
        if value := getattr(usage, name):
            parts.append(f"{name.replace('_', ' ')}: {value}")
    return ", ".join(parts)


def _complain(summary: Summary, out: Path) -> None:
    """End with an error where anything has no score, since the output is then not what was asked for."""
    left = summary.failed + summary.stopped + summary.not_tried
    if summary.failed:
        raise RulerError(
            f"{left} of {summary.groups} groups got no answer in full and are not in the output, the last one being "
            f"{summary.problem}; when that is mended, run the same command again to try them"
        )
    if left:
        raise RulerError(
            f"{left} of {summary.groups} groups are not scored: {summary.problem}; a budget is for one run, so run the "
            "same command again to go on, with a larger one if nothing was scored"
        )
    if summary.unscored_trajectories:
        problem = f", as {summary.problem}" if summary.problem else ""
        again = "" if out == _STREAM else "; the same command with --retry-unscored judges their groups again"
        raise RulerError(f"{summary.unscored_trajectories} trajectories have no score{problem}{again}")


@app.command(
    epilog="Example: art-ruler audit good.jsonl --synthetic --attacks --judge openai/gpt-5-mini --judge openai/gpt-5"
)
@with_judge_options
def audit(
    groups: Annotated[
        Path,
        typer.Argument(
            help='JSONL, one group a line, with "labels": the true quality of each trajectory; - is standard input.'
        ),
    ],
    judge: _Judge,
    options: JudgeOptions,
    synthetic: Annotated[
        bool, typer.Option(help="All trajectories of the file are good: compare each with ever more damaged copies.")
    ] = False,
    size: Annotated[int, typer.Option(help="Trajectories in a synthetic group, at most.")] = 6,
    attacks: Annotated[
        bool, typer.Option(help="Also judge each group with its worst trajectory under five kinds of attack.")
    ] = False,
    noise: Annotated[
        bool,
        typer.Option(help="Also make the first pass over each group twice, to tell noise from a liking for places."),
    ] = True,
    passes: Annotated[str, typer.Option(help="Orders in which a group is shown; the flip rate needs two.")] = "2",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Find out how good judges are, from groups whose order is known.

    Prints for each judge: pairwise accuracy within groups, top-1, Kendall tau, how often it contradicts itself when
    asked the same twice and when the order changes, correlation with length, and cost. Budgets hold for each judge.
    """
    from art_ruler.audit import audit as run_audit
    from art_ruler.auditview import as_json as report_json
    from art_ruler.auditview import as_table
    from art_ruler.files import check_groups, read_groups
    from art_ruler.labelled import LabelledGroup, check_attackable, synthetic_groups
    from art_ruler.synthetic import MAX_SIZE, MIN_SIZE

    if len(set(judge)) < len(judge):
        raise ConfigError(f"--judge names one of {', '.join(judge)} twice; give each judge once")
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise ConfigError(f"--size is {size}; a synthetic group has {MIN_SIZE} to {MAX_SIZE} trajectories")
    rulers = options.rulers(judge, passes=_passes(passes))
    with _seekable(groups) as (path, name):
        count = check_groups(path, labelled=not synthetic, name=name)

        def labelled() -> Iterator[LabelledGroup]:
            for line in read_groups(path, name):
                labels = line.labels if line.labels is not None else (None,) * len(line.trajectories)
                yield LabelledGroup(line.trajectories, labels, line.tools, line.where)

        def wanted() -> Iterator[LabelledGroup]:
            return synthetic_groups(labelled(), size=size, seed=options.seed) if synthetic else labelled()

        if synthetic or attacks:  # what cannot be damaged or attacked is named before the first call
            count = 0
            for group in wanted():
                count += 1
                if attacks:
                    check_attackable(group)
        kept = "an audit keeps nothing but the answers in --cache"
        for ruler in rulers.values():
            run(ruler.prepare(), kept)
        progress = Progress()
        work = run_audit(
            rulers,
            wanted(),
            attacks=attacks,
            noise=noise,
            seed=options.seed,
            concurrency=options.concurrency,
            progress=lambda done: progress.show(done, count),
        )
        try:
            report = run(work, kept)
        finally:
            progress.end()
    if as_json:
        print_json(report_json(report))
    else:
        typer.echo(in_options(as_table(report)))
    _complain_of(report)


def _complain_of(report: AuditReport) -> None:
    """End with an error where a judge has no figures."""
    problem = next((problem for judged in report.judges for problem in judged.problems), "")
    because = f"; {problem}" if problem else ""
    if all(judged.failed + judged.stopped == judged.groups for judged in report.judges):
        raise RulerError(f"no judge scored any group{because}")
    without = [judged.judge for judged in report.judges if judged.pairwise_accuracy.value is None]
    if without:
        raise RulerError(
            f"there are no figures for {', '.join(without)}: in no group were two trajectories scored that the labels "
            f"tell apart{because}"
        )
    for judged in report.judges:
        if judged.unusable is not None:
            raise RulerError(f"the figures of {judged.judge} are of the groups before this: {judged.unusable}")


# -- what both commands share -----------------------------------------------------------------------------------------


def _passes(text: str) -> Any:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--passes is {text!r}; give a number, or auto") from None


@contextlib.contextmanager
def _seekable(groups: Path) -> Iterator[tuple[Path, str]]:
    """A file that can be read twice, and what to call it: a stream is copied into a temporary one first."""
    is_stream = groups == _STREAM
    if not is_stream and (groups.is_file() or groups.is_dir() or not groups.exists()):
        yield groups, str(groups)
        return
    name = "standard input" if is_stream else str(groups)
    with tempfile.TemporaryDirectory(prefix="art-ruler-") as folder:
        copy = Path(folder) / "groups.jsonl"
        try:
            with copy.open("wb") as file, contextlib.ExitStack() as stack:
                source = sys.stdin.buffer if is_stream else stack.enter_context(groups.open("rb"))
                shutil.copyfileobj(source, file)
        except OSError as error:
            raise DataError(f"{name} cannot be read: {error.strerror}") from error
        yield copy, name


def main() -> None:
    """Entry point of the `art-ruler` command."""
    with one_line_errors():
        code = app(sys.argv[1:] or ["--help"], prog_name="art-ruler", standalone_mode=False)
        if code == _INTERRUPTED:
            raise KeyboardInterrupt


if __name__ == "__main__":
    main()
