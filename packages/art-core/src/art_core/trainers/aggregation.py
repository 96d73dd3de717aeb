"""How much each trained token weighs, and which rows an optimiser update takes. Pure: no torch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from art_core.objective import Objective
from art_core.types import TokenSample


def token_weights(rows: Sequence[TokenSample], objective: Objective) -> list[float]:
    """For each row, the weight of each of its trained tokens in the loss of one optimiser update on `rows`.

    N trained tokens of R rows of M trajectories, of which row r has N_r and trajectory m has N_m:
    `token` 1/N (DAPO, arXiv 2503.14476), `trajectory` 1/(M N_m), `row` 1/(R N_r), `constant` 1/(M constant_length)
    (Dr. GRPO, arXiv 2503.20783). A trajectory of one row has N_m = N_r, and then `trajectory` and `row` are GRPO's
    mean over answers of means over tokens (arXiv 2402.03300). Rows and trajectories without a trained token count
    nowhere, and weigh 0.
    """
    of_row = [row.num_trained for row in rows]
    of_trajectory: Counter[str] = Counter()
    for row, count in zip(rows, of_row, strict=True):
        if count:
            of_trajectory[row.trajectory_id] += count
    num_rows = sum(1 for count in of_row if count)

    def divisor(row: TokenSample, count: int) -> float:
        if objective.aggregation == "token":
            return sum(of_row)
        if objective.aggregation == "trajectory":
            return len(of_trajectory) * of_trajectory[row.trajectory_id]
        if objective.aggregation == "row":
            return num_rows * count
        return len(of_trajectory) * objective.constant_length

    return [1.0 / divisor(row, count) if count else 0.0 for row, count in zip(rows, of_row, strict=True)]


def minibatches(rows: Sequence[TokenSample], objective: Objective, *, seed: tuple[int, ...]) -> list[list[int]]:
    """Indices of the rows of each optimiser update of a step, `epochs` times `minibatches` of them.

    Each epoch deals the trajectories that have a trained token anew, drawn from `seed`, into minibatches of equal
    size up to one; all rows of a trajectory go together. With fewer trajectories than minibatches there are as many
    updates as trajectories.
    """
    of_trajectory: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        if row.num_trained:
            of_trajectory.setdefault(row.trajectory_id, []).append(index)
    parts = min(objective.minibatches, len(of_trajectory))
    updates: list[list[int]] = []
    for epoch in range(objective.epochs if of_trajectory else 0):
        names = list(of_trajectory)
        if parts > 1:
            random.Random(repr((*seed, epoch))).shuffle(names)
        for part in range(parts):
            members = names[part * len(names) // parts : (part + 1) * len(names) // parts]
            updates.append(sorted(index for name in members for index in of_trajectory[name]))
    return updates
