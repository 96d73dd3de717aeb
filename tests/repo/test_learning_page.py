"""docs/learning.md shows what docs/learning.json holds, and the curve is drawn where its numbers are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.learning_page import curve, estimate, figures, page

DOCS = Path(__file__).resolve().parents[2] / "docs"


def run(seed: int, *successes: float, steps_to_target: int | None = None) -> dict[str, Any]:
    points = [
        {"step": 4 * number, "success": success, "ci95": [max(0.0, success - 0.1), min(1.0, success + 0.1)]}
        for number, success in enumerate(successes)
    ]
    minutes = 2.0 + seed
    return {"seed": seed, "points": points, "steps_to_target": steps_to_target, "minutes": minutes, "clip_share": 0.25}


REPORT: dict[str, Any] = {
    "target": 0.9,
    "steps": 8,
    "group_size": 8,
    "groups_per_step": 4,
    "machine": "2 cores of this",
    "date": "2026-11-30",
    "minutes": 5.0,
    "losses": [
        {
            "loss": "ppo",
            "options": {"learning_rate": 0.002, "minibatches": 4},
            "start": {"success": 0.25, "ci95": [0.2, 0.3]},
            "final": {"success": 0.895, "ci95": [0.79, 1.0]},
            "runs": [run(0, 0.2, 0.6, 1.0, steps_to_target=8), run(1, 0.3, 0.5, 0.89)],
        }
    ],
}


def test_page_shows_the_figures_that_are_kept_beside_it() -> None:
    report = json.loads((DOCS / "learning.json").read_text(encoding="utf-8"))
    text = (DOCS / "learning.md").read_text(encoding="utf-8")
    assert page(text, report) == text
    assert (DOCS / "learning.svg").read_text(encoding="utf-8") == curve(report)


def test_figures_have_a_row_for_each_loss_and_each_run() -> None:
    rows = figures(REPORT).split("\n")
    assert rows[4] == (
        "| `ppo` | learning_rate 0.002, minibatches 4 | 0.250 [0.20, 0.30] | 0.895 [0.79, 1.00] | 0.994 | "
        "8, not reached | 2.5 |"
    )
    assert rows[-2:] == [
        "| `ppo` | 0 | 0.200 [0.10, 0.30] | 1.000 [0.90, 1.00] | 0.250 |",
        "| `ppo` | 1 | 0.300 [0.20, 0.40] | 0.890 [0.79, 0.99] | 0.250 |",
    ]


def test_a_mean_over_one_seed_is_shown_without_an_interval() -> None:
    assert estimate({"success": 0.8958, "ci95": [0.0, 1.0]}) == "0.896"


def test_curve_goes_up_where_success_does() -> None:
    drawn = curve(REPORT)
    assert 'points="56.0,269.6 378.0,144.8 700.0,20.0"' in drawn  # seed 0: 0.2, 0.6, 1.0 of 312 pixels above 332
    assert 'stroke-width="2.5" points="56.0,254.0 378.0,160.4 700.0,37.2"' in drawn  # means over seeds


def test_page_without_a_place_for_the_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="0 parts between"):
        page("# Learning\n", REPORT)
