"""Many sessions at once: isolation, reuse, bounds, failures, the end."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from art_core.errors import ConfigError, InfrastructureError
from art_mcp.connect import ServerCommand, ServerStartError, ToolSession
from art_mcp.pool import ServerPool

SERVERS = Path(__file__).parent / "servers"


def broken(*switches: str) -> ServerCommand:
    return ServerCommand((sys.executable, "-I", "-S", str(SERVERS / "broken.py"), *switches))


async def until(condition: Callable[[], bool]) -> None:
    """Wait, up to 20 s, until `condition` holds."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("waited in vain")


def pid_of(session: ToolSession) -> int:
    assert session._transport is not None
    assert session._transport.process is not None
    return session._transport.process.pid


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_without_reuse_nobody_gets_a_used_session() -> None:
    async with ServerPool(broken(), size=2, warm=1) as pool:

        async def rollout() -> int:
            async with pool.session() as session:
                await session.call("echo", {})
                return pid_of(session)

        assert len(set(await asyncio.gather(*(rollout() for _ in range(6))))) == 6


async def test_each_session_has_a_work_folder_of_its_own() -> None:
    async with ServerPool(broken("--write-file", "{workdir}/mine"), size=3) as pool:

        async def rollout() -> Path:
            async with pool.session() as session:
                assert session.workdir is not None
                assert (session.workdir / "mine").exists()
                return session.workdir

        folders = await asyncio.gather(*(rollout() for _ in range(6)))
    assert len(set(folders)) == 6
    assert not any(folder.exists() for folder in folders)


async def test_with_reuse_one_process_serves_many_callers() -> None:
    async with ServerPool(broken(), size=2, reuse=True) as pool:

        async def call() -> int:
            async with pool.session() as session:
                await session.call("echo", {})
                return pid_of(session)

        pids = await asyncio.gather(*(call() for _ in range(40)))
        assert len(set(pids)) <= 2
        assert pool.num_started <= 2
        assert pool.num_replaced == 0


async def test_no_more_than_size_sessions_are_out_at_once() -> None:
    out, most = 0, 0
    full = asyncio.Event()
    async with ServerPool(broken(), size=3, warm=1) as pool:

        async def rollout() -> None:
            nonlocal out, most
            async with pool.session():
                out += 1
                most = max(most, out)
                if out == 3:
                    full.set()
                await full.wait()
                await asyncio.sleep(0.01)
                out -= 1

        await asyncio.gather(*(rollout() for _ in range(9)))
    assert most == 3


async def test_sessions_are_started_ahead() -> None:
    async with ServerPool(broken(), size=4, warm=2) as pool:
        await until(lambda: pool.num_started == 2)
        started = time.monotonic()
        async with pool.session(), pool.session():
            assert time.monotonic() - started < 0.02


async def test_a_reused_session_that_broke_is_replaced() -> None:
    async with ServerPool(broken(), size=1, reuse=True, call_timeout_s=0.3) as pool:
        for name in ("die", "never", "malformed"):
            with pytest.raises(InfrastructureError):
                async with pool.session() as session:
                    await session.call(name, {})
            async with pool.session() as session:
                assert (await session.call("echo", {"a": 1})).text == '{"a": 1}'
        assert pool.num_replaced == 3


async def test_a_session_that_died_while_idle_is_replaced() -> None:
    async with ServerPool(broken(), size=1, reuse=True) as pool:
        async with pool.session() as first:
            pass
        os.kill(pid_of(first), 15)
        await until(lambda: not first.healthy)
        async with pool.session() as second:
            assert second is not first
            assert (await second.call("echo", {})).text == "{}"


async def test_a_hanging_call_costs_only_its_own_rollout() -> None:
    async with ServerPool(broken(), size=4, call_timeout_s=0.5) as pool:

        async def rollout(name: str) -> str:
            async with pool.session() as session:
                return (await session.call(name, {})).text

        results = await asyncio.gather(*(rollout(n) for n in ("echo", "never", "echo", "echo")), return_exceptions=True)
    assert [results[0], results[2], results[3]] == ["{}"] * 3
    assert isinstance(results[1], InfrastructureError)


