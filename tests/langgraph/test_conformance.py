"""LangChain's own suites for chat models, against the real server over a real socket."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

import art_core as art
from art_langgraph import ArtChatModel
from tests.langgraph.sensible import SensibleBackend, served

pytestmark = [
    pytest.mark.slow,
    # Of the suite, not of what it tests: it has tools that take `input`, and a schema of pydantic 1.
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore:Received a Pydantic BaseModel V1 schema"),
]

URL = {"base_url": "http://localhost:8400/v1", "model": "shop/clerk"}


@pytest.fixture(scope="module")
def model_of_server() -> Iterator[art.TrainableModel]:
    with served(SensibleBackend(api_key="sk-very-secret")) as model:
        yield model


class TestUnit(ChatModelUnitTests):
    """By the address of a server, where all that a `ChatOpenAI` is made of is allowed."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ArtChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return dict(URL)

    @property
    def supports_json_mode(self) -> bool:
        return True

    @pytest.fixture(autouse=True)
    def _listed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The suite loads with `allowed_objects="all"`, which means a list that LangChain keeps of its own packages.

        Whoever loads an `ArtChatModel` names it: `allowed_objects=[ArtChatModel]`, as the test of serialization does.
        """
        load = importlib.import_module("langchain_core.load.load")
        listed = {*load._get_default_allowed_class_paths("all"), tuple(ArtChatModel.lc_id())}
        monkeypatch.setitem(load._default_class_paths_cache, "all", listed)

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return {"ART_API_KEY": "key"}, dict(URL), {"openai_api_key": "key", "openai_api_base": URL["base_url"]}


class TestIntegration(ChatModelIntegrationTests):
    """With a `TrainableModel`. Images, audio, video and PDF do not apply: the models that are trained here read text.

    Nor do recorded cassettes (`enable_vcr_tests`), which only serve a benchmark: the server is here.
    """

    @pytest.fixture(autouse=True)
    def _server(self, model_of_server: art.TrainableModel) -> None:
        self._model = model_of_server

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ArtChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": self._model}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str | None:
        return "shop/clerk@0"
