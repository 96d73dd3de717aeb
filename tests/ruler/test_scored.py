"""The scored file, which survives everything but losing its disk and leaves what is not its own alone."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from art_ruler.errors import ConfigError, DataError
from art_ruler.files import read_groups
from art_ruler.scored import ScoredFile, ScoredStream

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
        assert [out.take(group) for group in groups] == [None] * 3
        out.append(groups[1], {})
    with ScoredFile(tmp_path / "out.jsonl", SETTINGS) as out:
        assert [out.take(group) for group in groups] == [0, None, None]


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
        assert [out.take(group) for group in groups] == [0, None]
        out.append(groups[1], {})
    assert len(scored_lines(path)) == 2


def test_text_that_is_no_valid_unicode_is_written_as_it_was_read(tmp_path: Path) -> None:
    source = write(tmp_path / "g.jsonl", r'[[{"role": "assistant", "content": "\ud800 ü \u0000"}]]')
    (group,) = read_groups(source)
    with ScoredFile(tmp_path / "out.jsonl", SETTINGS) as out:
        out.append(group, {})
    (line,) = scored_lines(tmp_path / "out.jsonl")
    assert line["trajectories"] == list(group.trajectories)


@pytest.mark.parametrize("ending", ["", "\n"])
@pytest.mark.parametrize(
    "content",
    ["rubbish", "{}", '{"ruler": 3}', '{"ruler":{"line": 1}}', "[1]", '{"trajectories": [', '{"ruler": ', "\x00"],
)
def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path, content: str, ending: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(content + ending)
    with pytest.raises(DataError, match=r"out\.jsonl:1: is no line that `art-ruler score` wrote"):
        ScoredFile(path, SETTINGS)
    assert path.read_text() == content + ending


def test_a_torn_end_is_kept_where_the_lines_before_it_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    (group, *_) = read_groups(groups_file(tmp_path))
    with ScoredFile(path, SETTINGS) as out:
        out.append(group, {})
    with path.open("a") as file:
        file.write("my thesis")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="other settings"):
        ScoredFile(path, {**SETTINGS, "passes": 3})
    assert path.read_bytes() == before


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_the_first_line_cut_by_a_kill_is_removed(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out.jsonl"
    (group, *_) = read_groups(groups_file(tmp_path))
    with ScoredFile(path, SETTINGS) as out:
        out.append(group, {"scores": [0.5, 0.5]})
    os.truncate(path, path.stat().st_size - cut)
    with ScoredFile(path, SETTINGS) as out:
        assert path.stat().st_size == 0
        assert out.take(group) is None
        out.append(group, {})
    assert len(scored_lines(path)) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_file_that_got_no_line_is_removed_if_it_was_made_here(tmp_path: Path, fails: bool) -> None:
    path = tmp_path / "out.jsonl"
    for is_there in (False, True):
        if is_there:
            path.touch()
        with contextlib.suppress(KeyError), ScoredFile(path, SETTINGS):
            if fails:
                raise KeyError
        assert path.exists() == is_there


def test_a_fifo_or_device_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path(os.devnull)):
        with pytest.raises(ConfigError, match=r"is no regular file; give a file, or - for standard output"):
            ScoredFile(path, SETTINGS)


ODD = [
    '{"trajectories": [], "huge": 1e400, "long": 1.00000000000000000001, "spaced" : [ 1,2 ]}',
    '{ "trajectories": [], "big": 123456789012345678901234567890, "twice": 1, "twice": 2, "e": "\\u00e9\\ud800"}',
    ' [ [ {"role": "user", "content": "1e400 \\ud800 \u00fc"} ] ] ',
]


@pytest.mark.parametrize("line", ODD)
def test_a_line_keeps_every_letter_of_the_input(tmp_path: Path, line: str) -> None:
    (group,) = read_groups(write(tmp_path / "g.jsonl", line))
    with ScoredFile(tmp_path / "out.jsonl", SETTINGS) as out:
        out.append(group, {"scores": []})
    written = (tmp_path / "out.jsonl").read_text()
    assert written.startswith('{"ruler": {"line": 1, ')
    assert line.strip().removeprefix("{").strip() in written
    json.loads(written, parse_constant=pytest.fail)


def test_a_stream_gets_the_same_lines(tmp_path: Path) -> None:
    (group, *_) = read_groups(groups_file(tmp_path))
    stream = io.BytesIO()
    with ScoredStream(stream, SETTINGS) as lines, ScoredFile(tmp_path / "out.jsonl", SETTINGS) as out:
        assert lines.take(group) is None
        for one in (lines, out):
            one.append(group, {"scores": [0.5, 0.25]})
    assert stream.getvalue() == (tmp_path / "out.jsonl").read_bytes()


# Inputs that were edited, and groups that are judged again


def outcome(path: Path) -> list[tuple[int | None, list[float | None], int]]:
    return [(line["ruler"]["line"], line["ruler"]["scores"], line["task"]) for line in scored_lines(path)]


def test_groups_that_moved_get_their_new_line_and_no_two_lines_claim_one(tmp_path: Path) -> None:
    path, source = tmp_path / "out.jsonl", groups_file(tmp_path)
    with ScoredFile(path, SETTINGS) as out:
        for group in read_groups(source):
            out.append(group, {"scores": [0.5, 0.25]})
        assert out.finish() == 0
    # The first group is edited, and the others change places.
    write(source, *({"trajectories": [HELLO, BYE], "task": task} for task in (7, 2, 1)))
    with ScoredFile(path, SETTINGS) as out:
        groups = list(read_groups(source))
        assert [out.take(group) for group in groups] == [None, 0, 0]
        out.append(groups[0], {"scores": [1.0, 0.0]})
        assert out.finish() == 1
    assert outcome(path) == [(None, [0.5, 0.25], 0), (3, [0.5, 0.25], 1), (2, [0.5, 0.25], 2), (1, [1.0, 0.0], 7)]
    assert {file.name for file in tmp_path.iterdir()} == {"out.jsonl", "groups.jsonl"}
    with ScoredFile(path, SETTINGS) as out:
        assert [out.take(group) for group in groups] == [0, 0, 0]
        assert out.finish() == 1


def test_groups_without_all_scores_are_judged_again_where_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    groups = list(read_groups(groups_file(tmp_path)))
    with ScoredFile(path, SETTINGS) as out:
        for group, scores in zip(groups, ([None, None], [0.5, None], [0.5, 0.25]), strict=True):
            out.append(group, {"scores": scores})
    with ScoredFile(path, SETTINGS) as out:
        assert [out.take(group) for group in groups] == [2, 1, 0]
        assert out.finish() == 0
    with ScoredFile(path, SETTINGS, retry_unscored=True) as out:
        assert [out.take(group) for group in groups] == [None, None, 0]
        out.append(groups[0], {"scores": [1.0, 0.0]})  # the second gets no answer
        assert out.finish() == 0
    assert outcome(path) == [(2, [0.5, None], 1), (3, [0.5, 0.25], 2), (1, [1.0, 0.0], 0)]


@pytest.mark.parametrize(
    ("again", "stands"),
    [
        ([None, None, None], [0.9, 0.1, None]),
        ([None, 0.1, 0.9], [0.9, 0.1, None]),
        ([0.9, None, None], [0.9, 0.1, None]),
        ([0.8, 0.2, None], [0.8, 0.2, None]),
        ([0.8, 0.2, 0.4], [0.8, 0.2, 0.4]),
    ],
)
def test_a_line_gives_way_only_to_one_that_scores_everybody_it_scores(
    tmp_path: Path, again: list[float | None], stands: list[float | None]
) -> None:
    path = tmp_path / "out.jsonl"
    source = write(tmp_path / "groups.jsonl", *({"trajectories": [HELLO, BYE, []], "task": 0} for _ in range(2)))
    groups = list(read_groups(source))
    with ScoredFile(path, SETTINGS) as out:
        for group in groups:
            out.append(group, {"scores": [0.9, 0.1, None]})
    with ScoredFile(path, SETTINGS, retry_unscored=True) as out:
        assert [out.take(group) for group in groups] == [None, None]
        assert out.append(groups[0], {"scores": again}) == (1 if again != stands else None)
        assert out.finish() == 0
    assert sorted(outcome(path), key=str) == [(1, stands, 0), (2, [0.9, 0.1, None], 0)]


@pytest.mark.parametrize("name", ["out.jsonl", "link.jsonl"])
def test_bringing_the_file_up_to_date_touches_no_other_file(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "real"
    folder.mkdir()
    foreign = [place / f"{name}{ending}" for place in (folder, tmp_path) for ending in (".new", ".tmp")]
    for file in foreign:
        file.write_text("my thesis")
    path = tmp_path / name
    if name.startswith("link"):
        path.symlink_to(folder / "out.jsonl")
    source = groups_file(tmp_path, 1)
    (group,) = read_groups(source)
    with ScoredFile(path, SETTINGS) as out:
        out.append(group, {"scores": [0.5, 0.25]})
    mode = path.stat().st_mode
    write(source, [HELLO], {"trajectories": [HELLO, BYE], "task": 0})
    with ScoredFile(path, SETTINGS) as out:
        assert [out.take(group) for group in read_groups(source)] == [None, 0]
        assert out.finish() == 0
    assert outcome(path) == [(2, [0.5, 0.25], 0)]
    assert path.is_symlink() == name.startswith("link")
    assert path.stat().st_mode == mode
    assert {file.read_text() for file in foreign} == {"my thesis"}
    left = {file for file in tmp_path.rglob("*") if file.is_file() or file.is_symlink()}
    assert left == {path, path.resolve(), source, *foreign}


def test_a_kill_between_judging_again_and_replacing_is_made_good(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    (group, *_) = read_groups(groups_file(tmp_path, 1))
    with ScoredFile(path, SETTINGS) as out:
        out.append(group, {"scores": [None, None]})
    with ScoredFile(path, SETTINGS, retry_unscored=True) as out:
        assert out.take(group) is None
        out.append(group, {"scores": [1.0, 0.0]})
    with ScoredFile(path, SETTINGS) as out:
        assert out.take(group) == 0
        assert out.finish() == 0
    assert outcome(path) == [(1, [1.0, 0.0], 0)]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({**SETTINGS, "passes": 3}, r"other settings \(passes: 1 then, 3 now\)"),
        ({**SETTINGS, "seed": 1}, r"\(seed: not given then, 1 now\)"),
        ({"judges": ["b"]}, r'\(judges: \["openai/m"\] then, \["b"\] now; passes: 1 then, not given now\)'),
        ({**SETTINGS, "rubric": "0123"}, r"\(rubric\)"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, settings: dict[str, Any], says: str) -> None:
    path = tmp_path / "out.jsonl"
    (group, *_) = read_groups(groups_file(tmp_path))
    with ScoredFile(path, SETTINGS) as out:
        out.append(group, {})
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=says):
        ScoredFile(path, settings)
    assert path.read_bytes() == before


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
        "import resource, signal, sys; from pathlib import Path; from art_ruler.files import read_groups\n"
        "from art_ruler.scored import ScoredFile\n"
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
