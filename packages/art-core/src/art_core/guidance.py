"""The optional library `llguidance`, which this module alone imports."""

from __future__ import annotations

import re
from typing import Any

from art_core.errors import MissingExtraError

_PLACE = re.compile(r"\n +\d+ \|")
"""Where the library's message goes on with an excerpt of the grammar, which is ours and not the user's."""


def llguidance() -> Any:
    """The library.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import llguidance
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "restricting what is sampled needs 'llguidance', which is not installed; run: pip install 'art-core[train]'"
        ) from error
    return llguidance


def grammar_problem(grammar: str) -> str:
    """What is wrong with `grammar`, or with a schema in it; empty for nothing. Takes up to seconds.

    Raises:
        MissingExtraError: the library is not installed.
    """
    is_error, messages = llguidance().LLMatcher.validate_grammar_with_warnings(grammar)
    if not is_error:
        return ""
    return _PLACE.split(str(messages[0]))[0].split("failed to compile JSON schema: ")[-1].strip()
