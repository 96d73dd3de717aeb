"""The weight-sync canary: does the engine serve the weights that the trainer has just made?"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from art_core.errors import WeightSyncError
from art_core.protocols import Engine, Trainer
from art_core.types import Sampling


@dataclass
class WeightSyncCanary:
    """Compares engine and trainer on a fixed probe after every load.

    The engine samples `num_tokens` tokens after `prompt_ids`; the trainer says what log-probability each of them has
    under its weights. The two must agree within `tolerance` (nats, worst token). When the last step moved the probe's
    log-probabilities by more than the tolerance, agreement with the *new* weights is thereby shown as well.
    """

    prompt_ids: Sequence[int]
    tolerance: float
    num_tokens: int = 4
    _previous: list[float] = field(default_factory=list)
    _previous_ids: tuple[int, ...] = ()
    _previous_served: list[float] = field(default_factory=list)

    async def check(self, engine: Engine, trainer: Trainer) -> dict[str, float]:
        """Metrics of the comparison: `canary/error` (worst token) and `canary/movement` (what the step changed).

        Raises:
            WeightSyncError: they disagree, or the engine says it serves another step than the trainer has made.
        """
        if engine.policy_version != trainer.step_count:
            raise WeightSyncError(
                f"the engine serves step {engine.policy_version} but the trainer has made step {trainer.step_count}; "
                "the checkpoint was not loaded"
            )
        ids: list[int] = []
        served: list[float] = []
        sampling = Sampling(max_tokens=self.num_tokens, temperature=1.0, seed=0)
        async for chunk in engine.stream(self.prompt_ids, sampling):
            ids += chunk.token_ids
            served += chunk.logprobs
        if not ids:
            raise WeightSyncError("the engine answered the probe with no token; wanted one at least, to compare it")
        wanted = await trainer.logprobs([*self.prompt_ids, *ids], num_completion=len(ids))
        errors = [abs(a - b) for a, b in zip(served, wanted, strict=True)]
        worst = max(range(len(errors)), key=errors.__getitem__)
        if not errors[worst] <= self.tolerance:
            raise WeightSyncError(
                f"after loading step {engine.policy_version} the engine gives token {ids[worst]} at position {worst} "
                f"of the probe logprob {served[worst]:.5f}, the trainer {wanted[worst]:.5f}; wanted a difference of "
                f"at most {self.tolerance}: the engine serves other weights than were trained, so the run stops here"
            )
        movement = 0.0
        if self._previous_ids:
            movement = await self._movement(trainer, ids, wanted)
            if movement > 0 and (tuple(ids), served) == (self._previous_ids, self._previous_served):
                raise WeightSyncError(
                    f"the engine says it serves step {engine.policy_version}, but its answer to the probe is the last "
                    f"step's to the bit, while the trainer's moved by {movement:.2g}; it still serves the old weights"
                )
        self._previous_ids, self._previous, self._previous_served = tuple(ids), wanted, served
        return {"canary/error": errors[worst], "canary/movement": movement}

    async def _movement(self, trainer: Trainer, ids: Sequence[int], logprobs: Sequence[float]) -> float:
        """Largest change of the trainer's log-probabilities of the tokens that this and the last answer begin with."""
        if ids[0] != self._previous_ids[0]:
            (now,) = await trainer.logprobs([*self.prompt_ids, self._previous_ids[0]], num_completion=1)
            return abs(now - self._previous[0])
        pairs = zip(ids, self._previous_ids, logprobs, self._previous, strict=False)
        common = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
        return max(abs(after - before) for _, _, after, before in common)
