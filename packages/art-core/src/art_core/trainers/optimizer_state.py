"""The optimiser of a checkpoint on disk: AdamW's moments, the step count and the random state, as safetensors."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from art_core.errors import AdapterMismatchError, StorageError

OPTIMIZER_FILE = "optimizer.safetensors"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
_STEP_COUNT, _RNG_STATE = "step_count", "rng_state"


@dataclass(frozen=True)
class OptimizerState:
    """`moments[parameter][kind]`, with no entry for a parameter that has never been updated."""

    step_count: int
    moments: Mapping[str, Mapping[str, Tensor]]
    rng_state: Tensor


class RandomState:
    """torch's random numbers on the CPU for one trainer: from `seed` on, whatever else the process draws.

    torch begins with a seed of its own in each process, so that what is drawn there differs after a restart. There is
    one state for the whole process: trainers of several models take turns.
    """

    _turn = threading.Lock()

    def __init__(self, seed: int) -> None:
        self.state = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def used(self) -> Iterator[None]:
        """What is drawn inside is drawn from this state, which stays as it was where an error leaves it."""
        with self._turn, torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.state)
            yield
            self.state = torch.get_rng_state()


def write_optimizer(
    folder: Path,
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    *,
    step_count: int,
    random: RandomState,
) -> None:
    """Store the state of `optimizer`, an AdamW over `parameters`, and `random` in `folder`."""
    tensors: dict[str, Tensor] = {
        f"{name}.{kind}": optimizer.state[parameter][kind].cpu().contiguous()
        for name, parameter in parameters.items()
        if optimizer.state.get(parameter)
        for kind in _MOMENTS
    }
    tensors[_STEP_COUNT] = torch.tensor(step_count)
    tensors[_RNG_STATE] = random.state
    save_file(tensors, folder / OPTIMIZER_FILE)


def read_optimizer(folder: Path, parameters: Mapping[str, nn.Parameter]) -> OptimizerState:
    """The state stored in `folder`, complete and fitting `parameters`.

    Raises:
        StorageError: the file is missing or damaged. Going on without it would restart the optimiser in silence.
        AdapterMismatchError: the file belongs to other parameters.
    """
    path = folder / OPTIMIZER_FILE
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"{path}: no readable optimiser state ({error}); training cannot go on from this checkpoint, "
            "use an earlier one"
        ) from error
    step_count, rng_state = tensors.pop(_STEP_COUNT, None), tensors.pop(_RNG_STATE, None)
    if step_count is None or rng_state is None:
        raise StorageError(f"{path}: holds no {_STEP_COUNT} or no {_RNG_STATE}; it was not written by this trainer")
    moments: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, kind = key.rpartition(".")
        parameter = parameters.get(name)
        if parameter is None or kind not in _MOMENTS or (kind != "step" and tensor.shape != parameter.shape):
            raise AdapterMismatchError(
                f"{path}: {key!r} of shape {tuple(tensor.shape)} fits no parameter of this adapter; "
                "the checkpoint was written with another model or LoRA configuration"
            )
        moments.setdefault(name, {})[kind] = tensor
    incomplete = [name for name, kinds in moments.items() if set(kinds) != set(_MOMENTS)]
    if incomplete:
        raise StorageError(f"{path}: {incomplete[0]!r} lacks one of {_MOMENTS}; use an earlier checkpoint")
    return OptimizerState(int(step_count), moments, rng_state)


def forget_moments(folder: Path) -> None:
    """Make the stored optimiser one that has never updated anything. Step count and random state stay."""
    path = folder / OPTIMIZER_FILE
    try:
        tensors = load_file(path)
        save_file({key: tensor for key, tensor in tensors.items() if key in (_STEP_COUNT, _RNG_STATE)}, path)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{path}: the optimiser state cannot be rewritten ({error})") from error


def apply_optimizer(
    state: OptimizerState,
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    random: RandomState,
) -> None:
    """Put `state` in the place of whatever `optimizer` and `random` hold."""
    optimizer.state.clear()
    for name, kinds in state.moments.items():
        parameter = parameters[name]
        entry: dict[str, Any] = {
            kind: tensor if kind == "step" else tensor.to(parameter.device) for kind, tensor in kinds.items()
        }
        optimizer.state[parameter] = entry
    random.state = state.rng_state
