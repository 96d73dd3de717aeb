from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from art_core.checkpoints import forking
from art_core.checkpoints.forking import fork_run
from art_core.control import Origin
from art_core.errors import ConfigError, DataError, RunLockedError, StorageError
from art_core.objective import Objective
from art_core.runs import Run, run, runs
from art_core.runs.reader import run_folders
from art_core.saved import is_held, read_cursor
from art_core.storage import RunStore
from art_core.types import Checkpoint
from tests.core.checkpoints.building import open_trainer, row
from tests.core.checkpoints.conftest import Trained


def clerk(trained: Trained) -> Run:
    return run(trained.path, "shop/clerk")


def checkpoint_of(trained: Trained, name: str, step: int) -> Checkpoint:
    return Checkpoint(step, trained.path / "shop" / name / "checkpoints" / f"step-{step:04d}")


async def continued(trained: Trained, name: str, step: int) -> dict[str, Any]:
    """The adapter after one more step from the checkpoint of `step`."""
    trainer = open_trainer(trained.base_model)
    try:
        trainer.restore(checkpoint_of(trained, name, step))
        await trainer.step([row(step)], Objective(learning_rate=1e-2))
        out = trained.path / f"after-{name}"
        out.mkdir()
        trainer.save(out)
        assert trainer.step_count == step + 1
        return dict(load_file(out / "adapter_model.safetensors"))
    finally:
        await trainer.aclose()


def differing(left: dict[str, Any], right: dict[str, Any]) -> int:
    assert set(left) == set(right)
    return sum(not left[name].equal(right[name]) for name in left)


async def test_a_fork_goes_on_as_its_source_would_have(trained: Trained) -> None:
    origin = fork_run(clerk(trained), 2, trained.path, "shop", "branch")
    assert origin == Origin(model="shop/clerk", step=2)
    record = json.loads((trained.path / "shop" / "branch" / "model.json").read_text())
    source = json.loads((trained.path / "shop" / "clerk" / "model.json").read_text())
    assert record["forked_from"] == Origin(model="shop/clerk", step=2).model_dump()
    assert {name: record[name] for name in source if name not in ("name", "created")} == {
        name: source[name] for name in source if name not in ("name", "created")
    }
    assert Run(trained.path / "shop" / "branch").checkpoint_steps == [2]
    assert read_cursor(checkpoint_of(trained, "branch", 2)) == {"metrics": {"train/loss": 0.5}}
    assert differing(await continued(trained, "branch", 2), await continued(trained, "clerk", 2)) == 0


async def test_without_the_optimiser_weights_are_the_same_and_the_next_step_is_not(trained: Trained) -> None:
    origin = fork_run(clerk(trained), None, trained.path, "shop", "fresh", optimizer=False)
    assert origin == Origin(model="shop/clerk", step=3, optimizer=False)
    ours, theirs = checkpoint_of(trained, "fresh", 3), checkpoint_of(trained, "clerk", 3)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (ours.path / name).read_bytes() == (theirs.path / name).read_bytes()
    assert set(load_file(ours.path / "optimizer.safetensors")) == {"step_count", "rng_state"}
    assert differing(await continued(trained, "fresh", 3), await continued(trained, "clerk", 3)) > 0


def test_the_source_may_be_served_and_is_held_meanwhile(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    copying = forking._copying

    def watched(checkpoint: Checkpoint, *, optimizer: bool) -> Any:
        seen.append(is_held(checkpoint))
        return copying(checkpoint, optimizer=optimizer)

    monkeypatch.setattr(forking, "_copying", watched)
    with RunStore(clerk(trained).folder):
        fork_run(clerk(trained), 1, trained.path, "other", "branch")
    assert seen == [True]
    assert [summary.name for summary in runs(trained.path)] == ["branch", "clerk"]


def test_the_same_fork_again_is_left_as_it_is_and_another_is_refused(trained: Trained) -> None:
    first = fork_run(clerk(trained), 2, trained.path, "shop", "branch")
    mark = trained.path / "shop" / "branch" / "mark"
    mark.write_text("still here")
    assert fork_run(clerk(trained), 2, trained.path, "shop", "branch") == first
    assert fork_run(clerk(trained), None, trained.path, "shop", "branch") == first
    for step, name, optimizer in ((1, "branch", True), (2, "branch", False), (2, "clerk", True)):
        with pytest.raises(ConfigError, match=rf"shop/{name} exists; give the fork another name"):
            fork_run(clerk(trained), step, trained.path, "shop", name, optimizer=optimizer)
    assert mark.exists()


def test_a_fork_that_fails_or_is_killed_is_no_run_and_can_be_made_again(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(checkpoint: Checkpoint, *, optimizer: bool) -> Any:
        def save(folder: Path) -> None:
            (folder / "adapter_model.safetensors").write_text("half")
            raise OSError(28, "No space left on device")

        return save

    with monkeypatch.context() as patched:
        patched.setattr(forking, "_copying", full)
        with pytest.raises(StorageError, match=r"No space left on device; free some space"):
            fork_run(clerk(trained), 2, trained.path, "shop", "branch")
    assert list(run_folders(trained.path)) == ["shop/clerk"]
    left = trained.path / ".fork-shop@branch" / "checkpoints" / "step-0009"  # as a killed one would leave it
    left.mkdir(parents=True)
    with RunStore(left.parents[1]), pytest.raises(RunLockedError):  # another process is making it
        fork_run(clerk(trained), 2, trained.path, "shop", "branch")
    fork_run(clerk(trained), 2, trained.path, "shop", "branch")
    assert Run(trained.path / "shop" / "branch").checkpoint_steps == [2]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (0, "step 0 of .* is the untrained model, which has no checkpoint; there are 1, 2, 3"),
        (7, "has no checkpoint of step 7; there are 1, 2, 3"),
        (2, "cannot be used: optimizer.safetensors is missing; choose another step"),
    ],
)
def test_only_a_whole_checkpoint_can_be_forked(trained: Trained, step: int, message: str) -> None:
    (checkpoint_of(trained, "clerk", 2).path / "optimizer.safetensors").unlink()
    with pytest.raises(DataError, match=message):
        fork_run(clerk(trained), step, trained.path, "shop", "branch")


@pytest.mark.parametrize("name", ["", "a/b", "a@1", ".."])
def test_a_name_that_cannot_name_a_folder_is_refused(trained: Trained, name: str) -> None:
    with pytest.raises(ConfigError, match=r"name .* cannot be used"):
        fork_run(clerk(trained), 2, trained.path, "shop", name)


def test_updates_that_are_not_logged_yet_are_counted_in_a_fork(trained: Trained) -> None:
    """The checkpoint comes first, its line of steps.jsonl behind it."""
    source = clerk(trained)
    with RunStore(source.folder) as store:
        metrics = {"sft/update": 2.0, "train/loss": 1.0}
        store.write(5, lambda folder: _copy(trained, folder), {"sft": {"update": 2}, "metrics": metrics})
        assert fork_run(source, 5, trained.path, "shop", "early").supervised_updates == 2
        for step in (4, 5):
            store.append("steps", {"step": step, "metrics": {**metrics, "sft/update": step - 3.0}})
        assert fork_run(source, 5, trained.path, "shop", "late").supervised_updates == 2
        assert fork_run(source, 3, trained.path, "shop", "before").supervised_updates == 0


def _copy(trained: Trained, folder: Path) -> None:
    for path in checkpoint_of(trained, "clerk", 3).path.iterdir():
        if path.name != "state.json":
            shutil.copy(path, folder)
