"""Whether a grammar can be enforced, asked before anything is sampled."""

from __future__ import annotations

from functools import lru_cache

from art_core.guidance import grammar_problem
from art_core.serve.wire import ApiError, invalid

_MOST_CHARACTERS = 120_000
"""As at OpenAI. To compile one of 500 000 takes half a minute."""


def check_grammar(grammar: str, *, code: str, param: str) -> None:
    """Refuse a grammar whose schemas are wrong or use what cannot be enforced. Takes up to seconds; the answer is kept.

    Raises:
        ApiError: 400 with `code`; the message names the keyword or the place.
        MissingExtraError: `llguidance` is not installed.
    """
    if problem := _problem(grammar):
        raise _refusal(problem, code, param)


def _refusal(problem: str, code: str, param: str) -> ApiError:
    where = f"the schema in {param} cannot be enforced"
    return invalid(f"{where}: {problem}", param, code=code)


@lru_cache(maxsize=256)
def _problem(grammar: str) -> str:
    """What is wrong with `grammar`; empty for nothing."""
    if len(grammar) > _MOST_CHARACTERS:
        return f"it has {len(grammar)} characters; wanted at most {_MOST_CHARACTERS}"
    return grammar_problem(grammar)
