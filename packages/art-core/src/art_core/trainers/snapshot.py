"""The state of a trainer in memory, to be put back when a step of several updates fails half-way."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Snapshot:
    """The values of `parameters` as they are now and, with an `optimizer`, what it keeps of them."""

    def __init__(self, parameters: Iterable[nn.Parameter], optimizer: torch.optim.Optimizer | None = None) -> None:
        self._values = [(parameter, parameter.detach().clone()) for parameter in parameters]
        self._optimizer = optimizer
        self._state: list[tuple[nn.Parameter, dict[str, Any]]] = []
        if optimizer is not None:
            self._state = [
                (parameter, {kind: value.clone() for kind, value in optimizer.state[parameter].items()})
                for parameter, _ in self._values
                if parameter in optimizer.state
            ]

    @torch.no_grad()
    def put_back(self) -> None:
        """Make parameters and optimiser what they were."""
        for parameter, value in self._values:
            parameter.copy_(value)
        if self._optimizer is not None:
            self._optimizer.state.clear()
            self._optimizer.state.update(self._state)

    @torch.no_grad()
    def change(self) -> float:
        """Euclidean norm of what the parameters have changed by since."""
        squares: list[Tensor] = [(parameter - value).double().square().sum() for parameter, value in self._values]
        return math.sqrt(sum(float(square) for square in squares))
