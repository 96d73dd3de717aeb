from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from art_core.testing import write_tiny_model


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small gain nothing from threads, and waiting for a busy core makes them a hundred times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))
