"""`scripts/setup.py`, the Makefile and `.ci/run`."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"


@pytest.fixture
def setup_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script as a module that works on a copy of the project files, with this Python as the environment's."""
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "scripts" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for path in ["uv.lock", "pyproject.toml", *(str(p.relative_to(ROOT)) for p in ROOT.glob("packages/*/*.toml"))]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "VENV_PYTHON", Path(sys.executable))
    monkeypatch.setattr(module, "STAMP", tmp_path / "setup-stamp.json")
    return module


def test_what_set_up_skips_is_what_only_cuda_needs(setup_script: ModuleType) -> None:
    """No package that PyTorch's CPU build needs is skipped, and none that another package needs."""
    skipped = {name for name in setup_script.locked_packages() if setup_script.CUDA_ONLY.match(name)}
    assert {"triton", "nvidia-cudnn-cu13", "cuda-toolkit"} <= skipped
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    needed_by = {
        (entry["name"], dependency["name"])
        for entry in locked
        for dependency in entry.get("dependencies", [])
        if dependency["name"] in skipped
    }
    assert {by for by, _ in needed_by} - skipped == {"torch"}
    kept = {d["name"] for entry in locked if entry["name"] == "torch" for d in entry["dependencies"]} - skipped
    assert kept <= {"filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing-extensions"}


def test_range_of_torch_is_that_of_art_core(setup_script: ModuleType) -> None:
    project = tomllib.loads((ROOT / "packages" / "art-core" / "pyproject.toml").read_text())["project"]
    assert setup_script.torch_requirement() in project["optional-dependencies"]["train"]


@pytest.mark.slow
def test_cpu_build_in_find_links_is_found(
    setup_script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _find_links(monkeypatch, tmp_path / "wheels", ("2.12.0+cpu", ""), ("2.10.0+cpu", ""))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    linked = setup_script.find_linked_torch(version)
    assert linked.version == "2.12.0+cpu"
    assert linked.url.startswith(f"file://{tmp_path}/wheels/torch-2.12.0%2Bcpu")


@pytest.mark.slow
def test_cuda_build_in_find_links_is_not_taken(
    setup_script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _find_links(monkeypatch, tmp_path / "wheels", ("2.12.0", "nvidia-cudnn-cu13==9.1; platform_system == 'Linux'"))
    assert setup_script.find_linked_torch(f"{sys.version_info.major}.{sys.version_info.minor}") is None


@pytest.mark.slow
def test_build_for_another_python_is_found_only_for_that(
    setup_script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "3.12" if TAG != "cp312" else "3.13"
    _find_links(monkeypatch, tmp_path / "wheels", ("2.12.0+cpu", ""), tag=f"cp{other.replace('.', '')}")
    assert setup_script.find_linked_torch(f"{sys.version_info.major}.{sys.version_info.minor}") is None
    assert setup_script.find_linked_torch(other).version == "2.12.0+cpu"


def test_second_run_does_nothing_until_a_project_file_changes(
    setup_script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHON", raising=False)
    wanted = setup_script.fingerprint("cpu")
    assert not setup_script.is_done(wanted)
    (tmp_path / "setup-stamp.json").write_text(json.dumps({**wanted, "python": "3.99"}))
    assert setup_script.is_done(wanted)
    assert not setup_script.is_done(setup_script.fingerprint("cuda"))
    monkeypatch.setenv("PYTHON", sys.executable)
    assert not setup_script.is_done(wanted)
    monkeypatch.delenv("PYTHON")
    with (tmp_path / "packages" / "art-mcp" / "pyproject.toml").open("a") as file:
        file.write("\n")
    assert not setup_script.is_done(setup_script.fingerprint("cpu"))


def test_unknown_choice_of_build_is_one_line() -> None:
    ended = subprocess.run(
        [sys.executable, ROOT / "scripts" / "setup.py"],
        env={**os.environ, "TORCH": "rocm"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == "setup: error: TORCH=rocm is unknown; wanted one of auto, cpu, cuda\n"


def test_supported_versions_are_those_of_the_workspace(setup_script: ModuleType) -> None:
    lowest, highest = setup_script.VERSIONS[0], setup_script.VERSIONS[-1]
    above = f"{highest.split('.')[0]}.{int(highest.split('.')[1]) + 1}"
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert requires == f">={lowest},<{above}"


def test_interpreter_that_is_not_supported_is_passed_over(setup_script: ModuleType, tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\necho 3.9\n")
    old.chmod(0o755)
    assert setup_script.interpreter(str(old)) is None
    broken = tmp_path / "python3.12"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    assert setup_script.interpreter(str(broken)) is None
    assert setup_script.interpreter(sys.executable).path == sys.executable


def test_make_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    (declared,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^  make (\w+) ", shown, re.MULTILINE) == declared.split()


@pytest.mark.parametrize(
    ("closing", "code"),
    [("===== 7 passed, 1 skipped in 3.21s =====", 0), ("===== 1 failed, 6 passed in 3.21s =====", 2)],
)
def test_ci_run_ends_with_the_closing_line_and_the_code(tmp_path: Path, closing: str, code: int) -> None:
    make = tmp_path / "make"
    make.write_text(
        f"#!/bin/sh\n[ \"$1\" = test ] || exit 9\necho '{closing}'\necho 'make: afterword' >&2\nexit {code}\n"
    )
    make.chmod(0o755)
    ended = subprocess.run(
        ["bash", ROOT / ".ci" / "run"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CI": "true"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code
    assert ended.stdout.splitlines()[-1] == closing


def _find_links(monkeypatch: pytest.MonkeyPatch, folder: Path, *builds: tuple[str, str], tag: str = TAG) -> None:
    """Make pip look in `folder` only, which holds a torch wheel per (version, requirement)."""
    folder.mkdir()
    for version, requirement in builds:
        info = f"torch-{version}.dist-info"
        with zipfile.ZipFile(folder / f"torch-{version}-{tag}-none-any.whl", "w") as wheel:
            requires = f"Requires-Dist: {requirement}\n" if requirement else ""
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n{requires}")
            wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
