"""The one place that names adapters. Each is imported when it is asked for."""

from __future__ import annotations

import importlib
from typing import Any

from art_core.errors import ConfigError, MissingExtraError
from art_core.protocols import Engine, Trainer

_ENGINES = {"embedded": ("art_core.engines.embedded", "EmbeddedEngine", "EmbeddedEngineConfig", "train")}
_TRAINERS = {"native": ("art_core.trainers.native", "NativeTrainer", "NativeTrainerConfig", "train")}


def open_engine(name: str, **options: Any) -> Engine:
    """The engine called `name`, with `options` for its own config class.

    Raises:
        ConfigError: no such engine, or an option that it does not have.
        MissingExtraError: its libraries are not installed.
    """
    engine: Engine = _open("engine", _ENGINES, name, options)
    return engine


def open_trainer(name: str, **options: Any) -> Trainer:
    """The trainer called `name`, with `options` for its own config class. Raises what `open_engine` raises."""
    trainer: Trainer = _open("trainer", _TRAINERS, name, options)
    return trainer


def check_adapters(*, engine: str, trainer: str) -> None:
    """Refuse names of no adapter, without importing one.

    Raises:
        ConfigError: no such engine, or no such trainer.
    """
    _check("engine", _ENGINES, engine)
    _check("trainer", _TRAINERS, trainer)


def _check(seam: str, adapters: dict[str, tuple[str, str, str, str]], name: str) -> None:
    if name not in adapters:
        raise ConfigError(f"{seam} {name!r} is unknown; wanted one of {sorted(adapters)}")


def _open(seam: str, adapters: dict[str, tuple[str, str, str, str]], name: str, options: dict[str, Any]) -> Any:
    _check(seam, adapters, name)
    module_name, class_name, config_name, extra = adapters[name]
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "art_core":
            raise
        raise MissingExtraError(
            f"{seam} {name!r} needs {error.name!r}, which is not installed; run: pip install 'art-core[{extra}]'"
        ) from error
    config_class = getattr(module, config_name)
    unknown = sorted(set(options) - set(config_class.__dataclass_fields__))
    if unknown:
        raise ConfigError(
            f"{seam} {name!r} has no option {unknown[0]!r}; its options are {sorted(config_class.__dataclass_fields__)}"
        )
    return getattr(module, class_name)(config_class(**options))
