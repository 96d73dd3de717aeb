"""A misspelt option is refused with what was meant, wherever options are taken: none is kept and ignored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import art_core as art
from art_core.config import TrainConfig
from art_core.errors import ConfigError, did_you_mean
from art_core.hosting.opening import Parts
from art_core.hosting.options import HostOptions, ModelOptions
from art_core.registry import open_engine, open_judge, open_trainer
from art_core.testing import InProcessBackend

TRAIN = [name for name in TrainConfig.__dataclass_fields__ if len(name) > 4]


@pytest.mark.parametrize(
    ("misspelt", "told"),
    [
        ("learning_rat", "'learning_rat': did you mean 'learning_rate'?"),
        ("lerning_rate", "'lerning_rate': did you mean 'learning_rate'?"),
        ("max_rows_token", "'max_rows_token': did you mean 'max_row_tokens'?"),
        ("scale_reward", "'scale_reward': did you mean 'scale_rewards'?"),
        ("epoch", "'epoch': did you mean 'epochs'?"),
        ("max_seq_length", "'max_seq_length': use max_row_tokens"),
        ("mask_truncated_completions", "'mask_truncated_completions': use truncated='mask'"),
        ("num_iterations", "'num_iterations': use epochs"),
        ("zzz", "'zzz'; its options are ['aggregation', 'baseline', "),
    ],
)
def test_an_option_of_a_step(misspelt: str, told: str) -> None:
    options: dict[str, Any] = {misspelt: 1}
    with pytest.raises(ConfigError) as caught:
        TrainConfig.made(None, options)
    assert str(caught.value).startswith(f"train has no option {told}")
    assert "its options are ['aggregation', " in str(caught.value)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        TrainConfig(**options)


@given(st.sampled_from(TRAIN), st.data())
def test_every_option_is_recognised_with_a_letter_missing(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(name) - 1))
    misspelt = name[:at] + name[at + 1 :]
    if misspelt not in TrainConfig.__dataclass_fields__:
        assert did_you_mean(misspelt, TrainConfig.__dataclass_fields__) == f": did you mean {name!r}?"


def _of_a_models_config(**options: Any) -> None:
    HostOptions().of_model(options)


def _of_a_host(**options: Any) -> None:
    HostOptions.made(options, of="the server")


def _of_an_engine(**options: Any) -> None:
    open_engine("embedded", model_folder=Path("nowhere"), **options)


def _of_a_trainer(**options: Any) -> None:
    open_trainer("native", model_folder=Path("nowhere"), base_model="m", seed=0, **options)


@pytest.mark.parametrize(
    ("take", "misspelt", "told"),
    [
        (_of_a_models_config, "num_thread", "a model's config has no option 'num_thread': did you mean 'num_threads'?"),
        (_of_a_models_config, "engine_arg", "a model's config has no option 'engine_arg': did you mean 'engine_args'?"),
        (_of_a_models_config, "max_seq_length", "'max_seq_length': use engine_args={'max_context_tokens': ...}"),
        (_of_a_models_config, "peft_args", "'peft_args': use lora={'rank': ..."),
        (_of_a_host, "max_wait", "the server has no option 'max_wait': did you mean 'max_wait_s'?"),
        (
            _of_an_engine,
            "max_concurency",
            "engine 'embedded' has no option 'max_concurency': did you mean 'max_concurr",
        ),
        (_of_an_engine, "max_seq_length", "engine 'embedded' has no option 'max_seq_length': use max_context_tokens"),
        (_of_an_engine, "max_model_len", "'max_model_len': use max_context_tokens"),
        (_of_a_trainer, "grad_clipp", "trainer 'native' has no option 'grad_clipp': did you mean 'grad_clip'?"),
        (_of_a_trainer, "micro_batch_token", "'micro_batch_token': did you mean 'micro_batch_tokens'?"),
        (_of_a_trainer, "learning_rate", "trainer 'native' has no option 'learning_rate': give it to model.train"),
        (_of_a_trainer, "max_seq_length", "'max_seq_length': use max_row_tokens in model.train"),
        (lambda **o: open_judge("ruler", judge="openai/m", **o), "pases", "'pases': did you mean 'passes'?"),
        (lambda **o: art.Model(name="m", **o), "inference_model", "did you mean 'inference_model_name'?"),
        (
            lambda **o: art.TrainableModel(name="m", project="p", base_model="b", **o),
            "configs",
            "TrainableModel has no argument 'configs': did you mean 'config'?",
        ),
        (lambda **o: art.iterate_dataset([1], **o), "group_per_step", "did you mean 'groups_per_step'?"),
    ],
)
def test_options_of_everything_else(take: Callable[..., Any], misspelt: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        take(**{misspelt: 1})
    assert told in str(caught.value)


async def test_an_option_of_gathering() -> None:
    for gather in (art.gather_trajectories, art.gather_trajectory_groups):
        with pytest.raises(ConfigError, match=r"has no argument 'timeout': did you mean 'timeout_s'\?"):
            await gather([], timeout=1)


async def test_a_registered_models_config_is_refused_by_the_server() -> None:
    async with InProcessBackend() as backend:
        model = art.TrainableModel(name="m", project="p", base_model="b", config={"max_seq_length": 64})
        with pytest.raises(
            ConfigError, match=r"no option 'max_seq_length': use engine_args={'max_context_tokens': ...}"
        ):
            await model.register(backend)


async def test_an_option_of_the_adapter() -> None:
    for misspelt, told in (("rnak", r"did you mean 'rank'\?"), ("r", "use rank"), ("lora_alpha", "use alpha")):
        options = ModelOptions(lora={misspelt: 4})
        parts = Parts(source=cast(Any, None), options=options, engine="embedded", trainer="native")
        with pytest.raises(ConfigError, match=f"lora has no option '{misspelt}': {told}"):
            await parts._lora()


def test_options_are_listed_whole() -> None:
    with pytest.raises(ConfigError) as caught:
        ModelOptions.made({"sede": 1}, of="a model's config")
    assert str(caught.value).endswith(f"its options are {sorted(ModelOptions.model_fields)}")
