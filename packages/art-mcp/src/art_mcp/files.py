"""Write files that are either whole or absent."""

from __future__ import annotations

import os
from pathlib import Path

from art_core.errors import StorageError


def write_atomically(path: Path, text: str) -> None:
    """Write a file that is either whole or absent."""
    staging = path.with_name(f".{path.name}.tmp")
    try:
        with staging.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # else a power cut could leave the new name on an empty file
        staging.replace(path)
    except OSError as error:
        staging.unlink(missing_ok=True)
        raise StorageError(
            f"could not write {path}: {error.strerror}; free some space and run the command again"
        ) from error
