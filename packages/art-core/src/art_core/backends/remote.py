"""A server that runs elsewhere: `art serve` on another machine, or on this one."""

from __future__ import annotations

from urllib.parse import urlsplit

from art_core.backends.http import HttpBackend
from art_core.errors import BackendError, ConfigError


class RemoteBackend(HttpBackend):
    """Talks to the `art serve` at `url`, such as `http://gpu-box:8400`.

    `timeout_s` bounds each request but registering and training, which take as long as they take.

    Raises:
        ConfigError: the URL is not one of HTTP.
    """

    def __init__(self, url: str, api_key: str | None = None, *, timeout_s: float = 60.0) -> None:
        super().__init__(timeout_s=timeout_s)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"url is {url!r}; wanted the root of an `art serve`, like 'http://gpu-box:8400'")
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
