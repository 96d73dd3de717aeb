from __future__ import annotations

import art_core as art
from art_core.lines import step_figures, time_left


def test_a_line_has_the_figures_that_the_step_has() -> None:
    metrics = {"reward/mean": 0.5, "train/entropy": 1.256, "train/kl_reference": 0.001, "groups/total": 2.0}
    assert step_figures(metrics) == "reward 0.500 · KL to reference 0.001 · entropy 1.26"
    assert step_figures({}) == ""


def test_a_result_as_text_is_a_line() -> None:
    assert str(art.TrainResult(3, {"reward/mean": 0.5})) == "step 3: reward 0.500"
    assert str(art.TrainResult(3, {}, skipped="there are no groups")) == "step 3: skipped: there are no groups"


def test_the_time_left_is_told_while_there_is_some() -> None:
    assert time_left(30.0, 10) == "about 5m00s left"
    assert time_left(30.0, 0) == ""
