"""Stream entries as Blocks and Markers, and the rejection of foreign entries."""

from __future__ import annotations

import pytest

from onewriter_broker.log.store.api import Block, Marker
from onewriter_broker.log.store.blocks import MalformedBlock, decode_entry
from onewriter_core.ids import Position
from onewriter_core.log_format.integers import pack_u32


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


def test_an_odd_number_of_fields_is_not_an_entry() -> None:
    with pytest.raises(MalformedBlock):
        decode_entry("the key", b"5-1", [b"n"])
