"""The folder of a run goes on only with what it was begun with."""

from __future__ import annotations

from pathlib import Path

import pytest

from art_core.errors import ConfigError, DataError
from art_core.storage import RunStore
from art_core.trajectories import Trajectory
from art_core.weights.source import ModelSource
from art_mcp.runfolder import RunFolder
from art_mcp.settings import RunSettings, output_folder


def model(sha256: str) -> ModelSource:
    return ModelSource(Path("/models/m"), "m", "a wheel", sha256)


def test_other_weights_under_the_same_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "scenarios.jsonl").write_text("{}\n")
    with RunStore(tmp_path) as store:
        RunFolder(tmp_path).check_identity(store, model("a" * 64))
        RunFolder(tmp_path).check_identity(store, model("a" * 64))
        with pytest.raises(ConfigError, match=r"begun with the weights aaaaaaaaaaaa .* now has bbbbbbbbbbbb"):
            RunFolder(tmp_path).check_identity(store, model("b" * 64))


def test_scenarios_that_were_edited_meanwhile_are_refused(tmp_path: Path) -> None:
    (tmp_path / "scenarios.jsonl").write_text("{}\n")
    with RunStore(tmp_path) as store:
        RunFolder(tmp_path).check_identity(store, model("a" * 64))
        (tmp_path / "scenarios.jsonl").write_text('{"id": "other"}\n')
        with pytest.raises(ConfigError, match=r"scenarios\.jsonl was changed since the run began"):
            RunFolder(tmp_path).check_identity(store, model("a" * 64))


def test_the_first_setting_that_differs_is_named_with_both_values(tmp_path: Path) -> None:
    RunFolder(tmp_path).claim(RunSettings(server="calc", seed=1))
    RunFolder(tmp_path).claim(RunSettings(server="calc", seed=1))
    with pytest.raises(ConfigError, match="seed was 1 and is now 2"):
        RunFolder(tmp_path).claim(RunSettings(server="calc", seed=2))


def test_a_record_that_is_no_trajectory_is_named_with_its_line(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        store.append("trajectories", Trajectory(id="a", scenario_id="s").model_dump(mode="json"))
        assert [trajectory.id for trajectory in RunFolder(tmp_path).trajectories(store)] == ["a"]
        store.append("trajectories", {"id": "b", "scenario_id": "s", "colour": "red"})
        with pytest.raises(DataError, match=r"trajectories\.jsonl:2: not a trajectory .*colour"):
            RunFolder(tmp_path).trajectories(store)


def test_a_folder_with_somebody_elses_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        RunFolder(tmp_path).claim(RunSettings(server="calc"))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "changed",
    [{"seed": 2**63}, {"learning_rate": float("inf")}, {"warmup_learning_rate": float("nan")}, {"server": "a\udcff"}],
)
def test_settings_that_no_run_can_have_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        RunSettings.model_validate({"server": "calc", **changed})


@pytest.mark.parametrize("server", ["uvx ..", "run .", "..."])
def test_the_folder_of_a_run_is_named_after_something(server: str) -> None:
    folder = output_folder(None, server)
    assert folder.parent == Path("runs")
    assert folder.name.strip(".")
