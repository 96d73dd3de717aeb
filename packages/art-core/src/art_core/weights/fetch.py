"""Get one package's files from the index that the user's pip or uv is set up for, without its dependencies."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

_STALL_S = 180.0  # nothing arrives for this long: given up
_POLL_S = 0.2
_SAY_EVERY_S = 5.0
_TAIL_LINES = 3


class FetchError(Exception):
    """A package could not be had; the message holds the reason in one line."""


def fetch_package(
    name: str, version: str, staging: Path, *, size_mb: int, progress: Callable[[str], None] = lambda _: None
) -> Path:
    """The wheel of `name`; or, where only uv is available, the folder into which it was unpacked.

    Everything is written below `staging`. `size_mb` is only told to the user. Interrupting ends the download.

    Raises:
        FetchError: no pip and no uv, or the index does not serve the package.
    """
    target = staging / "package"
    requirement = f"{name}=={version}"
    command = _pip_command(requirement, target) or _uv_command(requirement, target)
    if command is None:
        raise FetchError("this Python has neither pip nor uv to download with; install one: python -m ensurepip")
    # Both honour TMPDIR, which puts what has arrived so far where its size can be read.
    arriving = staging / "arriving"
    arriving.mkdir()
    output_path = staging / "output.txt"
    with output_path.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=staging,  # not below a project whose settings uv would read
            env={**os.environ, **_certificates(command), "TMPDIR": str(arriving)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            stalled = _wait(process, staging, f"{name} {version}", size_mb, progress)
        except BaseException:
            process.kill()
            process.wait()
            raise
    text = output_path.read_text(errors="replace")
    if process.returncode in (-signal.SIGINT, 128 + signal.SIGINT) or "Operation cancelled by user" in text:
        raise KeyboardInterrupt
    if stalled:
        raise FetchError(f"nothing arrived for {_STALL_S:.0f} s")
    if process.returncode != 0:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")] or lines
        raise FetchError("; ".join(errors[-_TAIL_LINES:]) or f"{command[0]} ended with code {process.returncode}")
    wheels = list(target.glob("*.whl"))
    return wheels[0] if wheels else target


def _pip_command(requirement: str, target: Path) -> list[str] | None:
    if importlib.util.find_spec("pip") is None:
        return None
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--progress-bar=off", f"--dest={target}"]
    return [sys.executable, "-m", "pip", "download", *options, requirement]


def _uv_command(requirement: str, target: Path) -> list[str] | None:
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.is_file() else shutil.which("uv")
    if uv is None:
        return None
    options = ["--no-deps", "--no-build", "--no-progress", f"--python={sys.executable}", f"--target={target}"]
    # uv copies from its own cache; a private one lies on the same disk, shows progress and is gone afterwards.
    return [uv, "pip", "install", *options, f"--cache-dir={target.with_name('uv-cache')}", requirement]


def _certificates(command: list[str]) -> dict[str, str]:
    """SSL_CERT_FILE for a pip that has no certificates of its own set; it looks there itself from version 24.2 on."""
    bundle = os.environ.get("SSL_CERT_FILE")
    if not bundle or command[1:3] != ["-m", "pip"]:
        return {}
    asked = subprocess.run([*command[:3], "config", "list"], capture_output=True, text=True, check=False)
    if re.search(r"^(?:global|download|:env:)\.cert=", asked.stdout, re.MULTILINE):
        return {}
    return {"PIP_CERT": bundle}


def _wait(
    process: subprocess.Popen[bytes], staging: Path, what: str, size_mb: int, progress: Callable[[str], None]
) -> bool:
    """Wait for the end, telling how much has arrived. True if the process was ended because nothing came any more."""
    size, last_growth, last_said = 0, time.monotonic(), time.monotonic()
    while process.poll() is None:
        time.sleep(_POLL_S)
        now = time.monotonic()
        arrived = _size_bytes(staging)
        if arrived != size:
            size, last_growth = arrived, now
        elif now - last_growth > _STALL_S:
            process.kill()
            process.wait()
            return True
        if now - last_said >= _SAY_EVERY_S:
            last_said = now
            progress(f"downloading {what}: {min(size >> 20, size_mb)} of {size_mb} MB")
    return False


def _size_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it may be gone before it is asked
            total += path.stat().st_size
    return total
