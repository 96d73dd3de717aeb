"""What can be written to a file: dicts that refuse anything else at assignment, and names of folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from math import isfinite
from typing import Any, Self

from art_core.errors import ConfigError, DataError

_HALF = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def json_value(value: Any, where: str) -> Any:
    """`value` as plain JSON data: tuples become lists, numbers of numpy or torch become Python's.

    Raises:
        DataError: something in it has no JSON form; the message names the path to it, which begins with `where`.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        if _HALF.search(value):
            raise DataError(f"{where} holds half of a surrogate pair, which is not text; wanted a whole character")
        return value
    if isinstance(value, float):
        if not isfinite(value):
            raise DataError(f"{where} is {value}; wanted a finite number, or None where there is none")
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise DataError(f"{where} has the key {key!r}; wanted keys that are strings")
        return {key: json_value(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item, f"{where}[{index}]") for index, item in enumerate(value)]
    number = _number(value)
    if number is not None:
        return json_value(number, where)
    raise DataError(
        f"{where} is a {type(value).__name__}, which has no JSON form; "
        "keep str(value) or another plain value that says what you need"
    )


def readable(text: str) -> str:
    """`text` with each half of a surrogate pair, which no file can hold, replaced by U+FFFD."""
    return _HALF.sub("\ufffd", text)


def is_number(value: Any, *, whole: bool = False) -> bool:
    """Whether `value` is a number that an option may have: no bool, and one that a float holds; with `whole`, an
    integer that 64 bits hold.
    """
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        return False
    return isinstance(value, float) or value.bit_length() < (64 if whole else 1024)


def plain_number(value: Any) -> Any:
    """`value`, or where it is a scalar of numpy or torch, the number of Python in it."""
    number = _number(value)
    return value if number is None else number


def check_callable(name: str, value: Any, wanted: str = "a function") -> None:
    """Refuse an argument that will be called and cannot be.

    Raises:
        ConfigError: `value` is none that can be called.
    """
    if not callable(value):
        raise ConfigError(f"{name} is a {type(value).__name__}; wanted {wanted}")


def metric_value(value: Any, where: str) -> bool | int | float:
    """`value` as a finite number; a Decimal, as sums of money are, as the nearest float.

    Raises:
        DataError: it is none.
    """
    if isinstance(value, Decimal) and not value.is_snan():
        value = float(value)
    number = value if isinstance(value, bool | int | float) else _number(value)
    if number is None:
        raise DataError(f"{where} is {value!r}; wanted a number or a bool; other values belong in metadata")
    try:
        finite = isfinite(number)
    except OverflowError:
        raise DataError(
            f"{where} is an integer of {int(number).bit_length()} bits; wanted one that a float can hold"
        ) from None
    if not finite:
        raise DataError(f"{where} is {number}; wanted a finite number: leave the metric out where there is none")
    return number


def _number(value: Any) -> bool | int | float | None:
    """The value of a scalar of numpy or torch; None for anything else."""
    if getattr(value, "shape", None) != () or not callable(getattr(value, "item", None)):
        return None
    item = value.item()
    return item if isinstance(item, bool | int | float) else None


class _Checked(dict[str, Any]):
    """A dict whose values pass `_check`, which may convert them."""

    _name = ""
    _check: Callable[[Any, str], Any]

    def __init__(self, items: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.update(items or {})

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise DataError(f"{self._name} has the key {key!r}; wanted keys that are strings")
        super().__setitem__(key, type(self)._check(value, f"{self._name}[{key!r}]"))

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]
        self.update(other)
        return self


class Metadata(_Checked):
    """JSON values by name."""

    _name = "metadata"
    _check = staticmethod(json_value)


class Metrics(_Checked):
    """Finite numbers and bools by name."""

    _name = "metrics"
    _check = staticmethod(metric_value)


def check_name(kind: str, name: str) -> None:
    """Refuse a name that could not be a folder's.

    Raises:
        ConfigError: it could not.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{kind} {name!r} cannot be used; wanted a letter or digit, then at most 99 letters, digits, '.', '_', '-'"
        )
