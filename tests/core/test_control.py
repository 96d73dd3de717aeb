"""The bodies that client and server exchange."""

from __future__ import annotations

import dataclasses
import json

import pytest
from pydantic import BaseModel, ValidationError

from art_core.config import TrainConfig
from art_core.control import ExchangeList, GroupBody, LogRequest, LookupRequest, TrainRequest
from art_core.errors import ConfigError

OPTIONS = {"learning_rate": 1.0, "loss": "ppo", "scale_rewards": True}


@pytest.mark.parametrize(
    ("kind", "field", "rest"),
    [
        (TrainRequest, "groups", f', "options": {json.dumps(OPTIONS)}'),
        (LogRequest, "groups", ', "split": "val"'),
        (GroupBody, "trajectories", ', "scenario_id": ""'),
        (ExchangeList, "exchanges", ""),
        (LookupRequest, "ids", ""),
    ],
)
def test_a_list_is_refused_at_its_first_wrong_item(kind: type[BaseModel], field: str, rest: str) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(f'{{"{field}": [{", ".join(["3"] * 50)}]{rest}}}')
    assert [error["loc"][:2] for error in caught.value.errors()] == [(field, 0)]


def test_every_option_of_a_step_goes_to_the_server() -> None:
    config = TrainConfig(
        learning_rate=0.5,
        loss="cispo",
        clip_high=0.3,
        scale_rewards=False,
        roles=("a", "b"),
        kl_coef=0.1,
        kl_reference=2,
    )
    sent = TrainRequest(groups=[], options=dataclasses.asdict(config)).model_dump_json()
    assert TrainConfig.made(None, TrainRequest.model_validate_json(sent).options) == config
    with pytest.raises(ConfigError, match="train has no option 'lr'"):
        TrainConfig.made(None, TrainRequest(groups=[], options={"lr": 1}).options)
