"""ART's name for the chat model of the rollout."""

from __future__ import annotations

from typing import Any

from art_core import TrainableModel
from art_core.errors import ConfigError
from art_core.scope import innermost_scope
from art_langgraph.chat_model import ArtChatModel


def init_chat_model(
    model: TrainableModel | str | None = None,
    *,
    model_provider: str | None = None,
    configurable_fields: None = None,
    config_prefix: str | None = None,
    **options: Any,
) -> ArtChatModel:
    """The chat model of the rollout that this is called in, or of `model`.

    A string stands for the model of the rollout: its name, with or without the project, that of a step (`name@step`),
    or its base model. `options` are those of `ArtChatModel`. `ArtChatModel(model)`, built once, does the same for all
    rollouts.

    Raises:
        ConfigError: no rollout is around this and `model` is no `TrainableModel`; a string names another model; or an
            argument that only makes sense for models of other providers.
    """
    for name, value in (("configurable_fields", configurable_fields), ("config_prefix", config_prefix)):
        if value is not None:
            raise ConfigError(
                f"init_chat_model: {name} is not supported; call .configurable_fields(...) on what it returns"
            )
    if model_provider not in (None, "art", "openai"):
        raise ConfigError(
            f"model_provider is {model_provider!r}; a model that is trained has none: leave it out, or use "
            "langchain.chat_models.init_chat_model for a model of a provider"
        )
    if isinstance(model, TrainableModel):
        return ArtChatModel(model, **options)
    scope = innermost_scope()
    trained = scope.owner if scope is not None else None
    if not isinstance(trained, TrainableModel):
        raise ConfigError(
            "init_chat_model is called outside a rollout; call it inside one, or give it a TrainableModel: "
            "init_chat_model(model)"
        )
    if model is None:
        return ArtChatModel(trained, **options)
    name, at, step = model.partition("@")
    full = trained.get_inference_name()
    if name not in (full, trained.name, trained.base_model) or (at and not step.isdecimal()):
        raise ConfigError(
            f"init_chat_model got {model!r}, but the rollout is one of {full!r}; leave the name out, or use "
            "langchain.chat_models.init_chat_model for a model that is not trained"
        )
    return ArtChatModel(trained, **({"step": int(step)} if at else {}), **options)
