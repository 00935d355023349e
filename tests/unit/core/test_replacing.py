"""``replace`` of the topic machine's values does what that of ``dataclasses`` does."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from onewriter_core.replacing import replace
from onewriter_core.topic import model


@dataclass(frozen=True, slots=True)
class One:
    only: int


@dataclass(frozen=True, slots=True)
class Three:
    first: int
    second: str = "b"
    third: tuple[int, ...] = ()


def test_a_replaced_value_has_the_other_fields() -> None:
    assert replace(One(1), only=2) == One(2)
    before = Three(1, "x", (3,))
    assert replace(before, second="y") == Three(1, "y", (3,))
    assert replace(before) == before
    assert before == Three(1, "x", (3,))


def test_an_unknown_field_is_an_error() -> None:
    with pytest.raises(KeyError):
        replace(One(1), other=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "kind", [each for each in vars(model).values() if dataclasses.is_dataclass(each)]
)
def test_every_field_of_a_machine_s_value_is_an_argument_of_its_constructor(kind: type) -> None:
    assert all(field.init and not field.kw_only for field in dataclasses.fields(kind))
