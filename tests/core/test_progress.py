"""Lines of progress on standard error."""

from __future__ import annotations

import pytest

from art_core.progress import lines_now_and_then


def test_of_lines_that_differ_in_numbers_only_few_are_shown_and_all_others(capsys: pytest.CaptureFixture[str]) -> None:
    show = lines_now_and_then("sft clerk", every_s=3600.0)
    for line in ("reading 40 examples", "going on behind update 16 of 20", "update 17 of 20: loss 0.5"):
        show(line)
    for number in (18, 19, 20):
        show(f"update {number} of 20: loss 0.4")
    show("interrupted")
    assert capsys.readouterr().err.splitlines() == [
        "sft clerk: reading 40 examples",
        "sft clerk: going on behind update 16 of 20",
        "sft clerk: update 17 of 20: loss 0.5",
        "sft clerk: interrupted",
    ]
