"""What every `Store` promises, on the directory and on the fake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from art_core.errors import DataError, StorageError
from art_core.objective import Objective
from art_core.protocols import Store
from art_core.storage import RunStore
from art_core.testing import MemoryStore, RecordingTrainer
from art_core.types import Checkpoint, TokenSample

ROW = TokenSample((1, 2), (False, True), (0.0, -0.5), 1.0, 0, "t")


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
    else:
        with RunStore(tmp_path) as directory:
            yield directory


def test_it_is_a_store(store: Store) -> None:
    assert isinstance(store, Store)


def test_records_come_back_by_kind_in_order(store: Store) -> None:
    store.append("a", {"n": 1})
    store.append("b", {"n": 2.5})
    store.append("a", {"n": 3})
    assert store.records("a") == [{"n": 1}, {"n": 3}]
    assert store.records("b") == [{"n": 2.5}]
    assert store.records("c") == []


def test_a_record_is_a_copy(store: Store) -> None:
    record = {"list": [1]}
    store.append("a", record)
    record["list"].append(2)
    store.records("a")[0]["list"].append(3)
    assert store.records("a") == [{"list": [1]}]


async def test_the_latest_checkpoint_is_the_highest_step_with_its_cursor(store: Store) -> None:
    trainer = RecordingTrainer()
    assert store.latest() is None
    for number in (1, 2):
        await trainer.step([ROW], Objective())
        store.commit(trainer, {"number": number})
    latest = store.latest()
    assert latest is not None
    assert latest.step == 2
    assert store.load(latest) == {"number": 2}
    assert any(latest.path.iterdir())


async def test_what_json_cannot_hold_is_refused(store: Store) -> None:
    with pytest.raises(DataError, match="JSON"):
        store.append("a", {"n": float("nan")})
    assert store.records("a") == []
    trainer = RecordingTrainer()
    await trainer.step([ROW], Objective())
    with pytest.raises(DataError, match="JSON"):
        store.commit(trainer, {"n": object()})
    assert store.latest() is None


def test_a_checkpoint_that_is_not_there_has_no_cursor(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="step-0007"):
        store.load(Checkpoint(7, tmp_path / "step-0007"))
