"""A small process between us and a server, so that nothing of the server outlives its owner, however that one ends.

Run as a script (`python -I -S supervise.py OWNER_PID NICE GRACE_S COMMAND...`), with the standard library only, because
it starts once per server. The server inherits stdin, stdout and stderr directly: no byte passes through here.

Stdin doubles as the life line. Its writing end is held by the owner alone, so it hangs up when the owner closes it and
when the owner is killed, even by SIGKILL. `poll` tells of the hang-up without reading a byte. From then on:

1. the server has GRACE_S to end by itself, as the protocol asks of it when its stdin ends;
2. SIGTERM to its process group, and GRACE_S more; a SIGTERM to this process starts here at once;
3. SIGKILL to all that is left.

When the server ends, by itself or not, whatever it started is ended too. On Linux that includes processes that left
the group (this process adopts orphans); elsewhere the process group is the limit.

Exit code: the server's own, 128 + N for signal N, 127 or 126 when it cannot be executed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

OWNER_POLL_S = 1.0  # a child that the owner forked may hold stdin open after the owner's death; its pid tells then
LEFTOVER_GRACE_S = 0.3


def adopt_orphans() -> bool:
    """Whether processes that lose their parent below us become our children (Linux: PR_SET_CHILD_SUBREAPER)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes

        return bool(ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def descendants() -> list[int]:
    """Pids of all live processes below this one, from /proc."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  pathlib doubles the start time of this script
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123  as above
                    # The command name, in parentheses, may itself contain spaces and parentheses.
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue
            if state != b"Z":
                parents[int(name)] = int(parent)
    found: list[int] = []
    layer = {os.getpid()}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer}
        found.extend(layer)
    return found


def signal_quietly(pid: int, signum: int) -> None:
    """Signal a process that may have ended in the meantime, or may not be ours any more."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return


def reap(server: int) -> tuple[int | None, bool]:
    """The server's exit code if it has just ended, and whether any child is left."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, False
        if pid == 0:
            return code, True
        if pid == server:
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code


def end_leftovers(adopting: bool) -> None:
    """End what the server started and left behind: SIGTERM, then SIGKILL, until nothing is left."""
    if not adopting:
        os.killpg(0, signal.SIGTERM)  # we only note SIGTERM; the owner follows with SIGKILL when this process is gone
        return
    signum, escalation = signal.SIGTERM, time.monotonic() + LEFTOVER_GRACE_S
    give_up = escalation + 5.0
    while time.monotonic() < give_up:
        _, any_left = reap(0)
        if not any_left:
            return
        if time.monotonic() >= escalation:
            signum = signal.SIGKILL
        for pid in descendants():
            signal_quietly(pid, signum)
        time.sleep(0.01)


def supervise(owner: int, niceness: int, grace_s: float, command: list[str]) -> int:
    """Run `command` to its end, or to its owner's; returns the exit code."""
    adopting = adopt_orphans()
    if niceness:
        os.nice(niceness)
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_reader, False)
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(signum, lambda *_: None)
    try:
        # Python ignores these two, and what is ignored stays ignored across exec.
        server = os.posix_spawnp(command[0], command, os.environ, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ])
    except OSError as error:
        sys.stderr.write(f"cannot execute {command[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # or the owner would not see the server close its stdout

    poller = select.poll()
    poller.register(0, 0)  # no interest in data: hang-ups are always reported
    poller.register(wake_reader, select.POLLIN)
    stage, deadline = 0, float("inf")
    while True:
        now = time.monotonic()
        events = poller.poll(1000 * min(OWNER_POLL_S, max(0.0, deadline - now)))
        asked_to_end = False
        if any(fd == wake_reader for fd, _ in events):
            asked_to_end = any(signum != signal.SIGCHLD for signum in os.read(wake_reader, 4096))
        code, _ = reap(server)
        if code is not None:
            end_leftovers(adopting)
            return code
        now = time.monotonic()
        hung_up = any(fd == 0 for fd, _ in events)
        if hung_up:
            poller.unregister(0)
        if stage == 0 and (hung_up or os.getppid() != owner):
            stage, deadline = 1, now + grace_s
        if (stage < 2 and asked_to_end) or (stage == 1 and now >= deadline):
            stage, deadline = 2, now + grace_s
            os.killpg(0, signal.SIGTERM)
        elif stage == 2 and now >= deadline:
            if adopting:
                signal_quietly(server, signal.SIGKILL)
                end_leftovers(adopting)
            os.killpg(0, signal.SIGKILL)  # this process included


if __name__ == "__main__":
    sys.exit(supervise(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
