"""The hash that chains blocks, for brokers and for readers that have packed lengths."""

from __future__ import annotations

from onewriter_core.ids import Position
from onewriter_core.log_format.chain import CHAIN_START, chain, chain_packed
from onewriter_core.log_format.integers import pack_u32


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


def test_packed_lengths_give_the_same_hash() -> None:
    position, lengths = Position(5, 1), [3, 2]
    assert chain_packed(CHAIN_START, position, pack_u32(lengths), b"abcde") == chain(
        CHAIN_START, position, lengths, b"abcde"
    )
