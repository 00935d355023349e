"""The queue priority that a producer asks for: the wire field, the property, and invalid values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onewriter_broker.connection.properties import parse_priority
from onewriter_core.property_names import PRIORITY_PROPERTY


@pytest.mark.parametrize(
    ("properties", "wire", "value", "is_noted"),
    [
        ({}, None, None, False),
        ({"other": "1"}, None, None, False),
        ({PRIORITY_PROPERTY: "7"}, None, 7, False),
        ({PRIORITY_PROPERTY: "+7"}, None, 7, False),
        ({PRIORITY_PROPERTY: "-2147483648"}, None, -(2**31), False),
        ({PRIORITY_PROPERTY: "2147483647"}, None, 2**31 - 1, False),
        ({PRIORITY_PROPERTY: "2147483648"}, None, None, True),
        ({PRIORITY_PROPERTY: ""}, None, None, True),
        ({PRIORITY_PROPERTY: " 7"}, None, None, True),
        ({PRIORITY_PROPERTY: "7.0"}, None, None, True),
        ({PRIORITY_PROPERTY: "٣"}, None, None, True),
        ({PRIORITY_PROPERTY: "9" * 10_000}, None, None, True),
        ({PRIORITY_PROPERTY: "7"}, 3, 3, False),
        ({PRIORITY_PROPERTY: "nonsense"}, 0, 0, False),
        ({PRIORITY_PROPERTY: "7"}, 2**31, None, True),
        ({}, -(2**63), None, True),
    ],
)
def test_the_wire_field_wins_and_an_invalid_priority_is_logged(
    properties: dict[str, str], wire: int | None, value: int | None, is_noted: bool
) -> None:
    request = parse_priority(properties, wire)
    assert request.value == value
    assert (request.note is not None) == is_noted


@given(text=st.text(), wire=st.none() | st.integers())
def test_no_priority_is_beyond_32_bits_and_no_note_beyond_a_line(
    text: str, wire: int | None
) -> None:
    value, note = parse_priority({PRIORITY_PROPERTY: text}, wire)
    assert value is None or -(2**31) <= value < 2**31
    assert note is None or note.isprintable()
