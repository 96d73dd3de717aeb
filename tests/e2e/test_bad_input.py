"""A mistake of the user gets one line that says what, where and what to do, and an exit code other than 0."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from art_core.storage import RunStore
from art_core.testing import write_tiny_model
from tests.e2e.support import CLERK, ArtMcp

pytestmark = pytest.mark.slow


def assert_one_line(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert result.returncode not in (0, None)
    assert "Traceback" not in result.stderr
    complaint = result.stderr.strip().splitlines()[-1]
    assert complaint.startswith("art-mcp: ")
    for part in parts:
        assert part in complaint


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_a_server_command_that_does_not_exist(art_mcp: ArtMcp) -> None:
    assert_one_line(art_mcp("inspect", "no-such-server --flag"), "no-such-server", "PATH")


def test_a_server_that_exits_at_start_shows_the_end_of_its_stderr(art_mcp: ArtMcp) -> None:
    result = art_mcp("inspect", "python3 -c 'import sys; sys.exit(\"database is missing\")'")
    assert_one_line(result, "database is missing")


def test_a_server_that_never_answers(art_mcp: ArtMcp) -> None:
    assert_one_line(art_mcp("inspect", "sleep 600", "--start-timeout", "2"), "2 s")


def test_a_server_that_prints_rubbish_only(art_mcp: ArtMcp) -> None:
    result = art_mcp("inspect", "sh -c 'while true; do echo rubbish; sleep 0.2; done'", "--start-timeout", "2")
    assert_one_line(result, "2 s")


def test_no_callable_tool(art_mcp: ArtMcp, tmp_path: Path) -> None:
    denied = [word for tool in ("add", "lookup", "shout") for word in ("--deny-tool", tool)]
    assert_one_line(art_mcp("train", CLERK, "--out", tmp_path / "run", *denied), "none may be called", "--allow-tool")


def test_an_unknown_tool_in_an_option(art_mcp: ArtMcp) -> None:
    assert_one_line(art_mcp("inspect", CLERK, "--allow-tool", "ad"), "ad")


@pytest.mark.parametrize("content", [None, "rubbish\n", '{"id": "a"}\n', ""])
def test_a_scenarios_file_that_cannot_be_used(
    art_mcp: ArtMcp, tmp_path: Path, tiny_model: Path, content: str | None
) -> None:
    path = tmp_path / "scenarios.jsonl"
    if content is not None:
        path.write_text(content)
    result = art_mcp("train", CLERK, "--out", tmp_path / "run", "--scenarios", path, "--model", tiny_model)
    assert_one_line(result, "scenarios.jsonl")


def test_an_unknown_model(art_mcp: ArtMcp, tmp_path: Path) -> None:
    result = art_mcp("train", CLERK, "--out", tmp_path / "run", "--model", "smollm9")
    assert_one_line(result, "smollm9")


def test_a_folder_that_is_no_model(art_mcp: ArtMcp, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    result = art_mcp("train", CLERK, "--out", tmp_path / "run", "--model", tmp_path / "model")
    assert_one_line(result, "config.json")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--group-size", "1"), ("--eval-temperature", "0"), ("--loss", "magic"), ("--steps", "-1"), ("--warmup", "maybe")],
)
def test_an_option_out_of_range(art_mcp: ArtMcp, tmp_path: Path, option: str, value: str) -> None:
    result = art_mcp("train", CLERK, "--out", tmp_path / "run", option, value)
    assert_one_line(result, option, value)
    assert not (tmp_path / "run").exists()


def test_an_unknown_option(art_mcp: ArtMcp) -> None:
    result = art_mcp("train", CLERK, "--learning-rat", "1")
    assert result.returncode == 2
    assert "--learning-rate" in result.stderr


def test_scenarios_that_may_have_been_edited_are_not_overwritten(art_mcp: ArtMcp, tmp_path: Path) -> None:
    out = tmp_path / "scenarios.jsonl"
    out.write_text("mine\n")
    assert_one_line(art_mcp("scenarios", CLERK, "--out", out), "exists")
    assert out.read_text() == "mine\n"


def test_an_output_folder_with_other_files(art_mcp: ArtMcp, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("important")
    result = art_mcp("train", CLERK, "--out", tmp_path)
    assert_one_line(result, "thesis.txt")
    assert [path.name for path in tmp_path.iterdir() if path.name == "thesis.txt"] == ["thesis.txt"]


def test_an_output_path_that_is_a_file(art_mcp: ArtMcp, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    assert_one_line(art_mcp("train", CLERK, "--out", tmp_path / "run"), "is a file")


def test_a_second_process_on_the_same_folder(art_mcp: ArtMcp, tmp_path: Path) -> None:
    with RunStore(tmp_path / "run"):
        assert_one_line(art_mcp("train", CLERK, "--out", tmp_path / "run"), "is in use by process")


def test_eval_of_a_folder_without_a_run(art_mcp: ArtMcp, tmp_path: Path) -> None:
    assert_one_line(art_mcp("eval", CLERK, "--run", tmp_path), "run.json")


def test_a_full_disk_keeps_what_was_earned(art_mcp: ArtMcp, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=220k", "tmpfs", disk], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a small file system")
    try:
        small = ("--num-train", "4", "--num-held-out", "4", "--groups-per-step", "2", "--max-tokens", "300")
        result = art_mcp(
            "train", CLERK, "--deny-tool", "lookup", "--model", model, "--out", disk / "run", *small, "--samples", "16"
        )
        assert_one_line(result, "disk", "free some space")
        whole = (disk / "run" / "trajectories.jsonl").read_text()
        assert whole.endswith("\n")
        assert all(json.loads(line)["id"] for line in whole.splitlines())
    finally:
        subprocess.run(["umount", disk], check=True)
