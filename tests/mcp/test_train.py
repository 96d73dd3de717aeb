"""`art-mcp train`, as far as it goes without a model."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from art_core.errors import ModelNotFoundError
from art_mcp.progress import Progress
from art_mcp.settings import RunSettings
from art_mcp.train import train


async def test_a_model_that_is_unknown_is_told_before_the_server_is_started(tmp_path: Path) -> None:
    settings = RunSettings(server=f"touch {tmp_path / 'started'}", model="nosuch")
    (tmp_path / "run").mkdir()
    with pytest.raises(ModelNotFoundError, match="model 'nosuch' is unknown"):
        await train(settings, tmp_path / "run", Progress(stream=io.StringIO()))
    assert not (tmp_path / "started").exists()
    assert list((tmp_path / "run").iterdir()) == []  # the same folder can be used with the right model
