"""The learning rate of each update. Pure."""

from __future__ import annotations

import math

from art_core.sft_config import SftConfig


def num_updates(num_examples: int, config: SftConfig) -> int:
    """Updates of all epochs."""
    return config.epochs * -(-num_examples // config.batch_size)


def learning_rates(total: int, config: SftConfig) -> list[float]:
    """One learning rate for each of `total` updates. All are above 0, and the highest is `config.learning_rate`.

    With W updates of warm-up, update w < W has (w + 1) / (W + 1) of it. Of the N - W updates that follow, update n has
    (N - W - n) / (N - W) of it ("linear"), (1 + cos(pi n / (N - W))) / 2 ("cosine"), or all of it ("constant").
    """
    num_warmup = min(round(config.warmup_ratio * total), total - 1)
    num_rest = total - num_warmup
    shares = [(update + 1) / (num_warmup + 1) for update in range(num_warmup)]
    for update in range(num_rest):
        if config.schedule == "linear":
            shares.append((num_rest - update) / num_rest)
        elif config.schedule == "cosine":
            shares.append((1.0 + math.cos(math.pi * update / num_rest)) / 2.0)
        else:
            shares.append(1.0)
    return [config.learning_rate * share for share in shares]
