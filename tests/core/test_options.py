"""The words with which options are refused, whatever they belong to."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from art_core.errors import ConfigError
from art_core.options import number, one_of, shown, validated, whole


@pytest.mark.parametrize(
    ("kind", "fitting", "others"),
    [
        (whole(1), [1, 2**63 - 1], [0, 1.0, True, "1", 2**63, None]),
        (whole(), [-(2**63) + 1, 0], [0.0, False, -(2**64)]),
        (number(0.0), [0, 0.5, 1e308], [-1e-9, float("inf"), float("nan"), 10**400, True, "0"]),
        (number(0.0, above=True), [1e-300], [0.0, 0, -1]),
        (number(0.0, 1.0), [0.0, 0.999], [1.0, 1, -0.1]),
        (one_of(("a", "b")), ["a"], ["c", "", ["a"], None]),
        (whole(2).or_none("no limit"), [None, 2], [1, "None"]),
    ],
)
def test_what_fits(kind: Any, fitting: list[Any], others: list[Any]) -> None:
    assert all(kind.fits(value) for value in fitting)
    assert not any(kind.fits(value) for value in others)


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    depth: int = Field(default=1, ge=1)


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: int = 1
    inner: Inner | None = None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"widht": 1}, "a box has no option 'widht': did you mean 'width'?; its options are ['inner', 'width']"),
        ({"inner": {"size": 1}}, "a box has no option 'inner.size'; its options are ['depth']"),
        ({"size": 1}, "a box has no option 'size': use width; its options are ['inner', 'width']"),
        (
            {"inner": {"depth": 0}},
            "a box, option 'inner.depth': Input should be greater than or equal to 1; got 0",
        ),
    ],
)
def test_a_record_names_the_option_wherever_it_is(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validated(Outer, values, of="a box", instead={"size": "use width"}.get)
    assert str(caught.value) == message


def test_long_values_are_shown_short() -> None:
    assert shown(10**5000) == "an integer of 16610 bits"
    assert shown([10**5000]) == "[an integer of 16610 bits]"
    assert shown("x" * 1000) == f"'{'x' * 37}...{'x' * 38}'"
    assert shown(list(range(100))) == "[0, 1, 2, 3, 4, 5, 6, 7, ...]"
    assert shown(-5) == "-5"
