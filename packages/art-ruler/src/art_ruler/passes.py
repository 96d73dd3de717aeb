"""One pass of one judge over a group: what fits is shown at once, more in chunks that share anchors."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from art_ruler.asking import Asker
from art_ruler.budget import BudgetSpent, Meter
from art_ruler.concurrent import together
from art_ruler.consensus import choose_anchors, chunk_sizes, num_anchors, on_scale
from art_ruler.cutting import cut_to, estimate_tokens, transcript_tokens
from art_ruler.errors import ConfigError, JudgeUnavailableError
from art_ruler.inputs import Transcript, common_prefix_length
from art_ruler.prompt import (
    ANSWER_SCHEMA,
    PROMPT_VERSION,
    build_messages,
    draw_ids,
    draw_mark,
    texts_of,
)
from art_ruler.types import JudgeModel, JudgeRequest

_MIN_TOKENS_PER_ATTEMPT = 100
_TOKENS_AROUND_ATTEMPT = 20
_MAX_ANSWER_TOKENS = 8192


@dataclass
class PassOutcome:
    """Scores and explanations by member, and for each member without a score why.

    `failures` are requests without an answer, `stop` tells why a request was not made. `is_done` is False until
    nothing more will come.
    """

    judge: str
    is_fallback: bool = False
    scores: dict[int, float] = field(default_factory=dict)
    explanations: dict[int, str] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    failures: list[JudgeUnavailableError] = field(default_factory=list)
    stop: str | None = None
    is_done: bool = False

    @property
    def is_answered(self) -> bool:
        """Whether every request was answered, whatever the answers are worth."""
        return self.is_done and not self.failures and self.stop is None


@dataclass(frozen=True)
class Plan:
    """A group as one judge can read it: cut where it must be, `group_size` attempts at a time.

    `key` is a hash of all that is shown.
    """

    shared: Transcript
    attempts: tuple[Transcript, ...]
    group_size: int
    num_cut: int
    key: str

    @staticmethod
    def of(
        transcripts: Sequence[Transcript],
        *,
        digests: Sequence[str],
        rubric: str,
        max_group: int,
        context_tokens: int | None,
    ) -> Plan:
        """Fit `transcripts`, whose `digests` are known, into `context_tokens`.

        What they share may take a third of the room, and each attempt an equal part of the rest when as many as
        belong together at least (three, or `max_group`) are shown. Longer ones are cut. Then as many are shown at
        once as surely fit, whichever they are.

        Raises:
            ConfigError: not even the criteria and a little of each attempt fit.
        """
        prefix = common_prefix_length(transcripts)
        shared = transcripts[0][:prefix] if transcripts else ()
        attempts = [transcript[prefix:] for transcript in transcripts]
        group_size, num_cut = max_group, 0
        if context_tokens is not None:
            fixed = sum(
                estimate_tokens(message["content"]) for message in build_messages([], [], "mark", rubric=rubric)
            )
            answer = min(context_tokens // 3, _MAX_ANSWER_TOKENS)
            at_least = max(1, min(3, max_group, len(attempts)))
            room = context_tokens - fixed - answer - _TOKENS_AROUND_ATTEMPT * max_group
            if room < (at_least + 1) * _MIN_TOKENS_PER_ATTEMPT:
                needed = (
                    3 * (fixed + _TOKENS_AROUND_ATTEMPT * max_group + (at_least + 1) * _MIN_TOKENS_PER_ATTEMPT) // 2
                )
                raise ConfigError(
                    f"context_tokens={context_tokens} leaves no room for {at_least} attempts beside the criteria and "
                    f"the answer; allow at least about {needed + 1}"
                )
            cut_shared = cut_to(shared, room // 3)
            room -= transcript_tokens(cut_shared)
            cut = [cut_to(attempt, room // at_least) for attempt in attempts]
            was_shared_cut = cut_shared != shared
            num_cut = sum(was_shared_cut or one != other for one, other in zip(cut, attempts, strict=True))
            shared, attempts = cut_shared, cut
            group_size = _how_many_fit(attempts, room, max_group)
        content = json.dumps([PROMPT_VERSION, rubric, group_size, context_tokens if num_cut else None, *digests])
        return Plan(shared, tuple(attempts), group_size, num_cut, hashlib.sha256(content.encode()).hexdigest())


def _how_many_fit(attempts: Sequence[Transcript], room: int, max_group: int) -> int:
    fit = 0
    for tokens in sorted(map(transcript_tokens, attempts), reverse=True):
        room -= tokens
        if room < 0 or fit == max_group:
            break
        fit += 1
    return max(1, min(max_group, fit) if fit < len(attempts) else max_group)


async def run_pass(
    judge: JudgeModel,
    plan: Plan,
    order: Sequence[int],
    *,
    rubric: str,
    seed: str,
    asker: Asker,
    meter: Meter,
    outcome: PassOutcome,
) -> None:
    """Show the members in `order`; fills `outcome` as answers come, so that what is there stays when this is stopped.

    A request without an answer is a failure of the outcome, and what it showed has no score; the others go on. Only
    where none has been answered yet, and the next one promises no better, they are not made.

    Raises:
        JudgeFormatError: as `Asker.ask`.
    """
    sizes = chunk_sizes(len(order), plan.group_size)
    chunks = [list(order[sum(sizes[:i]) : sum(sizes[: i + 1])]) for i in range(len(sizes))]

    async def judged(members: list[int]) -> dict[int, float]:
        """Scores of one request; explanations and problems go straight to the outcome."""
        chunk_draw = random.Random(f"{seed}/{plan.key}/{members}")
        request = _request(plan, members, rubric, chunk_draw)
        try:
            verdict = await asker.ask(judge, request, meter)
        except (BudgetSpent, JudgeUnavailableError) as problem:
            outcome.problems.update(dict.fromkeys((m for m in members if m not in outcome.scores), str(problem)))
            if isinstance(problem, JudgeUnavailableError):
                outcome.failures.append(problem)
            else:
                outcome.stop = str(problem)
            return {}
        faults = "; ".join(verdict.faults[:3]) + (f" (it answered {verdict.quote})" if verdict.quote else "")
        if verdict.stop is not None:
            outcome.stop = verdict.stop
            faults += f"; it was not asked to repair it: {verdict.stop}"
        scores = {}
        for member, blind_id in zip(members, request.ids, strict=True):
            if blind_id in verdict.explanations:
                outcome.explanations.setdefault(member, verdict.explanations[blind_id])
            if blind_id in verdict.scores:
                scores[member] = verdict.scores[blind_id]
            elif member not in outcome.scores:
                outcome.problems[member] = f"no valid score in the answer of {judge.name}: {faults}"
        return scores

    async def placed(members: list[int]) -> None:
        shown = [*members, *anchors]
        draw_places.shuffle(shown)
        scores = await judged(shown)
        scaled = on_scale(scores, reference)
        for member in members:
            if member in scaled:
                outcome.scores[member] = scaled[member]
            elif member in scores:
                outcome.problems[member] = "its chunk shares no scored attempt with the others"

    while chunks:  # the first chunk that gets any score sets the scale
        reference = await judged(chunks.pop(0))
        outcome.scores.update(reference)
        if reference:
            break
        if _is_hopeless(outcome.failures):
            outcome.problems.update(
                dict.fromkeys((member for chunk in chunks for member in chunk), str(outcome.failures[-1]))
            )
            break
    if not outcome.scores:
        outcome.is_done = True
        return
    anchors = choose_anchors(reference, num_anchors(plan.group_size))
    if chunks:
        draw_places = random.Random(f"{seed}/{plan.key}/places")
        await together([placed(members) for members in chunks])
    outcome.is_done = True


def _is_hopeless(failures: Sequence[JudgeUnavailableError]) -> bool:
    """Whether a judge that has answered nothing so far will not answer the next request either: it cannot be used as
    it is set up, or was down for the second time."""
    if not failures or failures[-1].is_about_request:
        return False
    return not failures[-1].retryable or len(failures) > 1


def _request(plan: Plan, members: Sequence[int], rubric: str, draw: random.Random) -> JudgeRequest:
    shown = [plan.attempts[member] for member in members]
    ids = draw_ids(len(members), draw)
    mark = draw_mark([rubric, *texts_of([plan.shared, *shown])], draw)
    messages = build_messages(shown, ids, mark, rubric=rubric, shared=plan.shared)
    return JudgeRequest(messages, ANSWER_SCHEMA, ids, draw.getrandbits(31))
