"""Give memory that the process no longer uses back to the system."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable


def return_free_memory() -> None:
    """Return free heap pages to the system, where the C library can (glibc); elsewhere do nothing.

    glibc keeps what a training step has freed for the thread that freed it. The engine's thread then asks the system
    for more, and the process grows to the sum of both peaks.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    function: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return function
