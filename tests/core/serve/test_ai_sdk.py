"""The Vercel AI SDK from npm, with its providers for OpenAI and for compatible servers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from art_core.carriers import exchange_id_of
from tests.core.serve.support import CALL, Setup

PACKAGES = ["ai@6", "@ai-sdk/openai@3", "@ai-sdk/openai-compatible@2", "zod@4"]
SCRIPT = Path(__file__).with_name("ai_sdk.mjs")


async def run(*command: str, folder: Path) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=_environment()
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 200)
    except TimeoutError:
        process.kill()
        await process.wait()
        return -1, "", f"{command[0]} took more than 200 s"
    return process.returncode or 0, out.decode(), err.decode()


def _environment() -> dict[str, str]:
    return {**os.environ, "NO_PROXY": "127.0.0.1", "AI_SDK_LOG_WARNINGS": "false"}


async def installed(folder: Path) -> str:
    """The path of node, with the packages in `folder`."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    code, _, err = await run(npm, "install", "--no-audit", "--no-fund", "--prefer-offline", *PACKAGES, folder=folder)
    if code != 0:
        pytest.skip(f"npm cannot install the AI SDK here: {err[-300:]}")
    shutil.copy(SCRIPT, folder)
    return node


@pytest.mark.slow
async def test_the_ai_sdk(setup: Setup, tmp_path: Path) -> None:
    node = await installed(tmp_path)
    structured = '{"city": "Bonn"}'
    setup.engine.say(*["a STOP", "h€llo", CALL, "done", CALL, structured] * 2, "text")
    base_url = setup.server.open_trajectory("t")
    code, out, err = await run(node, SCRIPT.name, base_url, folder=tmp_path)
    assert code == 0, err
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    exchanges = setup.server.close_trajectory("t")
    assert len(exchanges) == 13
    for index, name in enumerate(("openai", "compatible")):
        ids = [exchange.id for exchange in exchanges[6 * index : 6 * index + 6]]
        got = told[name]
        assert (got["text"], got["streamed"], got["finish"]) == ("a ", "h€llo", "stop")
        assert got["usage"] == len("a STOP")
        assert [exchange_id_of(got[key]) for key in ("id", "streamedId", "callId")] == ids[:3]
        assert (got["calls"], got["after"], got["required"]) == ([["f", {"a": 1}]], "done", 1)
        assert (got["structured"], got["code"]) == ({"city": "Bonn"}, "unsupported_parameter")
        first, second = exchanges[6 * index + 2 : 6 * index + 4]
        whole = first.prompt_ids + first.completion_ids
        assert second.prompt_ids[: len(whole)] == whole, "the turn after the call extends the record"
        assert exchanges[6 * index + 4].sampling.grammar is not None
        assert exchanges[6 * index + 5].sampling.grammar is not None
    assert told["completion"] == "text"
