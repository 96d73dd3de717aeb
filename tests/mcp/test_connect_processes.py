"""Nothing of a server is left, however its owner ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from art_mcp.connect import ServerCommand, open_session, start_session

BROKEN = Path(__file__).parent / "servers" / "broken.py"
LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a supervisor adopt orphans")


def broken(*switches: str) -> ServerCommand:
    return ServerCommand((sys.executable, "-I", "-S", str(BROKEN), *switches))


def is_alive(pid: int) -> bool:
    """Whether `pid` runs; a zombie, which waits for a parent to ask for its exit code, does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return not state.startswith("Z") and state.strip() != ""


def wait_until_gone(pids: list[int], within_s: float) -> list[int]:
    """Those of `pids` that still run after `within_s`."""
    deadline = time.monotonic() + within_s
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def read_pids(file: Path, count: int, within_s: float = 20.0) -> list[int]:
    """The pids in `file`, as soon as there are `count`."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if file.exists() and len(lines := file.read_text().splitlines()) >= count:
            return [int(line) for line in lines]
        time.sleep(0.02)
    raise AssertionError(f"no {count} pids in {file}")


@LINUX_ONLY
@pytest.mark.parametrize("switches", [(), pytest.param(("--stubborn",), marks=pytest.mark.slow)])
async def test_a_session_ends_with_all_its_descendants(tmp_path: Path, switches: tuple[str, ...]) -> None:
    pids = tmp_path / "pids"
    async with open_session(broken("--children", "--pid-file", str(pids), *switches)):
        processes = read_pids(pids, 3)
        assert all(is_alive(pid) for pid in processes)
    assert wait_until_gone(processes, within_s=0.5) == []


async def test_a_session_ends_when_its_task_is_cancelled(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    inside = asyncio.Event()

    async def rollout() -> None:
        async with open_session(broken("--pid-file", str(pids))) as session:
            inside.set()
            await session.call("never", {})

    task = asyncio.create_task(rollout())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert wait_until_gone(read_pids(pids, 1), within_s=0.5) == []


async def test_cancelling_the_close_of_a_stubborn_server_kills_it_at_once(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    session = await start_session(broken("--stubborn", "--pid-file", str(pids)))
    closing = asyncio.create_task(session.aclose())
    await asyncio.sleep(0.05)
    started = time.monotonic()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert time.monotonic() - started < 1.0
    assert wait_until_gone(read_pids(pids, 1), within_s=0.5) == []


async def test_the_server_ends_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with open_session(broken("--children", "--pid-file", str(pids))) as session:
        assert session._transport is not None
        assert session._transport.process is not None
        os.kill(session._transport.process.pid, signal.SIGKILL)
        server, child, _ = read_pids(pids, 3)
        assert await asyncio.to_thread(wait_until_gone, [server, child], 2.0) == []
    os.kill(read_pids(pids, 3)[2], signal.SIGKILL)  # it left the group, and nobody was left to adopt it


@pytest.mark.slow
async def test_thirty_sessions_leave_no_process(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    slots = asyncio.Semaphore(6)

    async def once() -> None:
        async with slots, open_session(broken("--pid-file", str(pids))) as session:
            assert (await session.call("echo", {"a": 1})).text == '{"a": 1}'

    await asyncio.gather(*(once() for _ in range(30)))
    processes = read_pids(pids, 30)
    assert len(set(processes)) == 30
    assert wait_until_gone(processes, within_s=0.5) == []


OWNER = """
    import asyncio, sys
    from art_mcp.connect import ServerCommand, open_session

    async def main():
        command = ServerCommand(tuple(sys.argv[1:]))
        async with open_session(command), open_session(command):
            print("ready", flush=True)
            await asyncio.sleep(600)

    asyncio.run(main())
"""


@LINUX_ONLY
@pytest.mark.parametrize(
    ("signum", "switches"),
    [
        (signal.SIGKILL, ("--children",)),
        pytest.param(signal.SIGKILL, ("--children", "--stubborn"), marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, ("--children",), marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, ("--children",), marks=pytest.mark.slow),
    ],
)
def test_no_process_outlives_an_owner_that_is_killed(
    tmp_path: Path, signum: signal.Signals, switches: tuple[str, ...]
) -> None:
    pids = tmp_path / "pids"
    command = broken("--pid-file", str(pids), *switches).argv
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        processes = read_pids(pids, 6)
        owner.send_signal(signum)
        assert owner.wait(timeout=10) != 0
        assert wait_until_gone(processes, within_s=6.0) == []
    finally:
        owner.kill()
        owner.communicate()


async def test_a_server_runs_at_a_lower_priority() -> None:
    async with open_session(broken(), nice=7) as session:
        assert session._transport is not None
        assert session._transport.process is not None
        assert os.getpriority(os.PRIO_PROCESS, session._transport.process.pid) == os.getpriority(0, 0) + 7
