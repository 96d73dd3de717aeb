"""The script that docs/langgraph.md begins with, run with a model that takes no time to train."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import art_langgraph.training
from art_core.testing import InProcessBackend
from tests.langgraph.graphs import call, last

PAGE = Path(__file__).resolve().parents[2] / "docs" / "langgraph.md"


def say(prompt: str) -> str:
    who, text = last(prompt)
    if who == "tool":
        return f"It is {text}."
    if (asked := re.search(r"(\d+) \+ (\d+)", text)) is None:
        return "ok"
    return call("add", a=int(asked[1]), b=int(asked[2]))


@pytest.mark.slow
def test_it_runs_as_a_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(art_langgraph.training, "LocalBackend", lambda path: InProcessBackend(say))
    script = PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    exec(compile(script, str(PAGE), "exec"), {"__name__": "__main__"})
    told = capsys.readouterr()
    assert told.out.startswith("step 0: reward 1.000 [1.000, 1.000] before, 1.000 [1.000, 1.000] after")
    assert told.err.startswith(f"serving smollm2-135m here; its run is kept in {Path('.art/shop/clerk')}\n")
    assert "batch 6 of 6" in told.err
