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


def assert_ideal_over_wall(lines: list[str], found: float, *, ideal_s: float) -> None:
    wall = re.search(r"^wall (\d+\.\d+) s, ideal (\d+\.\d+) s, ", "\n".join(lines), re.MULTILINE)
    assert wall is not None
    assert float(wall[2]) == ideal_s
    assert float(wall[1]) >= ideal_s
    assert found == pytest.approx(ideal_s / float(wall[1]), rel=0.02)


def test_throughput_is_measured() -> None:
    lines = run("benchmarks/ruler_throughput.py", "--groups", "64", "--concurrency", "16", "--latency", "0.2")
    assert_ideal_over_wall(lines, ratio(lines, "ruler_throughput"), ideal_s=0.8)  # four rounds of 0.2 s


@pytest.mark.slow
def test_throughput_through_litellm_is_measured() -> None:
    lines = run("benchmarks/ruler_throughput.py", "--groups", "64", "--concurrency", "16", "--server")
    assert_ideal_over_wall(lines, ratio(lines, "ruler_throughput_server"), ideal_s=0.2)  # four rounds of 0.05 s


@pytest.fixture
def fake_reference(tmp_path: Path) -> Path:
    """A Python whose `art.rewards.ruler` asks with the attempts as JSON, twenty times over."""
    package = tmp_path / "art" / "rewards"
    package.mkdir(parents=True)
    (package / "ruler.py").write_text(
        "import json\n"
        "async def ruler(message_lists, judge_model, tools=None):\n"
        "    text = json.dumps(message_lists) * 20\n"
        "    await acompletion(model=judge_model, messages=[{'role': 'user', 'content': text}])\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


@pytest.mark.slow
def test_prompt_tokens_are_compared_group_by_group(fake_reference: Path) -> None:
    lines = run("benchmarks/ruler_prompt_tokens.py", "--python", str(fake_reference))
    assert lines[0].split() == ["tokens", "per", "trajectory", "reference", "art-ruler", "ratio"]
    ratios = [float(line.split()[-1]) for line in lines[1:-1]]
    assert len(ratios) == 10
    assert ratio(lines, "ruler_prompt_tokens") == min(ratios) > 1.0


@pytest.mark.slow
def test_a_reference_that_cannot_be_had_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/ruler_prompt_tokens.py", "--reference", "openpipe-art @ file:///nowhere"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "cannot be installed from PyPI" in line
    assert "check the network" in line
