from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from art_core.cli.conversation import Line, conversation, shown
from art_core.trajectories import History
from art_core.types import RolloutError, StepReport
from tests.core.cli.running import art, art_process
from tests.core.runs.building import exchange, group, open_run, trajectory

CALL = {"id": "c1", "type": "function", "function": {"name": "price", "arguments": '{"item": "tea"}'}}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    asked = {"role": "user", "content": "price of tea?"}
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "4\x1b[31m euro"}
    said = exchange("x", messages=(asked,), response=called)
    answered = exchange("y", messages=(asked, called, result), response={"role": "assistant", "content": "4 euro"})
    with open_run(folder, "shop", "clerk", identity={"base_model": "tiny"}) as one:
        good = trajectory("good", 1.0, metrics={"turns": 2.0}, exchanges=[said, answered], logs=["checked"])
        bad = trajectory("bad", None, error=RolloutError(kind="Timeout", message="too slow"))
        one.log_groups("train", 7, [group(good, bad, trajectory("odd \ud800", 0.0))], {"lr": 0.125})
        one.log_groups("val", 7, [group(trajectory("v", 0.5))])
        one.log_step(StepReport(7, {"loss/policy": -0.5}))
    with open_run(folder, "lab", "clerk"):
        pass
    return folder


def test_the_list_shows_each_model(path: Path) -> None:
    done = art("runs", "--path", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    lab, shop = [line for line in done.stdout.splitlines() if "clerk" in line]
    assert lab.split()[0] == "lab/clerk"
    assert "tiny" in shop
    assert "train 3 val 1" in shop
    assert "train 0.500 val 0.500" in shop
    data = json.loads(art("runs", "--path", str(path), "--json").stdout)
    assert [(one["project"], one["step"], one["num_trajectories"]) for one in data] == [
        ("lab", 0, {}),
        ("shop", 7, {"train": 3, "val": 1}),
    ]


def test_a_run_shows_its_steps_with_counts(path: Path) -> None:
    done = art("runs", "--path", str(path), "show", "shop/clerk")
    assert (done.returncode, done.stderr) == (0, "")
    assert ["7", "train", "1", "3", "0.500", "1", "0", "0", "12", "8"] in [
        line.split() for line in done.stdout.splitlines()
    ]
    data = json.loads(art("runs", "show", "shop/clerk", "--path", str(path), "--json").stdout)
    assert [(one["split"], one["counts"]["excluded"], one["metrics"]["reward"]) for one in data["logged"]] == [
        ("train", 1, 0.5),
        ("val", 0, 0.5),
    ]
    assert data["steps"] == [{"step": 7, "metrics": {"loss/policy": -0.5}}]


def test_a_table_breaks_no_word_in_a_terminal_of_80_columns_and_no_line_in_a_pipe(path: Path) -> None:
    narrow = art("runs", "show", "shop/clerk", "--path", str(path), COLUMNS="80").stdout
    assert max(map(len, narrow.splitlines()[2:])) <= 80
    for word in ("trajectories", "excluded", "signal", "prompt", "sampled"):
        assert word in narrow
    piped = art_process(["runs", "show", "shop/clerk", "--path", str(path)], without=["COLUMNS"]).stdout
    assert re.search(r"step +split +groups +trajectories .* no signal +forks +prompt tokens +sampled", piped)


def test_a_step_shows_its_trajectories(path: Path) -> None:
    done = art("runs", "--path", str(path), "show", "shop/clerk", "--step", "7", "--split", "train")
    assert (done.returncode, done.stderr) == (0, "")
    assert "train: exception_rate 0.3333, lr 0.125, reward 0.5, reward_std_dev 0.5, turns 2" in done.stdout
    assert "training step 7: loss/policy -0.5" in done.stdout
    assert "good  reward 1.0  2 calls, 4 tokens sampled" in done.stdout
    assert "bad  error Timeout: too slow" in done.stdout
    assert "odd \\ud800" in done.stdout
    words = ("runs", "show", "shop/clerk", "--path", str(path), "--step", "7", "--json")
    assert [one["id"] for one in json.loads(art(*words).stdout)] == ["good", "bad", "odd \ud800", "v"]


def test_a_trajectory_reads_as_a_conversation(path: Path) -> None:
    done = art("runs", "show", "shop/clerk", "--path", str(path), "--trajectory", "good")
    assert (done.returncode, done.stderr) == (0, "")
    head, said = done.stdout.split("\n\n", 1)
    assert head.startswith("good  train step 7\nscenario 's', group ")
    assert head.endswith("reward 1.0\nmetric turns 2.0")
    assert said == (
        "user\nprice of tea?\n\n"
        'assistant\n-> price({"item": "tea"})  [c1]\n\n'
        "tool c1\n4\\x1b[31m euro\n\n"
        "assistant\n4 euro\n\n"
        "logs\nchecked\n"
    )
    data = json.loads(art("runs", "show", "shop/clerk", "--path", str(path), "--trajectory", "good", "--json").stdout)
    assert data["exchanges"][1]["completion_ids"] == [4, 5]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "clerk"), "several projects .* lab/clerk, shop/clerk"),
        (("show", "chef"), "no run 'chef' .* lab/clerk, shop/clerk"),
        (("show", "shop/clerk", "--step", "3"), "no trajectories of step 3 .* steps: 7"),
        (("show", "shop/clerk", "--step", "7", "--split", "test"), "no trajectories of split 'test' .* train, val"),
        (("show", "shop/clerk", "--trajectory", "x"), "no trajectory 'x'"),
    ],
)
def test_a_mistake_gives_one_line(path: Path, words: tuple[str, ...], message: str) -> None:
    done = art("runs", "--path", str(path), *words)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("art: ")
    assert re.search(message, line)


