"""Whether a grammar can be enforced, asked before anything is sampled."""

from __future__ import annotations

from functools import lru_cache

from art_core.errors import MissingExtraError
from art_core.serve.wire import ApiError, invalid


def check_grammar(grammar: str, *, code: str, param: str) -> None:
    """Refuse a grammar whose schemas are wrong or use what cannot be enforced.

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
    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    if not is_error:
        return ""
    first_line = str(messages[0]).split("\n   1 |")[0].split("\n  1 |")[0]
    return first_line.split("failed to compile JSON schema: ")[-1].strip()
