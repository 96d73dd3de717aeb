"""The package in an environment that has nothing else: what its README promises first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "packages" / "art-ruler"
UV = Path(sys.executable).with_name("uv")
_UNREACHABLE = re.compile(
    r"dns error|failed to lookup|timed out|connection refused|client error \(Connect\)|offline", re.I
)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with art-ruler and what it needs."""
    folder = tmp_path_factory.mktemp("alone")
    found = folder / "venv" / "bin" / "python"
    subprocess.run([UV, "venv", "-q", "-p", sys.executable, folder / "venv"], check=True)
    done = subprocess.run(
        [UV, "pip", "install", "-q", "-p", found, PACKAGE], capture_output=True, text=True, timeout=280, check=False
    )
    if done.returncode != 0 and _UNREACHABLE.search(done.stderr):
        pytest.skip(f"PyPI cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return found


def outcome(python: Path, folder: Path, code: str) -> str:
    environment = {
        name: value for name, value in os.environ.items() if not name.endswith("_API_KEY") and name != "PYTHONPATH"
    }
    done = subprocess.run(
        [python, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_first_python_of_the_readme_runs_without_a_key(python: Path, tmp_path: Path) -> None:
    found = re.search(r"^```python\n(.*?)^```$", (PACKAGE / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    scores, ranks, _ = outcome(python, tmp_path, found[1]).splitlines()
    assert scores == "(1.0, 0.5, 0.0)"
    assert ranks == "[1, 2, 3]"


def test_importing_it_loads_no_litellm_and_needs_no_other_package_of_ours(python: Path, tmp_path: Path) -> None:
    code = (
        "import sys, art_ruler, importlib.util\n"
        "print(art_ruler.__file__, 'litellm' in sys.modules, importlib.util.find_spec('art_core'))"
    )
    assert outcome(python, tmp_path, code).split()[1:] == ["False", "None"]
    assert str(ROOT) not in outcome(python, tmp_path, code)
