"""A server that runs elsewhere: `art serve` on another machine, or on this one."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from art_core.backends.http import HttpBackend
from art_core.errors import BackendError, ConfigError


def _has_port(parts: SplitResult) -> bool:
    """Whether the port, where there is one, is a number that a port can have."""
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False


class RemoteBackend(HttpBackend):
    """Talks to the `art serve` at `url`, such as `http://gpu-box:8400`.

    `timeout_s` bounds each request but registering and training, which take as long as they take.

    Raises:
        ConfigError: the URL is not one of HTTP.
    """

    def __init__(self, url: str, api_key: str | None = None, *, timeout_s: float = 60.0) -> None:
        super().__init__(timeout_s=timeout_s)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not _has_port(parts):
            raise ConfigError(f"url is {url!r}; wanted the root of an `art serve`, like 'http://gpu-box:8400'")
        if parts.username is not None or parts.query or parts.fragment:
            raise ConfigError(
                "the url holds a user, a query or a fragment; wanted the plain root of an `art serve`, like "
                "'http://gpu-box:8400', and the key as api_key"
            )
        if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key):
            raise ConfigError(
                "api_key holds what no header can (a line break, a space at an end, a letter beyond ASCII); "
                "give it as the server was given it, without the line end of a file"
            )
        self._url = url.rstrip("/").removesuffix("/v1")
        self._api_key = api_key

    @property
    def base_url(self) -> str:
        return self._url

    @property
    def api_key(self) -> str | None:
        return self._api_key

    async def _explained(self, problem: str) -> BackendError:
        return BackendError(
            f"no answer from {self._url}: {problem}. Check that `art serve` runs there, that host and port are right, "
            "and that no firewall or proxy is between; what the server has recorded and committed is kept"
        )
