"""Create `.venv` with everything the repository needs, as locked in uv.lock. Run it through `make setup`.

PyPI's PyTorch for Linux brings about 3 GB of CUDA libraries. A machine with an NVIDIA GPU gets that build. A machine
without one gets a CPU build, from the first of these that has one:

1. `.venv` itself, from an earlier run;
2. the folders or pages that pip is told to look at (`find-links` in its configuration, PIP_FIND_LINKS), if need be with
   another of the machine's Python versions;
3. on macOS, PyPI, whose build for it is a CPU one;
4. PyTorch's own index of CPU builds.

If none has, set-up stops and says what to do; it never falls back to the large build by itself.

    TORCH=auto   the above (default)
    TORCH=cpu    a CPU build, also where there is a GPU
    TORCH=cuda   the build that uv.lock names, also where there is no GPU
    PYTHON=...   the interpreter to make `.venv` with

Does nothing when neither uv.lock, a pyproject.toml, this file nor the choice has changed since the last run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
VENV_UV = VENV / "bin" / "uv"
STAMP = VENV / "setup-stamp.json"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")  # as `requires-python` of the workspace
UV_REQUIREMENT = "uv>=0.12,<0.15"
CUDA_ONLY = re.compile(r"(nvidia-|cuda-|triton\b)")
CHOICES = ("auto", "cpu", "cuda")


class SetupError(Exception):
    """Set-up cannot go on; the message says what to do."""


class Interpreter(NamedTuple):
    path: str
    version: str  # "3.11"


class LinkedWheel(NamedTuple):
    """A CPU build of PyTorch that pip's find-links offers."""

    version: str
    url: str


def main() -> int:
    try:
        choice = os.environ.get("TORCH") or "auto"
        if choice not in CHOICES:
            raise SetupError(f"TORCH={choice} is unknown; wanted one of {', '.join(CHOICES)}")
        build = choice if choice != "auto" else "cuda" if has_nvidia_gpu() else "cpu"
        wanted = fingerprint(build)
        if not is_done(wanted):
            started = time.monotonic()
            STAMP.unlink(missing_ok=True)
            python = set_up(build)
            STAMP.write_text(json.dumps({**wanted, "python": python.version}, indent=1) + "\n")
            say(f"ready in {time.monotonic() - started:.0f} s")
    except SetupError as error:
        print(f"setup: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; run it again to go on", file=sys.stderr)
        return 130
    return 0


def set_up(build: str) -> Interpreter:
    """Make the environment; returns the interpreter that it uses."""
    python = make_venv()
    if build == "cuda" or sys.platform == "darwin":
        install_uv()
        sync(skip=[])
        check_torch()
        return python
    have = installed_cpu_torch()
    linked = None if have else find_linked_torch(python.version)
    if not have and linked is None and (other := interpreter_with_linked_torch(python)):
        python, linked = other
        create_venv(python)
    install_uv()
    sync(skip=["torch", *(name for name in locked_packages() if CUDA_ONLY.match(name))])
    if have:
        say(f"keeping PyTorch {have}, which .venv already has")
    elif linked:
        install_torch([f"torch @ {linked.url}"], f"PyTorch {linked.version} from pip's find-links")
    else:
        install_torch(
            [torch_requirement(), "--torch-backend=cpu", "--reinstall-package=torch"],
            "PyTorch from its index of CPU builds",
        )
    check_torch()
    return python


def has_nvidia_gpu() -> bool:
    """Whether there is a device; compilers and libraries alone (an image made for GPUs) do not count."""
    if Path("/dev/nvidia0").exists():
        return True
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return False
    listed = subprocess.run([smi, "-L"], capture_output=True, text=True, check=False)
    return listed.returncode == 0 and "GPU 0" in listed.stdout


def fingerprint(build: str) -> dict[str, str]:
    """What the environment depends on."""
    files = [ROOT / "uv.lock", ROOT / "pyproject.toml", *sorted(ROOT.glob("packages/*/pyproject.toml")), Path(__file__)]
    digest = hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files))
    return {"files": digest.hexdigest(), "build": build, "folder": str(VENV)}


