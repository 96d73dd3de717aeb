"""The example and the benchmarks run, without a model, and print what they say they print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(path: str, *words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, ROOT / path, *words], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def ratio(lines: list[str], name: str) -> float:
    found = re.fullmatch(rf"ratio {name} (\d+\.\d+)", lines[-1])
    assert found, lines[-1]
    return float(found[1])


def test_the_example_ranks_the_attempts() -> None:
    lines = run("examples/judge_a_group.py")
    assert [line.split("  ")[0] for line in lines[:4]] == ["rank 1", "rank 2", "rank 3", "rank 4"]
    assert "platform 9" in lines[0]
    assert lines[3].endswith("score 0.00  ''")


def test_consensus_of_three_beats_a_single_pass() -> None:
    lines = run("benchmarks/ruler_consensus.py", "--groups", "60")
    assert ratio(lines, "ruler_consensus") > 1.05
    assert lines[-2].startswith("pairwise accuracy: single pass 0.")


def test_throughput_is_measured() -> None:
    lines = run("benchmarks/ruler_throughput.py", "--groups", "64", "--concurrency", "16", "--latency", "0.2")
    # Four rounds of 0.2 s; the bound is wide, for machines that do something else as well.
    assert 0.0 < ratio(lines, "ruler_throughput") <= 1.0


@pytest.mark.slow
def test_throughput_through_litellm_is_measured() -> None:
    lines = run("benchmarks/ruler_throughput.py", "--groups", "64", "--concurrency", "16", "--server")
    assert 0.0 < ratio(lines, "ruler_throughput_server") <= 1.0
