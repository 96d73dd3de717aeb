"""A run that is killed at any moment, client or server or both, ends as the one that was not; nobody disturbs it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from art_core.backends import LocalBackend
from art_core.control import RegisterRequest
from art_core.errors import RunLockedError
from art_core.testing import write_tiny_model
from tests.core.resume.script import GROUPS, MEMBERS, OPTIONS, STEPS, TURNS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
REPO = Path(__file__).resolve().parents[3]
NUM_FORKED = 46
WHO = ("client", "server", "both")
PHASES = {
    "start": ("registering", "opening"),
    "rollout": ("beginning", "sampled", "closing"),
    "train": ("asking", "training"),
    "save": ("saving", "syncing", "committing"),
    "load": ("loading", "checking"),
    "log": ("logging", "telling"),
}
AFTER_A_RESTART = ("opening", "restoring", "checking", "sampled")


class Zygote:
    """The warm process, two jobs at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.core.resume.zygote"],
            cwd=REPO,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self._lock = threading.Lock()
        self._answers: dict[str, Queue[dict[str, Any]]] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def run(self, path: Path, base_model: Path, kills: list[dict[str, Any]]) -> dict[str, Any]:
        assert self._process.stdin is not None
        answer = self._answers[str(path)] = Queue()
        with self._lock:
            self._process.stdin.write(
                json.dumps({"path": str(path), "base_model": str(base_model), "kills": kills}) + "\n"
            )
            self._process.stdin.flush()
        return answer.get(timeout=300)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            result = json.loads(line)
            self._answers[result["path"]].put(result)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass(frozen=True)
class Unbroken:
    """What a run that nobody disturbed ended with, and the points it went through with the seconds each took."""

    outcome: tuple[str, ...]
    points: list[tuple[str, float]]


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with contextlib.closing(Zygote()) as one:
        yield one


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, base_model: Path, zygote: Zygote) -> Unbroken:
    path = tmp_path_factory.mktemp("runs") / "unbroken"
    ended = zygote.run(path, base_model, [])
    assert ended["attempts"] == [0], (path / "client.log").read_text()
    return Unbroken(outcome(path), [(point, took_s) for point, took_s in ended["points"]])


def outcome(path: Path) -> tuple[str, ...]:
    """What the run ended with: adapter, optimiser with its random state."""
    last = path / "p" / "m" / "checkpoints" / f"step-{STEPS:04d}"
    names = ("adapter_model.safetensors", "optimizer.safetensors")
    return tuple(hashlib.sha256((last / name).read_bytes()).hexdigest() for name in names)


def moments(points: list[tuple[str, float]]) -> list[list[dict[str, Any]]]:
    """Where to kill, by what an unbroken run went through: phases in turn, all else at random."""
    chance = random.Random(20)
    seen = {point: [took for name, took in points if name == point] for point, _ in points}
    chosen = []
    for number in range(NUM_FORKED):
        phase = list(PHASES)[number % len(PHASES)]
        point = chance.choice(PHASES[phase])
        times = seen[point][:-1] or seen[point]  # after the last one the run may be over before the kill comes
        nth = chance.randrange(len(times)) + 1
        kills = [kill(chance, point, nth, times[nth - 1])]
        if number % 5 == 4:
            kills.append(kill(chance, chance.choice(AFTER_A_RESTART), 1, 0.01))
        chosen.append(kills)
    return chosen


def kill(chance: random.Random, point: str, nth: int, took_s: float) -> dict[str, Any]:
    return {"who": chance.choice(WHO), "point": point, "nth": nth, "delay_s": chance.uniform(0.0, took_s)}


def started(path: Path, base_model: Path) -> subprocess.Popen[bytes]:
    path.mkdir(parents=True, exist_ok=True)
    with (path / "client.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.core.resume.script", str(path), str(base_model)],
            cwd=REPO,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
        )


def killed_when(path: Path, base_model: Path, pattern: str, count: int, who: str) -> int:
    """Run the script in real processes; kill it when `pattern` names `count` files or lines; then run it to its end.

    Returns the exit code of the first attempt.
    """
    first = started(path, base_model)
    while first.poll() is None and _count(path / "p" / "m", pattern) < count:
        time.sleep(0.001)
    children = Path(f"/proc/{first.pid}/task").glob("*/children")  # each thread has its own
    servers = [int(pid) for file in children for pid in file.read_text().split()]
    assert servers, "the script has ended, or has no server"
    victims = {"client": [first.pid], "server": servers, "both": [*servers, first.pid]}[who]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    code = first.wait(120)
    assert started(path, base_model).wait(240) == 0, (path / "client.log").read_text()[-2000:]
    return code


def _count(folder: Path, pattern: str) -> int:
    found = list(folder.glob(pattern))
    if pattern.endswith(".jsonl"):
        return sum(file.read_bytes().count(b"\n") for file in found)
    return len(found)


def test_killed_at_any_moment_a_run_ends_with_the_adapter_of_one_that_was_not(
    tmp_path: Path, base_model: Path, zygote: Zygote, unbroken: Unbroken
) -> None:
    """46 of the fifty moments, in processes that were forked: in each phase, the client, the server, or both."""
    counts = Counter(point for point, _ in unbroken.points)
    assert (counts["sampled"], counts["training"]) == (STEPS * GROUPS * MEMBERS * TURNS, STEPS)
    plans = moments(unbroken.points)
    assert {kills[0]["who"] for kills in plans} == set(WHO)
    with ThreadPoolExecutor(2) as pool:
        running = [
            pool.submit(zygote.run, tmp_path / str(number), base_model, kills) for number, kills in enumerate(plans)
        ]
        results = [one.result() for one in running]
    for kills, result in zip(plans, results, strict=True):
        log = Path(result["path"], "client.log").read_text()
        assert result["attempts"][0] != 0, f"the run was over before {kills[0]} came"
        assert result["attempts"][-1] == 0, f"{kills}: {result['attempts']}\n{log[-3000:]}"
        assert outcome(Path(result["path"])) == unbroken.outcome, kills


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize(
    ("pattern", "count", "who"),
    [
        ("exchanges/*.jsonl", 9, "server"),
        ("checkpoints/.tmp-step-*", 1, "both"),
        ("steps.jsonl", 1, "client"),
        ("trajectories/*/*.jsonl", 5, "both"),
    ],
)
def test_killed_in_processes_of_their_own(
    tmp_path: Path, base_model: Path, unbroken: Unbroken, pattern: str, count: int, who: str
) -> None:
    """The other four: the script as a user starts it, with the `art serve` that it starts itself."""
    assert killed_when(tmp_path / "run", base_model, pattern, count, who) != 0
    assert outcome(tmp_path / "run") == unbroken.outcome


async def test_a_second_process_on_a_run_is_refused(tmp_path: Path, base_model: Path) -> None:
    request = RegisterRequest(project="p", name="m", base_model=str(base_model))
    async with LocalBackend(tmp_path, **OPTIONS) as first:
        await first.register(request)
        async with LocalBackend(tmp_path, **OPTIONS) as second:
            with pytest.raises(RunLockedError, match=r"p/m is in use by process \d+; wait for it to end"):
                await second.register(request)
            command = [sys.executable, "-m", "art_core", "serve", "--path", str(tmp_path), "--port", "0"]
            command += ["--model", f"p/m={base_model}", "--options", json.dumps(OPTIONS)]
            served = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=120, check=False
            )
            assert served.returncode == 1
            assert served.stderr.count("\n") == 1, served.stderr
            assert "p/m is in use by process" in served.stderr
        assert (await first.state("p", "m")).step == 0
