"""Put the figures of `benchmarks/learning.py` into docs/learning.md, and draw their curve.

    python scripts/learning_page.py runs/learning/learning.json

The report is copied to docs/learning.json; docs/learning.svg and the part of docs/learning.md between its two `figures`
comments are made from it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from statistics import mean
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
COLOURS = ("#3b82f6", "#e8590c", "#2f9e44", "#9c36b5", "#c92a2a", "#868e96")  # readable on white and on black
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 380, 56, 20, 20, 48


def estimate(record: dict[str, Any]) -> str:
    """A share and its 95 % interval, where one is known: a mean over a single seed has none."""
    low, high = record["ci95"]
    if (low, high) == (0.0, 1.0):
        return f"{record['success']:.3f}"
    return f"{record['success']:.3f} [{low:.2f}, {high:.2f}]"


def options(record: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in record["options"].items())


def figures(report: dict[str, Any]) -> str:
    """The part of the page that comes from the report."""
    lines = [
        f"Measured on {report['date']} on {report['machine']}, {report['minutes']:.0f} minutes in all: "
        f"{report['steps']} steps of {report['groups_per_step']} groups of {report['group_size']}.",
        "",
        "| loss | options | success before | after | after / target | steps to the target | minutes per run |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in report["losses"]:
        steps = ", ".join(str(run["steps_to_target"] or "not reached") for run in record["runs"])
        minutes = mean(run["minutes"] for run in record["runs"])
        lines.append(
            f"| `{record['loss']}` | {options(record)} | {estimate(record['start'])} | {estimate(record['final'])} | "
            f"{record['final']['success'] / report['target']:.3f} | {steps} | {minutes:.1f} |"
        )
    lines += ["", "| loss | seed | before | after | share of tokens clipped |", "|---|---|---|---|---|"]
    for record in report["losses"]:
        for run in record["runs"]:
            ends = " | ".join(estimate(run["points"][at]) for at in (0, -1))
            lines.append(f"| `{record['loss']}` | {run['seed']} | {ends} | {run['clip_share']:.3f} |")
    return "\n".join(lines)


def curve(report: dict[str, Any]) -> str:
    """Held-out success by step as SVG: the mean over seeds of each loss as a line, each seed as a thin one."""
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(step: float, success: float) -> str:
        return f"{LEFT + wide * step / report['steps']:.1f},{TOP + high * (1 - success):.1f}"

    def line(points: list[tuple[float, float]], style: str) -> str:
        return f'<polyline fill="none" {style} points="{" ".join(at(*point) for point in points)}"/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" aria-label="Held-out success by training step">',
        "<style>text{font:13px sans-serif;fill:#495057}.grid{stroke:#adb5bd;stroke-opacity:.4}"
        "@media(prefers-color-scheme:dark){text{fill:#ced4da}}</style>",
    ]
    for tenths in range(0, 11, 2):
        y = TOP + high * (1 - tenths / 10)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + wide}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tenths / 10:.1f}</text>')
    steps = sorted({point["step"] for record in report["losses"] for run in record["runs"] for point in run["points"]})
    for step in steps:
        x = LEFT + wide * step / report["steps"]
        parts.append(f'<text x="{x:.1f}" y="{TOP + high + 18}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{LEFT + wide / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle">training step</text>')
    target = report["target"]
    parts.append(line([(0, target), (report["steps"], target)], 'stroke="#868e96" stroke-dasharray="6 4"'))
    parts.append(f'<text x="{LEFT + 6}" y="{TOP + high * (1 - target) - 6:.1f}">target {target:g}</text>')
    for number, (record, colour) in enumerate(zip(report["losses"], COLOURS, strict=False)):
        by_step: dict[int, list[float]] = {}
        for run in record["runs"]:
            points = [(point["step"], point["success"]) for point in run["points"]]
            parts.append(line(points, f'stroke="{colour}" stroke-opacity=".35" stroke-width="1"'))
            for step, success in points:
                by_step.setdefault(step, []).append(success)
        parts.append(
            line([(step, mean(found)) for step, found in by_step.items()], f'stroke="{colour}" stroke-width="2.5"')
        )
        y = TOP + high - 18 * (len(report["losses"]) - number)
        parts.append(f'<rect x="{LEFT + wide - 90}" y="{y - 9}" width="18" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + wide - 66}" y="{y - 2}">{record["loss"]}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def page(text: str, report: dict[str, Any]) -> str:
    """`text`, with the report's figures between its comments."""
    made, count = re.subn(
        r"(?s)(<!-- figures -->\n).*?(\n<!-- end of figures -->)", lambda m: m[1] + figures(report) + m[2], text
    )
    if count != 1:
        raise ValueError(
            f"the page has {count} parts between `<!-- figures -->` and `<!-- end of figures -->`; wanted 1"
        )
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Put the figures of benchmarks/learning.py into docs/learning.md.")
    parser.add_argument("report", type=Path, help="learning.json of the benchmark's output folder")
    try:
        text = parser.parse_args().report.read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError) as error:
        sys.exit(f"learning_page: {error}; give the learning.json that benchmarks/learning.py wrote")
    (DOCS / "learning.json").write_text(text, encoding="utf-8")
    (DOCS / "learning.svg").write_text(curve(found), encoding="utf-8")
    markdown = DOCS / "learning.md"
    markdown.write_text(page(markdown.read_text(encoding="utf-8"), found), encoding="utf-8")
