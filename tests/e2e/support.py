"""The command as a process of its own, and the servers it is tried on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
CLERK = f"{sys.executable} {REPO / 'tests/mcp/servers/clerk.py'}"
CLERK_ADD = ("--deny-tool", "lookup", "--deny-tool", "shout")
BROKEN = f"{sys.executable} {REPO / 'tests/mcp/servers/broken.py'}"

ArtMcp = Callable[..., "subprocess.CompletedProcess[str]"]


def art_mcp_command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "art_mcp.cli", *map(str, arguments)]


def environment() -> dict[str, str]:
    """This process's environment, with uvx on the path."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"}
