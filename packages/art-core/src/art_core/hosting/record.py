"""What a model's run folder says it is: model.json. Written once, compared at each start."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from art_core.control import Origin
from art_core.errors import ConfigError, StorageError
from art_core.hosting.options import ModelOptions
from art_core.runs.reader import MODEL_FILE


class ModelRecord(BaseModel):
    """A registered model. `sha256` is that of its base weights; `trainer` is the adapter that made its checkpoints."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: str
    name: str
    base_model: str
    sha256: str
    trainer: str
    options: ModelOptions
    created: int
    forked_from: Origin | None = None

    @property
    def inference_name(self) -> str:
        """What a request's `model` says."""
        return f"{self.project}/{self.name}"

    def check_same(self, base_model: str, options: ModelOptions, *, trained_only: bool = False) -> None:
        """Refuse what this model was not registered with.

        Raises:
            ConfigError: another base model, or options that differ; the message names them.
        """
        changed = [] if base_model == self.base_model else [f"base_model was {self.base_model!r}, now {base_model!r}"]
        changed += self.options.differences(options, trained_only=trained_only)
        if changed:
            raise ConfigError(
                f"model {self.inference_name!r} exists with other options: {'; '.join(changed)}. "
                "Register it as it was, or give the new one another name"
            )

    def check_weights(self, sha256: str, trainer: str) -> None:
        """Refuse to go on with other base weights, or another trainer, than the checkpoints are of.

        Raises:
            ConfigError: they differ.
        """
        if sha256 != self.sha256:
            raise ConfigError(
                f"the weights of {self.base_model!r} are not those that {self.inference_name!r} was registered with "
                f"(sha256 {sha256[:12]}, was {self.sha256[:12]}); restore them, or register a new name"
            )
        if trainer != self.trainer:
            raise ConfigError(
                f"{self.inference_name!r} was trained by trainer {self.trainer!r}, now {trainer!r}; "
                "its checkpoints are not the other's: start with the former, or register a new name"
            )

    def write(self, folder: Path) -> None:
        """Write it whole or not at all."""
        path = folder / MODEL_FILE
        staging = path.with_suffix(".tmp")
        try:
            staging.write_text(json.dumps(self.model_dump(mode="json"), indent=2) + "\n")
            staging.replace(path)
        except OSError as error:
            raise StorageError(f"could not write {path}: {error.strerror or error}") from error

    @classmethod
    def read(cls, folder: Path) -> ModelRecord | None:
        """The record in `folder`; None where there is none.

        Raises:
            StorageError: the file is there and is not one, or it is that of another folder.
        """
        path = folder / MODEL_FILE
        if not path.exists():
            return None
        try:
            record = cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            problem = " ".join(str(error).split())[:300]
            raise StorageError(f"{path} cannot be read: {problem}; restore it, or move the folder away") from error
        here = f"{folder.parent.name}/{folder.name}"
        if record.inference_name != here:
            raise StorageError(
                f"{path} is the record of {record.inference_name!r}, and this folder is that of {here!r}: it was "
                "copied or renamed. Write the folder's project and name into the file, or move the folder back"
            )
        return record
