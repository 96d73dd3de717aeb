"""Everything that decides what a run does. Frozen data, checked once, stored in `run.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from art_core.errors import ConfigError


class RunSettings(BaseModel):
    """Settings of `art-mcp train`. Two runs with equal settings on equal machines do the same."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    server: str
    model: str = "smollm2-135m"
    seed: int = Field(default=0, ge=0, lt=2**63)

    allow_tools: tuple[str, ...] = ()
    deny_tools: tuple[str, ...] = ()
    allow_writes: bool = False
    start_timeout_s: float = Field(default=30.0, gt=0)
    call_timeout_s: float = Field(default=30.0, gt=0)

    scenarios: str | None = None
    num_train: int = Field(default=112, ge=1)
    num_held_out: int = Field(default=24, ge=1)
    samples: int = Field(default=2, ge=1)

    warmup: Literal["auto", "on", "off"] = "auto"
    warmup_threshold: float = Field(default=0.2, ge=0, le=1)
    warmup_demos: int = Field(default=48, ge=1)
    warmup_batch: int = Field(default=4, ge=1)
    warmup_epochs: int = Field(default=1, ge=1)
    warmup_answer_every: int = Field(default=3, ge=1)
    warmup_learning_rate: float = Field(default=1e-3, gt=0)

    steps: int = Field(default=5, ge=0)
    groups_per_step: int = Field(default=6, ge=1)
    group_size: int = Field(default=4, ge=2)
    loss: Literal["ppo", "dapo", "dr_grpo", "gspo", "cispo", "reinforce"] = "dapo"
    """By default one that counts every token alike: with `ppo`, a call that is cut short or malformed, which ends its
    attempt, would weigh as much as all tokens of a whole attempt."""
    learning_rate: float = Field(default=5e-4, gt=0)
    rank: int = Field(default=16, ge=1)

    eval_temperature: float = Field(default=0.7, gt=0, le=2)
    max_tokens: int | None = Field(default=None, ge=1)
    max_turns: int = Field(default=2, ge=2)
    max_context: int = Field(default=2048, ge=64)
    concurrency: int = Field(default=48, ge=1)
    server_processes: int = Field(default=4, ge=1)
    threads: int | None = Field(default=None, ge=1)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, text in (("server", self.server), ("model", self.model), ("scenarios", self.scenarios or "")):
            if not text.isprintable() and any("\ud800" <= character <= "\udfff" for character in text):
                raise ConfigError(f"{name} {text!r} holds bytes that are not UTF-8 text; rename what it names")
        both = set(self.allow_tools) & set(self.deny_tools)
        if both:
            raise ConfigError(f"tool {sorted(both)[0]!r} is both allowed and denied; name it in one option only")
        if self.scenarios is None and self.groups_per_step > self.num_train:
            raise ConfigError(
                f"groups_per_step is {self.groups_per_step} but there are only {self.num_train} training scenarios; "
                "a step uses each scenario at most once"
            )
        return self


def output_folder(out: Path | None, server: str) -> Path:
    """`out`, or a folder under `runs/` named after the server."""
    if out is not None:
        return out
    words = [Path(word).stem for word in server.split() if not word.startswith("-")]
    names = [word for word in words if word.strip(".")]  # "." and ".." would lead elsewhere
    return Path("runs") / (names[-1] if names else "run")
