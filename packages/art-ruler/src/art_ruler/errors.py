"""Every error a user can meet, each also of the standard kind it is most like.

A message says what is wrong, what was found, what was wanted and what to do next, in that order. No message, and no
exception chained to one, holds a key or a header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art_ruler.types import Usage


class RulerError(Exception):
    """Root of all errors raised on purpose by this package.

    `usage` is what the failed `score` had spent so far, or None where no judge had been asked.
    """

    usage: Usage | None = None


class ConfigError(RulerError, ValueError):
    """An option is unknown, impossible, or does not go with another."""


class DataError(RulerError, ValueError):
    """Trajectories, or a file of them, cannot be used as they are."""


class JudgeFormatError(RulerError, ValueError):
    """The judge's answer, also after it was asked to repair it, is not a verdict for each trajectory."""


class JudgeUnavailableError(RulerError, RuntimeError):
    """A judge could not be asked, or gave no answer.

    `retryable` tells whether the same call may succeed later; `retry_after_s` is how long, in seconds, the provider
    asked to wait; `status` is the HTTP status, where there was one.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after_s: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.status = status

    @property
    def is_about_request(self) -> bool:
        """Whether the provider refused this one request (too long, against a policy, malformed), so that others may
        be answered."""
        return self.status in (400, 413, 422)


class RequestRefusedError(JudgeUnavailableError):
    """The provider refused an option of the request, not the request; the judge has dropped it and can be asked again
    at once. Callers of `Ruler` never see it."""
