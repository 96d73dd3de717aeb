"""One check of the machine, and how checks are run: side by side, each with a time limit, none with a traceback."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, and what to do about it."""

    name: str
    status: Literal["ok", "warning", "problem"]
    evidence: str
    remedy: str = ""


def run_checks(checks: Mapping[str, Callable[[], list[Check]]], *, limit_s: float) -> list[Check]:
    """What `checks` give, in their order. One that raises is a warning of its own, and so is one that takes longer
    than `limit_s`, whose thread is left behind.
    """
    done: queue.Queue[tuple[str, list[Check]]] = queue.Queue()

    def worked(name: str, check: Callable[[], list[Check]]) -> None:
        try:
            done.put((name, check()))
        except Exception as error:  # noqa: BLE001 - the other checks still count
            text = " ".join(f"{type(error).__name__}: {error}".split())
            done.put((name, [Check(name, "warning", f"could not be checked: {text}")]))

    for name, check in checks.items():
        threading.Thread(target=worked, args=(name, check), name=f"art-doctor-{name}", daemon=True).start()
    results: dict[str, list[Check]] = {}
    deadline = time.monotonic() + limit_s
    while len(results) < len(checks):
        try:
            name, found = done.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        results[name] = found
    late = "look at what it is about by hand: a network disk or a driver that hangs, or a machine that is very busy"
    return [
        check
        for name in checks
        for check in results.get(name, [Check(name, "warning", f"no answer within {limit_s:g} s", late)])
    ]
