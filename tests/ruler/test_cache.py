"""A cache that cannot be written costs money, never a score."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from art_ruler import ConfigError, LiteLLMJudge, Ruler
from art_ruler.fakes import ScriptedJudge, verdict_json

GROUP: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}] for answer in ("a", "b")
]


def judge() -> ScriptedJudge:
    return ScriptedJudge([lambda request: verdict_json(dict.fromkeys(request.ids, 0.5))])


def test_a_folder_that_cannot_be_written_is_refused_before_any_call(tmp_path: Path) -> None:
    (tmp_path / "shard").mkdir()
    (tmp_path / "shard" / "0f").write_text("not a folder")
    with pytest.raises(ConfigError, match="0f"):
        Ruler(judge(), cache=tmp_path / "shard")


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs a folder that nobody can write to")
def test_a_read_only_folder_is_refused_before_any_call() -> None:
    with pytest.raises(ConfigError, match="cache folder /proc/self/task"):
        Ruler(judge(), cache="/proc/self/task")


async def test_a_folder_that_fails_later_costs_no_score(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scorer = Ruler(judge(), cache=tmp_path, passes=3)
    for shard in range(256):
        (tmp_path / f"{shard:02x}").write_text("a file where a folder should be")
    with caplog.at_level(logging.WARNING, "art_ruler"):
        result = await scorer.score(GROUP)
    assert result.scores == (0.5, 0.5)
    assert result.usage.cache_failures == 3
    assert len(caplog.records) == 1
    assert str(tmp_path) in caplog.text


def fingerprint(**options: Any) -> str:
    return LiteLLMJudge("openai/m", **options).fingerprint


def test_the_server_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "HOSTED_VLLM_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    plain = fingerprint()
    given = fingerprint(api_base="https://example.org:1/v1")
    assert len({plain, given, fingerprint(api_base="https://example.org:2/v1")}) == 3
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "https://example.org:1/v1")
            assert fingerprint() == given
    with monkeypatch.context() as patch:
        patch.setenv("HOSTED_VLLM_API_BASE", "https://example.org/v1")
        assert fingerprint() == plain
        vllm = LiteLLMJudge("hosted_vllm/m").fingerprint
    assert LiteLLMJudge("hosted_vllm/m").fingerprint != vllm


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "127.0.1.1"])
def test_a_server_on_this_machine_may_come_back_on_another_port(host: str) -> None:
    first = fingerprint(api_base=f"http://{host}:8000/v1")
    assert fingerprint(api_base="http://localhost:9000/v1") == first
    assert fingerprint(api_base=f"http://{host}:8000/other") != first
    assert fingerprint(api_base="http://192.168.0.1:8000/v1") != first


def test_a_password_in_an_address_is_in_no_key() -> None:
    assert "secret" not in fingerprint(api_base="https://user:secret@example.org/v1")
