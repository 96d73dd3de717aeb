"""Examples -> the rows of all of them, within the length limit, with everything counted. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from art_core.control import SftExample, SftRequest
from art_core.errors import ConfigError, DataError
from art_core.sft.masks import answers_of, rows_of_answers
from art_core.sft.reading import refuse_faulty
from art_core.sft_config import SftConfig
from art_core.types import TokenSample

if TYPE_CHECKING:
    from art_core.render import ChatRenderer


@dataclass(frozen=True)
class PreparedSet:
    """`examples[i]` are the rows of one example, one at least. `digest` is equal for equal rows in the same order."""

    examples: tuple[tuple[TokenSample, ...], ...]
    counters: dict[str, float]
    digest: str

    @classmethod
    def of(cls, examples: Iterable[Sequence[TokenSample]], counters: Mapping[str, float] | None = None) -> Self:
        """`examples` as they are, with `counters` of what was left out of them, and those of what they hold."""
        kept = tuple(map(tuple, examples))
        rows = [row for example in kept for row in example]
        different = {tuple((row.token_ids, row.trained) for row in example) for example in kept}
        counted = {
            **(counters or {}),
            "sft/forks": float(len(rows) - len(kept)),
            "sft/examples": float(len(kept)),
            "sft/duplicates": float(len(kept) - len(different)),
            "sft/rows": float(len(rows)),
            "sft/row_tokens": float(sum(len(row.token_ids) for row in rows)),
            "sft/trained_tokens": float(sum(row.num_trained for row in rows)),
        }
        return cls(kept, counted, _digest(kept))

    @property
    def rows(self) -> list[TokenSample]:
        return [row for example in self.examples for row in example]


def prepared(
    request: SftRequest, renderer: ChatRenderer, config: SftConfig, max_context_tokens: int
) -> tuple[PreparedSet, PreparedSet | None]:
    """The rows to train on, and those held out, if there are any.

    Raises:
        ConfigError, DataError: as `prepare`.
    """
    training = prepare(request.examples, renderer, config, max_context_tokens=max_context_tokens)
    if not request.validation:
        return training, None
    what = "validation examples"
    return training, prepare(request.validation, renderer, config, max_context_tokens=max_context_tokens, what=what)


def prepare(
    examples: Sequence[SftExample],
    renderer: ChatRenderer,
    config: SftConfig,
    *,
    max_context_tokens: int,
    what: str = "examples",
) -> PreparedSet:
    """The rows of `examples`, which are called `what` where something is wrong with them.

    Raises:
        ConfigError: `max_row_tokens` is more than the model can read.
        DataError: an example cannot be rendered, or is too long, and `overlong` is "refuse"; or nothing is left.
    """
    limit = config.max_row_tokens or max_context_tokens
    if limit > max_context_tokens:
        raise ConfigError(
            f"max_row_tokens is {limit}, but the model reads at most {max_context_tokens}; give less, or none"
        )
    counts: Counter[str] = Counter()
    faults: list[str] = []
    overlong: list[str] = []
    kept: list[tuple[TokenSample, ...]] = []
    for example in examples:
        try:
            answers = answers_of(example, renderer, config.train_on)
            rows = rows_of_answers(answers, example.source)
        except DataError as error:
            faults.append(f"{example.source}: {error}")
            continue
        counts["sft/turns_in_history_form"] += sum(answer.in_history_form for answer in answers)
        counts["sft/turns_without_end"] += sum(not answer.has_end for answer in answers)
        counts["sft/turns_without_reasoning"] += sum(not answer.says_reasoning for answer in answers)
        longest = max((len(row.token_ids) for row in rows), default=0)
        if longest > limit:
            overlong.append(f"{example.source} has {longest}")
            if config.overlong == "cut":
                counts["sft/rows_cut"] += sum(len(row.token_ids) > limit for row in rows)
                rows = [cut for row in rows if (cut := _cut(row, limit)).num_trained]
            else:
                rows = []
            counts["sft/dropped_overlong"] += not rows
        elif not rows:
            counts["sft/examples_without_answer"] += 1
        if rows:
            kept.append(tuple(rows))
    refuse_faulty(faults, len(examples), what)
    if overlong and config.overlong == "refuse":
        shown = ", ".join(overlong[:5]) + (", ..." if len(overlong) > 5 else "")
        raise DataError(
            f"{len(overlong)} of {len(examples)} {what} have more than {limit} tokens, nothing was begun: {shown}; "
            "shorten them, or leave them out with overlong='drop', or their ends with overlong='cut'"
        )
    if not kept:
        silent = counts["sft/examples_without_answer"]
        raise DataError(
            f"none of the {len(examples)} {what} can be trained on: {len(overlong)} are longer than {limit} tokens, "
            f"{silent} have no answer to train"
        )
    return PreparedSet.of(kept, {name: float(counts[name]) for name in _COUNTED})


_COUNTED = (
    *("sft/dropped_overlong", "sft/rows_cut", "sft/examples_without_answer"),
    *("sft/turns_in_history_form", "sft/turns_without_end", "sft/turns_without_reasoning"),
)


def _cut(row: TokenSample, limit: int) -> TokenSample:
    return replace(row, token_ids=row.token_ids[:limit], trained=row.trained[:limit], logprobs=row.logprobs[:limit])


def _digest(examples: Sequence[Sequence[TokenSample]]) -> str:
    digest = hashlib.sha256()
    for rows in examples:
        digest.update(f"example {len(rows)}\n".encode())
        for row in rows:
            digest.update(f"{row.token_ids}{[int(flag) for flag in row.trained]}\n".encode())
    return digest.hexdigest()
