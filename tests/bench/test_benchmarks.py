"""Each benchmark runs to its last line, at sizes too small to say anything about speed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from art_core.testing import write_tiny_model

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

pytestmark = pytest.mark.slow


def run(name: str, *arguments: str | Path) -> tuple[list[str], int, str]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    return done.stdout.splitlines(), done.returncode, done.stderr


def test_engine_throughput(tmp_path: Path) -> None:
    sizes = [f"--{name}={size}" for name, size in (("rollouts", 3), ("turns", 2), ("shared", 8), ("own", 4))]
    sizes += ["--new=4", "--result=2", "--repeats=1", "--threads=1"]
    lines, code, errors = run("engine_throughput", "--model", write_tiny_model(tmp_path / "m"), *sizes)
    assert code == 0, errors
    assert re.fullmatch(r"ratio engine_throughput \d+\.\d{3}", lines[-1])
    assert [line.split(":")[0] for line in lines[-3:-1]] == ["engine", "generate"]


@pytest.mark.parametrize("engine", ["scripted", "embedded"])
def test_serve_overhead(tmp_path: Path, engine: str) -> None:
    model = ("--model", write_tiny_model(tmp_path / "m"), "--client", "http") if engine == "embedded" else ()
    sizes = ("--streams", "1", "3", "--calls", "2", "--tokens", "4", "--delay", "0.001", "--open", "24")
    lines, code, errors = run("serve_overhead", "--engine", engine, *model, *sizes)
    assert code == 0, errors
    name = "serve_overhead" if engine == "scripted" else "serve_overhead_embedded"
    assert re.fullmatch(rf"ratio {name} \d+\.\d{{3}}", lines[-1])
    assert lines[-2].startswith("24 streams open at once on one server: no error")
    assert [line.split(":")[0] for line in lines[:4]] == [
        "1 streams, p50",
        "1 streams, p99",
        "3 streams, p50",
        "3 streams, p99",
    ]


def test_langgraph_overhead() -> None:
    lines, code, errors = run("langgraph_overhead", "--calls", "3", "--rollouts", "4")
    assert code == 0, errors
    assert re.fullmatch(r"ratio langgraph_overhead \d+\.\d{3}", lines[-1])
    assert lines[-2].startswith("4 attempts of 6 calls at once, none mixed")
    assert [line.split(":")[0] for line in lines[3:5]] == ["ArtChatModel", "ChatOpenAI"]


def test_train_step(tmp_path: Path) -> None:
    sizes = ("--prompt=24", "--new=6", "--members=4", "--groups=2", "--long=48", "--repeats=1", "--threads=1")
    lines, code, errors = run("train_step", "--model", write_tiny_model(tmp_path / "m"), "--dtype=float32", *sizes)
    assert code == 0, errors
    assert re.fullmatch(r"ratio train_step \d+\.\d{3}", lines[-1])
    assert [line.split(":")[0] for line in lines[-5:-1]] == [
        "trl",
        "2 groups of 4 rows in float32, prompts of 24 tokens, completions of 6",
        "ours",
        "TRL",
    ]
    found = dict(line.split(": ", 1) for line in lines if line.startswith(("loss: ", "gradient: ")))
    assert float(found["loss"].rpartition(" ")[2]) < 1e-5
    assert float(found["gradient"].removesuffix(" of it").rpartition(" ")[2]) < 1e-4


def test_learning(tmp_path: Path) -> None:
    sizes = ("--losses", "cispo", "--seeds", "0", "--steps", "1", "--taught", "2", "2", "--out", tmp_path / "out")
    lines, code, errors = run("learning", *sizes)
    assert code == 1, errors  # a model that was taught for a second does not reach the target
    assert re.fullmatch(r"cispo: 0\.00 \[0\.00, 1\.00\] -> 0\.00 .*steps to 0\.9: not reached; \d+\.\d min", lines[-2])
    assert lines[-1] == "ratio learning_cispo 0.000"
    report = json.loads((tmp_path / "out" / "learning.json").read_text())
    assert [point["step"] for point in report["losses"][0]["runs"][0]["points"]] == [0, 1]
    again, _, told = run("learning", *sizes)
    assert again == lines
    assert "step" not in told  # nothing was run again


def test_learning_refuses_a_loss_that_there_is_not() -> None:
    _, code, errors = run("learning", "--losses", "ppo,grop")
    assert code == 2
    assert "loss 'grop' is unknown; wanted some of ppo, cispo, gspo" in errors
