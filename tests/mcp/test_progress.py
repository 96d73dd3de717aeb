from __future__ import annotations

import io
from pathlib import Path

import pytest

from art_core.lines import format_duration
from art_mcp.progress import Progress


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.6, "1m00s"), (75, "1m15s"), (3600, "1h00m"), (7384, "2h03m"), (-1, "0s")]
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_status_names_phase_items_and_figures() -> None:
    with Progress(stream=io.StringIO()) as progress:
        progress.phase("step 1/4", 24)
        progress.advance({"reward": "0.50"})
        progress.advance({"reward": "0.75"}, items=2)
        assert progress.status() == "step 1/4: 3 of 24 · reward 0.75"
        progress.phase("warm-up", 6, done=2)  # by a process before this one
        progress.advance()
        assert progress.status() == "warm-up: 3 of 6"


def test_time_left_is_told_once_enough_is_known() -> None:
    with Progress(stream=io.StringIO()) as progress:
        progress.plan(100)
        progress.phase("evaluation", 100)
        progress.advance(units=19)
        assert progress.time_left_s() is None
        progress.advance(units=1)
        left = progress.time_left_s()
        assert left is not None
        assert left >= 0
        progress.skip(80)
        assert progress.time_left_s() is None


def test_lines_go_to_the_stream_and_to_the_log(tmp_path: Path) -> None:
    stream = io.StringIO()
    with Progress(tmp_path / "run.log", stream=stream) as progress:
        progress.line("baseline: success 0.00")
    assert stream.getvalue().endswith("baseline: success 0.00\n")
    assert (tmp_path / "run.log").read_text().endswith("baseline: success 0.00\n")


def test_quiet_progress_prints_nothing() -> None:
    stream = io.StringIO()
    with Progress(stream=stream, quiet=True) as progress:
        progress.line("a")
        progress.advance()
    assert stream.getvalue() == ""
