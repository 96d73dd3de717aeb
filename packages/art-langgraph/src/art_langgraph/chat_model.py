"""`ArtChatModel`: a model that is trained, as a LangChain chat model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import httpx2
import openai
from langchain_core.caches import BaseCache
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput, ModelProfile
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.utils import secret_from_env
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_openai import ChatOpenAI
from pydantic import Field, PrivateAttr, SecretStr, ValidationError, model_validator

from art_core import TrainableModel
from art_core.errors import ConfigError, did_you_mean
from art_langgraph.answers import Joined, calls_apart, chat_result, extras, response_format, with_parsed, without_calls
from art_langgraph.bound import BoundModel
from art_langgraph.connection import PLACEHOLDER, AsyncPlaceTransport, OfModel, OfUrl, Place, PlaceTransport
from art_langgraph.convert import to_wire
from art_langgraph.others import saw_history, watched_stream

TIMEOUT_S = 1200.0
"""How long a call waits for an answer, also while the server trains."""

_KEY_VARIABLE = "ART_API_KEY"
_OF_TRANSPORT = ("http_client", "http_async_client", "http_socket_options", "openai_proxy")
_OF_SERVER = ("openai_api_base", "base_url", "openai_api_key", "api_key")
_OF_OPENAI = (
    *("openai_organization", "organization", "tiktoken_model_name", "reasoning", "include", "truncation"),
    *("context_management", "use_previous_response_id"),
)
_CLIENTS = ("client", "async_client", "root_client", "root_async_client")


class ArtChatModel(ChatOpenAI):
    """A chat model that is trained: `ChatOpenAI`, with its calls made to the server of `model`.

    Build it once, anywhere, also before `model.register`, and share it between threads, event loops and rollouts. A
    call made inside a rollout (`art_langgraph.rollout`, `art_core.capture`) is recorded there; any other is answered
    and not recorded. Each call is answered by the newest weights, or by those of `step`. `role` names the part that
    this model plays in a graph with several; it travels in the `metadata` of each request, beside
    what `extra_body={"metadata": {...}}` says.

    Without a `TrainableModel`, give `base_url=` (that of a server, or of a trajectory), `model="project/name"`, and
    `api_key=`, which is otherwise read from ART_API_KEY. `options` are those of `ChatOpenAI`, as far as they concern
    Chat Completions. There is no cache unless one is given, and none inside a rollout.

    Messages are sent by `art_langgraph.convert.to_wire`. `response_metadata` of an answer has, streamed or not,
    `token_ids` and `token_logprobs` of what was sampled, `policy_version`, and `exchange_id`, under which the call is
    recorded; LangChain's `stream_events(version="v3")`, a beta, keeps ids of the last part only, the record has all.
    Reasoning is in `additional_kwargs["reasoning_content"]`, and is sent back with the message.

    Serialized by LangChain or pickled, it becomes one of a `base_url`, that of the rollout it is pickled in, without
    its key; one that is not registered is pickled with its model.

    Raises:
        ConfigError: an option that does not exist or does not go with a model that is trained; or at a call: the model
            is not registered, or a cache would answer inside a rollout.
    """

    trainable: TrainableModel | None = Field(default=None, exclude=True, repr=False)
    role: str = ""
    step: int | None = Field(default=None, ge=0)

    cache: BaseCache | bool | None = Field(default=False, exclude=True)
    openai_api_key: SecretStr | None = Field(
        alias="api_key", default_factory=secret_from_env(_KEY_VARIABLE, default=None)
    )
    request_timeout: Any = Field(default=TIMEOUT_S, alias="timeout")
    stream_chunk_timeout: float | None = None
    stream_usage: bool | None = True
    use_responses_api: bool | None = False

    _place: Place = PrivateAttr()

    def __init__(self, model: TrainableModel | str | None = None, /, **options: Any) -> None:
        named = options.pop("model", None)
        if model is not None and named is not None:
            raise ConfigError(
                f"ArtChatModel got {model!r} and model={named!r}; wanted one of them: a TrainableModel, or a name and "
                "base_url="
            )
        model = named if model is None else model
        if isinstance(model, TrainableModel):
            options["trainable"] = model
        elif model is not None:
            options["model_name"] = model
        trainable = options.get("trainable")
        _check_options(options, of_model=trainable is not None)
        if trainable is not None:
            options = {"model_name": f"{trainable.project}/{trainable.name}", **options, "openai_api_key": None}
        try:
            super().__init__(**options)
        except ValidationError as error:  # pydantic's wrapping around what a check of ours says
            cause = error.errors()[0].get("ctx", {}).get("error")
            if isinstance(cause, ConfigError):
                raise cause from None
            raise

    @model_validator(mode="before")
    @classmethod
    def validate_temperature(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Leave the temperature as it is, whatever model of OpenAI's the name resembles."""
        return values

    @model_validator(mode="after")
    def validate_environment(self) -> Self:
        """Make the clients."""
        if self.n is not None and (self.n < 1 or (self.n > 1 and self.streaming)):
            raise ConfigError(f"n is {self.n}; wanted 1 or more, and 1 for what is streamed")
        self._place = self._where()
        shared: dict[str, Any] = {
            "base_url": f"{PLACEHOLDER}/v1",
            "api_key": "put in by the transport",
            "timeout": self.request_timeout,
            "default_headers": self.default_headers,
            "default_query": self.default_query,
            "max_retries": openai.DEFAULT_MAX_RETRIES if self.max_retries is None else self.max_retries,
        }
        client = httpx2.Client(transport=PlaceTransport(self._place), timeout=TIMEOUT_S)
        async_client = httpx2.AsyncClient(transport=AsyncPlaceTransport(self._place), timeout=TIMEOUT_S)
        self.root_client = openai.OpenAI(http_client=client, **shared)
        self.root_async_client = openai.AsyncOpenAI(http_client=async_client, **shared)
        for made in (self.root_client, self.root_async_client):
            made.organization = made.project = None  # of the user's account at OpenAI, from the environment
        self.client = self.root_client.chat.completions
        self.async_client = self.root_async_client.chat.completions
        return self

    def _where(self) -> Place:
        if self.trainable is not None:
            return OfModel(self.trainable)
        if not self.openai_api_base or "model_name" not in self.model_fields_set:
            if "model_name" in self.model_fields_set:
                raise ConfigError(
                    f"ArtChatModel got the name {self.model_name!r} without base_url=; wanted "
                    "art.TrainableModel(name=..., project=..., base_model=...), or base_url= of a server too"
                )
            raise ConfigError(
                "ArtChatModel got no model; wanted a TrainableModel, or base_url= of a server and model='project/name'"
            )
        key = self.openai_api_key.get_secret_value() if self.openai_api_key else ""
        return OfUrl(self.openai_api_base, self.model_name, key)

    # What is sent

    def generate(self, *args: Any, **kwargs: Any) -> LLMResult:
        self._check_cache()
        return super().generate(*args, **kwargs)

    async def agenerate(self, *args: Any, **kwargs: Any) -> LLMResult:
        self._check_cache()
        return await super().agenerate(*args, **kwargs)

    def _check_cache(self) -> None:
        if self.cache and self._place.records():
            raise ConfigError(
                "this ArtChatModel has a cache, and is called inside a rollout: a cached answer is not sampled and "
                "cannot be trained on; leave cache= out, or use another ArtChatModel outside rollouts"
            )

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: dict[str, Any] | str | bool | None = None,
        **options: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """As `ChatOpenAI`. Bound once more, as agents do, what is returned keeps its options and gets the new tools."""
        bound: Any = super().bind_tools(tools, tool_choice=tool_choice, **options)
        return BoundModel(bound=bound.bound, kwargs=bound.kwargs, config=bound.config)

    def bind(self, **options: Any) -> BoundModel:  # type: ignore[override]  # LangChain names a private class
        """With `options` in each call, also of an agent, which binds its tools to what this returns."""
        return BoundModel(bound=self, kwargs=options, config={})

    def with_config(self, config: RunnableConfig | None = None, **options: Any) -> BoundModel:
        """With `config` in each call, also of an agent, which binds its tools to what this returns."""
        bound: Any = super().with_config(config, **options)
        return BoundModel(bound=bound.bound, kwargs=bound.kwargs, config=bound.config)

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The body of a request; every way to call the model comes by here."""
        payload = {**self._default_params, **kwargs, "model": self._name_of_call(kwargs)}
        if stop is not None:
            payload["stop"] = stop
        messages = self._convert_input(input_).to_messages()
        saw_history(messages)
        payload["messages"] = to_wire(messages)
        if "max_tokens" in payload:
            payload["max_completion_tokens"] = payload.pop("max_tokens")
        body = dict(payload.pop("extra_body", None) or {})
        metadata = {**(payload.pop("metadata", None) or {}), **(body.pop("metadata", None) or {})}
        if self.role or metadata:
            body["metadata"] = {**({"role": self.role} if self.role else {}), **metadata}
        if (wanted := payload.pop("response_format", None)) is not None:
            # As part of the body, so that the client only sends it: its own parsing throws answers away that were cut
            # off, and keeps no token ids of a stream.
            body["response_format"] = response_format(wanted)
        if body:
            payload["extra_body"] = body
        return payload

    def _name_of_call(self, kwargs: Mapping[str, Any]) -> str:
        name = kwargs.get("model")
        if name is not None and name != self.model_name:
            return str(name)
        name = self._place.inference_name()
        return name if self.step is None else f"{name}@{self.step}"

    # What comes back

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        result = super()._generate(messages, stop, run_manager, **kwargs)
        return with_parsed(result, kwargs.get("response_format"))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        result = await super()._agenerate(messages, stop, run_manager, **kwargs)
        return with_parsed(result, kwargs.get("response_format"))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        self._check_streamed(kwargs)
        joined = Joined(kwargs.get("response_format"))
        with watched_stream():
            for chunk in joined.ended(map(calls_apart(), super()._stream(messages, stop, None, **kwargs))):
                if run_manager:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk, logprobs=_logprobs(chunk))
                yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        self._check_streamed(kwargs)
        joined, apart = Joined(kwargs.get("response_format")), calls_apart()

        async def told(chunk: ChatGenerationChunk) -> ChatGenerationChunk:
            if run_manager:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk, logprobs=_logprobs(chunk))
            return chunk

        with watched_stream():
            async for chunk in super()._astream(messages, stop, None, **kwargs):
                yield await told(joined.take(apart(chunk)))
            if (last := joined.last()) is not None:
                yield await told(last)

    def _check_streamed(self, kwargs: Mapping[str, Any]) -> None:
        n = kwargs.get("n", self.n)
        if n is not None and n != 1:
            raise ConfigError(
                f"n is {n}, but LangChain joins what is streamed into one message; wanted 1, or no stream"
            )

    def _create_chat_result(self, response: Any, generation_info: dict[str, Any] | None = None) -> ChatResult:
        data = response.model_dump(warnings=False) if isinstance(response, openai.BaseModel) else response
        if not isinstance(data, dict) or not data.get("choices"):
            return super()._create_chat_result(response, generation_info)  # which says what is wrong
        return chat_result(data, super()._create_chat_result(without_calls(data), generation_info))

    def _convert_chunk_to_generation_chunk(
        self, chunk: dict[str, Any], default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        made = super()._convert_chunk_to_generation_chunk(chunk, default_chunk_class, base_generation_info)
        if made is not None and chunk.get("choices") and isinstance(made.message, AIMessageChunk):
            choice = chunk["choices"][0]
            extras(made.message, choice, choice["delta"])
        return made

    # Tokens

    def get_token_ids(self, text: str) -> list[int]:
        """The token ids of `text`, from the model's server."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return list(self._tokenized({"prompt": text})["tokens"]) if text else []

    def get_num_tokens_from_messages(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool] | None = None,
        **_: Any,
    ) -> int:
        """Tokens of the prompt that a call with `messages` and `tools` has: exact, from the model's server.

        Where an assistant's message is the last, its turn counts as whole. The request is synchronous. Nothing is
        sampled or recorded.
        """
        body: dict[str, Any] = {"messages": to_wire(messages), "continue_final_message": False}
        if tools:
            body["tools"] = [convert_to_openai_tool(tool) for tool in tools]
        return int(self._tokenized(body)["count"]) if messages else 0

    def _tokenized(self, body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self.root_client.with_options(base_url=PLACEHOLDER).post(
            "/tokenize", body={"model": self._name_of_call({}), **body}, cast_to=dict[str, Any]
        )
        return answer

    # What it is to LangChain

    @property
    def _llm_type(self) -> str:
        return "art-chat"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return LangSmithParams(**{**super()._get_ls_params(stop, **kwargs), "ls_provider": "art"})

    def _resolve_model_profile(self) -> ModelProfile | None:
        return {"text_inputs": True, "text_outputs": True, "tool_calling": True, "structured_output": True}

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        return ["art_langgraph", "chat_model"]

    def to_json(self) -> Any:
        made: Any = super().to_json()
        if self.trainable is not None:
            try:
                served = self._place.served()
            except ConfigError:
                return made  # it cannot be made again from this: there is no address yet
            made["kwargs"] |= {"openai_api_base": f"{served.root}/v1", "model_name": self._place.inference_name()}
        made["kwargs"]["openai_api_key"] = {"lc": 1, "type": "secret", "id": [_KEY_VARIABLE]}
        return made

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        yield None, self.model_name
        if self.trainable is None:
            yield "base_url", self.openai_api_base
        for name in ("role", "step", "temperature", "max_tokens"):
            if getattr(self, name) not in (None, ""):
                yield name, getattr(self, name)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002
        """A copy with clients of its own, so that what `update` says about the server has an effect. Always shallow."""
        return type(self)(**{**self._options(), **(update or {})})

    def __copy__(self) -> Self:
        return self.model_copy()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self.model_copy()

    def __reduce__(self) -> tuple[Any, ...]:
        options = {
            name: value for name, value in self._options().items() if name not in ("callbacks", "openai_api_key")
        }
        trainable = self.trainable
        if trainable is not None and trainable.is_registered:
            del options["trainable"]
            options["openai_api_base"] = trainable.inference_base_url
            options["model_name"] = trainable.get_inference_name()
        return _made_again, (type(self), options)

    def _options(self) -> dict[str, Any]:
        """What an equal one is made of."""
        return {name: getattr(self, name) for name in self.model_fields_set if name not in (*_CLIENTS, "profile")}


def _made_again(kind: type[ArtChatModel], options: dict[str, Any]) -> ArtChatModel:
    return kind(**options)


def _logprobs(chunk: ChatGenerationChunk) -> Any:
    return (chunk.generation_info or {}).get("logprobs")


def _check_options(options: Mapping[str, Any], *, of_model: bool) -> None:
    fields = ArtChatModel.model_fields
    known = {*fields, *(field.alias for field in fields.values() if field.alias)}
    for name, value in options.items():
        if name not in known:
            meant = did_you_mean(name, known)
            raise ConfigError(
                f"ArtChatModel has no option {name!r}{meant or ';'} what a request says besides goes into extra_body"
            )
        if value is None or value is False:
            continue
        if name in _OF_TRANSPORT:
            raise ConfigError(
                f"{name} is given, but calls go over connections that lead each to its rollout; leave it out"
            )
        if name in _OF_OPENAI:
            raise ConfigError(f"{name} is given, which is for OpenAI's own service or its Responses API; leave it out")
        if of_model and name in _OF_SERVER:
            raise ConfigError(f"{name} is given beside a TrainableModel, which knows its server; leave it out")
    if options.get("use_responses_api") or options.get("output_version") == "responses/v1":
        raise ConfigError("models that are trained answer Chat Completions only; leave the Responses API out")
