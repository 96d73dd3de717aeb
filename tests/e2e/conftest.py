"""What end-to-end tests share: the command as a process of its own, and a tiny model that can almost do its task."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.e2e.support import CLERK, ArtMcp, art_mcp_command, environment


@pytest.fixture
def art_mcp() -> ArtMcp:
    """Run `art-mcp` to its end; returns exit code and output."""

    def run(*arguments: str | Path, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            art_mcp_command(*arguments),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def tiny_clerk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, taught in full precision and all its weights to call `add` of the clerk server and to answer.

    It has learnt the form and copies numbers badly, so its attempts differ in reward: reinforcement has work to do.
    """
    from art_core.testing import write_tiny_model

    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny-clerk", max_context_tokens=1024)
    _teach(folder, asyncio.run(_demonstrations(folder)))
    return folder


async def _demonstrations(folder: Path) -> list[Any]:
    from art_core.render import load_renderer
    from art_core.testing import MemoryStore
    from art_mcp.progress import Progress
    from art_mcp.runfolder import propose_scenarios
    from art_mcp.settings import RunSettings
    from art_mcp.stack import ServedModel, open_toolbox
    from art_mcp.warmup import demonstrations

    settings = RunSettings(server=CLERK, deny_tools=("lookup", "shout"), num_train=64, num_held_out=1, seed=99)
    with Progress(quiet=True) as progress:
        async with open_toolbox(settings, progress.line) as toolbox:
            scenarios = await propose_scenarios(settings, toolbox, progress)
            engine = SimpleNamespace(max_context_tokens=1024)
            model = cast(ServedModel, SimpleNamespace(renderer=load_renderer(folder), engine=engine))
            made = await demonstrations(
                MemoryStore(), model, toolbox, scenarios[:-1], answer_every=1, say=progress.line
            )
            return made.rows


def _teach(folder: Path, rows: list[Any]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    length = max(len(row.token_ids) for row in rows)
    ids = torch.tensor([list(row.token_ids) + [2] * (length - len(row.token_ids)) for row in rows])
    trained = torch.tensor([list(row.trained) + [False] * (length - len(row.trained)) for row in rows])
    for step in range(140):
        batch = torch.arange(step * 6, step * 6 + 6) % len(rows)
        logits = model(input_ids=ids[batch]).logits[:, :-1]
        targets = ids[batch][:, 1:].masked_fill(~trained[batch][:, 1:], -100)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    model.save_pretrained(folder)
