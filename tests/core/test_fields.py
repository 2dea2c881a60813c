"""The checker of dataclass fields: types, choices and ranges, each error one line that names field and value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from vitreous.core.errors import VitreousError
from vitreous.core.fields import Between, check_fields, from_json


@dataclass(frozen=True)
class Inner:
    units: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Outer:
    count: Annotated[int | None, Between(1)] = None
    rate: Annotated[float, Between(0, 0.9)] = 0.5
    size: Annotated[tuple[int, int], Between(1, 1000)] = (8, 8)
    kind: Literal["plain", "gated"] = "plain"
    flag: bool = False
    inner: Inner | None = None

    def __post_init__(self) -> None:
        check_fields(self, lambda name, value: f"{name}={value}")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(count=0), "count=0 must be at least 1"),
        (dict(count=True), "count=True must be a whole number"),
        (dict(count=1.0), "count=1.0 must be a whole number"),
        (dict(rate=0.91), "rate=0.91 must lie between 0 and 0.9"),
        (dict(rate=float("nan")), "rate=nan must be a finite number"),
        (dict(rate=10**400), "must be a finite number"),
        (dict(rate=True), "rate=True must be a finite number"),
        (dict(size=(8, 8, 8)), "size=(8, 8, 8) must be height and width"),
        (dict(size=(8, 1001)), "size=(8, 1001) must lie between 1 and 1,000"),
        (dict(kind="gate"), "kind='gate' must be one of plain, gated; did you mean 'gated'?"),
        (dict(kind=3), "kind=3 must be plain, gated"),
        (dict(flag=1), "flag=1 must be true or false"),
        (dict(inner=3), "inner=3 must be a Inner"),
    ],
)
def test_a_wrong_value_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(VitreousError) as error:
        Outer(**fields)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_right_values_pass() -> None:
    assert Outer(count=3, rate=0, size=(1, 1000), kind="gated", flag=True, inner=Inner((2, 3))).rate == 0


def test_json_gives_tuples_and_nested_dataclasses() -> None:
    made = from_json(Outer, {"size": [4, 6], "inner": {"units": [3, 4]}}, "field")
    assert (made.size, made.inner) == ((4, 6), Inner((3, 4)))
    with pytest.raises(VitreousError, match="unknown field 'siez'; did you mean 'size'"):
        from_json(Outer, {"siez": 3}, "field")
