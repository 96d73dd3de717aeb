"""Reading groups line by line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from art_ruler.errors import DataError
from art_ruler.files import check_groups, read_groups

HELLO = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
BYE = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "bye"}]


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def groups_file(folder: Path, count: int = 3) -> Path:
    return write(folder / "groups.jsonl", *({"trajectories": [HELLO, BYE], "task": i} for i in range(count)))


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
    assert (first.tools, first.labels) == (tuple(tools), (1.0, None))
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
        ('{"trajectories": [[]], "labels": [NaN]}', "is not JSON: NaN is no number in JSON"),
        ('{"trajectories": [], "x": -Infinity}', "is not JSON: -Infinity is no number in JSON"),
        ('{"trajectories": [[]], "labels": [1e400]}', '"labels" holds inf'),
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


@pytest.mark.parametrize("labels", [[1, 1], [None, 1], [None, None]])
def test_labels_that_tell_nothing_apart_in_any_group_are_refused(tmp_path: Path, labels: list[int | None]) -> None:
    path = write(tmp_path / "g.jsonl", *({"trajectories": [HELLO, BYE], "labels": labels} for _ in range(3)))
    with pytest.raises(DataError, match=r'g\.jsonl: in no group do the "labels" differ'):
        check_groups(path, labelled=True)
    write(path, {"trajectories": [HELLO, BYE], "labels": labels}, {"trajectories": [HELLO, BYE], "labels": [1, 0]})
    assert check_groups(path, labelled=True) == 2


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of one process is told on Linux only")
def test_reading_holds_one_group_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    line = json.dumps([[{"role": "assistant", "content": "x" * 1_000_000}]]) + "\n"
    with path.open("w") as file:
        for _ in range(120):
            file.write(line)
    code = (
        "import re, sys; from pathlib import Path; from art_ruler.files import check_groups\n"
        # `ru_maxrss` begins with what the process that started it has.
        "def peak(): return int(re.search(r'VmHWM:\\s*(\\d+) kB', Path('/proc/self/status').read_text())[1])\n"
        "check_groups(Path(sys.argv[2])); before = peak()\n"
        "print(check_groups(Path(sys.argv[1])), peak() - before)"
    )
    small = write(tmp_path / "small.jsonl", line.strip())
    done = subprocess.run(
        [sys.executable, "-c", code, path, small], capture_output=True, text=True, check=True
    ).stdout.split()
    assert done[0] == "120"
    assert int(done[1]) * 1024 < 30_000_000
