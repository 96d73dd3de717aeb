"""`ArtChatModel`: a model that is trained, as a LangChain chat model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import httpx2
import openai
from langchain_core.caches import BaseCache
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.utils import secret_from_env
from langchain_openai import ChatOpenAI
from pydantic import Field, PrivateAttr, SecretStr, model_validator

from art_core import TrainableModel
from art_core.errors import ConfigError
from art_langgraph.connection import PLACEHOLDER, AsyncPlaceTransport, OfModel, OfUrl, Place, PlaceTransport, records

TIMEOUT_S = 1200.0
"""How long a call waits for an answer, also while the server trains."""


class ArtChatModel(ChatOpenAI):
    """A chat model that is trained: `ChatOpenAI`, with its calls made to the server of `model`.

    Build it once, anywhere, also before `model.register`, and share it between threads, event loops and rollouts. A
    call made inside a rollout (`art_langgraph.rollout`, `art_core.capture`) is recorded there; any other is answered
    and not recorded. Each call is answered by the newest weights, or by those of `step`. `role` names the part that
    this model plays in a graph with several; it is kept on each recorded call.

    Without a `TrainableModel`, give `base_url=` (that of a server, or of a trajectory) and `model="project/name"`.
    `options` are those of `ChatOpenAI`, as far as they concern Chat Completions.

    Raises:
        ConfigError: an option that does not exist or does not go with a model that is trained; or at a call: the model
            is not registered, or a cache would answer inside a rollout.
    """

    trainable: TrainableModel | None = Field(default=None, exclude=True, repr=False)
    role: str = ""
    step: int | None = None

    cache: BaseCache | bool | None = Field(default=False, exclude=True)
    logprobs: bool | None = True
    openai_api_key: SecretStr | None = Field(  # type: ignore[assignment]
        alias="api_key", default_factory=secret_from_env("ART_API_KEY", default=None)
    )
    request_timeout: Any = Field(default=TIMEOUT_S, alias="timeout")
    stream_chunk_timeout: float | None = None
    stream_usage: bool | None = True
    use_responses_api: bool | None = False

    _place: Place = PrivateAttr()

    def __init__(self, model: TrainableModel | str | None = None, **options: Any) -> None:
        if isinstance(model, TrainableModel):
            options["trainable"] = model
        elif model is not None:
            options["model_name"] = model
        trainable = options.get("trainable")
        if trainable is not None:
            options.setdefault("model_name", f"{trainable.project}/{trainable.name}")
        super().__init__(**options)

    @model_validator(mode="after")
    def validate_environment(self) -> Self:
        """Make the clients."""
        if self.trainable is not None:
            self._place = OfModel(self.trainable)
        elif self.openai_api_base:
            key = self.openai_api_key.get_secret_value() if self.openai_api_key else ""
            self._place = OfUrl(self.openai_api_base, self.model_name, key)
        else:
            raise ConfigError(
                "ArtChatModel got no model; wanted a TrainableModel, or base_url= of a server and model='project/name'"
            )
        shared: dict[str, Any] = {
            "base_url": f"{PLACEHOLDER}/v1",
            "api_key": "the transport puts it in",
            "timeout": self.request_timeout,
            "default_headers": self.default_headers,
            "default_query": self.default_query,
            "max_retries": openai.DEFAULT_MAX_RETRIES if self.max_retries is None else self.max_retries,
        }
        client = httpx2.Client(transport=PlaceTransport(self._place), timeout=TIMEOUT_S)
        async_client = httpx2.AsyncClient(transport=AsyncPlaceTransport(self._place), timeout=TIMEOUT_S)
        self.root_client = openai.OpenAI(http_client=client, **shared)
        self.root_async_client = openai.AsyncOpenAI(http_client=async_client, **shared)
        self.client = self.root_client.chat.completions
        self.async_client = self.root_async_client.chat.completions
        return self

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The body of a request; every way to call the model comes by here."""
        served = self._place.served()
        if self.cache and records(served):
            raise ConfigError(
                "this ArtChatModel has a cache, and the call is made inside a rollout: a cached answer is not sampled "
                "and cannot be trained on; leave cache out"
            )
        payload: dict[str, Any] = super()._get_request_payload(input_, stop=stop, **kwargs)
        if payload["model"] == self.model_name:
            payload["model"] = self._place.inference_name() + ("" if self.step is None else f"@{self.step}")
        if self.role:
            payload["metadata"] = {"role": self.role, **(payload.get("metadata") or {})}
        return payload

    def _create_chat_result(self, response: Any, generation_info: dict[str, Any] | None = None) -> ChatResult:
        result = super()._create_chat_result(response, generation_info)
        data = response if isinstance(response, dict) else response.model_dump(warnings=False)
        for generation, choice in zip(result.generations, data["choices"], strict=True):
            generation.message.response_metadata |= dict(_extras(choice))
        return result

    def _convert_chunk_to_generation_chunk(
        self, chunk: dict[str, Any], default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        made = super()._convert_chunk_to_generation_chunk(chunk, default_chunk_class, base_generation_info)
        if made is not None and chunk.get("choices") and isinstance(made.message, AIMessageChunk):
            made.message.response_metadata |= dict(_extras(chunk["choices"][0]))
        return made


def _extras(choice: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fields of this server: of a stream, ids come with the tokens and the others with the last chunk."""
    for name in ("token_ids", "exchange_id", "policy_version", "malformed_tool_calls"):
        if choice.get(name) is not None:
            yield name, choice[name]
