"""Reading groups line by line, and a scored file that survives everything but losing its disk."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from art_ruler.errors import ConfigError, DataError
from art_ruler.files import ScoredFile, check_groups, read_groups

SETTINGS = {"judges": ["openai/m"], "passes": 1}
HELLO = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
BYE = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "bye"}]


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def groups_file(folder: Path, count: int = 3) -> Path:
    return write(folder / "groups.jsonl", *({"trajectories": [HELLO, BYE], "task": i} for i in range(count)))


def scored_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# Reading


def test_a_group_is_an_object_or_an_array_and_keeps_its_fields(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    path = write(
        tmp_path / "g.jsonl",
        {"trajectories": [HELLO, {"messages": BYE}], "tools": tools, "labels": [1, None], "scenario": "s"},
        "",
        [HELLO],
    )
    first, second = read_groups(path)
    assert (first.where, first.number, second.where, second.number) == (f"{path}:1", 1, f"{path}:3", 3)
    assert first.trajectories == (HELLO, {"messages": BYE})
    assert (first.tools, first.labels, first.fields["scenario"]) == (tuple(tools), (1.0, None), "s")
    assert (second.trajectories, second.tools, second.labels) == ((HELLO,), None, None)


def test_a_byte_order_mark_other_line_ends_and_unicode_line_separators_are_read(tmp_path: Path) -> None:
    path = tmp_path / "g.jsonl"
    text = json.dumps([[{"role": "assistant", "content": "a\u2028b\u0085c"}]], ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n" + text.encode())
    assert [group.trajectories[0][0]["content"] for group in read_groups(path)] == ["a\u2028b\u0085c"] * 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "is not JSON: Expecting property name enclosed in double quotes (column 2)"),
        ("nonsense", "is not JSON"),
        ("3", 'is no group; wanted an object with an array "trajectories", got int'),
        ('{"trajectory": []}', "is no group; wanted an object with an array \"trajectories\", got ['trajectory']"),
        ('{"trajectories": {}}', "is no group"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"trajectories": [], "tools": {}}', '"tools" is dict'),
        ('{"trajectories": [], "labels": [1]}', "one number per trajectory (0); got 1 of them"),
        ('{"trajectories": [[]], "labels": 1}', "one number per trajectory (1); got int"),
        ('{"trajectories": [[]], "labels": ["a"]}', "\"labels\" holds 'a'"),
        ('{"trajectories": [[]], "labels": [true]}', '"labels" holds True'),
        ('{"trajectories": [[]], "labels": [NaN]}', '"labels" holds nan'),
        ('{"trajectories": [], "ruler": {}}', "is scored already"),
        ('{"trajectories": [3]}', ""),
        ('{"trajectories": [[{"content": "no role"}]]}', ""),
        ('{"trajectories": [[3]]}', ""),
        (b"[\xff]", "is not UTF-8 (byte 2)"),
    ],
)
def test_a_bad_line_is_named_by_file_and_line(tmp_path: Path, line: str | bytes, says: str) -> None:
    path = groups_file(tmp_path)
    with path.open("ab") as file:
        file.write((line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(DataError) as caught:
        check_groups(path)
    assert str(caught.value).startswith(f"{path}:4: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_hold_no_group_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.jsonl does not exist"):
        check_groups(tmp_path / "nothing.jsonl")
    with pytest.raises(DataError, match="is a folder or a stream"):
        check_groups(tmp_path)
    with pytest.raises(DataError, match="holds no group"):
        check_groups(write(tmp_path / "empty.jsonl", "", " "))


def test_labels_are_asked_for_where_they_are_needed(tmp_path: Path) -> None:
    path = write(tmp_path / "g.jsonl", {"trajectories": [HELLO, BYE], "labels": [1, 0]}, [HELLO, BYE])
    assert check_groups(path) == 2
    with pytest.raises(DataError, match=r'g\.jsonl:2: has no "labels"'):
        check_groups(path, labelled=True)


def test_reading_holds_one_group_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    line = json.dumps([[{"role": "assistant", "content": "x" * 1_000_000}]]) + "\n"
    with path.open("w") as file:
        for _ in range(120):
            file.write(line)
    code = (
        "import resource, sys; from pathlib import Path; from art_ruler.files import check_groups\n"
        "check_groups(Path(sys.argv[2])); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(check_groups(Path(sys.argv[1])), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    small = write(tmp_path / "small.jsonl", line.strip())
    done = subprocess.run(
        [sys.executable, "-c", code, path, small], capture_output=True, text=True, check=True
    ).stdout.split()
    unit = 1 if sys.platform == "darwin" else 1024
    assert done[0] == "120"
    assert int(done[1]) * unit < 30_000_000


# Writing


def test_a_line_is_that_of_the_input_with_the_scores_under_ruler(tmp_path: Path) -> None:
    (group,) = read_groups(write(tmp_path / "g.jsonl", {"trajectories": [HELLO], "kept": {"a": [1]}, "labels": [1]}))
    with ScoredFile(tmp_path / "out.jsonl", SETTINGS) as out:
        out.append(group, {"scores": [0.5]})
    (line,) = scored_lines(tmp_path / "out.jsonl")
    ruler = line.pop("ruler")
    assert line == {"trajectories": [HELLO], "kept": {"a": [1]}, "labels": [1]}
    assert ruler["line"] == 1
    assert ruler["scores"] == [0.5]
    assert ruler["judges"] == ["openai/m"]


def test_a_line_is_on_disk_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with ScoredFile(path, SETTINGS) as out:
        for count, group in enumerate(read_groups(groups_file(tmp_path)), 1):
            out.append(group, {})
            assert len(scored_lines(path)) == count


def test_what_is_there_is_taken_once_and_equal_groups_have_a_line_each(tmp_path: Path) -> None:
    source = write(tmp_path / "g.jsonl", [HELLO], [HELLO], [BYE])
    with ScoredFile(tmp_path / "out.jsonl", SETTINGS) as out:
        groups = list(read_groups(source))
        assert [out.take(group) for group in groups] == [False, False, False]
        out.append(groups[1], {})
    with ScoredFile(tmp_path / "out.jsonl", SETTINGS) as out:
        assert out.num_found == 1
        assert [out.take(group) for group in groups] == [True, False, False]


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_a_line_that_was_cut_by_a_kill_is_removed(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out.jsonl"
    groups = list(read_groups(groups_file(tmp_path, 2)))
    with ScoredFile(path, SETTINGS) as out:
        out.append(groups[0], {})
        whole = path.read_bytes()
        out.append(groups[1], {})
    os.truncate(path, path.stat().st_size - cut)
    with ScoredFile(path, SETTINGS) as out:
        assert path.read_bytes() == whole
        assert [out.take(group) for group in groups] == [True, False]
        out.append(groups[1], {})
    assert len(scored_lines(path)) == 2


def test_text_that_is_no_valid_unicode_is_written_as_it_was_read(tmp_path: Path) -> None:
    source = write(tmp_path / "g.jsonl", r'[[{"role": "assistant", "content": "\ud800 ü \u0000"}]]')
    (group,) = read_groups(source)
    with ScoredFile(tmp_path / "out.jsonl", SETTINGS) as out:
        out.append(group, {})
    (line,) = scored_lines(tmp_path / "out.jsonl")
    assert line["trajectories"] == list(group.trajectories)


@pytest.mark.parametrize("content", ["rubbish\n", "{}\n", '{"ruler": 3}\n', '{"ruler": {"line": 1}}\n', "[1]\n"])
def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=r"out\.jsonl:1: is no line that `art-ruler score` wrote"):
        ScoredFile(path, SETTINGS)
    assert path.read_text() == content


def test_other_settings_are_refused_with_the_judges_that_were_used(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    (group, *_) = read_groups(groups_file(tmp_path))
    with ScoredFile(path, SETTINGS) as out:
        out.append(group, {})
    with pytest.raises(ConfigError, match=r"other settings \(judges openai/m\)"):
        ScoredFile(path, {**SETTINGS, "passes": 3})


def test_two_processes_do_not_write_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with ScoredFile(path, SETTINGS), pytest.raises(ConfigError, match="being written by another process"):
        ScoredFile(path, SETTINGS)
    with ScoredFile(path, SETTINGS):
        pass  # closed files are free again


@pytest.mark.parametrize("path", ["missing/out.jsonl", "."])
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="cannot be written: "):
        ScoredFile(tmp_path / path, SETTINGS)


def test_a_full_disk_leaves_whole_lines_and_says_so(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk; a write beyond it is cut, and the next one fails."""
    source = groups_file(tmp_path, 50)
    code = (
        "import resource, signal, sys; from pathlib import Path; from art_ruler.files import *\n"
        "from art_ruler.errors import ConfigError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "with ScoredFile(Path(sys.argv[2]), {'judges': ['a']}) as out:\n"
        "    try:\n"
        "        for group in read_groups(Path(sys.argv[1])): out.append(group, {})\n"
        "    except ConfigError as error: print(error)\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", code, source, tmp_path / "out.jsonl"], capture_output=True, text=True, check=True
    )
    assert "cannot be written: File too large; make room" in done.stdout
    raw = (tmp_path / "out.jsonl").read_bytes()
    assert raw.endswith(b"\n")
    assert 0 < len(scored_lines(tmp_path / "out.jsonl")) < 50
