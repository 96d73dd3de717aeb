"""Server command lines and environments."""

from __future__ import annotations

from pathlib import Path

import pytest

from art_core.errors import ConfigError
from art_mcp.command import ServerCommand, server_environment


@pytest.mark.parametrize(
    ("text", "argv", "env"),
    [
        ("uvx mcp-server-time", ("uvx", "mcp-server-time"), {}),
        ("'/my tools/server' --name \"a b\"", ("/my tools/server", "--name", "a b"), {}),
        ("A=1 B='x y' npx -y server C=3", ("npx", "-y", "server", "C=3"), {"A": "1", "B": "x y"}),
        ("python -c 'print({1: 2})'", ("python", "-c", "print({1: 2})"), {}),
    ],
)
def test_parse(text: str, argv: tuple[str, ...], env: dict[str, str]) -> None:
    command = ServerCommand.parse(text)
    assert (command.argv, command.env) == (argv, env)
    assert ServerCommand.parse(str(command)) == command


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no program"),
        ("  ", "names no program"),
        ("A=1", "names no program"),
        ("''", "names no program"),
        ("uvx 'time", "close the quote"),
        ("https://example.org/mcp", "is a URL"),
        ("server | tee log", "contains '|', but no shell runs it"),
        ("ser\0ver", "NUL character"),
    ],
)
def test_parse_refuses_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerCommand.parse(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_workdir_is_filled_in_arguments_and_environment() -> None:
    command = ServerCommand.parse("FILE={workdir}/m.json server --root={workdir} {other} ~/x")
    assert command.uses_workdir
    argv, env = command.filled(Path("/tmp/one"))
    assert argv == ["server", "--root=/tmp/one", "{other}", str(Path.home() / "x")]
    assert env["FILE"] == "/tmp/one/m.json"
    assert not ServerCommand.parse("server {work} dir}").uses_workdir


def test_the_environment_holds_what_runners_need_and_no_secrets() -> None:
    passed = {
        "PATH": "/bin",
        "HOME": "/root",
        "SSL_CERT_FILE": "c",
        "https_proxy": "p",
        "LC_ALL": "C",
        "UV_CACHE_DIR": "u",
        "UV_INDEX_MINE_PASSWORD": "needed by the index",
        "PIP_INDEX_URL": "i",
        "npm_config_registry": "n",
        "XDG_CACHE_HOME": "x",
    }
    kept_back = {
        "OPENAI_API_KEY": "s",
        "UV_PUBLISH_TOKEN": "s",
        "npm_config__authToken": "s",
        "VIRTUAL_ENV": "v",
        "PYTHONPATH": "p",
        "DOCKER_AUTH_CONFIG": "s",
    }
    assert server_environment(passed | kept_back) == passed
