"""Remembers sound answers on disk, one file each. Processes may share a folder."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

from art_ruler.errors import ConfigError
from art_ruler.prompt import PROMPT_VERSION
from art_ruler.types import JudgeModel, JudgeRequest


class ReplyCache:
    """Texts of answers by the content of what was asked.

    The name of a file is a hash of the request (which holds transcripts and rubric), the judge with its parameters and
    server, and the version of the prompt. Keys and headers are not part of it. A file that cannot be read is a miss.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cache folder {folder}: {error.strerror}; name a folder that can be written") from error

    def get(self, judge: JudgeModel, request: JudgeRequest) -> str | None:
        try:
            record = json.loads(self._path(judge, request).read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        text = record.get("text") if isinstance(record, dict) else None
        return text if isinstance(text, str) else None

    def put(self, judge: JudgeModel, request: JudgeRequest, text: str) -> None:
        """Keep `text`. The file is either whole or absent.

        Raises:
            ConfigError: the folder cannot be written.
        """
        path = self._path(judge, request)
        staging = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            path.parent.mkdir(exist_ok=True)
            staging.write_text(json.dumps({"judge": judge.name, "text": text}), "utf-8")
            staging.replace(path)
        except OSError as error:
            staging.unlink(missing_ok=True)
            raise ConfigError(
                f"cache folder {self._folder}: {error.strerror}; free some space, or judge without a cache"
            ) from error

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
