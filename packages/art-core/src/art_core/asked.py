"""A model that is asked and not trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from art_core.capturing import NO_KEY
from art_core.errors import ConfigError
from art_core.moving import missing_method, refuse_unknown

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

CLIENT_TIMEOUT_S = 1200.0
"""How long a client waits for an answer, also while the server trains."""


class Model:
    """A model that is asked and not trained, behind any OpenAI-compatible endpoint.

    `config` is kept for the caller, and has no effect here.
    """

    def __init__(
        self,
        *,
        name: str,
        project: str = "",
        inference_base_url: str | None = None,
        inference_api_key: str | None = None,
        inference_model_name: str | None = None,
        config: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        refuse_unknown("Model", unknown, Model)
        self.name = name
        self.project = project
        self.config = dict(config or {})
        self._base_url = inference_base_url
        self._api_key = inference_api_key
        self._inference_name = inference_model_name or name

    def __getattr__(self, name: str) -> Any:
        raise missing_method("Model", name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, project={self.project!r})"

    @property
    def inference_base_url(self) -> str:
        """What an OpenAI client takes as `base_url`."""
        if self._base_url is None:
            raise ConfigError(f"{self!r} has no address; give it inference_base_url='https://.../v1'")
        return self._base_url

    @property
    def inference_api_key(self) -> str:
        """What an OpenAI client takes as `api_key`."""
        return self._api_key or NO_KEY

    def get_inference_name(self, step: int | None = None) -> str:
        """What a request says as `model`.

        Raises:
            ConfigError: a step is asked for; a model that is not trained has none.
        """
        if step is not None:
            raise ConfigError(f"{self!r} is not trained and has no steps; leave step out, or use a TrainableModel")
        return self._inference_name

    def openai_client(self) -> AsyncOpenAI:
        """A client of this model's endpoint."""
        from openai import AsyncOpenAI

        return AsyncOpenAI(base_url=self.inference_base_url, api_key=self.inference_api_key, timeout=CLIENT_TIMEOUT_S)

    def sync_openai_client(self) -> OpenAI:
        """A client of this model's endpoint for code that is not asynchronous."""
        from openai import OpenAI

        return OpenAI(base_url=self.inference_base_url, api_key=self.inference_api_key, timeout=CLIENT_TIMEOUT_S)
