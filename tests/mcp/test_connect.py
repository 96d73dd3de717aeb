"""Sessions with real server processes over real pipes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import JsonValue

from art_core.errors import InfrastructureError
from art_mcp.connect import ServerCommand, ServerStartError, ToolSession, open_session, start_session
from art_mcp.types import ToolResult

SERVERS = Path(__file__).parent / "servers"


def broken(*switches: str) -> ServerCommand:
    return ServerCommand((sys.executable, "-I", "-S", str(SERVERS / "broken.py"), *switches))


CLERK = ServerCommand((sys.executable, str(SERVERS / "clerk.py")))


async def until(condition: Callable[[], bool]) -> None:
    """Wait, up to 20 s, until `condition` holds."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("waited in vain")


async def start_error(command: ServerCommand, start_timeout_s: float = 10.0) -> str:
    with pytest.raises(ServerStartError) as caught:
        async with open_session(command, start_timeout_s=start_timeout_s, log=lambda _: None):
            pass
    message = str(caught.value)
    assert "\n" not in message
    return message


async def test_a_real_server_is_listed_and_called() -> None:
    async with open_session(CLERK) as session:
        assert [tool.name for tool in session.tools] == ["add", "lookup", "shout", "remember", "erase"]
        assert [tool.annotations.read_only for tool in session.tools] == [True, True, True, None, False]
        assert session.tools[4].annotations.destructive is True
        assert session.tools[0].description == "Add two whole numbers."
        assert (session.server_name, session.protocol_version) == ("clerk", "2026-07-28")
        assert await session.call("add", {"a": 2, "b": 40}) == ToolResult("42", {"result": 42})
        facts: dict[str, JsonValue] = {"country": "Norway", "currency": "Norwegian krone", "dialling_code": 47}
        assert await session.call("lookup", {"city": "Oslo"}) == ToolResult(json.dumps(facts), facts)
        for name, arguments in (("add", {"a": "many"}), ("lookup", {"city": "Atlantis"}), ("fly", {})):
            refused = await session.call(name, arguments)
            assert refused.is_error
            assert refused.text
        assert session.healthy
    assert not session.healthy


async def test_an_older_server_negotiates_by_handshake() -> None:
    async with open_session(broken()) as session:
        assert (session.server_name, session.server_version) == ("broken", "1.2")
        assert session.protocol_version == "2025-11-25"


async def test_all_pages_of_tools_are_read_in_order() -> None:
    async with open_session(broken("--pages", "many")) as session:
        assert [tool.name for tool in session.tools] == [f"t{index}" for index in range(101)]


@pytest.mark.parametrize("pages", ["loop", "endless"])
async def test_a_list_of_tools_without_an_end_is_refused(pages: str) -> None:
    assert "list of tools never ends" in await start_error(broken("--pages", pages))


async def test_a_list_of_tools_that_breaks_the_protocol_is_refused() -> None:
    assert "broke the protocol while starting" in await start_error(broken("--pages", "invalid"))


async def test_a_server_without_tools_has_none() -> None:
    async with open_session(broken("--pages", "unknown")) as session:
        assert session.tools == ()


@pytest.mark.parametrize("arguments", [None, {}])
async def test_no_arguments_are_sent_as_an_empty_object(arguments: dict[str, object] | None) -> None:
    async with open_session(broken()) as session:
        assert (await session.call("echo", arguments)).text == "{}"
        assert (await session.call("echo", {"type": None})).structured == {"type": None}


# What goes wrong at the start.


async def test_a_command_that_does_not_exist() -> None:
    message = await start_error(ServerCommand(("art-mcp-no-such-program",)))
    assert message.startswith("server command 'art-mcp-no-such-program' is not a program on the PATH")


async def test_a_command_that_is_not_executable(tmp_path: Path) -> None:
    script = tmp_path / "server.sh"
    script.write_text("#!/bin/sh\n")
    assert "is not executable (chmod +x)" in await start_error(ServerCommand((str(script),)))
    assert "is a folder" in await start_error(ServerCommand((str(tmp_path),)))
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    message = await start_error(ServerCommand((str(script),)))
    assert "exited with code 127" in message
    assert "cannot execute" in message


async def test_a_server_that_exits_at_start_shows_its_last_words() -> None:
    message = await start_error(broken("--exit-at-start", "3"))
    assert "exited with code 3 while starting" in message
    assert message.endswith("its last words on stderr: ValueError: no ink | please refill")


@pytest.mark.parametrize("switches", [("--silent",), ("--silent", "--stubborn"), ("--delay", "60")])
async def test_a_server_that_never_answers_is_given_up_in_time(switches: tuple[str, ...]) -> None:
    started = time.monotonic()
    message = await start_error(broken(*switches), start_timeout_s=0.5)
    assert "did not answer within 0.5 s of its start" in message
    assert time.monotonic() - started < 4.0


async def test_a_program_that_is_no_server(tmp_path: Path) -> None:
    assert "did not answer" in await start_error(ServerCommand(("sleep", "60")), start_timeout_s=0.3)
    assert "exited with code 0 while starting" in await start_error(ServerCommand(("true",)))
    # It sends back what it is sent, which a client could take for requests of the server.
    assert await start_error(ServerCommand(("cat",)), start_timeout_s=1.0)


@pytest.mark.slow
async def test_a_slow_start_is_announced_and_succeeds() -> None:
    said: list[str] = []
    async with open_session(broken("--delay", "3.5"), log=said.append) as session:
        assert session.tools
    assert len(said) == 1
    assert "is still starting" in said[0]


async def test_cancelling_a_start_ends_the_server(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    task = asyncio.create_task(start_session(broken("--silent", "--pid-file", str(pids))))
    await until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids.read_text()), 0)


