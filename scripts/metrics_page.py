"""Write the table of `art_core.metrics` into docs/metrics.md, between its two marks."""

from __future__ import annotations

from pathlib import Path

from art_core.metrics import as_markdown

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
BEGIN, END = "<!-- the table: begin -->\n", "<!-- the table: end -->\n"


def page(text: str) -> str:
    """`text`, with the table of today."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{as_markdown()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
