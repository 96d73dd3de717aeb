"""What a command's user sees of an error, in a process of its own."""

from __future__ import annotations

import subprocess
import sys


def run(body: str, *, stdout: int | None = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    script = f"from art_core.one_line import one_line_errors\nwith one_line_errors('tool'):\n    {body}\n"
    return subprocess.run(
        [sys.executable, "-c", script], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )


def test_a_reader_of_our_output_that_has_gone_is_no_error_to_tell() -> None:
    command = f'{sys.executable} -c "{_PRINTS}" | head -n 1'
    ended = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "0\n", "")


_PRINTS = """
from art_core.one_line import one_line_errors
with one_line_errors('tool'):
    for number in range(200_000):
        print(number)
"""


def test_any_other_pipe_that_broke_is_told() -> None:
    ended = run("raise BrokenPipeError(32, 'Broken pipe')")
    assert ended.returncode == 1
    assert ended.stderr == "tool: the system: Broken pipe; mend it and run again\n"


def test_an_error_of_ours_is_one_line() -> None:
    ended = run("from art_core.errors import ConfigError; raise ConfigError('a\\nb')")
    assert (ended.returncode, ended.stderr) == (1, "tool: a b\n")


def test_a_fault_of_ours_keeps_its_traceback() -> None:
    ended = run("raise KeyError('x')")
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr
