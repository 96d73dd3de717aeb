"""The shape of the repository: sizes, versions, the files that a project has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
MAX_LINES = 450


def _project(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def test_no_file_of_the_packages_is_longer_than_one_idea() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sorted(ROOT.glob("packages/*/src/**/*.py"))
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert long == {}


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_newest_version_in_the_changelog_is_the_version_of_the_package(folder: Path) -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(rf"^## {folder.name} (\d+\.\d+\.\d+)", text, re.MULTILINE)
    assert versions, f"CHANGELOG.md has no heading '## {folder.name} X.Y.Z'"
    assert versions[0] == _project(folder)["version"]


def test_citation_names_the_version_of_art_core() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (\S+)$", text, re.MULTILINE) == [_project(ROOT / "packages" / "art-core")["version"]]


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_package_is_described_licensed_and_typed(folder: Path) -> None:
    project = _project(folder)
    assert project["name"] == folder.name
    assert project["license"] == "Apache-2.0"
    assert project["requires-python"] == ">=3.11"
    assert project["description"]
    readme = (folder / project["readme"]).read_text(encoding="utf-8")
    assert readme.startswith(f"# {folder.name}\n\n")
    assert (folder / "src" / folder.name.replace("-", "_") / "py.typed").is_file()


def test_workspace_depends_on_all_packages_and_locks_them() -> None:
    root = _project(ROOT)
    assert sorted(re.split(r"\W", name.replace("-", "_"))[0] for name in root["dependencies"]) == sorted(
        folder.name.replace("-", "_") for folder in PACKAGES
    )
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    versions = {entry["name"]: entry["version"] for entry in locked if "editable" in entry["source"]}
    assert versions == {folder.name: _project(folder)["version"] for folder in PACKAGES}


def test_lock_knows_every_declared_dependency() -> None:
    """Catches a pyproject.toml that was changed without `uv lock`; needs no network, unlike `uv lock --check`."""
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    by_name = {entry["name"]: entry for entry in locked}
    for folder in PACKAGES:
        project = _project(folder)
        metadata = by_name[folder.name]["metadata"] if project["dependencies"] else {}
        required = {(entry["name"], entry.get("specifier", "")) for entry in metadata.get("requires-dist", [])}
        extras = project.get("optional-dependencies", {})
        declared = {_requirement(line) for line in (*project["dependencies"], *(i for e in extras.values() for i in e))}
        assert required == declared, f"{folder.name}: run `.venv/bin/uv lock`"


def _requirement(line: str) -> tuple[str, str]:
    """Name and version range as uv.lock spells them."""
    found = re.fullmatch(r"([\w.-]+)(?:\[[\w,-]+\])?\s*([^;\s]*)", line.split(";")[0].strip())
    assert found, line
    return found[1].lower(), found[2]


def test_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert text.lstrip().startswith("Apache License")
    assert "END OF TERMS AND CONDITIONS" in text
