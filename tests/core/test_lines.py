from __future__ import annotations

import art_core as art
from art_core.lines import progress_line, step_figures


def test_a_line_has_the_figures_that_the_step_has() -> None:
    metrics = {"reward/mean": 0.5, "train/entropy": 1.256, "train/kl_reference": 0.001, "groups/total": 2.0}
    assert step_figures(metrics) == "reward 0.500 · KL to reference 0.001 · entropy 1.26"
    assert step_figures({}) == ""


def test_a_result_as_text_is_a_line() -> None:
    assert str(art.TrainResult(3, {"reward/mean": 0.5})) == "step 3: reward 0.500"
    assert str(art.TrainResult(3, {}, skipped="there are no groups")) == "step 3: skipped: there are no groups"


def test_how_far_something_is_and_how_long_it_takes_yet() -> None:
    assert progress_line("update 3 of 9", "loss 0.5", "", left_s=300.0) == "update 3 of 9: loss 0.5 · about 5m00s left"
    assert progress_line("update 9 of 9", "loss 0.4", left_s=0.0) == "update 9 of 9: loss 0.4"
    assert progress_line("gather", left_s=None) == "gather"
