"""What options can be, and how they are refused: one set of words for all configurations. Pure."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from art_core.errors import ConfigError, unknown_option
from art_core.values import is_number, plain_number

Config = TypeVar("Config")
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Kind:
    """What an option can be: a test of its value, and the words for it."""

    fits: Callable[[Any], bool]
    wanted: str

    def or_none(self, meaning: str) -> Kind:
        """None as well, which stands for `meaning`."""
        return Kind(lambda value: value is None or self.fits(value), f"{self.wanted}, or None for {meaning}")


def whole(least: int | None = None) -> Kind:
    """An integer that 64 bits hold, `least` or more."""
    words = "a whole number" if least is None else f"a whole number, {least} or more"
    return Kind(lambda value: is_number(value, whole=True) and (least is None or value >= least), words)


def number(low: float, high: float = math.inf, *, above: bool = False, why: str = "") -> Kind:
    """A finite number, `low` or more (with `above`, more than that) and less than `high`; `why` adds to the words."""

    def fits(value: Any) -> bool:
        return is_number(value) and low <= value < high and not (above and value == low)

    if high < math.inf:
        words = f"a number {'above' if above else 'from'} {low:g} and below {high:g}"
    else:
        words = f"a finite number above {low:g}" if above else f"a finite number, {low:g} or more"
    return Kind(fits, words + why)


def flag() -> Kind:
    """True or False."""
    return Kind(lambda value: isinstance(value, bool), "True or False")


def one_of(words: Any) -> Kind:
    """One of some strings, given as a `Literal` or a collection."""
    known = tuple(words) if isinstance(words, Collection) else get_args(words)
    return Kind(lambda value: isinstance(value, str) and value in known, "one of " + ", ".join(map(repr, known)))


def check_options(config: Any, kinds: Mapping[str, Kind]) -> None:
    """Refuse values of a frozen dataclass that are not of their kind; numpy's and torch's numbers become Python's.

    Raises:
        ConfigError: the first of `kinds` that does not fit.
    """
    for field in dataclasses.fields(config):
        object.__setattr__(config, field.name, plain_number(getattr(config, field.name)))
    for name, kind in kinds.items():
        check_value(name, getattr(config, name), kind)


def check_value(name: str, value: Any, kind: Kind) -> None:
    """Refuse the argument `name` where its `value` is not of `kind`.

    Raises:
        ConfigError: it is not.
    """
    if not kind.fits(value):
        raise ConfigError(f"{name} is {shown(value)}; wanted {kind.wanted}")


def made_from(
    cls: type[Config], config: Any, options: Mapping[str, Any], *, of: str, instead: Callable[[str], str | None]
) -> Config:
    """`config`, or the defaults of the dataclass `cls`, with `options` in place of its values.

    `of` is whose options they are, and `instead` says what to write instead of an option that there is not.

    Raises:
        ConfigError: `config` is something else, an option does not exist, or a value is impossible.
    """
    if config is not None and not isinstance(config, cls):
        raise ConfigError(f"config is a {type(config).__name__}; wanted {cls.__name__}, or options by their names")
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for name in sorted(set(options) - set(names)):
        raise unknown_option(of, name, names, instead=instead(name))
    return dataclasses.replace(config or cls(), **options)  # type: ignore[type-var]


def validated(cls: type[Model], values: Any, *, of: str, instead: Callable[[str], str | None] | None = None) -> Model:
    """The pydantic model `cls` with these `values`.

    Raises:
        ConfigError: an option that `of` does not have, at any depth, or an impossible value.
    """
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        path = [str(part) for part in problem["loc"]]
        name = ".".join(path)
        if problem["type"] == "extra_forbidden":
            raise unknown_option(
                of, name, _fields_at(cls, path[:-1]), instead=instead(name) if instead else None
            ) from error
        what = f", option {name!r}" if name else ""
        raise ConfigError(f"{of}{what}: {problem['msg']}; got {shown(problem['input'])}") from error


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = 8

    def repr_int(self, value: int, level: int) -> str:  # noqa: ARG002 - the signature is reprlib's
        return f"an integer of {value.bit_length()} bits" if value.bit_length() > 64 else repr(value)


def shown(value: Any) -> str:
    """`value` in a message: its repr, shortened where it is long."""
    return " ".join(_Short().repr(value).split())


def _fields_at(cls: type[BaseModel], path: list[str]) -> Collection[str]:
    """The names of the options where `path` leads to, from `cls` through the models in it."""
    for part in path:
        field = cls.model_fields.get(part)
        kinds = (*get_args(field.annotation), field.annotation) if field else ()
        nested = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not nested:
            break
        cls = nested[0]
    return list(cls.model_fields)
