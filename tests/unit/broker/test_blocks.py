"""The stored format of blocks: lengths, chain hash, and what a decoder makes of foreign entries."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onewriter_broker.log.store.api import Block, Marker
from onewriter_broker.log.store.blocks import (
    CHAIN_START,
    MalformedBlock,
    chain,
    decode_entry,
    pack_u32,
    unpack_u32,
)
from onewriter_core.ids import Position

U32 = st.integers(min_value=0, max_value=2**32 - 1)


@given(st.lists(U32))
def test_lengths_are_little_endian_u32_and_come_back(numbers: list[int]) -> None:
    packed = pack_u32(numbers)
    assert packed == struct.pack(f"<{len(numbers)}I", *numbers)
    assert unpack_u32(packed) == numbers


@pytest.mark.parametrize("number", [-1, 2**32])
def test_a_number_beyond_u32_is_refused(number: int) -> None:
    with pytest.raises(OverflowError):
        pack_u32([number])


def test_the_chain_hash_is_the_published_one() -> None:
    first = chain(CHAIN_START, Position(5, 1), [3, 2], b"abcde")
    second = chain(first, Position(5, 3), [1], b"f")
    assert first.hex() == "e97ca61a53cb8708386742a1aa7506d9"
    assert second.hex() == "3c3b4687543ec9926a1f8ae20fac370a"


def test_the_chain_hash_covers_all_that_identifies_a_block() -> None:
    links = {
        chain(CHAIN_START, Position(5, 1), [1, 2], b"abc"),
        chain(b"\x01" * 16, Position(5, 1), [1, 2], b"abc"),
        chain(CHAIN_START, Position(6, 1), [1, 2], b"abc"),
        chain(CHAIN_START, Position(5, 2), [1, 2], b"abc"),
        chain(CHAIN_START, Position(5, 1), [2, 1], b"abc"),
        chain(CHAIN_START, Position(5, 1), [1, 2], b"abd"),
    }
    assert len(links) == 6


def flat(**fields: bytes) -> list[bytes]:
    return [word for name, value in fields.items() for word in (name.encode(), value)]


GOOD = {"n": pack_u32([3]), "p": b"abc", "t": b"1700000000000", "h": bytes(16)}


def test_an_entry_becomes_a_block_and_unknown_fields_are_ignored() -> None:
    block = decode_entry("key", b"5-7", flat(**GOOD, c=pack_u32([40]), later=b"?"))
    assert block == Block(Position(5, 7), [3], b"abc", [40], 1_700_000_000_000, bytes(16))


def test_a_marker_becomes_a_marker() -> None:
    marker = decode_entry("key", b"5-0", flat(k=b"marker", owner=b"me", epoch=b"5"))
    assert marker == Marker(Position(5, 0), {"owner": "me", "epoch": "5"})


@pytest.mark.parametrize(
    ("stream_id", "fields"),
    [
        (b"5-1", {}),
        (b"5-1", {**GOOD, "n": b"\x03"}),
        (b"5-1", {**GOOD, "n": pack_u32([4])}),
        (b"5-1", {**GOOD, "t": b"noon"}),
        (b"no-id", GOOD),
    ],
    ids=["nothing", "half a length", "lengths do not fit", "no time", "no position"],
)
def test_a_foreign_entry_is_named_not_guessed_at(
    stream_id: bytes, fields: dict[str, bytes]
) -> None:
    with pytest.raises(MalformedBlock, match="the key"):
        decode_entry("the key", stream_id, flat(**fields))


def test_an_odd_number_of_words_is_no_entry() -> None:
    with pytest.raises(MalformedBlock):
        decode_entry("the key", b"5-1", [b"n"])
