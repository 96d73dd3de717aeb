"""Whether a grammar can be enforced, asked before anything is sampled."""

from __future__ import annotations

import re
from functools import lru_cache

from art_core.errors import MissingExtraError
from art_core.serve.wire import ApiError, invalid

_MOST_CHARACTERS = 120_000
"""As at OpenAI. To compile one of 500 000 takes half a minute."""
_PLACE = re.compile(r"\n +\d+ \|")
"""Where the library's message goes on with an excerpt of the grammar, which is ours and not the user's."""


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
    try:
        from llguidance import LLMatcher
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "restricting what is sampled needs 'llguidance', which is not installed; run: pip install 'art-core[train]'"
        ) from error
    if len(grammar) > _MOST_CHARACTERS:
        return f"it has {len(grammar)} characters; wanted at most {_MOST_CHARACTERS}"
    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    if not is_error:
        return ""
    return _PLACE.split(str(messages[0]))[0].split("failed to compile JSON schema: ")[-1].strip()
