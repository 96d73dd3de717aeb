from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art_core.cli import app
from art_core.runs.parquet import SCHEMA
from art_core.trajectories import Trajectory, TrajectoryGroup
from tests.core.cli.running import art, art_process
from tests.core.runs.building import GROUPS, group, open_run, trajectory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_run(tmp_path / "runs", "shop", "clerk") as one:
        one.log_groups("train", 0, [group(trajectory("a", 1.0, metrics={"won": 1.0}), trajectory("b", None))])
        one.log_groups("val", 0, [group(trajectory("c", 0.5))])
    return tmp_path / "runs"


def export(path: Path, format: str, file: Path) -> None:
    words = ["export", "m", "--format", format, "--out", str(file), "--path", str(path)]
    app(words, standalone_mode=False)


def parsed(line: str) -> Trajectory:
    record = json.loads(line)
    return Trajectory.model_validate({k: v for k, v in record.items() if k not in ("split", "step", "group")})


def from_row(row: dict[str, Any]) -> Trajectory:
    """The trajectory that a row of the Parquet file tells of."""
    exchanges = []
    for call in row["exchanges"]:
        of_json = ("messages", "tools", "response", "sampling", "metadata")
        jsons = {name: json.loads(call.pop(f"{name}_json")) for name in of_json}
        exchanges.append({**call, **jsons})
    error = (
        None if row["error_kind"] is None else {name: row[f"error_{name}"] for name in ("kind", "message", "source")}
    )
    return Trajectory.model_validate(
        {
            **{name: row[name] for name in ("id", "scenario_id", "reward", "logs", "role")},
            "metrics": dict(row["metrics"]),
            "error": error,
            "metadata": json.loads(row["metadata_json"]),
            "messages_and_choices": json.loads(row["messages_json"]),
            "tools": None if row["tools_json"] is None else json.loads(row["tools_json"]),
            "additional_histories": json.loads(row["additional_histories_json"]),
            "exchanges": exchanges,
        }
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(GROUPS, max_size=2))
def test_exported_lines_are_the_trajectories(groups: list[TrajectoryGroup]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with open_run(folder, "p", "m") as one:
            one.log_groups("train", 3, groups)
        export(folder, "jsonl", folder / "m.jsonl")
        lines = (folder / "m.jsonl").read_bytes().decode().split("\n")
        assert lines.pop() == ""
        assert [parsed(line) for line in lines] == [member for each in groups for member in each]
        assert len({json.loads(line)["group"]["id"] for line in lines}) == len(groups)


def _plain(value: Any) -> bool:
    return "\\ud" not in json.dumps(value)


@pytest.mark.slow
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.lists(GROUPS, max_size=2))
def test_parquet_rows_are_the_trajectories(groups: list[TrajectoryGroup]) -> None:
    members = [member for each in groups for member in each]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with open_run(folder, "p", "m") as one:
            one.log_groups("train", 3, groups)
        export(folder, "parquet", folder / "m.parquet")
        table = pq.read_table(folder / "m.parquet")
        assert table.schema.equals(SCHEMA)
        assert table.num_rows == len(members)
        for row, member in zip(table.to_pylist(), members, strict=True):
            if _plain(member.model_dump(mode="json")):  # half a surrogate pair is escaped in a text column
                assert from_row(row) == member


def test_columns_are_typed(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.parquet"
    done = art("export", "clerk", "--format", "parquet", "--out", str(file), "--path", str(path))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"3 trajectories written to {file}\n"
    table = pq.read_table(file)
    assert table.column("reward").to_pylist() == [1.0, None, 0.5]
    assert table.column("split").to_pylist() == ["train", "train", "val"]
    assert table.schema.field("reward").type == pa.float64()
    assert table.column("metrics").to_pylist() == [[("won", 1.0)], [], []]
    assert table.column("exchanges").to_pylist()[0][0]["logprobs"] == [-0.1 - 0.2, -9999.0]
    assert table.column("group_id")[0] == table.column("group_id")[1] != table.column("group_id")[2]


def test_rows_are_written_in_groups(tmp_path: Path) -> None:
    with open_run(tmp_path, "p", "m") as one:
        one.log_groups("train", 0, [group(*(trajectory(str(number)) for number in range(1030)))])
    export(tmp_path, "parquet", tmp_path / "m.parquet")
    file = pq.ParquetFile(tmp_path / "m.parquet")
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [512, 512, 6]


def test_lines_go_to_standard_output_and_nothing_else_does(path: Path) -> None:
    done = art("export", "clerk", "--format", "jsonl", "--split", "train", "--out", "-", "--path", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["a", "b"]


def test_a_run_without_trajectories_gives_an_empty_file(tmp_path: Path) -> None:
    with open_run(tmp_path, "p", "m"):
        pass
    export(tmp_path, "jsonl", tmp_path / "m.jsonl")
    export(tmp_path, "parquet", tmp_path / "m.parquet")
    assert (tmp_path / "m.jsonl").read_bytes() == b""
    assert pq.read_table(tmp_path / "m.parquet").num_rows == 0


def test_an_existing_file_is_kept_unless_forced(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_text("mine")
    words = ("export", "clerk", "--format", "jsonl", "--out", str(file), "--path", str(path))
    done = art(*words)
    assert done.returncode == 1
    assert done.stderr == f"art: {file} exists; give --out another file, or --force\n"
    assert file.read_text() == "mine"
    assert art(*words, "--force").returncode == 0
    assert len(file.read_text().splitlines()) == 3


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_an_export_that_fails_leaves_the_old_file_and_no_debris(path: Path, tmp_path: Path, format: str) -> None:
    with (path / "shop" / "clerk" / "trajectories" / "val" / "step-0000.jsonl").open("a") as log:
        log.write("rubbish\n")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "x").write_text("mine")
    done = art("export", "clerk", "--format", format, "--out", str(folder / "x"), "--force", "--path", str(path))
    assert done.returncode == 1
    assert "val/step-0000.jsonl:2: not a record" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [(file.name, file.read_text()) for file in folder.iterdir()] == [("x", "mine")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--format", "parquet", "--out", "-"), "a Parquet file cannot go to standard output"),
        (("--format", "jsonl", "--split", "test", "--out", "-"), "no trajectories of split 'test'"),
        (("--format", "jsonl", "--out", "/nowhere/x"), "/nowhere is no folder"),
        (("--format", "jsonl", "--out", "/tmp"), "/tmp exists"),
    ],
)
def test_a_mistake_gives_one_line(path: Path, words: tuple[str, ...], message: str) -> None:
    done = art("export", "clerk", *words, "--path", str(path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"art: {message}")
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_format_is_refused(path: Path) -> None:
    assert art("export", "clerk", "--format", "csv", "--path", str(path)).returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_gives_one_line(path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        words = ["export", "clerk", "--format", "jsonl", "--out", "-", "--path", str(path)]
        done = art_process(words, stdout=full.fileno())
    assert done.returncode == 1
    assert done.stderr == "art: the system: No space left on device; mend it and run again\n"


def test_parquet_without_pyarrow_names_the_extra(path: Path) -> None:
    code = "import sys; sys.modules['pyarrow'] = None; from art_core.cli import main; main()"
    words = ("export", "clerk", "--format", "parquet", "--out", "/tmp/never.parquet", "--path", str(path))
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "art: Parquet needs pyarrow, which is not installed: pip install 'art-core[parquet]'\n"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, contextlib; from art_core.cli import main; sys.argv = ['art', 'export', '--help']\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "assert not {'torch', 'transformers', 'openai', 'starlette', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=dict(os.environ))
