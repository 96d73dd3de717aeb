"""The `art-ruler` command as a real process that asks, through litellm and a socket, a judge on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from art_ruler.fakes import shown_to, verdict_json
from art_ruler.testing_server import Answer, FakeJudgeServer, ServedRequest

pytestmark = pytest.mark.slow

COMMAND = Path(sys.executable).parent / "art-ruler"
KEY = "sk-very-secret-0123456789"


def group(number: int) -> list[list[dict[str, Any]]]:
    task = {"role": "user", "content": f"task number {number}"}
    return [[task, {"role": "assistant", "content": answer}] for answer in ("good answer", "bad answer")]


def groups_file(folder: Path, count: int) -> Path:
    path = folder / "groups.jsonl"
    path.write_text("".join(json.dumps({"trajectories": group(i), "labels": [1, 0]}) + "\n" for i in range(count)))
    return path


def number_in(request: ServedRequest) -> int:
    prompt = request.body["messages"][1]["content"]
    return int(prompt.split("task number ")[1].split()[0])


def fair(request: ServedRequest) -> str:
    attempts = shown_to(request.judge_request)
    return verdict_json({i: 0.9 if attempt[-1][1] == "good answer" else 0.2 for i, attempt in attempts.items()})


def start(folder: Path, *words: object, key: str = KEY) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return subprocess.Popen(
        [str(COMMAND), *map(str, words)],
        cwd=folder,
        env={**environment, "JUDGE_KEY": key, "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, *words: object, key: str = KEY) -> subprocess.CompletedProcess[str]:
    process = start(folder, *words, key=key)
    try:
        stdout, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, without_progress(stderr))


def without_progress(stderr: str) -> str:
    """`stderr` without the lines that come every few seconds: how many depends on how busy the machine is."""
    return re.sub(r"^\d+ of \d+ groups( .*)?\n", "", stderr, flags=re.MULTILINE)


def score_words(server: FakeJudgeServer, source: Path, *more: object) -> tuple[object, ...]:
    options = ("--judge", "openai/judge", "--api-base", server.api_base, "--api-key-env", "JUDGE_KEY")
    return ("score", source, *options, "--out", "out.jsonl", "--concurrency", 1, *more)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(condition: Any, what: str, timeout_s: float = 180.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"waited {timeout_s} s for {what}"
        time.sleep(0.05)


def test_score_asks_the_server_and_keeps_the_key_to_itself(tmp_path: Path) -> None:
    with FakeJudgeServer(fair, api_key=KEY) as server:
        words = score_words(server, groups_file(tmp_path, 3), "--passes", 2, "--cache", "cache")
        done = run(tmp_path, *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert "3 of 3 groups scored" in done.stdout
        assert [request.path for request in server.requests] == ["/v1/chat/completions"] * 6
        assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {KEY}"}
        lines = lines_of(tmp_path / "out.jsonl")
        assert [line["ruler"]["scores"] for line in lines] == [[0.9, 0.2]] * 3
        assert lines[0]["ruler"]["agreement"] == {"kendall_tau": 1.0, "flip_rate": 0.0, "num_passes": 2}
        assert sum(line["ruler"]["usage"]["calls"] for line in lines) == 6
        written = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert len(written) > 2
        assert not [path for path in written if KEY.encode() in path.read_bytes()]
        server.requests.clear()
        again = run(tmp_path, *words)
        assert again.returncode == 0
        assert "3 were there before" in again.stdout
        assert server.requests == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_groups_are_written_as_they_are_scored_and_a_stopped_run_goes_on(tmp_path: Path, how: signal.Signals) -> None:
    out = tmp_path / "out.jsonl"
    release = threading.Event()

    def handler(request: ServedRequest) -> str:
        if number_in(request) == 2:
            release.wait(60)
        return fair(request)

    with FakeJudgeServer(handler) as server:
        words = score_words(server, groups_file(tmp_path, 4))
        process = start(tmp_path, *words)
        try:
            wait_for(lambda: len(server.requests) == 3, "the third request")
            assert process.poll() is None
            assert [line["ruler"]["line"] for line in lines_of(out)] == [1, 2]
            process.send_signal(how)
            stdout, stderr = process.communicate(timeout=120)
        finally:
            process.kill()
            release.set()
        if how is signal.SIGKILL:
            assert process.returncode == -signal.SIGKILL
            with out.open("ab") as file:
                file.write(b'{"trajectories": [')  # what a kill in the middle of a write leaves
        else:
            assert process.returncode == 128 + how
            assert "calls: 3" in stdout  # the one that was given up included
            assert "2 of 4 groups scored" in stdout
            assert without_progress(stderr).splitlines() == [
                "art-ruler: interrupted; what was scored is kept, run the same command again to go on"
            ]
        server.requests.clear()
        done = run(tmp_path, *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert "2 of 4 groups scored, 2 were there before" in done.stdout
        assert [number_in(request) for request in server.requests] == [2, 3]
        assert [line["ruler"]["line"] for line in lines_of(out)] == [1, 2, 3, 4]


def test_a_bad_line_is_named_and_nothing_is_paid_for(tmp_path: Path) -> None:
    source = groups_file(tmp_path, 3)
    with source.open("a") as file:
        file.write('{"trajectories": [[{"role": "user"}], "text"]}\n')
    with FakeJudgeServer(fair) as server:
        done = run(tmp_path, *score_words(server, source))
        assert done.returncode == 1
        assert done.stderr.startswith("art-ruler: ")
        assert "groups.jsonl:4: trajectory 1" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert server.requests == []
    assert not (tmp_path / "out.jsonl").exists()


def test_a_wrong_key_ends_it_with_one_line_that_does_not_show_it(tmp_path: Path) -> None:
    with FakeJudgeServer(fair, api_key=KEY) as server:
        done = run(tmp_path, *score_words(server, groups_file(tmp_path, 3)), key="sk-wrong-9876543210")
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith("art-ruler: ")
        assert "openai/judge" in line
        assert "sk-wrong-9876543210" not in done.stdout + done.stderr
        assert len(server.requests) == 1
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("status", "words"), [(401, "pass the key"), (403, "pass the key"), (404, "check the name of the model")]
)
def test_a_refusal_that_concerns_every_group_ends_it_at_once_and_keeps_what_was_scored(
    tmp_path: Path, status: int, words: str
) -> None:
    def handler(request: ServedRequest) -> Answer | str:
        return Answer("you may not", status=status) if number_in(request) >= 2 else fair(request)

    with FakeJudgeServer(handler) as server:
        command = score_words(server, groups_file(tmp_path, 30))
        done = run(tmp_path, *command)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert words in line
        assert "2 of 30 groups scored" in done.stdout
        assert [number_in(request) for request in server.requests] == [0, 1, 2]
    assert [line["ruler"]["line"] for line in lines_of(tmp_path / "out.jsonl")] == [1, 2]


@pytest.mark.parametrize("command", ["score", "audit"])
def test_headers_are_sent_and_stand_nowhere_else(tmp_path: Path, command: str) -> None:
    secret = "header-secret-0123456789"

    def handler(request: ServedRequest) -> Answer | str:
        quoted = f"no place for {request.headers['x-org']}, bad answer"
        return Answer(quoted, status=500) if number_in(request) == 1 else fair(request)

    with FakeJudgeServer(handler) as server:
        words = list(score_words(server, groups_file(tmp_path, 2), "--max-retries", 0, "--cache", "cache"))
        if command == "audit":
            words = ["audit", *words[1 : words.index("--out")], "--cache", "cache", "--max-retries", 0]
        words += ["--header", "X-Org: env:JUDGE_KEY", "--header", "X-Team: blue"]
        done = run(tmp_path, *words, key=secret)
        assert {(r.headers["x-org"], r.headers["x-team"]) for r in server.requests} == {(secret, "blue")}
    assert "no place for [hidden]" in done.stdout + done.stderr
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 1
    assert not [text for text in [*written, done.stdout.encode(), done.stderr.encode()] if secret.encode() in text]


def test_a_group_gets_no_more_time_than_it_may_take(tmp_path: Path) -> None:
    def handler(request: ServedRequest) -> Answer:
        return Answer(fair(request), latency_s=90 if number_in(request) == 1 else 0)

    with FakeJudgeServer(handler) as server:
        done = run(tmp_path, *score_words(server, groups_file(tmp_path, 2), "--total-timeout", 20))
    assert done.returncode == 1
    assert "groups.jsonl:2: no attempt was judged: not judged within --total-timeout 20.0" in done.stderr
    assert [line["ruler"]["line"] for line in lines_of(tmp_path / "out.jsonl")] == [1]


@pytest.mark.parametrize(("choice", "code", "kept"), [("none", 1, [1, 2, 3]), ("raise", 1, [1])])
def test_an_answer_that_stays_faulty_is_null_or_ends_it(
    tmp_path: Path, choice: str, code: int, kept: list[int]
) -> None:
    def handler(request: ServedRequest) -> str:
        return "no verdict" if number_in(request) == 1 else fair(request)

    with FakeJudgeServer(handler) as server:
        done = run(tmp_path, *score_words(server, groups_file(tmp_path, 3), "--on-format-error", choice))
    assert done.returncode == code
    lines = lines_of(tmp_path / "out.jsonl")
    assert [line["ruler"]["line"] for line in lines] == kept
    if choice == "none":
        assert lines[1]["ruler"]["scores"] == [None, None]
    else:
        (line,) = done.stderr.splitlines()
        assert "groups.jsonl:2: " in line
        assert "cannot be used" in line


def test_a_judge_that_answers_nothing_usable_is_an_error_and_can_be_tried_again(tmp_path: Path) -> None:
    is_useless = True

    def handler(request: ServedRequest) -> str:
        return "I would rather not, sorry." if is_useless else fair(request)

    with FakeJudgeServer(handler) as server:
        words = score_words(server, groups_file(tmp_path, 3))
        done = run(tmp_path, *words)
        assert done.returncode == 1
        assert done.stdout.startswith("out.jsonl: 0 of 3 groups scored, 3 without any valid score, 6 trajectories")
        (line,) = done.stderr.splitlines()
        assert "6 trajectories have no score, as " in line
        assert "groups.jsonl:3: no valid score" in line
        assert "(it answered 'I would rather not, sorry.')" in line
        assert "--retry-unscored" in line
        is_useless = False
        done = run(tmp_path, *words)
        assert (done.returncode, len(lines_of(tmp_path / "out.jsonl"))) == (1, 3)
        assert "3 were there before, 6 trajectories in the output without a score" in done.stdout
        done = run(tmp_path, *words, "--retry-unscored")
        assert (done.returncode, done.stderr) == (0, "")
    lines = lines_of(tmp_path / "out.jsonl")
    assert [(line["ruler"]["line"], line["ruler"]["scores"]) for line in lines] == [(i, [0.9, 0.2]) for i in (1, 2, 3)]


def test_the_same_server_on_another_port_goes_on(tmp_path: Path) -> None:
    source = groups_file(tmp_path, 2)
    with FakeJudgeServer(fair) as first, FakeJudgeServer(fair) as second:
        assert run(tmp_path, *score_words(first, source)).returncode == 0
        done = run(tmp_path, *score_words(second, source))
        assert (done.returncode, second.requests) == (0, [])
        assert "2 were there before" in done.stdout
        done = run(tmp_path, *score_words(second, source, "--passes", 2))
        assert "(passes: 1 then, 2 now)" in done.stderr


def test_a_judge_without_a_key_costs_only_its_own_column(tmp_path: Path) -> None:
    def handler(request: ServedRequest) -> Answer | str:
        return Answer("half a pair: \\ud83d", status=401) if request.body["model"] == "locked" else fair(request)

    with FakeJudgeServer(handler) as server:
        judges = ("--judge", "openai/locked", "--judge", "openai/fair")
        address = ("--api-base", server.api_base, "--api-key-env", "JUDGE_KEY")
        done = run(tmp_path, "audit", groups_file(tmp_path, 3), *judges, *address)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "no figures for openai/locked" in done.stderr
    accuracy = next(line for line in done.stdout.splitlines() if line.startswith("pairwise accuracy"))
    assert accuracy.split()[2:] == ["-", "1.00", "[1.00,", "1.00]"]
    assert "half a pair" in done.stdout
    assert "with --api-key-env" in done.stdout


def test_half_a_surrogate_pair_in_a_refusal_is_shown(tmp_path: Path) -> None:
    def handler(request: ServedRequest) -> Answer:
        return Answer(None, message={"refusal": "no \ud83d"})

    with FakeJudgeServer(handler) as server:
        address = ("--judge", "openai/m", "--api-base", server.api_base, "--api-key-env", "JUDGE_KEY")
        for form in ((), ("--json",)):
            done = run(tmp_path, "audit", groups_file(tmp_path, 1), *address, *form)
            assert done.returncode == 1
            assert len(done.stderr.splitlines()) == 1
            assert "no \\ud83d" in done.stdout
            if form:
                json.loads(done.stdout)


def test_groups_without_an_answer_are_left_and_tried_again(tmp_path: Path) -> None:
    broken = True

    def handler(request: ServedRequest) -> Answer | str:
        return Answer("out of order", status=500) if broken and number_in(request) == 1 else fair(request)

    with FakeJudgeServer(handler) as server:
        words = score_words(server, groups_file(tmp_path, 3), "--max-retries", 1, "--json")
        done = run(tmp_path, *words)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert "1 of 3 groups got no answer in full" in line
        assert "groups.jsonl:2: " in line
        assert "run the same command again" in line
        summary = json.loads(done.stdout)
        assert (summary["scored"], summary["failed"]) == (2, 1)
        usage = summary["usage"]
        assert (usage["calls"], usage["failed_calls"], usage["retries"]) == (4, 2, 1) == (len(server.requests), 2, 1)
        broken = False
        done = run(tmp_path, *words)
        assert done.returncode == 0
        assert json.loads(done.stdout)["already_done"] == 2
    assert sorted(line["ruler"]["line"] for line in lines_of(tmp_path / "out.jsonl")) == [1, 2, 3]


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with FakeJudgeServer(fair) as server:
        words = score_words(server, groups_file(tmp_path, 1), "--max-retries", 0)
    done = run(tmp_path, *words)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "1 of 1 groups got no answer" in done.stderr


def test_an_interrupted_audit_ends_with_one_line(tmp_path: Path) -> None:
    release = threading.Event()

    def handler(request: ServedRequest) -> str:
        release.wait(60)
        return fair(request)

    with FakeJudgeServer(handler) as server:
        address = ("--api-base", server.api_base, "--api-key-env", "JUDGE_KEY")
        process = start(tmp_path, "audit", groups_file(tmp_path, 2), "--judge", "openai/judge", *address)
        try:
            wait_for(lambda: server.requests, "a request")
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=120)
        finally:
            process.kill()
            release.set()
    assert (process.returncode, stdout) == (130, "")
    assert without_progress(stderr).splitlines() == [
        "art-ruler: interrupted; an audit keeps nothing but the answers in --cache"
    ]


def test_the_fake_judge_server_can_be_started_by_hand(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "art_ruler.testing_server", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"judging on (http://127\.0\.0\.1:\d+/v1); stop with Ctrl-C", server.stdout.readline())
        assert found is not None
        words = ("score", groups_file(tmp_path, 1), "--judge", "openai/any", "--api-base", found[1], "--out", "o")
        assert run(tmp_path, *words).returncode == 0
        server.send_signal(signal.SIGINT)
        assert server.communicate(timeout=60) == ("", "")
        assert server.returncode == 0
    finally:
        server.kill()


@pytest.fixture
def by_model() -> Iterator[FakeJudgeServer]:
    def handler(request: ServedRequest) -> str:
        attempts = shown_to(request.judge_request)
        if request.body["model"] == "places":
            return verdict_json({i: 1 - place / 10 for place, i in enumerate(attempts)})
        return fair(request)

    with FakeJudgeServer(handler) as server:
        yield server


def test_audit_compares_models_of_a_server(tmp_path: Path, by_model: FakeJudgeServer) -> None:
    source = groups_file(tmp_path, 6)
    judges = ("--judge", "openai/fair", "--judge", "openai/places")
    address = ("--api-base", by_model.api_base, "--api-key-env", "JUDGE_KEY")
    done = run(tmp_path, "audit", source, *judges, *address, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    good, places = json.loads(done.stdout)["judges"]
    assert (good["judge"], good["pairwise_accuracy"]["value"], good["flip_rate"]) == ("openai/fair", 1.0, 0.0)
    assert (places["judge"], places["pairwise_accuracy"]["value"], places["flip_rate"]) == ("openai/places", 0.5, 1.0)
    assert places["versus_first"]["value"] == -0.5
    assert (good["noise"], places["noise"]) == (0.0, 0.0)
    assert (good["position_bias"]["value"], places["position_bias"]["value"]) == (0.0, 1.0)
    assert len(by_model.requests) == 36
