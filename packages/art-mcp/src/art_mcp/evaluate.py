"""`art-mcp eval`: score a checkpoint of a run on its held-out scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from art_core.errors import ConfigError
from art_core.storage import RunStore
from art_core.weights.source import resolve_model
from art_mcp.arena import Arena, Job
from art_mcp.progress import Progress
from art_mcp.report import outcomes
from art_mcp.runfolder import RunFolder
from art_mcp.scenarios import read_scenarios
from art_mcp.stack import open_model, open_toolbox
from art_mcp.stats import success_rate
from art_mcp.verify import validate_scenarios
from art_mcp.warmup import agent_limits


async def evaluate_run(
    server: str, folder: Path, *, samples: int | None, seed: int | None, progress: Progress
) -> dict[str, Any]:
    """Success of the run's newest checkpoint, or of the untrained model if it has none yet, scored as in the run.

    Raises:
        DataError: `folder` holds no run.
        ConfigError: the run was trained on another server.
    """
    run_folder = RunFolder(folder)
    settings = run_folder.settings()
    if server != settings.server:
        raise ConfigError(
            f"{folder} was trained on {settings.server!r}, not on {server!r}; give the same server command"
        )
    settings = settings.model_copy(
        update={
            "samples": settings.samples if samples is None else samples,
            "seed": settings.seed if seed is None else seed,
        }
    )
    scenarios = read_scenarios(folder / "scenarios.jsonl")
    held_out = [scenario for scenario in scenarios if scenario.split == "held_out"]
    source = resolve_model(settings.model, progress=progress.line)
    with RunStore(folder) as store:
        checkpoint = store.latest()
        if checkpoint is None:
            progress.line(f"{folder} has no checkpoint yet: this is the untrained model")
        async with open_toolbox(settings, progress.line) as toolbox, open_model(source, settings) as model:
            run_folder.check_identity(store, model.source)
            validate_scenarios(held_out, list(toolbox.tools.values()))
            if checkpoint is not None:
                await model.engine.load(checkpoint)
            arena = Arena(
                model=model,
                toolbox=toolbox,
                store=store,
                progress=progress,
                limits=agent_limits(settings, scenarios, model, toolbox),
                eval_temperature=settings.eval_temperature,
                run_seed=settings.seed,
                max_concurrency=settings.concurrency,
                earned={},
                log="evaluations",
            )
            progress.plan(len(held_out) * settings.samples)
            progress.phase("evaluation", len(held_out) * settings.samples)
            trajectories = await arena.run(
                [Job("eval", 0, scenario, member) for member in range(settings.samples) for scenario in held_out]
            )
    estimate = success_rate(outcomes(trajectories, held_out))
    return {
        "run": str(folder),
        "step": 0 if checkpoint is None else checkpoint.step,
        "seed": settings.seed,
        "held_out": {"scenarios": len(held_out), "samples": settings.samples},
        **estimate.as_json("success"),
        "failed": sum(trajectory.error is not None for trajectory in trajectories),
    }
