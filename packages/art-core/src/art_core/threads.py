"""Threads of our own, for what blocks while a user's code may hold all of asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

_Result = TypeVar("_Result")
# Not asyncio's own pool: all its threads may be synchronous rollouts, which wait for what is done here.
_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="art-core")


async def in_thread(work: Callable[..., _Result], *args: Any) -> _Result:
    """The result of `work(*args)`, which may block, also while synchronous rollouts fill asyncio's own threads."""
    return await asyncio.get_running_loop().run_in_executor(_threads, work, *args)
