"""Every example runs, is short, and is in the list of examples."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from art_core.errors import ModelNotFoundError
from art_core.runs import run
from art_core.testing import write_tiny_model
from art_core.weights.source import resolve_model
from art_ruler.fakes import HeuristicJudge
from art_ruler.testing_server import FakeJudgeServer
from tests.e2e.support import REPO, environment

EXAMPLES = REPO / "examples"
OPTIONS = json.dumps({"dtype": "float32", "num_threads": 1, "lora": {"rank": 4}})
STEP = re.compile(r"^step (\d+)  reward -?\d+\.\d\d(  .*)?$", re.MULTILINE)
# Each example that trains: what its model is called, and the fewest and most calls that one of its rollouts makes.
TRAINING = {
    "agent_elsewhere": ("sloganeer", 2, 2),
    "explicit_style": ("word-counter", 1, 1),
    "game_2048": ("game-2048", 1, 12),
    "sync_agent_in_threads": ("adder", 3, 3),
    "tic_tac_toe": ("tic-tac-toe", 1, 5),
    "two_tools_agent": ("shop-clerk", 2, 2),
}

# Each example with a graph: its model, options that make it short, fewest and most calls of a rollout, and the roles.
GRAPHS: dict[str, tuple[str, list[str], int, int, set[str]]] = {
    "langgraph_mail_agent": ("mail-agent", ["--held-out", "2"], 1, 4, {""}),
    "langgraph_supervisor": ("farm-office", [], 1, 2, {"supervisor", "counter", "farmer"}),
    "langgraph_extraction": ("order-reader", ["--held-out", "2"], 1, 2, {""}),
    "langgraph_judged": ("shop-replies", ["--passes", "1"], 2, 2, {""}),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of an `art serve` with a key, and the folder of its runs."""
    path = tmp_path_factory.mktemp("served")
    process = subprocess.Popen(
        [sys.executable, "-m", "art_core", "serve", "--json", "--port", "0", "--path", path, "--options", OPTIONS],
        env={**environment(), "ART_API_KEY": "secret"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"], path
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def command(name: str, *arguments: str | Path) -> list[str | Path]:
    return [sys.executable, EXAMPLES / f"{name}.py", *arguments]


def finished(name: str, *arguments: str | Path, timeout_s: float = 280.0) -> str:
    """What the example prints."""
    done = subprocess.run(
        command(name, *arguments),
        env={**environment(), "ART_API_KEY": "secret"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINING)
def test_it_trains(name: str, server: tuple[str, Path], tiny: Path) -> None:
    url, path = server
    output = finished(name, "--model", tiny, "--steps", "1", "--url", url)
    assert STEP.fullmatch(output.strip()), output
    model, least, most = TRAINING[name]
    trajectories = list(run(path, model).trajectories("train"))
    assert len(trajectories) == 16
    assert [t.error for t in trajectories if t.error] == []
    calls = [len(trajectory.exchanges) for trajectory in trajectories]
    assert least <= min(calls)
    assert max(calls) <= most
    assert {exchange.policy_version for t in trajectories for exchange in t.exchanges} == {0}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_trains(name: str, server: tuple[str, Path], tiny: Path) -> None:
    url, path = server
    project_name, more, least, most, roles = GRAPHS[name]
    with FakeJudgeServer(judge=HeuristicJudge()) as judge:
        judged = ["openai/judge", "--judge-url", judge.api_base] if name == "langgraph_judged" else []
        output = finished(name, *judged, "--model", tiny, "--steps", "1", "--url", url, *more)
    assert (told := re.fullmatch(r"step ([01])(: reward .* before, .* after, gain .*)?", output.strip())), output
    trajectories = list(run(path, project_name).trajectories("train"))
    # A random model has nothing to learn where all attempts at each task get the same reward.
    differs = any(len({t.reward for t in group}) > 1 for group in run(path, project_name).groups("train"))
    assert told[1] == str(int(differs)), output
    if name == "langgraph_supervisor":  # whose choices follow a schema, so that some are right
        assert differs
    assert [t.error for t in trajectories if t.error] == []
    assert len(trajectories) in (16, 32)
    calls = [len(trajectory.exchanges) for trajectory in trajectories]
    assert least <= min(calls)
    assert max(calls) <= most
    assert {exchange.role for t in trajectories for exchange in t.exchanges} <= roles
    if judged:
        assert len(judge.requests) == 2
        assert "[assistant]" in str(judge.requests[0].body) or "attempt" in str(judge.requests[0].body)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_graph_without_an_address_has_a_server_of_its_own_and_goes_on_later(tmp_path: Path, tiny: Path) -> None:
    arguments = ("--model", tiny, "--path", tmp_path / "runs", "--held-out", "2")
    first, second = (finished("langgraph_extraction", *arguments, "--steps", steps) for steps in ("1", "2"))
    before = re.compile(r"step \d: (reward .*) before, ")  # a random model may learn nothing, which makes no step
    assert before.findall(first) == before.findall(second) != []
    assert len(list(run(tmp_path / "runs", "order-reader").trajectories("train"))) == 64
    assert processes_with(str(tmp_path)) == []


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_the_mail_agent_gets_better_at_questions_about_people_it_never_met(tmp_path: Path) -> None:
    output = finished("langgraph_mail_agent", "--steps", "2", "--held-out", "12", "--path", tmp_path, timeout_s=3500)
    gain = re.search(r"gain (\S+) \[(\S+), (\S+)\]", output)
    assert gain is not None, output
    assert float(gain[2]) > 0, output


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_started_again_it_goes_on_and_an_interrupt_leaves_no_server(tmp_path: Path, tiny: Path) -> None:
    arguments = ("--model", tiny, "--path", tmp_path / "runs")
    (first,) = STEP.finditer(finished("explicit_style", *arguments, "--steps", "1"))
    (second,) = STEP.finditer(finished("explicit_style", *arguments, "--steps", "1"))
    assert (first[1], second[1]) == ("1", "2")
    for name in ("explicit_style", "sync_agent_in_threads"):
        process = subprocess.Popen(
            command(name, *arguments, "--steps", "1000"),
            env={**environment(), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith(b"step ")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) != 0
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        assert processes_with(str(tmp_path)) == []


def processes_with(text: str) -> list[str]:
    """The command lines of running processes that contain `text`."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_text()
        except OSError:  # it has ended meanwhile
            continue
        if text in line:
            found.append(line)
    return found


def test_each_is_short_and_listed() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (EXAMPLES / "README.md").read_text())
    listed = {link for link in links if not link.startswith("../")}
    programs = {path.name: path for path in EXAMPLES.iterdir() if path.suffix in (".py", ".mjs")}
    assert listed == set(programs)
    lengths = {name: len(path.read_text().splitlines()) for name, path in programs.items()}
    assert [name for name, lines in lengths.items() if lines >= (120 if name.startswith("langgraph") else 100)] == []


@pytest.fixture(scope="module")
def smollm2() -> str:
    """The name of the real model that the examples train by default, once its weights are on this machine."""
    try:
        return resolve_model("smollm2-135m").name
    except ModelNotFoundError as error:
        pytest.skip(f"the weights of smollm2-135m cannot be had: {error}")


@pytest.mark.slow
def test_it_trains_the_real_model(smollm2: str, tmp_path: Path) -> None:
    output = finished("explicit_style", "--model", smollm2, "--steps", "2", "--path", tmp_path, timeout_s=900)
    assert len(STEP.findall(output)) == 2, output
    done = run(tmp_path, "examples/word-counter")
    trajectories = list(done.trajectories("train"))
    assert len(trajectories) == 32
    answers = " ".join(trajectory.messages()[-1]["content"] for trajectory in trajectories)
    assert {"the", "a", "of"} <= set(re.findall(r"[a-z]+", answers.lower())), "weights that were learnt write English"
    # A step is left out where the rewards of both its groups are all equal.
    reports = {report.step: report.metrics for report in done.steps()}
    assert set(reports) in ({1}, {1, 2})
    for step, metrics in reports.items():
        assert metrics["trajectories/trained"] in (8, 16)
        assert metrics["mismatch/logprob_diff_max"] < 1e-2, "the trainer reads the answers as the engine sampled them"
        assert metrics["canary/movement"] > 0
        assert (done.folder / f"checkpoints/step-{step:04d}").is_dir()


@pytest.mark.slow
def test_record_an_agent(tiny: Path) -> None:
    lines = finished("record_an_agent", tiny).splitlines()
    exchanges = [line for line in lines if line.startswith("exchange:")]
    rows = [line for line in lines if line.startswith("row:")]
    assert len(exchanges) == 2
    assert all("forked False" in line for line in exchanges)
    assert len(rows) == 1, "the second turn extends the first: one row"


def test_judge_a_group() -> None:
    assert len(re.findall(r"^rank \d+  score ", finished("judge_a_group"), re.MULTILINE)) == 4
