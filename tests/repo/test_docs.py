"""What README.md and docs/ show is true.

Fenced code is checked by its language:

- `python`: the blocks of a file run in order, in one process, in an empty folder; `await` is allowed outside functions.
- `console`: lines that begin with `$ ` are commands, the rest is their output. Each command is checked against what
  exists: targets of the Makefile; subcommands and options of the packages' own commands.

A comment on the line above a block changes that:

- `<!-- test: skip REASON -->`: the block is not checked.
- `<!-- test: run -->`: the commands of a `console` block are run, where the page's `python` blocks have run before,
  and their output is compared; a line `...` stands for any lines.

Links to files and to headings must lead somewhere.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from art_core.serve.wire import ERROR_CODES

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PAGES = sorted(
    {ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/*.md")}
)
OURS = ("art", "art-mcp", "art-ruler")
NESTED = {("art", "runs"), ("art", "checkpoints")}
"""Subcommands that have subcommands."""
_MARK = re.compile(r"<!--\s*test:\s*(.*?)\s*-->")
_FENCE = re.compile(r"^\s*(`{3,}|~{3,})\s*([\w-]*)")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, its language, the words of its marker, its text."""

    page: Path
    line: int
    language: str
    marker: tuple[str, ...]
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def skipped(self) -> bool:
        return self.marker[:1] == ("skip",)


def read_blocks(page: Path) -> list[Block]:
    blocks: list[Block] = []
    fence, language, start = "", "", 0
    content: list[str] = []
    marker: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        opening = _FENCE.match(line)
        if fence:
            if opening and opening[1].startswith(fence) and not opening[2]:
                blocks.append(Block(page, start, language, marker, "\n".join(content) + "\n"))
                fence, content = "", []
            else:
                content.append(line)
        elif opening:
            fence, language, start, marker, pending = opening[1], opening[2], number, pending, ()
        elif line.strip():
            found = _MARK.fullmatch(line.strip())
            pending = tuple(found[1].split()) if found else ()
    assert not fence, f"{page}: the block that begins in line {start} has no end"
    return blocks


BLOCKS = [block for page in PAGES if page.is_file() for block in read_blocks(page)]
CONSOLE = [block for block in BLOCKS if block.language == "console" and not block.skipped]
RUN = [block for block in BLOCKS if (block.language == "python" and not block.skipped) or "run" in block.marker]
PAGES_THAT_RUN = [page for page in PAGES if any(block.page == page for block in RUN)]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


of_each_page = pytest.mark.parametrize("page", PAGES, ids=_name)