def test_a_folder_that_is_not_there_and_one_without_runs(tmp_path: Path) -> None:
    done = art("runs", "--path", str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"art: {tmp_path}/nowhere is no folder")
    (tmp_path / "time").mkdir()
    (tmp_path / "time" / "run.json").write_text("{}")
    done = art("runs", "--path", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, f"no runs in {tmp_path}\n")
    assert done.stderr.startswith(f"not listed: {tmp_path}/time is a run of art-mcp")


def test_a_damaged_run_is_named_beside_the_others(tmp_path: Path) -> None:
    for name in ("bad", "good"):
        with open_run(tmp_path, "p", name) as one:
            one.log_step(StepReport(1))
    (tmp_path / "p" / "bad" / "steps.jsonl").write_text("rubbish\n")
    done = art("runs", "--path", str(tmp_path))
    assert done.returncode == 0
    assert "p/good" in done.stdout
    assert "p/bad is damaged" in done.stderr
    assert "steps.jsonl:1" in done.stderr


def test_a_step_is_shown_beside_the_damaged_file_of_another(tmp_path: Path) -> None:
    with open_run(tmp_path, "p", "m") as one:
        for step in (3, 4):
            one.log_groups("train", step, [group(trajectory(f"t{step}", 0.5 + step))])
    with (one.folder / "trajectories" / "train" / "step-0004.jsonl").open("a") as file:
        file.write("rubbish\n")
    done = art("runs", "show", "m", "--path", str(tmp_path), "--step", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "train: exception_rate 0, reward 3.5" in done.stdout
    assert "t3  reward 3.5" in done.stdout
    assert "t4" not in done.stdout
    broken = art("runs", "show", "m", "--path", str(tmp_path), "--step", "4")
    assert broken.returncode == 1
    assert "step-0004.jsonl:2: not a record" in broken.stderr


def test_a_terminal_that_knows_ascii_only_is_no_error(path: Path, tmp_path: Path) -> None:
    with open_run(tmp_path, "p", "m") as one:
        one.log_groups("val", 0, [group(trajectory("ü", 1.0))])
    done = art_process(["runs", "show", "m", "--path", str(tmp_path), "--step", "0"], PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\xfc  reward 1.0" in done.stdout


def test_unknown_options_are_refused(path: Path) -> None:
    assert art("runs", "--colour").returncode == 2
    assert art("runs", "show", "clerk", "--stp", "1").returncode == 2


# The conversation


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_edited_history_is_remarked_and_shown_whole() -> None:
    first = exchange("x", messages=(user("a"),), response={"role": "assistant", "content": "b"})
    other = exchange("y", messages=(user("z"),), response={"role": "assistant", "content": ""}, finish_reason="length")
    said = list(conversation(trajectory("t", exchanges=[first, other])))
    assert said == [
        Line("user", "a"),
        Line("assistant", "b"),
        Line("[another conversation: it does not continue the one before]"),
        Line("user", "z"),
        Line("assistant", ""),
        Line("[cut: the answer reached its length limit]"),
    ]


def test_own_messages_come_before_recorded_calls_and_choices_are_opened() -> None:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "b"}}
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    one = trajectory(
        "t",
        messages_and_choices=[{"role": "user", "content": parts}, choice],
        additional_histories=[History(messages_and_choices=[user("sub")])],
    )
    assert list(conversation(one)) == [
        Line("user", "look\n[image_url]"),
        Line("assistant", "b"),
        Line("[additional history 1]"),
        Line("user", "sub"),
    ]


def test_what_steers_a_terminal_is_spelled_out() -> None:
    assert shown("a\tb\nc\x1b[2J\x07\x9b\r") == "a\tb\nc\\x1b[2J\\x07\\x9b\\x0d"
