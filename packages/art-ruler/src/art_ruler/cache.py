"""Remembers sound answers on disk, one file each. Processes may share a folder."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import tempfile
import threading
from pathlib import Path

from art_ruler.errors import ConfigError
from art_ruler.prompt import PROMPT_VERSION
from art_ruler.types import JudgeModel, JudgeRequest

logger = logging.getLogger("art_ruler")
_SHARD = re.compile("[0-9a-f]{2}")


class ReplyCache:
    """Texts of answers by the content of what was asked.

    The name of a file is a hash of the request (which holds transcripts and rubric), the judge with its parameters and
    server, and the version of the prompt. Keys and headers are not part of it. A file that cannot be read is a miss.

    Raises:
        ConfigError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder)
        self._has_failed = False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # What cannot be written is better known before calls are paid for.
            with tempfile.TemporaryFile(dir=self._folder), os.scandir(self._folder) as entries:
                for entry in entries:
                    if _SHARD.fullmatch(entry.name) and not (entry.is_dir() and os.access(entry, os.W_OK | os.X_OK)):
                        raise PermissionError(errno.EACCES, f"{entry.name} in it is no folder that can be written")
        except OSError as error:
            raise ConfigError(f"cache folder {folder}: {error.strerror}; name a folder that can be written") from error

    def get(self, judge: JudgeModel, request: JudgeRequest) -> str | None:
        try:
            record = json.loads(self._path(judge, request).read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        text = record.get("text") if isinstance(record, dict) else None
        return text if isinstance(text, str) else None

    def put(self, judge: JudgeModel, request: JudgeRequest, text: str) -> bool:
        """Keep `text`; the file is either whole or absent. False where it cannot be written: the answer counts all the
        same, and the first time a warning says so."""
        path = self._path(judge, request)
        staging = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            path.parent.mkdir(exist_ok=True)
            try:
                staging.write_text(json.dumps({"judge": judge.name, "text": text}), "utf-8")
                staging.replace(path)
            except OSError:
                with contextlib.suppress(OSError):
                    staging.unlink(missing_ok=True)
                raise
        except OSError as error:
            if not self._has_failed:
                logger.warning(
                    "cache folder %s: %s; judging goes on, and what cannot be kept there is paid for again",
                    self._folder,
                    error.strerror,
                )
            self._has_failed = True
            return False
        return True

    def _path(self, judge: JudgeModel, request: JudgeRequest) -> Path:
        asked = [
            PROMPT_VERSION,
            getattr(judge, "fingerprint", judge.name),
            request.messages,
            request.schema,
            request.seed,
        ]
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return self._folder / digest[:2] / f"{digest[2:]}.json"
