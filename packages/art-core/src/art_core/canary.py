"""The weight-sync canary: does an engine serve the weights that the trainer has made?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from art_core.errors import WeightSyncError
from art_core.protocols import Engine, Trainer
from art_core.types import Sampling

_TOLERANCES = {"float32": 2e-3, "bfloat16": 0.25}
_TOP = 5
"""Tokens of each position by which an answer is known again."""


def tolerance_of(*dtypes: str) -> float:
    """Largest logprob difference (nats) that number formats explain: they add up the same products in another order.

    Of several, as where the two sides compute in different ones, the widest.
    """
    return max(_TOLERANCES.get(dtype, 0.25) for dtype in dtypes)


@dataclass(frozen=True)
class ProbeAnswer:
    """What an engine says to the probe: the sampled ids, and of each position the likeliest ones with logprobs."""

    token_ids: tuple[int, ...]
    top_logprobs: tuple[Mapping[int, float], ...]

    def as_json(self) -> dict[str, object]:
        return {"token_ids": self.token_ids, "top_logprobs": [list(top.items()) for top in self.top_logprobs]}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        return cls(tuple(record["token_ids"]), tuple(dict(top) for top in record["top_logprobs"]))

    def difference(self, other: Self) -> float:
        """The largest, in nats, over what both say of the same prefix; infinite where no token is likely for both."""
        pairs = zip(self.token_ids, other.token_ids, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        tops = list(zip(self.top_logprobs, other.top_logprobs, strict=False))[: same + 1]
        return max((_difference(*pair) for pair in tops), default=math.inf)


def _difference(top: Mapping[int, float], other: Mapping[int, float]) -> float:
    return max((abs(top[token] - other[token]) for token in top.keys() & other.keys()), default=math.inf)


@dataclass
class WeightSyncCanary:
    """Compares engine and trainer on a fixed probe after every load.

    The engine samples `num_tokens` tokens after `prompt_ids`; the trainer says what log-probability each of them has
    under its weights. The two must agree within `tolerance` (nats, worst token). When the last step moved the probe's
    log-probabilities by more than the tolerance, agreement with the *new* weights is thereby shown as well.

    What each step answered is told to `on_answer`: an engine that serves an older step, whose weights the trainer has
    no longer, can be compared with that.
    """

    prompt_ids: Sequence[int]
    tolerance: float
    num_tokens: int = 4
    on_answer: Callable[[int, ProbeAnswer], None] | None = None
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
        answer, served = await self._ask(engine)
        ids = answer.token_ids
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
            if movement > 0 and (ids, served) == (self._previous_ids, self._previous_served):
                raise WeightSyncError(
                    f"the engine says it serves step {engine.policy_version}, but its answer to the probe is the last "
                    f"step's to the bit, while the trainer's moved by {movement:.2g}; it still serves the old weights"
                )
        self._previous_ids, self._previous, self._previous_served = ids, wanted, served
        if self.on_answer is not None:
            self.on_answer(engine.policy_version, answer)
        return {"canary/error": errors[worst], "canary/movement": movement}

    async def check_again(
        self, engine: Engine, made: ProbeAnswer, *, others: Collection[ProbeAnswer] = (), tolerance: float | None = None
    ) -> float:
        """How far `engine` is from what its step answered when it was `made`, in nats.

        `others` are what other steps answered, computed as `engine` does: who says their words to the bit serves them,
        also within the `tolerance`, which is the canary's where none is given.

        Raises:
            WeightSyncError: it serves other weights.
        """
        tolerance = self.tolerance if tolerance is None else tolerance
        answer, _ = await self._ask(engine)
        difference = answer.difference(made)
        if difference <= tolerance and (answer == made or answer not in others):
            return difference
        why = (
            f"{difference:.5f} nats from what that step answered when it was made; wanted a difference of at most "
            f"{tolerance}"
            if not difference <= tolerance
            else "that of another step to the bit"
        )
        raise WeightSyncError(
            f"the engine says it serves step {engine.policy_version}, but its answer to the probe is {why}: it serves "
            "other weights, so it is not used; call again, which opens another engine"
        )

    async def _ask(self, engine: Engine) -> tuple[ProbeAnswer, list[float]]:
        """What `engine` answers, and the logprob of each token that it sampled."""
        ids: list[int] = []
        served: list[float] = []
        top: list[Mapping[int, float]] = []
        sampling = Sampling(max_tokens=self.num_tokens, temperature=1.0, seed=0, top_logprobs=_TOP)
        async for chunk in engine.stream(self.prompt_ids, sampling):
            ids += chunk.token_ids
            served += chunk.logprobs
            tops = chunk.top_logprobs or ((),) * len(chunk.token_ids)
            for token, logprob, likeliest in zip(chunk.token_ids, chunk.logprobs, tops, strict=True):
                said = {**dict(likeliest), token: logprob}
                top.append({each: known for each, known in said.items() if math.isfinite(known)})
        if not ids:
            raise WeightSyncError("the engine answered the probe with no token; wanted one at least, to compare it")
        return ProbeAnswer(tuple(ids), tuple(top)), served

    async def _movement(self, trainer: Trainer, ids: Sequence[int], logprobs: Sequence[float]) -> float:
        """Largest change of the trainer's log-probabilities of the tokens that this and the last answer begin with."""
        if ids[0] != self._previous_ids[0]:
            (now,) = await trainer.logprobs([*self.prompt_ids, self._previous_ids[0]], num_completion=1)
            return abs(now - self._previous[0])
        pairs = zip(ids, self._previous_ids, logprobs, self._previous, strict=False)
        common = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
        return max(abs(after - before) for _, _, after, before in common)