def is_done(wanted: dict[str, str]) -> bool:
    """Whether the last run made what is wanted now, with the Python that is asked for, if one is."""
    try:
        made = json.loads(STAMP.read_text())
        python = made.pop("python")
    except (OSError, ValueError, KeyError):
        return False
    asked = os.environ.get("PYTHON")
    return VENV_PYTHON.exists() and made == wanted and (not asked or version_of(asked) == python)


# The interpreter and the environment


def make_venv() -> Interpreter:
    """`.venv`, made if it is not there or cannot be used."""
    asked = os.environ.get("PYTHON") or ""
    existing = interpreter(str(VENV_PYTHON)) if VENV_PYTHON.exists() else None
    if existing and has_pip() and existing.version == (version_of(asked) if asked else existing.version):
        return existing
    found = interpreters()
    if not found:
        raise SetupError(
            f"no Python of version {', '.join(VERSIONS)} found as {asked or 'python3 or python3.x'}; install one, or "
            "name it: make setup PYTHON=/path/to/python3.12"
        )
    create_venv(found[0])
    return found[0]


def create_venv(python: Interpreter) -> None:
    say(f"creating .venv with Python {python.version} ({python.path})")
    run(
        [python.path, "-m", "venv", "--clear", str(VENV)],
        remedy="on Debian and Ubuntu, `apt install python3-venv` adds what is missing",
    )


def interpreters() -> list[Interpreter]:
    """The supported interpreters of this machine: the one that was asked for alone, else the usual one first."""
    asked = os.environ.get("PYTHON")
    names = [asked] if asked else ["python3", sys.executable, *(f"python{version}" for version in VERSIONS)]
    found: dict[str, Interpreter] = {}
    for name in names:
        path = shutil.which(name)
        candidate = interpreter(path) if path else None
        if candidate:
            found.setdefault(candidate.version, candidate)
    return list(found.values())


def interpreter(path: str) -> Interpreter | None:
    """The interpreter at `path`, None if it does not run or is not supported."""
    version = version_of(path)
    return Interpreter(path, version) if version in VERSIONS else None


def version_of(path: str) -> str:
    """`3.11` and the like; empty if the file does not run."""
    code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    try:
        asked = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""


