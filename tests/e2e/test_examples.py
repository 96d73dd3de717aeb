"""Every example runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from art_core.testing import write_tiny_model
from tests.e2e.support import REPO, environment


@pytest.mark.slow
def test_record_an_agent(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    done = subprocess.run(
        [sys.executable, REPO / "examples" / "record_an_agent.py", model],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    exchanges = [line for line in lines if line.startswith("exchange:")]
    rows = [line for line in lines if line.startswith("row:")]
    assert len(exchanges) == 2
    assert all("forked False" in line for line in exchanges)
    assert len(rows) == 1, "the second turn extends the first: one row"
