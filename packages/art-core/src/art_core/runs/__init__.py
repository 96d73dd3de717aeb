"""The run folder of a model: what its rollouts did and how its training went, on disk.

    <path>/<project>/<name>/
        model.json                           which model this is
        trajectories/<split>/step-0007.jsonl one trajectory per line, with its group and its exchanges
        metrics.jsonl                        one line per `log_groups`: counts, averages, and the metrics given
        steps.jsonl                          one line per training step: what its report says
        exchanges/*.jsonl                    the server's own log of calls, bounded, oldest dropped
        checkpoints/step-0007/               what the trainer saved

A line of `trajectories/` holds all that training on it needs, so it outlives the log of calls. Everything can be read
while it is being written, and reading takes no lock.
"""

from art_core.runs.reader import DEFAULT_PATH, Run, RunSummary, run, runs
from art_core.runs.records import Counts, GroupInfo, StepSummary, StoredTrajectory
from art_core.runs.writer import ModelRun

__all__ = [
    "DEFAULT_PATH",
    "Counts",
    "GroupInfo",
    "ModelRun",
    "Run",
    "RunSummary",
    "StepSummary",
    "StoredTrajectory",
    "run",
    "runs",
]