def has_pip() -> bool:
    return (
        subprocess.run([str(VENV_PYTHON), "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    )


# PyTorch


def torch_requirement() -> str:
    """The range of PyTorch versions that art-core asks for."""
    text = (ROOT / "packages" / "art-core" / "pyproject.toml").read_text()
    found = re.search(r'"(torch[<>=!~][^"]*)"', text)
    if found is None:
        raise SetupError("packages/art-core/pyproject.toml names no torch; the checkout is damaged")
    return found.group(1)


def installed_cpu_torch() -> str | None:
    """The version of the CPU build in `.venv`, None if there is none or it is out of range."""
    code = (
        "import json, importlib.metadata as metadata\n"
        "from pip._vendor.packaging.requirements import Requirement\n"
        f"found = metadata.distribution('torch')\n"
        f"fits = Requirement({torch_requirement()!r}).specifier.contains(found.version)\n"
        "print(json.dumps([found.version, found.requires or []] if fits else None))\n"
    )
    asked = subprocess.run([str(VENV_PYTHON), "-c", code], capture_output=True, text=True, check=False)
    found = json.loads(asked.stdout) if asked.returncode == 0 else None
    return found[0] if found and is_cpu_build(found[1]) else None


def is_cpu_build(requirements: list[str]) -> bool:
    return not any(CUDA_ONLY.match(requirement) for requirement in requirements)


def find_linked_torch(version: str) -> LinkedWheel | None:
    """The CPU build for Python `version` that pip would take, looking at its find-links only."""
    options = ["--dry-run", "--ignore-installed", "--no-deps", "--no-index", "--quiet", "--report", "-"]
    # A target, which a dry run does not write to, is what pip wants before it looks for another Python's wheels.
    options += ["--only-binary=:all:", f"--python-version={version}", f"--target={VENV / 'unused'}"]
    asked = subprocess.run(
        [str(VENV_PYTHON), "-m", "pip", "install", *options, torch_requirement()],
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode != 0:
        return None
    (found,) = json.loads(asked.stdout)["install"]
    if not is_cpu_build(found["metadata"].get("requires_dist", [])):
        return None
    return LinkedWheel(found["metadata"]["version"], found["download_info"]["url"])


def interpreter_with_linked_torch(current: Interpreter) -> tuple[Interpreter, LinkedWheel] | None:
    """Another interpreter of this machine that pip's find-links has a build for."""
    for python in interpreters():
        if python.version != current.version and (linked := find_linked_torch(python.version)):
            return python, linked
    return None


def install_torch(arguments: list[str], what: str) -> None:
    say(f"installing {what}")
    run(
        [str(VENV_UV), "pip", "install", "--python", str(VENV_PYTHON), *arguments],
        remedy=(
            "no CPU build of PyTorch can be had. Either put a wheel of it into a folder and name that folder in "
            "PIP_FIND_LINKS (or let this machine reach download.pytorch.org), or take the normal build with its 3 GB "
            "of CUDA libraries: make setup TORCH=cuda"
        ),
    )


def check_torch() -> None:
    run(
        [str(VENV_PYTHON), "-c", "import torch; torch.zeros(1)"],
        remedy="PyTorch does not load: delete .venv, try again",
    )


# Everything else


def install_uv() -> None:
    if not VENV_UV.exists():
        say("installing uv")
    run(
        [str(VENV_PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV_REQUIREMENT],
        remedy="can pip reach its package index?",
    )


def locked_packages() -> list[str]:
    return sorted(set(re.findall(r'^name = "([^"]+)"$', (ROOT / "uv.lock").read_text(), re.MULTILINE)))


def sync(skip: list[str]) -> None:
    """Install what uv.lock names, but for `skip`. Inexact: uv, pip and a PyTorch put in by hand stay where they are."""
    say(f"installing the locked packages{', but for CUDA' if skip else ''}")
    options = [part for name in skip for part in ("--no-install-package", name)]
    run(
        [str(VENV_UV), "sync", "--frozen", "--inexact", "--python", str(VENV_PYTHON), *options],
        remedy="can this machine reach PyPI? uv takes certificates from SSL_CERT_FILE and a proxy from HTTPS_PROXY",
    )


def environment_of_tools() -> dict[str, str]:
    """The environment for pip and uv: each gets the certificates that the other, or OpenSSL, has been given."""
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(VENV)}
    environment.setdefault("UV_PYTHON_DOWNLOADS", "never")
    asked = subprocess.run(
        [str(VENV_PYTHON), "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    of_pip = re.findall(r"^(?:global|install|:env:)\.cert='(.*)'$", asked.stdout, re.MULTILINE)
    if of_pip:
        environment.setdefault("SSL_CERT_FILE", of_pip[-1])
    elif "SSL_CERT_FILE" in environment:  # pip looks at it from version 24.2 on
        environment["PIP_CERT"] = environment["SSL_CERT_FILE"]
    return environment


def run(command: list[str], *, remedy: str) -> None:
    """Run `command`; on a terminal it shows its own progress, elsewhere only its errors are shown.

    Raises:
        SetupError: it failed.
    """
    environment = environment_of_tools() if VENV_PYTHON.exists() else dict(os.environ)
    shown = sys.stderr.isatty()
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=None if shown else subprocess.PIPE,
        stderr=None if shown else subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        if ended.stdout:
            print(ended.stdout[-3000:].rstrip(), file=sys.stderr)
        short = " ".join([Path(command[0]).name, *command[1:4]])
        raise SetupError(f"`{short} ...` failed with code {ended.returncode}; {remedy}")


def say(message: str) -> None:
    print(f"setup: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
