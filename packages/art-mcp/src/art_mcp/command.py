"""How a server is started: its command line, and the environment it sees."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from art_core.errors import ConfigError

WORKDIR = "{workdir}"

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SHELL_OPERATORS = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1"})

# The `mcp` library hands a server little more than HOME and PATH. Package runners (uvx, npx, docker) need to know in
# addition how this machine reaches its registries and where it keeps its caches.
_PASSED_ON = frozenset(
    {
        *(
            "HOME",
            "LOGNAME",
            "PATH",
            "SHELL",
            "TERM",
            "USER",
            "LANG",
            "LANGUAGE",
            "TZ",
            "TZDIR",
            "TMPDIR",
            "TEMP",
            "TMP",
        ),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
        *("NODE_EXTRA_CA_CERTS", "NODE_USE_SYSTEM_CA", "DENO_CERT", "NVM_DIR", "VOLTA_HOME", "PYENV_ROOT"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    }
)
_PASSED_ON_PREFIXES = ("LC_", "XDG_", "UV_", "PIP_", "npm_config_", "NPM_CONFIG_", "DOCKER_")
_SECRET = re.compile(r"API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|_AUTH", re.IGNORECASE)
_INDEX_LOGIN = re.compile(r"UV_INDEX_\w+_(USERNAME|PASSWORD)")


@dataclass(frozen=True)
class ServerCommand:
    """A server's command line. `{workdir}` in it, or in a value of `env`, stands for a fresh folder per session."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> ServerCommand:
        """Split `text` as a POSIX shell would, without running one: no pipes, no redirection, no `$NAME`.

        Leading `NAME=value` words become environment variables of the server.

        Raises:
            ConfigError: nothing to run, an open quote, a URL, or a shell operator.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise ConfigError(
                f"server command {text!r} cannot be split into words: {str(error).lower()}; close the quote"
            ) from error
        env: dict[str, str] = {}
        while words and _ASSIGNMENT.match(words[0]):
            name, _, value = words.pop(0).partition("=")
            env[name] = value
        if not words or not words[0]:
            raise ConfigError(
                f"server command {text!r} names no program; wanted a command that speaks MCP on stdin and stdout, "
                "such as 'uvx mcp-server-time'"
            )
        if re.match(r"https?://", words[0]):
            raise ConfigError(
                f"server {words[0]!r} is a URL; wanted a command that speaks MCP on stdin and stdout, "
                "such as 'uvx mcp-server-time'"
            )
        operator = next((word for word in words if word in _SHELL_OPERATORS), None)
        if operator is not None:
            raise ConfigError(
                f"server command {text!r} contains {operator!r}, but no shell runs it; "
                f"write sh -c {shlex.quote(text)} if you want one"
            )
        if "\0" in text:
            raise ConfigError("the server command contains a NUL character; no program can be given one")
        return cls(tuple(words), env)

    @property
    def uses_workdir(self) -> bool:
        """Whether each session needs a folder of its own."""
        return any(WORKDIR in value for value in (*self.argv, *self.env.values()))

    def filled(self, workdir: Path | None) -> tuple[list[str], dict[str, str]]:
        """Command line and full environment of one session, `{workdir}` replaced and a leading `~/` expanded."""

        def fill(value: str) -> str:
            return value if workdir is None else value.replace(WORKDIR, str(workdir))

        argv = [fill(os.path.expanduser(word) if word.startswith("~/") else word) for word in self.argv]  # noqa: PTH111
        return argv, server_environment() | {name: fill(value) for name, value in self.env.items()}

    def __str__(self) -> str:
        return shlex.join([*(f"{name}={value}" for name, value in self.env.items()), *self.argv])


def server_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The part of `environ` (ours by default) that a server may see.

    What programs and package runners need to work here: paths, locale, TLS roots, proxies, caches and registries.
    Nothing that looks like a secret, except the logins of uv's package indexes, which exist for this purpose.
    """
    return {
        name: value
        for name, value in (os.environ if environ is None else environ).items()
        if (name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES))
        and (not _SECRET.search(name) or _INDEX_LOGIN.fullmatch(name))
    }
