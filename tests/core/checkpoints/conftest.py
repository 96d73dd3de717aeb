from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from art_core.testing import write_tiny_model
from tests.core.checkpoints.building import trained_run


@dataclass(frozen=True)
class Trained:
    """A folder of runs with `shop/clerk`, three steps of `base_model`, and our logprobs after each step."""

    path: Path
    base_model: Path
    logprobs: list[list[float]]


@pytest.fixture(scope="package")
def made(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    base_model = write_tiny_model(folder / "tiny")
    return Trained(folder / "runs", base_model, asyncio.run(trained_run(folder / "runs", base_model, 3)))


@pytest.fixture
def trained(made: Trained, tmp_path: Path) -> Trained:
    """A copy to be spoilt."""
    shutil.copytree(made.path, tmp_path / "runs")
    return Trained(tmp_path / "runs", made.base_model, made.logprobs)