def commands(block: Block) -> list[tuple[str, list[str]]]:
    """Each command of a console block with the lines of its output. A trailing backslash continues a command."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\"):
            found[-1] = (found[-1][0][:-1].rstrip() + " " + line.strip(), [])
        elif found:
            found[-1][1].append(line)
    return found


def run_python(page: Path, folder: Path) -> None:
    """Run the python blocks of `page` as one script, in which they keep their line numbers."""
    lines: list[str] = []
    for block in BLOCKS:
        if block.page == page and block.language == "python" and not block.skipped:
            lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    code = _RUN_PAGE.format(text="\n".join(lines), page=str(page))
    ended = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


_RUN_PAGE = """
import ast, asyncio, inspect
code = compile({text!r}, {page!r}, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
ran = eval(code, dict(__name__="__main__"))
if inspect.iscoroutine(ran):
    asyncio.run(ran)
"""


def run_console(block: Block, folder: Path) -> None:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "120", "NO_COLOR": "1"}
    for command, wanted in commands(block):
        ended = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        got = (ended.stdout + ended.stderr).strip()
        assert output_matches("\n".join(wanted), got), f"{block.where}: `{command}` printed:\n{got}"


def output_matches(wanted: str, got: str) -> bool:
    """Whether `got` is `wanted`, where a line `...` stands for any lines, also none."""
    parts = [
        re.escape(line.rstrip()) + r"[ \t]*\n" if line.strip() != "..." else r"(?:.*\n)*?"
        for line in wanted.split("\n")
    ]
    return re.fullmatch("".join(parts), got + "\n") is not None


@of_each_page
def test_page_is_there_and_its_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in _LINK.findall(_prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in _anchors(file)):
            broken.append(target)
    assert broken == []


def _prose(page: Path) -> str:
    """The page without code."""
    lines, fence = [], ""
    for line in page.read_text(encoding="utf-8").splitlines():
        opening = _FENCE.match(line)
        if opening and (not fence or opening[1].startswith(fence)):
            fence = "" if fence else opening[1]
        elif not fence:
            lines.append(re.sub(r"`[^`]*`", "", line))
    return "\n".join(lines)


@functools.cache
def _anchors(page: Path) -> frozenset[str]:
    """The headings of a page as GitHub turns them into anchors."""
    headings = re.findall(r"^#+\s+(.*?)\s*#*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return frozenset(re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts)


@of_each_page
def test_markers_of_blocks_are_known(page: Path) -> None:
    for block in [block for block in BLOCKS if block.page == page]:
        if block.skipped:
            assert len(block.marker) > 1, f"{block.where}: `test: skip` needs a reason"
        else:
            assert set(block.marker) <= {"run"}, f"{block.where}: unknown marker {block.marker}"
            assert "run" not in block.marker or block.language == "console"
        assert block.language, f"{block.where}: name the language of the block, `text` if there is none"


@pytest.mark.slow
@pytest.mark.timeout(900)  # the README trains a model
@pytest.mark.parametrize("page", PAGES_THAT_RUN, ids=_name)
def test_code_runs_and_commands_print_what_is_shown(page: Path, tmp_path: Path) -> None:
    run_python(page, tmp_path)
    for block in CONSOLE:
        if block.page == page and "run" in block.marker:
            run_console(block, tmp_path)


@of_each_page
def test_commands_exist_with_their_options(page: Path) -> None:
    for block, command in [(b, command) for b in CONSOLE if b.page == page for command, _ in commands(b)]:
        words = shlex.split(command, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):  # VARIABLE=value in front
            words = words[1:]
        if words[:1] == ["make"]:
            targets = [word for word in words[1:] if "=" not in word]
            assert set(targets) <= set(_make_targets()), f"{block.where}: {command}"
        elif words and (name := Path(words[0]).name) in OURS and len(words) > 1:
            path: tuple[str, ...] = ()
            for word in words[1:3]:
                if word.startswith("-") or (path and (name, *path) not in NESTED):
                    break
                assert re.search(rf"\b{re.escape(word)}\b", _help(name, *path)), f"{block.where}: {command}"
                path += (word,)
            known = set(re.findall(r"--[\w-]+", _help(name, *path)))
            used = {word.split("=")[0] for word in words[2:] if word.startswith("--")}
            assert used <= known, f"{block.where}: `{command}` has options that are not there: {sorted(used - known)}"


@functools.cache
def _make_targets() -> tuple[str, ...]:
    return tuple(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@functools.cache
def _help(name: str, *subcommands: str) -> str:
    command = [str(BIN / name), *subcommands, "--help"]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"}
    ).stdout


def test_tree_in_the_readme_names_every_package_and_no_other() -> None:
    trees = [b.text for b in BLOCKS if b.page == ROOT / "README.md" and b.language == "text" and "packages/" in b.text]
    assert trees, "README.md shows no tree of the repository (a `text` block that names packages/)"
    folders = {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")}
    assert set(re.findall(r"\bart-[a-z]+\b", trees[0])) == folders


def test_error_codes_of_the_server_are_those_of_its_page() -> None:
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8").partition("## Errors")[2].partition("## ")[0]
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    told = {code: set(statuses.split(", ")) for names, statuses in rows for code in re.findall(r"`(\w+)`", names)}
    told = {code: {status.strip() for status in statuses} for code, statuses in told.items()}
    assert told == {code: set(re.findall(r"\d{3}", text.partition(":")[0])) for code, text in ERROR_CODES.items()}


# The checks themselves


def test_blocks_are_read_with_language_marker_and_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n<!-- test: run -->\n```console\n$ a \\\n  b\nout\n```\n\n````text\n```python\n```\n````\n")
    first, second = read_blocks(page)
    assert (first.line, first.language, first.marker) == (4, "console", ("run",))
    assert commands(first) == [("a b", ["out"])]
    assert (second.language, second.marker, second.text) == ("text", (), "```python\n```\n")


@pytest.mark.parametrize(
    ("wanted", "got", "same"),
    [
        ("a\nb", "a\nb", True),
        ("a\nb", "a\nc", False),
        ("a\n...\nc", "a\nb\nb\nc", True),
        ("a\n...", "a", True),
        ("a", "a\nb", False),
        ("a.c", "abc", False),
    ],
)
def test_output_is_compared_line_by_line(wanted: str, got: str, same: bool) -> None:
    assert output_matches(wanted, got) is same
