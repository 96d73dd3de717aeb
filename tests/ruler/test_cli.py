"""The `art-ruler` command as a real process, without a network and without a model.

What it does over a socket is in test_cli_server.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

COMMAND = Path(sys.executable).parent / "art-ruler"
Run = Callable[..., "subprocess.CompletedProcess[str]"]
TASK = {"role": "user", "content": "When does the train leave?"}


def answered(text: str) -> list[dict[str, Any]]:
    return [TASK, {"role": "assistant", "content": text}]


GOOD, BAD, EMPTY = answered("At 17:42, from platform 9."), answered("Sorry, I cannot tell."), answered("")


def write(path: Path, *groups: Any) -> Path:
    path.write_text("".join(json.dumps(group) + "\n" for group in groups))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def art_ruler(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        keys = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        return subprocess.run(
            [str(COMMAND), *map(str, words)],
            cwd=tmp_path,
            env={**keys, "COLUMNS": "100", **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return art_ruler


def assert_one_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode not in (0, None)
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("art-ruler: ")
    for part in parts:
        assert part in lines[0]


# Help


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_help_names_the_commands(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == 0
    assert "score" in done.stdout
    assert "audit" in done.stdout


@pytest.mark.parametrize("command", ["score", "audit"])
def test_help_of_each_command_has_an_example_that_uses_options_that_exist(run: Run, command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    example = done.stdout[done.stdout.index("Example: art-ruler") :]
    options = {word for word in example.split() if word.startswith("--")}
    listing = done.stdout[: done.stdout.index("Example: ")]
    assert options
    assert all(option in listing for option in options)
    assert "--json" in listing


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, contextlib; from art_ruler.cli import main; sys.argv = ['art-ruler', 'score', '--help']\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "assert not {'litellm', 'httpx', 'openai', 'tenacity'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


# score


def test_score_writes_each_line_with_what_the_judge_said(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path / "g.jsonl", {"trajectories": [BAD, GOOD, EMPTY], "task": 7}, [GOOD], [])
    done = run("score", source, "--judge", "heuristic", "--out", "out.jsonl", "--concurrency", 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("out.jsonl: 3 of 3 groups scored\ncalls: ")
    lines = read(tmp_path / "out.jsonl")
    assert [line["ruler"]["line"] for line in lines] == [1, 2, 3]
    assert lines[0]["task"] == 7
    assert lines[0]["trajectories"] == [BAD, GOOD, EMPTY]
    ruler = lines[0]["ruler"]
    assert [verdict["rank"] for verdict in ruler["verdicts"]] == [2, 1, 3]
    assert ruler["scores"][1] > ruler["scores"][0] > ruler["scores"][2]
    assert ruler["scores"] == [verdict["score"] for verdict in ruler["verdicts"]]
    assert (ruler["usage"]["calls"], ruler["judges"]) == (1, ["heuristic"])
    assert lines[2]["ruler"]["scores"] == []


def test_score_again_judges_nothing_and_a_longer_file_only_what_is_new(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path / "g.jsonl", [GOOD, BAD], [GOOD, EMPTY])
    words = ("score", source, "--judge", "heuristic", "--out", "out.jsonl", "--json")
    assert json.loads(run(*words).stdout)["scored"] == 2
    before = (tmp_path / "out.jsonl").read_bytes()
    scores = [line["ruler"]["scores"] for line in read(tmp_path / "out.jsonl")]
    again = json.loads(run(*words).stdout)
    assert (again["groups"], again["already_done"], again["scored"], again["usage"]["calls"]) == (2, 2, 0, 0)
    assert (tmp_path / "out.jsonl").read_bytes() == before
    write(tmp_path / "g.jsonl", [BAD, EMPTY], [GOOD, BAD], [GOOD, EMPTY])
    longer = json.loads(run(*words).stdout)
    assert (longer["already_done"], longer["scored"], longer["usage"]["calls"]) == (2, 1, 1)
    lines = read(tmp_path / "out.jsonl")
    assert [line["ruler"]["line"] for line in lines] == [2, 3, 1]
    assert [line["ruler"]["scores"] for line in lines[:2]] == scores


def test_a_run_with_nothing_left_to_do_does_not_load_litellm(tmp_path: Path) -> None:
    source = write(tmp_path / "g.jsonl", [GOOD, BAD])
    code = (
        "import sys, contextlib; from art_ruler import LiteLLMJudge; from art_ruler.cli import main\n"
        "from art_ruler.fakes import HeuristicJudge\n"
        "async def nothing(self): pass\n"
        "async def fake(self, request): return await HeuristicJudge().complete(request)\n"
        "if sys.argv[1] == 'fake': LiteLLMJudge.prepare, LiteLLMJudge.complete = nothing, fake\n"
        "sys.argv = ['art-ruler', 'score', *sys.argv[2:]]\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "assert 'litellm' not in sys.modules\n"
    )
    for how, found in (("fake", "1 of 1 groups scored"), ("real", "1 were there before")):
        words = [how, str(source), "--judge", "openai/m", "--out", str(tmp_path / "o")]
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        assert found in done.stdout


def test_options_of_score_reach_the_judge(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path / "g.jsonl", [GOOD, BAD, EMPTY])
    done = run("score", source, "--judge", "heuristic", "--out", "o", "--passes", 3, "--reward", "rank", "--json")
    assert json.loads(done.stdout)["usage"]["calls"] == 3
    (line,) = read(tmp_path / "o")
    assert len(line["ruler"]["verdicts"][0]["per_pass"]) == 3
    assert line["ruler"]["scores"] != [verdict["score"] for verdict in line["ruler"]["verdicts"]]


def test_a_cache_makes_another_output_free(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path / "g.jsonl", [GOOD, BAD])
    words = ("score", source, "--judge", "heuristic", "--cache", tmp_path / "cache", "--json", "--out")
    assert json.loads(run(*words, "a").stdout)["usage"]["calls"] == 1
    second = json.loads(run(*words, "b").stdout)["usage"]
    assert (second["calls"], second["cache_hits"]) == (0, 1)
    assert read(tmp_path / "a")[0]["ruler"]["scores"] == read(tmp_path / "b")[0]["ruler"]["scores"]


def test_a_budget_stops_cleanly_and_a_larger_one_goes_on(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path / "g.jsonl", *([answered(f"answer {i}"), GOOD] for i in range(8)))
    words = ("score", source, "--judge", "heuristic", "--out", "out.jsonl", "--concurrency", 1)
    done = run(*words, "--max-tokens", 1500)
    assert_one_line(done, "of 8 groups are not scored", "the budget (--max-tokens 1500)", "a budget is for one run")
    first = len(read(tmp_path / "out.jsonl"))
    assert 0 < first < 8
    assert all(None not in line["ruler"]["scores"] for line in read(tmp_path / "out.jsonl"))
    done = run(*words, "--max-tokens", 100_000)
    assert done.returncode == 0
    assert f"{8 - first} of 8 groups scored, {first} were there before" in done.stdout
    assert sorted(line["ruler"]["line"] for line in read(tmp_path / "out.jsonl")) == list(range(1, 9))


def test_other_settings_do_not_mix_in_one_output(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path / "g.jsonl", [GOOD, BAD])
    words = ("score", source, "--judge", "heuristic", "--out", "out.jsonl")
    assert run(*words).returncode == 0
    for more in (["--seed", "1"], ["--passes", "2"], ["--rubric", "- short"], ["--judge", "noisy"]):
        assert_one_line(run(*words, *more), "other settings", "another --out")


def test_a_bad_line_is_named_before_anything_is_judged(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path / "g.jsonl", [GOOD, BAD], [GOOD, BAD], [GOOD, {"role": "user"}])
    done = run("score", source, "--judge", "heuristic", "--out", "out.jsonl")
    assert_one_line(done, "g.jsonl:3: trajectory 1")
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("score", "none.jsonl", "--judge", "heuristic", "--out", "o"), ["none.jsonl does not exist"]),
        (("score", "g.jsonl", "--judge", "heuristic"), ["--out"]),
        (("score", "g.jsonl", "--out", "o"), ["--judge"]),
        (("score", "g.jsonl", "--judge", "", "--out", "o"), ["--judge is empty", "openai/gpt-5-mini"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "g.jsonl"), ["is the file to be scored"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "no/where"), ["no/where cannot be written"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--passes", "x"), ["--passes is 'x'", "auto"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--passes", "0"), ["passes"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--reward", "x"), ["reward"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--weight", "1", "--weight", "2"), ["weights"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--concurrency", "0"), ["--concurrency"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--timeout", "-1"), ["--timeout is -1"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--max-group", "1"), ["--max-group is 1"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--rubric-file", "no"), ["no cannot be read"]),
        (
            ("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--rubric", "a", "--rubric-file", "b"),
            ["--rubric and --rubric-file"],
        ),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--api-key-env", "UNSET"), ["UNSET", "not set"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--judge-param", "x"), ["NAME=JSON"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--total-timeout", "0"), ["--total-timeout is 0"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--on-format-error", "x"), ["none", "raise"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--context-tokens", "x=y"), ["MODEL=NUMBER"]),
        (
            ("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--context-tokens", "0"),
            ["--context-tokens is 0"],
        ),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--context-tokens", "x=9"), ["'x'", "heuristic"]),
        (("audit", "g.jsonl", "--judge", "heuristic", "--context-tokens", "x=9"), ["'x'", "heuristic"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--header", "X-A: env:UNSET"), ["UNSET", "X-A"]),
        (("score", "g.jsonl", "--judge", "gpt-foo", "--out", "o"), ["'gpt-foo'", "PROVIDER/MODEL", "--api-base"]),
        (("score", "g.jsonl", "--judge", "openai/", "--out", "o"), ["'openai/'", "names no model"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--fallback", "gpt-foo", "--out", "o"), ["'gpt-foo'"]),
        (
            ("score", "g.jsonl", "--judge", "m", "--api-base", "localhost:1", "--out", "o"),
            ["'localhost:1'", "a URL"],
        ),
        (
            ("score", "g.jsonl", "--judge", "heuristic", "--out", "-", "--retry-unscored"),
            ["--retry-unscored is given with --out -"],
        ),
        (("audit", "l.jsonl", "--judge", "gpt-foo"), ["'gpt-foo'", "PROVIDER/MODEL"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "o", "--pases", "3"), ["--pases"]),
        (("audit", "g.jsonl", "--judge", "heuristic"), ['g.jsonl:1: has no "labels"']),
        (("audit", "g.jsonl", "--judge", "heuristic", "--judge", "heuristic"), ["twice"]),
        (("audit", "g.jsonl", "--judge", "heuristic", "--synthetic", "--size", "1"), ["--size is 1"]),
        (("audit", "questions.jsonl", "--judge", "heuristic", "--synthetic"), ["questions.jsonl:1, trajectory 0"]),
        (("score", "g.jsonl", "--judge", "heuristic", "--out", "/dev/null"), ["is no regular file", "--out"]),
        (("audit", "same.jsonl", "--judge", "heuristic"), ["same.jsonl: in no group", "differ"]),
        (("jugde",), ["jugde"]),
    ],
)
def test_mistakes_get_one_line(run: Run, tmp_path: Path, words: tuple[str, ...], parts: list[str]) -> None:
    write(tmp_path / "g.jsonl", [GOOD, BAD])
    write(tmp_path / "questions.jsonl", [[TASK]])
    write(tmp_path / "l.jsonl", {"trajectories": [GOOD, BAD], "labels": [1, 0]})
    write(tmp_path / "same.jsonl", {"trajectories": [GOOD, BAD], "labels": [1, 1]})
    done = run(*words)
    assert_one_line(done, *parts)
    is_data = {"questions.jsonl", "none.jsonl", "same.jsonl"} & set(words) or parts[0].startswith("g.")
    assert done.returncode == (1 if is_data else 2)
    assert not (tmp_path / "o").exists()


def test_standard_input_and_output(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path / "g.jsonl", {"trajectories": [GOOD, BAD], "task": 7}, [GOOD, EMPTY])
    command = [str(COMMAND), "score", "-", "--judge", "heuristic", "--out", "-"]
    with source.open("rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert done.stderr.startswith("standard output: 2 of 2 groups scored\n")
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["task"], first["ruler"]["line"], second["ruler"]["line"]) == (7, 1, 2)
    done = subprocess.run(command, input="[[3]]\n", capture_output=True, text=True, timeout=120, check=False)
    assert_one_line(done, "standard input:1: trajectory 0")
    assert done.stdout == ""
    assert not list(tmp_path.glob("-*"))
    assert_one_line(run("score", source, "--judge", "heuristic", "--out", "/dev/stdout"), "--out", "- for standard")


def test_the_version_and_the_command_as_a_module(run: Run) -> None:
    assert run("--version").stdout == f"art-ruler {version('art-ruler')}\n"
    done = subprocess.run(
        [sys.executable, "-m", "art_ruler", "--version"], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == f"art-ruler {version('art-ruler')}\n"


def test_an_edited_input_is_reported(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path / "g.jsonl", [GOOD, BAD], [GOOD, EMPTY])
    words = ("score", source, "--judge", "heuristic", "--out", "out.jsonl")
    assert run(*words).returncode == 0
    write(source, [GOOD, BAD], [GOOD, answered("At 5.")])
    done = run(*words)
    assert done.returncode == 0
    assert "1 of 2 groups scored, 1 were there before, 1 lines of the output belong to no group" in done.stdout
    assert [line["ruler"]["line"] for line in read(tmp_path / "out.jsonl")] == [1, None, 2]


def test_progress_on_a_terminal_ends_before_the_result(tmp_path: Path) -> None:
    """The clock of the counter is set forward, so that every group is told."""
    pty = pytest.importorskip("pty")
    code = (
        "import sys; from art_ruler import terminal; from art_ruler.cli import main\n"
        "terminal._TERMINAL_INTERVAL_S = terminal._LOG_INTERVAL_S = 0.0\n"
        "main()"
    )
    source = write(tmp_path / "g.jsonl", [GOOD, BAD], [GOOD, EMPTY])
    words = ["score", str(source), "--judge", "heuristic", "--concurrency", "1"]
    ours, theirs = pty.openpty()
    subprocess.run(
        [sys.executable, "-c", code, *words, "--out", "a"], cwd=tmp_path, stdout=theirs, stderr=theirs, check=True
    )
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert shown.startswith("\r1 of 2 groups\r2 of 2 groups\r\na: 2 of 2 groups scored")
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--out", "b"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == "1 of 2 groups\n2 of 2 groups\n"


# audit


def labelled(folder: Path, count: int = 4) -> Path:
    return write(
        folder / "labelled.jsonl",
        *({"trajectories": [EMPTY, answered(f"At 17:{i}2."), BAD], "labels": [0, 1, 0.5]} for i in range(count)),
    )


def test_audit_prints_figures_of_each_judge_side_by_side(run: Run, tmp_path: Path) -> None:
    done = run("audit", labelled(tmp_path), "--judge", "heuristic", "--judge", "noisy", "--attacks")
    assert (done.returncode, done.stderr) == (0, "")
    head, _, *rows = done.stdout.splitlines()
    assert head.split() == ["4", "groups,", "12", "trajectories", "heuristic", "noisy"]
    accuracy = next(row for row in rows if row.startswith("pairwise accuracy"))
    assert "1.00 [1.00, 1.00]" in accuracy
    for name in ("top-1", "Kendall tau", "flip rate", "  noise", "  position bias", "self-agreement", "cost in USD"):
        assert any(row.startswith(name) for row in rows)
    for kind in ("no attack, judged again", "master key", "forged verdict", "instruction", "delimiter", "padding"):
        assert any(row.startswith(f"  {kind}") for row in rows)


def test_audit_as_json(run: Run, tmp_path: Path) -> None:
    report = json.loads(run("audit", labelled(tmp_path), "--judge", "heuristic", "--json").stdout)
    (judge,) = report["judges"]
    assert (report["groups"], report["trajectories"]) == (4, 12)
    assert (judge["judge"], judge["pairwise_accuracy"]) == ("heuristic", {"value": 1.0, "low": 1.0, "high": 1.0})
    assert (judge["flip_rate"], judge["noise"], judge["self_agreement"], judge["usage"]["calls"]) == (0.0, 0.0, 1.0, 12)
    assert judge["position_bias"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert judge["attack_baseline"] is None
    assert judge["attacks"] == []


def test_audit_of_synthetic_groups_is_the_same_each_time(run: Run, tmp_path: Path) -> None:
    source = write(
        tmp_path / "good.jsonl", [answered("The train to Lyon leaves at 17:42."), GOOD], {"trajectories": [GOOD]}
    )
    words = ("audit", source, "--synthetic", "--size", 4, "--judge", "noisy", "--json")
    first = json.loads(run(*words).stdout)
    assert (first["groups"], first["trajectories"]) == (3, 12)
    assert json.loads(run(*words).stdout) == first
    assert json.loads(run(*words, "--seed", 1).stdout) != first


def test_attacks_on_what_cannot_be_changed_are_refused_before_anything_is_asked(run: Run, tmp_path: Path) -> None:
    exchange = {"request": {"messages": [TASK]}, "response": {"choices": [{"message": GOOD[1]}]}}
    source = write(
        tmp_path / "e.jsonl",
        {"trajectories": [GOOD, BAD], "labels": [1, 0]},
        {"trajectories": [GOOD, {"exchanges": [exchange]}], "labels": [1, 0]},
    )
    cache = tmp_path / "cache"
    done = run("audit", source, "--judge", "heuristic", "--attacks", "--cache", cache)
    assert_one_line(done, "e.jsonl:2")
    assert not cache.exists() or not list(cache.rglob("*.json"))


def test_audit_without_any_answer_ends_with_an_error(run: Run, tmp_path: Path) -> None:
    done = run("audit", labelled(tmp_path), "--judge", "heuristic", "--max-tokens", 1)
    assert_one_line(done, "no judge scored any group", "budget")