async def test_a_failed_start_is_an_infrastructure_failure_of_one_rollout(tmp_path: Path) -> None:
    gate = tmp_path / "closed"
    gate.touch()
    async with ServerPool(broken("--fail-file", str(gate)), size=2, warm=0) as pool:
        with pytest.raises(InfrastructureError, match=r"exited with code 9 while starting.*no ink"):
            async with pool.session():
                pass
        gate.unlink()
        async with pool.session() as session:
            assert session.healthy
        assert (pool.num_start_failures, pool.num_started) == (1, 1)


async def test_after_failures_in_a_row_the_pool_gives_up_for_everyone() -> None:
    async with ServerPool(broken("--exit-at-start", "2"), size=2, warm=2, max_start_failures=3) as pool:

        async def rollout() -> None:
            async with pool.session():
                pass

        results = await asyncio.gather(*(rollout() for _ in range(10)), return_exceptions=True)
        kinds = [type(result) for result in results]
        assert set(kinds) <= {InfrastructureError, ServerStartError}
        assert kinds.count(InfrastructureError) == 2
        assert pool.num_start_failures == 3
        with pytest.raises(ServerStartError, match="3 starts of the server failed in a row, the last one: server `"):
            await rollout()


async def test_the_first_start_is_made_alone(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with ServerPool(broken("--delay", "0.5", "--pid-file", str(pids)), size=4, warm=4):
        await asyncio.sleep(0.4)
        assert len(pids.read_text().split()) == 1


async def test_a_cancelled_waiter_takes_no_session_with_it() -> None:
    async with ServerPool(broken(), size=1, warm=0) as pool:
        async with pool.session():

            async def rollout() -> None:
                async with pool.session():
                    pass

            waiting = [asyncio.create_task(rollout()) for _ in range(3)]
            await asyncio.sleep(0.05)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
        async with asyncio.timeout(5), pool.session() as session:
            assert session.healthy


async def test_a_session_handed_out_to_a_caller_that_is_cancelled_at_that_moment_comes_back() -> None:
    async with ServerPool(broken(), size=1, reuse=True) as pool:
        async with pool.session():
            turn = asyncio.create_task(pool._acquire())
            await asyncio.sleep(0)
        turn.cancel()  # its turn came with the release just above
        with pytest.raises(asyncio.CancelledError):
            await turn
        async with asyncio.timeout(5), pool.session() as session:
            assert session.healthy


async def test_closing_ends_sessions_that_wait_start_or_are_in_use() -> None:
    pool = ServerPool(broken(), size=2, warm=2)
    async with pool:
        holding = pool.session()
        session = await holding.__aenter__()
        pid = pid_of(session)
        await pool.aclose()
        assert not is_alive(pid)
        with pytest.raises(InfrastructureError, match="the server pool is closed"):
            async with pool.session():
                pass
        await holding.__aexit__(None, None, None)
    await pool.aclose()


async def test_leaving_is_parallel_and_quick() -> None:
    async with ServerPool(broken(), size=8, warm=6) as pool:
        await until(lambda: pool.num_started == 6)
        started = time.monotonic()
    assert time.monotonic() - started < 1.5


async def test_notices_of_all_servers_are_passed_on_once() -> None:
    said: list[str] = []
    async with ServerPool(broken("--banner"), size=3, warm=0, log=said.append) as pool:
        for _ in range(3):
            async with pool.session() as session:
                await session.call("echo", {})
    assert len(said) == 1


@pytest.mark.parametrize("option", [{"size": 0}, {"size": 1, "warm": -1}, {"size": 1, "max_start_failures": 0}])
async def test_impossible_sizes_are_refused(option: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="server pool: "):
        ServerPool(broken(), **option)  # type: ignore[arg-type]
