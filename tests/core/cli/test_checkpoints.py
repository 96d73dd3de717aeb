from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from art_core.cli import main
from art_core.runs import ModelRun
from art_core.saved import held
from art_core.types import Checkpoint
from tests.core.runs.building import open_run
from tests.core.test_storage import FolderTrainer

Art = Callable[..., tuple[int, str, str]]


@pytest.fixture
def art(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> Art:
    """Run the command in this process; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["art", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        code = end.value.code
        return (code if isinstance(code, int) else 0), out, err

    return run


def commit(run: ModelRun, *steps: int) -> None:
    for step in steps:
        run.store.commit(FolderTrainer(step), {"metrics": {"train/loss": step / 10}, "counters": {"reward/mean": 0.5}})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """`shop/clerk` with six steps, the second of them the best by `val/reward`; `lab/clerk` with none."""
    with open_run(tmp_path / ".art", "shop", "clerk", identity={"base_model": "tiny"}) as run:
        commit(run, 1, 2, 3, 4, 5, 6)
        for step, reward in ((2, 0.9), (4, 0.3), (6, 0.1)):
            run.log_groups("val", step, [], {"reward": reward, "cost": -reward})
    with open_run(tmp_path / ".art", "lab", "clerk"):
        pass
    return tmp_path / ".art" / "shop" / "clerk"


def steps(path: Path) -> list[int]:
    return sorted(int(folder.name.removeprefix("step-")) for folder in (path / "checkpoints").glob("step-????"))


def test_the_list_tells_what_each_is(path: Path, art: Art) -> None:
    (path / "checkpoints" / "step-0003" / "adapter.bin").write_text("cut")
    (path / "checkpoints" / "0007 (copy)").mkdir()
    code, out, err = art("checkpoints", "shop/clerk")
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith(" shop") or "@" in line}
    assert code == 0
    assert set(lines) == {f"shop/clerk@{step}" for step in range(1, 7)}
    assert "best val/reward" in lines["shop/clerk@2"]
    assert "val/reward 0.9" in lines["shop/clerk@2"]
    assert "reward/mean 0.5, train/loss 0.2" in lines["shop/clerk@2"]
    assert "not whole: adapter.bin is not the file that was saved" in lines["shop/clerk@3"]
    assert "newest" in lines["shop/clerk@6"]
    assert "tiny" in lines["shop/clerk@6"]
    assert time.strftime("%Y-%m-%d") in lines["shop/clerk@6"]
    assert err == f"not a checkpoint: {Path('.art/shop/clerk/checkpoints/0007 (copy)')}\n"


def test_the_list_as_data(path: Path, art: Art) -> None:
    with open_run(path.parents[1], "shop", "clerk"), held(Checkpoint(4, path / "checkpoints" / "step-0004")):
        code, out, _ = art("checkpoints", "list", "shop/clerk", "--best", "val/cost", "--lowest", "--json")
    data = json.loads(out)
    assert code == 0
    assert [one["step"] for one in data] == [1, 2, 3, 4, 5, 6]
    assert [one["best"] for one in data] == [None, "val/cost", None, None, None, None]
    assert [one["newest"] for one in data] == [False] * 5 + [True]
    assert [one["use"] for one in data] == ["", "", "", "read", "", "served"]
    assert data[1]["metrics"] == {"train/loss": 0.2, "reward/mean": 0.5, "val/reward": 0.9, "val/cost": -0.9}
    assert data[1]["model"] == "shop/clerk"
    assert data[1]["size_bytes"] > 0


def test_without_a_name_all_runs_are_listed(path: Path, art: Art) -> None:
    code, out, _ = art("checkpoints")
    assert code == 0
    assert out.count("shop/clerk@") == 6
    assert art("checkpoints", "lab/clerk")[:2] == (0, "no checkpoints in .art/lab/clerk\n")
    assert art("checkpoints", "--json", "lab/clerk")[:2] == (0, "[]\n")


def test_what_nothing_keeps_is_deleted_with_a_dry_run_before(path: Path, art: Art) -> None:
    words = ("checkpoints", "delete", "shop/clerk", "--keep-best", "val/reward", "--keep-last", "2")
    code, out, _ = art(*words, "--dry-run")
    assert code == 0
    assert "would delete 3 of 6 checkpoints" in out
    assert "(steps 1, 3, 4)" in out
    assert steps(path) == [1, 2, 3, 4, 5, 6]
    code, out, _ = art(*words)
    assert code == 0
    assert out.splitlines()[:3] == ["kept step 2: best val/reward", "kept step 5: newest", "kept step 6: newest"]
    assert steps(path) == [2, 5, 6]
    _, out, _ = art("checkpoints", "delete", "shop/clerk", "--keep-every", "3", "--json")
    assert json.loads(out) == {"deleted": [2, 5], "kept": {"6": ["newest", "every 3"]}, "dry_run": False}


def test_the_lowest_is_kept_where_that_is_the_best(path: Path, art: Art) -> None:
    assert art("checkpoints", "delete", "shop/clerk", "--keep-best", "val/reward", "--lowest")[0] == 0
    assert steps(path) == [6]


def test_what_is_read_is_kept(path: Path, art: Art) -> None:
    with held(Checkpoint(1, path / "checkpoints" / "step-0001")):
        code, out, _ = art("checkpoints", "delete", "shop/clerk", "--keep-last", "1")
    assert code == 0
    assert out.startswith("kept step 1: in use\n")
    assert steps(path) == [1, 6]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("delete", "shop/clerk"), "nothing says which checkpoints to keep"),
        (("delete", "shop/clerk", "--keep-best", "val/typo"), "'val/typo', so none can be called the best and nothing"),
        (("delete", "shop/clerk", "--keep-last", "1", "--lowest"), "lowest is a direction of best"),
        (("delete", "shop/none", "--keep-last", "1"), "no run 'shop/none'"),
        (("list", "shop/clerk", "--lowest"), "--lowest is a direction of --best"),
        (("list", "shop/clerk", "--best", "val/typo"), "'val/typo'"),
        (("fork", "shop/clerk@9", "b"), "has no checkpoint of step 9; there are 1, 2, 3, 4, 5, 6"),
        (("fork", "shop/clerk@x", "b"), "'x' is no step; wanted NAME@STEP"),
        (("fork", f"shop/clerk@{'9' * 5000}", "b"), "'99999999999999999999' is no step; wanted NAME@STEP"),
        (("list", "shop/clerk", "--best", ""), "no checkpoint has a value of the metric ''"),
        (("fork", "shop/clerk@2", "lab/clerk"), "lab/clerk exists; give the fork another name"),
        (("fork", "shop/clerk@2", "b", "--no-optimizer"), "keeps no optimiser that could be left out"),
        (("fork", "lab/clerk", "b"), "lab/clerk has no checkpoint yet; train it first"),
        (("export", "shop/clerk@2", "--out", "x", "--dtype", "int8"), "--dtype is 'int8'; wanted one of auto, float32"),
        (("export", "shop/clerk@2", "--out", "x", "--adapter", "--dtype", "auto"), "--dtype is of merged weights"),
        (("export", "shop/clerk@2", "--out", "x", "--adapter"), "holds no adapter_config.json"),
        (("export", "shop/clerk@2", "--out", ".art"), ".art exists; give another folder"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(path: Path, art: Art, words: tuple[str, ...], message: str) -> None:
    code, out, err = art("checkpoints", *words)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert message in err
    assert steps(path) == [1, 2, 3, 4, 5, 6]
    assert not Path("x").exists()


def test_a_run_that_is_served_is_not_pruned_behind_the_servers_back(path: Path, art: Art) -> None:
    with open_run(path.parents[1], "shop", "clerk"):
        code, _, err = art("checkpoints", "delete", "shop/clerk", "--keep-last", "1")
    assert code == 1
    assert "is in use by process" in err
    assert "await model.delete_checkpoints(...)" in err
    assert steps(path) == [1, 2, 3, 4, 5, 6]


def test_a_fork_is_listed_with_where_it_comes_from(path: Path, art: Art) -> None:
    code, out, _ = art("checkpoints", "fork", "shop/clerk@4", "branch")
    assert (code, out) == (
        0,
        "shop/branch is shop/clerk@4\nits next step is 5; it is trained as base model tiny\n",
    )
    _, out, _ = art("checkpoints", "branch")
    assert "from shop/clerk@4" in out
    assert steps(path.parent / "branch") == [4]


def test_one_damaged_run_does_not_hide_the_others(path: Path, art: Art) -> None:
    (path.parents[1] / "lab" / "clerk" / "model.json").write_text("{")
    code, out, err = art("checkpoints")
    assert (code, out.count("shop/clerk@")) == (0, 6)
    assert err.startswith("lab/clerk is damaged: .art/lab/clerk/model.json does not say which model this is")
    code, out, err = art("checkpoints", "list", "--json")
    assert (code, len(json.loads(out)), err.count("is damaged")) == (0, 6, 1)
    code, out, err = art("checkpoints", "lab/clerk")
    assert (code, out, err.count("\n")) == (1, "", 1)


def test_the_best_of_all_runs_needs_the_metric_in_one_of_them(path: Path, art: Art) -> None:
    with open_run(path.parents[1], "lab", "other") as run:
        commit(run, 1)
    code, out, _ = art("checkpoints", "--best", "val/cost")
    assert (code, out.count("best val/cost"), out.count("lab/other@1")) == (0, 1, 1)
    code, out, err = art("checkpoints", "--best", "val/typo")
    assert (code, out) == (1, "")
    assert "no checkpoint has a value of the metric 'val/typo'" in err
    assert art("checkpoints", "list", "lab/other", "--best", "val/cost")[0] == 1


def test_a_metric_that_only_a_damaged_checkpoint_has_marks_none(path: Path, art: Art) -> None:
    for step in (2, 4, 6):
        (path / "checkpoints" / f"step-000{step}" / "adapter.bin").write_text("cut")
    code, out, _ = art("checkpoints", "shop/clerk")
    assert (code, out.count("best val/reward"), out.count("not whole")) == (0, 0, 3)
    assert art("checkpoints", "list", "shop/clerk", "--best", "val/reward")[0] == 1


def test_odd_records_are_shown_as_far_as_they_go(path: Path, art: Art) -> None:
    with open_run(path.parents[1], "shop", "clerk") as run:
        run.store.commit(FolderTrainer(7), {"metrics": {"train/loss": "x", "reward/mean": 0.25}, "counters": [1]})
    record = json.loads((path / "model.json").read_text())
    (path / "model.json").write_text(json.dumps({**record, "forked_from": "x"}))
    code, out, _ = art("checkpoints", "shop/clerk")
    (line,) = [line for line in out.splitlines() if "shop/clerk@7" in line]
    assert code == 0
    assert "newest" in line
    assert line.rstrip().endswith("reward/mean 0.25")
