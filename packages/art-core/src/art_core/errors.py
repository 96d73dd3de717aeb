"""Every error a user can meet, each also of the standard kind it is most like.

The error of a request, with its HTTP status, is that of the server alone: `art_core.serve.wire.ApiError`.
A message says what is wrong, what was found, what was wanted and what to do next, in that order.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ArtError(Exception):
    """Root of all errors raised on purpose by the art packages."""


class ConfigError(ArtError, ValueError):
    """An option is unknown, impossible, or does not go with another."""


class DataError(ArtError, ValueError):
    """A file or record that a user handed us cannot be used as it is."""


class TokenAlignmentError(DataError):
    """Token ids, logprobs and masks that must describe the same tokens do not."""


class ContextLengthError(DataError):
    """A prompt, or a prompt with the completion asked for, is longer than the model can read."""


class ModelNotFoundError(ArtError, FileNotFoundError):
    """No usable weights under the name that was asked for."""


class MissingExtraError(ArtError, ImportError):
    """An optional library is not installed; the message holds the line that installs it."""


class AdapterMismatchError(ArtError, ValueError):
    """A checkpoint's adapter does not fit the model it is loaded into."""


class NonFiniteLossError(ArtError, ArithmeticError):
    """A loss or gradient is NaN or infinite; nothing of that step was kept."""


class NonFiniteLogitsError(ArtError, ArithmeticError):
    """The model computed NaN or infinite logits, so there is no distribution to draw from."""


class WeightSyncError(ArtError, RuntimeError):
    """The engine does not serve the weights that the trainer has just made."""


class StorageError(ArtError, OSError):
    """A run folder cannot be read or written."""


class RunLockedError(StorageError):
    """Another process is working in the run folder."""


class EngineClosedError(ArtError, RuntimeError):
    """The engine was closed, or died, while a request was waiting for it."""


class TrainerClosedError(ArtError, RuntimeError):
    """The trainer was closed and can do nothing more."""


class InfrastructureError(ArtError, RuntimeError):
    """Something that the policy is not responsible for broke during a rollout: a dead tool server, a time-out."""


class BackendError(ArtError, ConnectionError):
    """The server of the models cannot be reached, went away during a request, or answered with what is no answer."""


class UnknownTrajectoryError(ArtError, LookupError):
    """No trajectory of that id is open: it was never opened, or has been closed."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`: did you mean 'that'?`, or nothing where no name of `known` is like it."""
    close = difflib.get_close_matches(str(name), sorted(known), n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def unknown_option(of: str, name: str, known: Iterable[str], *, instead: str | None = None) -> ConfigError:
    """The refusal of an option that `of` does not have: `instead`, or the name that was meant, and all there are."""
    known = sorted(known)
    meant = f": {instead}" if instead else did_you_mean(name, known)
    return ConfigError(f"{of} has no option {name!r}{meant}; its options are {known}")