# Noise.


async def test_noise_at_start_is_skipped_with_one_notice() -> None:
    said: list[str] = []
    async with open_session(broken("--banner"), log=said.append) as session:
        assert (await session.call("echo", {"a": 1})).text == '{"a": 1}'
        assert session.num_noise_lines == 4
    assert len(said) == 1
    assert said[0].endswith("such lines are skipped: 'Server started'")


async def test_noise_in_a_call_is_skipped_and_free_of_terminal_sequences(caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []
    async with open_session(broken("--noise"), log=said.append) as session:
        for index in range(3):
            assert (await session.call("echo", {"a": index})).text == f'{{"a": {index}}}'
    assert len(said) == 1
    assert "\x1b" not in said[0]
    assert [record for record in caplog.records if record.exc_info] == []


async def test_a_flood_on_stderr_does_not_block_and_only_its_end_is_kept() -> None:
    async with open_session(broken("--stderr-bytes", "3000000")) as session:
        assert (await session.call("echo", {})).text == "{}"
        assert set(session.stderr_tail()) == {"e"}
        assert len(session.stderr_tail()) == 8000


# What goes wrong in a call.


async def test_a_server_that_dies_in_a_call_is_an_infrastructure_failure() -> None:
    async with open_session(broken()) as session:
        with pytest.raises(InfrastructureError, match=r"died with exit code 7 in a call of 'die'.*out of paper"):
            await session.call("die", {})
        assert not session.healthy
        with pytest.raises(InfrastructureError, match="died with exit code 7 in a call of 'echo'"):
            await session.call("echo", {})


@pytest.mark.parametrize("name", ["never", "deaf"])
async def test_a_call_that_is_never_answered_is_bounded(name: str) -> None:
    async with open_session(broken(), call_timeout_s=0.3) as session:
        started = time.monotonic()
        with pytest.raises(InfrastructureError, match=rf"did not answer within 0.3 s in a call of '{name}'"):
            await session.call(name, {})
        assert time.monotonic() - started < 1.5
        assert not session.healthy


async def test_the_server_is_told_of_calls_that_are_given_up() -> None:
    async with open_session(broken(), call_timeout_s=0.2) as session:
        calls = [session.call("never", {}) for _ in range(20)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(result) for result in results} == {InfrastructureError}
        cancelled = asyncio.create_task(session.call("never", {}))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        counts = await session.call("counts", {})
        assert counts.structured == {"unanswered": 21, "cancelled": 21}
        assert not session.healthy


async def test_cancelling_a_call_marks_the_session() -> None:
    async with open_session(broken()) as session:
        task = asyncio.create_task(session.call("never", {}))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not session.healthy


async def test_an_answer_that_breaks_the_protocol_is_an_infrastructure_failure() -> None:
    async with open_session(broken()) as session:
        with pytest.raises(InfrastructureError, match="broke the protocol: "):
            await session.call("malformed", {})


async def test_a_protocol_error_and_an_error_result_both_are_tool_errors() -> None:
    async with open_session(broken()) as session:
        assert await session.call("refuse", {}) == ToolResult("no such thing", is_error=True)
        assert await session.call("nonsense", {}) == ToolResult("unknown tool nonsense", is_error=True)
        assert session.healthy


async def test_a_result_that_contradicts_the_output_schema_is_a_tool_error() -> None:
    async with open_session(broken()) as session:
        result = await session.call("liar", {})
        assert result.is_error
        assert result.text.startswith(
            "the server's answer was refused: Invalid structured content returned by tool liar"
        )
        assert session.healthy


async def test_large_results_arrive_and_are_cut() -> None:
    async with open_session(broken(), max_result_chars=1000) as session:
        result = await session.call("huge", {"size": 5_000_000})
        assert len(result.text) <= 1000
        assert result.num_cut_chars > 4_999_000
        assert f"[… {result.num_cut_chars} characters cut …]" in result.text


async def test_images_and_the_like_become_placeholders() -> None:
    async with open_session(broken()) as session:
        assert (await session.call("contents", {})).text.splitlines() == [
            "[image: image/png, 11 B, not shown]",
            "screenshot",
            "[audio: audio/wav, 11 B, not shown]",
            "[resource: file:///a.txt]",
            "inside",
            "[link: b, file:///b]",
        ]


# The end.


async def test_a_work_folder_is_fresh_for_each_session_and_removed_afterwards() -> None:
    command = broken("--write-file", "{workdir}/note.txt")
    folders: list[Path] = []
    for _ in range(2):
        async with open_session(command) as session:
            assert session.workdir is not None
            assert (session.workdir / "note.txt").read_text() == "mine"
            folders.append(session.workdir)
    assert folders[0] != folders[1]
    assert not any(folder.exists() for folder in folders)


async def test_closing_twice_and_from_another_task() -> None:
    session: ToolSession = await start_session(broken())
    await asyncio.gather(session.aclose(), asyncio.create_task(session.aclose()))
    await session.aclose()
    with pytest.raises(InfrastructureError, match="is closed"):
        await session.call("echo", {})


async def test_an_exception_inside_passes_through_as_it_is() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_session(broken()):
            raise KeyError("mine")


async def test_secrets_stay_here_and_what_package_runners_need_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/ssl/cert.pem")
    command = ServerCommand(broken().argv, {"GIVEN_TOKEN": "wanted"})
    async with open_session(command) as session:
        names = (await session.call("environment", {})).text.splitlines()
    assert {"PATH", "SSL_CERT_FILE", "GIVEN_TOKEN"} <= set(names)
    assert "OPENAI_API_KEY" not in names
