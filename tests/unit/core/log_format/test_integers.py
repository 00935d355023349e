"""Lists of u32 as blocks store them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onewriter_core.log_format.integers import pack_u32, unpack_u32

U32 = st.integers(min_value=0, max_value=2**32 - 1)


@given(st.lists(U32))
def test_lengths_are_little_endian_u32_and_survive_a_round_trip(numbers: list[int]) -> None:
    packed = pack_u32(numbers)
    assert packed == struct.pack(f"<{len(numbers)}I", *numbers)
    assert unpack_u32(packed) == numbers


@pytest.mark.parametrize("number", [-1, 2**32])
def test_a_number_beyond_u32_is_refused(number: int) -> None:
    with pytest.raises(OverflowError):
        pack_u32([number])
