"""The bodies that client and server exchange."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel, ValidationError

from art_core.control import ExchangeList, GroupBody, LogRequest, LookupRequest, TrainRequest

OPTIONS = {"learning_rate": 1.0, "loss": "ppo", "clip_low": 0.2, "clip_high": 0.2, "scale_rewards": True}


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
