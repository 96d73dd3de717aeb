"""Memory that tensors have given up goes back to the system.

glibc learns to serve ever larger blocks from its heap, where one small block that stays keeps all below it. Tensors of
a training step come and go in an order that makes such a heap several times as large as what is alive.
"""

from __future__ import annotations

import ctypes
import sys

_M_MMAP_THRESHOLD = -3  # malloc.h
_THRESHOLD_BYTES = 1024**2


def return_freed_memory() -> bool:
    """From now on, blocks of 1 MB and more come from the system and return to it when freed, in the whole process.

    Returns whether the C library knows how; where it does not, nothing is changed.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES))
