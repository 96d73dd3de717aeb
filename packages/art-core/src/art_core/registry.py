"""The one place that names adapters. Each is imported when it is asked for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from types import ModuleType
from typing import Any, TypeVar

from art_core.errors import ConfigError, MissingExtraError, unknown_option
from art_core.moving import hint
from art_core.protocols import Engine, Judge, Trainer

T = TypeVar("T")

# Module, class, config class, and what to install for it.
_ENGINES = {"embedded": ("art_core.engines.embedded", "EmbeddedEngine", "EmbeddedEngineConfig", "art-core[train]")}
_TRAINERS = {"native": ("art_core.trainers.native", "NativeTrainer", "NativeTrainerConfig", "art-core[train]")}
# Module, class, and what to install for it: judges are packages of their own, and take their options themselves.
_JUDGES = {"ruler": ("art_ruler", "Ruler", "art-ruler")}


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
    _adapter("engine", _ENGINES, engine)
    _adapter("trainer", _TRAINERS, trainer)


def open_judge(name: str, **options: Any) -> Judge:
    """The judge called `name`, with `options` for its own class: `open_judge("ruler", judge="openai/gpt-5-mini")`.

    Raises:
        ConfigError: no such judge, or an option that it does not have, needs, or cannot take.
        MissingExtraError: its package is not installed.
    """
    module_name, class_name, install = _adapter("judge", _JUDGES, name)
    judge_class = getattr(_imported("judge", name, module_name, install), class_name)
    parameters = inspect.signature(judge_class).parameters
    _check_options("judge", name, options, parameters)
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise ConfigError(f"judge {name!r} needs the option {missing[0]!r}")
    try:
        judge: Judge = judge_class(**options)
    except ValueError as error:
        raise ConfigError(f"judge {name!r}: {error}") from error
    return judge


def _open(seam: str, adapters: dict[str, tuple[str, str, str, str]], name: str, options: dict[str, Any]) -> Any:
    module_name, class_name, config_name, install = _adapter(seam, adapters, name)
    module = _imported(seam, name, module_name, install)
    config_class = getattr(module, config_name)
    _check_options(seam, name, options, config_class.__dataclass_fields__)
    return getattr(module, class_name)(config_class(**options))


def _adapter(seam: str, adapters: dict[str, T], name: str) -> T:
    if name not in adapters:
        raise ConfigError(f"{seam} {name!r} is unknown; wanted one of {sorted(adapters)}")
    return adapters[name]


def _imported(seam: str, name: str, module_name: str, install: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "art_core":
            raise
        raise MissingExtraError(
            f"{seam} {name!r} needs {error.name!r}, which is not installed; run: pip install '{install}'"
        ) from error


def _check_options(seam: str, name: str, given: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise unknown_option(f"{seam} {name!r}", unknown[0], known, instead=hint(seam, unknown[0]))
