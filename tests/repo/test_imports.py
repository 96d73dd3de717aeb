"""What importing a package costs, and what it says it offers and needs."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.name for path in (ROOT / "packages").iterdir() if (path / "pyproject.toml").is_file())
HEAVY = ("httpx", "huggingface_hub", "mcp", "numpy", "openai", "rich", "starlette", "torch", "transformers", "uvicorn")
# Import names whose distribution is called otherwise.
DISTRIBUTIONS = {"huggingface_hub": "huggingface-hub", "mcp_types": "mcp-types"}


def _module_name(package: str) -> str:
    return package.replace("-", "_")


def _sources(package: str) -> list[Path]:
    return sorted((ROOT / "packages" / package / "src").rglob("*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_the_package_loads_nothing_heavy(package: str) -> None:
    code = f"import sys, {_module_name(package)}; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == []


@pytest.mark.slow
def test_importing_art_core_takes_less_than_half_a_second() -> None:
    """Processor time, best of three, so that a busy machine does not fail it; a heavy library takes seconds."""
    code = "import time; start = time.process_time(); import art_core; print(time.process_time() - start)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = [
        float(
            subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True
            ).stdout
        )
        for _ in range(3)
    ]
    assert min(times) < 0.5


@pytest.mark.slow
def test_every_public_name_of_the_client_half_works_without_the_server_half() -> None:
    """The extra `train` is not installed where only the client is: nothing on the way may import it."""
    project = tomllib.loads((ROOT / "packages/art-core/pyproject.toml").read_text())["project"]
    requirements = [*project["optional-dependencies"]["train"], *project["optional-dependencies"]["parquet"]]
    server_half = {re.split(r"[<>=\[; ]", requirement)[0].replace("-", "_") for requirement in requirements}
    assert {"torch", "renderers", "starlette"} <= server_half
    code = (
        "import importlib.abc, sys\n"
        "class Missing(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name.split('.')[0] in {server_half!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "import art_core, art_core.cli\n"
        "for name in art_core.__all__: getattr(art_core, name)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.slow
def test_help_of_the_command_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, contextlib; from art_mcp.cli import main; sys.argv = ['art-mcp', '--help']\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "assert not {'torch', 'transformers', 'mcp', 'openai'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


@pytest.mark.parametrize(
    "path", [p for package in PACKAGES for p in _sources(package)], ids=lambda p: "/".join(p.parts[-3:])
)
def test_public_names_are_sorted_and_there(path: Path) -> None:
    names = _declared_all(path)
    if names is None:
        return
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))  # as ruff sorts
    assert len(names) == len(set(names))
    parts = path.with_suffix("").parts
    module = importlib.import_module(".".join(parts[parts.index("src") + 1 :]).removesuffix(".__init__"))
    assert [name for name in names if not hasattr(module, name)] == []


def _declared_all(path: Path) -> list[str] | None:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            value: Any = ast.literal_eval(node.value)
            return list(value)
    return None


@pytest.mark.parametrize("package", PACKAGES)
def test_every_library_that_is_imported_is_declared(package: str) -> None:
    """A library that only another one brings in may vanish with that one's next version."""
    project = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for e in project.get("optional-dependencies", {}).values() for line in e)]
    declared = {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower() for line in lines}
    imported = {name.split(".")[0] for path in _sources(package) for name in _imports(path)}
    third_party = imported - set(sys.stdlib_module_names) - {_module_name(package)}
    wanted = {DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in third_party}
    assert sorted(wanted - declared) == []


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found
