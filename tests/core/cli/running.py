"""The `art` command, run in the process of the tests, or in one of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from art_core.cli import main

_SHOWN = {"COLUMNS": "160", "NO_COLOR": "1"}


def art(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What `art WORDS` does, without the start of another interpreter; `variables` are of its environment."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**_SHOWN, **variables}.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["art", *words])
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as end:
            main()
    code = end.value.code
    return subprocess.CompletedProcess(
        words, code if isinstance(code, int) else int(bool(code)), _text(out), _text(err)
    )


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def art_process(
    words: Sequence[str], *, stdout: int = subprocess.PIPE, without: Sequence[str] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """`art WORDS` as a user starts it; variables named in `without` are not in its environment."""
    shown = {**os.environ, **_SHOWN, **variables}
    environment = {name: value for name, value in shown.items() if name not in without}
    command = [str(Path(sys.executable).parent / "art"), *words]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, env=environment)
