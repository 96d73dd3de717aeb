"""What belongs to a run as a whole: its settings, its scenarios, and whether it is finished."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from art_core.errors import ConfigError, DataError
from art_core.protocols import Store
from art_core.trajectories import Trajectory
from art_core.weights.source import ModelSource
from art_mcp.files import write_atomically
from art_mcp.progress import Progress
from art_mcp.proposer import propose
from art_mcp.report import summary_table
from art_mcp.rollout import SYSTEM_PROMPT
from art_mcp.scenarios import Scenario, read_scenarios, write_scenarios
from art_mcp.settings import RunSettings
from art_mcp.stack import Toolbox, open_toolbox
from art_mcp.verify import validate_scenarios

_PACKAGES = ("art-core", "art-mcp", "mcp", "renderers", "torch", "transformers", "openai")
_OWN_FILES = {".lock", ".run.json.tmp", "checkpoints", "run.log", "sinks", "tensorboard", "wandb"}


class RunFolder:
    """The files of one run that are written once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def finished_report(self) -> dict[str, Any] | None:
        """`report.json` of a finished run, else None."""
        path = self.path / "report.json"
        if not path.exists():
            return None
        try:
            report: dict[str, Any] = json.loads(path.read_text())
            summary_table(report)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is damaged ({type(error).__name__}); remove it and run the same command again"
            ) from error
        return report

    def settings(self) -> RunSettings:
        """The settings the run was started with.

        Raises:
            DataError: there is no run here, or its run.json is damaged.
        """
        path = self.path / "run.json"
        try:
            return RunSettings.model_validate(json.loads(path.read_text())["settings"])
        except FileNotFoundError as error:
            raise DataError(
                f"{self.path} holds no run (no run.json); give the --out folder of `art-mcp train`"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is not readable ({type(error).__name__}); start a new run in another folder"
            ) from error

    def refuse_foreign_files(self) -> None:
        """Leave a folder alone that holds no run but other files.

        Raises:
            ConfigError: it does.
        """
        if (self.path / "run.json").exists():
            return
        others = sorted(entry.name for entry in self.path.iterdir() if entry.name not in _OWN_FILES)
        if others:
            raise ConfigError(
                f"{self.path} is not empty and holds no run ({others[0]}, ...); give an empty --out folder"
            )

    def check_identity(self, store: Store, model: ModelSource) -> None:
        """Note which base weights and scenarios the run uses; refuse to go on with others.

        Raises:
            ConfigError: the weights behind the model's name, or `scenarios.jsonl`, are not those of the run's start.
        """
        scenarios = hashlib.sha256((self.path / "scenarios.jsonl").read_bytes()).hexdigest()
        found = {"weights": model.sha256, "origin": model.origin, "scenarios": scenarios}
        noted = store.records("identity")
        if not noted:
            store.append("identity", found)
            return
        if noted[0]["weights"] != found["weights"]:
            raise ConfigError(
                f"{self.path} was begun with the weights {noted[0]['weights'][:12]} ({noted[0]['origin']}), this "
                f"machine now has {model.sha256[:12]} ({model.origin}); restore them, or give another --out folder"
            )
        if noted[0]["scenarios"] != scenarios:
            raise ConfigError(
                f"{self.path / 'scenarios.jsonl'} was changed since the run began, and earlier attempts are scored by "
                "the old one; start a new run with --scenarios FILE in another folder"
            )

    def trajectories(self, store: Store) -> list[Trajectory]:
        """The rollouts made so far.

        Raises:
            DataError: a record is none, for instance of another version of this program.
        """
        trajectories = []
        for number, record in enumerate(store.records("trajectories"), start=1):
            try:
                trajectories.append(Trajectory.model_validate(record))
            except ValueError as error:
                raise DataError(
                    f"{self.path / 'trajectories.jsonl'}:{number}: not a trajectory ({' '.join(str(error).split())}); "
                    "start a new run in another folder"
                ) from error
        return trajectories

    def claim(self, settings: RunSettings) -> None:
        """Make this the folder of a run with `settings`.

        Raises:
            ConfigError: it belongs to a run with other settings, or holds other files.
        """
        if (self.path / "run.json").exists():
            before = self.settings().model_dump()
            changed = [name for name, value in settings.model_dump().items() if before[name] != value]
            if changed:
                raise ConfigError(
                    f"{self.path} belongs to another command line: {changed[0]} was {before[changed[0]]!r} and is now "
                    f"{getattr(settings, changed[0])!r}; repeat the first command to resume it, or give another --out"
                )
            return
        self.refuse_foreign_files()
        description = {
            "settings": settings.model_dump(mode="json"),
            "system_prompt": SYSTEM_PROMPT,
            "versions": {name: _version(name) for name in _PACKAGES},
            "python": platform.python_version(),
            "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        write_atomically(self.path / "run.json", json.dumps(description, indent=2) + "\n")

    async def scenarios(self, settings: RunSettings, toolbox: Toolbox, progress: Progress) -> list[Scenario]:
        """The scenarios of this run: those stored in the folder, else the given file's, else newly proposed ones."""
        path = self.path / "scenarios.jsonl"
        tools = list(toolbox.tools.values())
        if path.exists():
            scenarios = read_scenarios(path)
        elif settings.scenarios is not None:
            scenarios = read_scenarios(Path(settings.scenarios))
        else:
            scenarios = await propose_scenarios(settings, toolbox, progress)
        validate_scenarios(scenarios, tools)
        if not path.exists():
            write_scenarios(path, scenarios)
        return scenarios


async def propose_scenarios(settings: RunSettings, toolbox: Toolbox, progress: Progress) -> list[Scenario]:
    """Scenarios drawn from the server itself; says what could not be covered.

    Raises:
        DataError: not one scenario for training or for the held-out part.
    """
    progress.line("proposing scenarios from the server's schemas and answers")
    async with toolbox.caller() as caller:
        proposal = await propose(
            caller,
            list(toolbox.tools.values()),
            seed=settings.seed,
            num_train=settings.num_train,
            num_held_out=settings.num_held_out,
            workdir=caller.workdir,
            hints=toolbox.command.argv,
        )
    for tool, reason in proposal.uncovered.items():
        progress.line(f"no scenario for tool {tool}: {reason}")
    scenarios = list(proposal.scenarios)
    counts = {split: sum(s.split == split for s in scenarios) for split in ("train", "held_out")}
    notes = ", ".join(f"{name} {count}" for name, count in proposal.counters.items())
    progress.line(f"{counts['train']} training and {counts['held_out']} held-out scenarios ({notes})")
    if not counts["train"] or not counts["held_out"]:
        raise DataError(
            f"the proposer found {counts['train']} training and {counts['held_out']} held-out scenarios for "
            f"{settings.server!r}; wanted at least one of each: write some by hand and give them with --scenarios FILE"
        )
    return scenarios


async def propose_for_file(settings: RunSettings, out: Path, progress: Progress) -> list[Scenario]:
    """Open the server, propose scenarios and write them to `out`."""
    async with open_toolbox(settings, progress.line) as toolbox:
        scenarios = await propose_scenarios(settings, toolbox, progress)
    write_scenarios(out, scenarios)
    return scenarios


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
