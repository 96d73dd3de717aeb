"""Options of supervised training."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from art_core.errors import ConfigError
from art_core.sft_config import SftConfig


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate is 0.0; wanted a finite number above 0"),
        ({"learning_rate": float("inf")}, "learning_rate is inf"),
        ({"learning_rate": True}, "learning_rate is True"),
        ({"epochs": 0}, "epochs is 0; wanted a whole number, 1 or more"),
        ({"batch_size": "auto"}, "batch_size is 'auto'; wanted a whole number, 1 or more"),
        ({"save_every": 1.5}, "save_every is 1.5"),
        ({"max_row_tokens": 0}, "max_row_tokens is 0"),
        ({"seed": None}, "seed is None"),
        ({"shuffle": 1}, "shuffle is 1; wanted True or False"),
        ({"warmup_ratio": 1.0}, "warmup_ratio is 1.0; wanted a number from 0 and below 1"),
        ({"schedule": "step"}, "schedule is 'step'; wanted one of 'constant', 'linear', 'cosine'"),
        ({"schedule": []}, "schedule is []"),
        ({"schedule": np.array(["linear"])}, "schedule is array(['linear']"),
        ({"learning_rate": 10**400}, "learning_rate is an integer of 1329 bits"),
        ({"epochs": 10**30}, "epochs is an integer of 100 bits; wanted a whole number, 1 or more"),
        ({"max_row_tokens": 1}, "max_row_tokens is 1; wanted a whole number, 2 or more, or None"),
        ({"shuffle": False, "seed": 3}, "seed=3 has no effect with shuffle False"),
        ({"overlong": "skip"}, "overlong is 'skip'; wanted one of 'refuse', 'cut', 'drop'"),
        ({"train_on": "first"}, "train_on is 'first'; wanted one of 'all', 'last'"),
        ({"peak_lr": 1.0}, "train_sft has no option 'peak_lr': use learning_rate; its options are"),
        ({"schedule_type": "linear"}, "no option 'schedule_type': use schedule"),
        ({"lerning_rate": 1.0}, "no option 'lerning_rate': did you mean 'learning_rate'"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        SftConfig.made(None, options)


def test_options_go_before_the_config() -> None:
    made = SftConfig.made(SftConfig(epochs=3, seed=4), {"epochs": 2})
    assert (made.epochs, made.seed, made.learning_rate) == (2, 4, 2e-4)
    with pytest.raises(ConfigError, match="config is a dict; wanted SftConfig"):
        SftConfig.made({}, {})  # type: ignore[arg-type]


def test_what_the_result_depends_on() -> None:
    assert SftConfig(save_every=1, restart=True).identity == SftConfig().identity
    assert SftConfig(seed=1).identity != SftConfig().identity
