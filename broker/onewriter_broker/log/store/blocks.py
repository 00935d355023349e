"""How blocks and markers are written into stream entries, and the hash that chains blocks.

The format is public (docs/log-format.md) and has a version. Nothing here does I/O.
"""

from __future__ import annotations

import hashlib
import re
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence

import google_crc32c

from onewriter_broker.log.store.api import OPEN_PUBLISH, Append, Block, Marker, StoredBlock
from onewriter_core.errors import OnewriterError
from onewriter_core.ids import NUMBER_MAX, Position
from onewriter_core.publish_rights import APP_LENGTH_MAX

FORMAT_VERSION = 1
"""Written into each bucket's record; a reader refuses a version it does not know."""

BLOCK_ENTRIES_MAX = 512
"""Entries in one block."""

BLOCK_BYTES_MAX = 256 * 1024
"""Payload bytes of a block of several entries; one larger entry may stand alone."""

CALL_BYTES_MAX = 1024 * 1024
"""Payload bytes of one append call; one larger block may stand alone."""

READ_BYTES = 1024 * 1024
"""Bytes that one read of blocks aims at: the reader asks for as many blocks as the largest one so far suggests."""

PUBLISH_BLOCKS_MAX = 2_560
"""Blocks of one atomic publish; the state names where they stand while it is open. More are not made of
256 MiB in 262,144 entries: 512 blocks may be full by entries, and of the others two that follow one
another have more than 256 KiB."""

CHAIN_BYTES = 16
CHAIN_START = bytes(CHAIN_BYTES)
"""What the first block of a ledger chains to."""

MARKER_FIELDS_RESERVED = frozenset({"k", "owner", "gen", "aborted"})
"""Marker fields that the store sets itself."""

STATE_FIELDS_RESERVED = frozenset({"tok", "ledger", OPEN_PUBLISH})
"""State fields that only fences and appends change."""

_PUBLISH = re.compile(rf"[A-Za-z0-9._:-]{{1,{APP_LENGTH_MAX}}}/(0|[1-9][0-9]{{0,15}})")

_CHAIN_HEAD = struct.Struct("<QQ")
_NUMBER = struct.Struct("<I")
_U32 = next(code for code in "IL" if array(code).itemsize == 4)
_SWAP = sys.byteorder == "big"


class MalformedBlock(OnewriterError, ValueError):
    """A stream entry that this format does not explain; the message names key and id."""


def pack_u32(numbers: Sequence[int]) -> bytes:
    """Numbers as consecutive unsigned 32-bit little-endian integers; OverflowError beyond that."""
    if len(numbers) == 1 and 0 <= numbers[0] < 2**32:
        return _NUMBER.pack(numbers[0])  # the usual unbatched block, at a third of the cost
    packed = array(_U32, numbers)
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def unpack_u32(data: bytes) -> list[int]:
    """The inverse of pack_u32; ValueError when the size is not a multiple of four."""
    numbers = array(_U32)
    numbers.frombytes(data)
    if _SWAP:
        numbers.byteswap()
    return numbers.tolist()


def chain(previous: bytes, position: Position, lengths: Sequence[int], payload: bytes) -> bytes:
    """The hash of a block that follows the block hashed as ``previous`` in the same ledger.

    BLAKE2b-128 over previous, ledger and entry (u64), the lengths (u32) and the payload's CRC-32C
    (u32), all little-endian. It shows a missing, foreign or reordered block to whoever reads the
    log later. It is no signature.
    """
    digest = hashlib.blake2b(previous, digest_size=CHAIN_BYTES)
    digest.update(_CHAIN_HEAD.pack(*position))
    digest.update(pack_u32(lengths))
    digest.update(_NUMBER.pack(google_crc32c.value(payload)))
    return digest.digest()


def check_block(block: Block, token: str) -> None:
    """Raise ValueError for a block that no reader could make sense of under that token."""
    ledger, entry = block.position
    if token.partition(":")[0] != str(ledger):
        raise ValueError(f"block {block.position} does not belong to token {token!r}")
    if entry < 1 or not block.lengths or block.last.entry > NUMBER_MAX:
        raise ValueError(f"block {block.position} has no entries or an impossible position")
    if sum(block.lengths) != len(block.payload):
        raise ValueError(f"block {block.position}: lengths do not add up to the payload")
    if block.counts is not None and len(block.counts) != len(block.lengths):
        raise ValueError(f"block {block.position}: one message count per entry is needed")
    if len(block.chain) != CHAIN_BYTES:
        raise ValueError(f"block {block.position}: a chain hash has {CHAIN_BYTES} bytes")


def check_append(item: Append) -> None:
    """Raise ValueError for an append that no reader could make sense of."""
    block = item.block
    check_block(block, item.token)
    if not block.publish and (block.commits or item.opens or block.by):
        raise ValueError(f"block {block.position} is not part of a publish")
    if block.publish and _PUBLISH.fullmatch(block.publish) is None:
        raise ValueError(f"block {block.position}: {block.publish!r} names no publish")
    if item.opens and (
        item.opens[0] != block.position
        or len({position.ledger for position in item.opens}) != 1
        or len(item.opens) > PUBLISH_BLOCKS_MAX
        or (len(item.opens) == 1) != block.commits
    ):
        raise ValueError(f"block {block.position} does not open {item.opens}")


def publish_of(name: str) -> tuple[str, int]:
    """App and version out of a block's ``publish``."""
    app, _, version = name.rpartition("/")
    return app, int(version)


def check_together(appends: Sequence[Append]) -> None:
    """Raise ValueError for blocks that no one call could store all or none of."""
    for item in appends:
        check_append(item)
    if any(item.block.publish for item in appends):
        raise ValueError("no part of an atomic publish is stored together with others")
    if len({item.binding for item in appends}) != 1:
        raise ValueError("blocks of one bucket only can be stored together")
    if len({item.topic for item in appends}) != len(appends):
        raise ValueError("together each log gets one block")


def check_fields(fields: Mapping[str, str], reserved: frozenset[str]) -> None:
    """Raise ValueError when a caller's field has a name that the store keeps for itself."""
    taken = reserved & fields.keys()
    if taken:
        raise ValueError(f"field names kept by the store: {', '.join(sorted(taken))}")


def check_state_changes(fields: Mapping[str, str], remove: Sequence[str]) -> None:
    """Raise ValueError when a caller would set or remove what only a fence changes."""
    check_fields(fields, STATE_FIELDS_RESERVED)
    check_fields(dict.fromkeys(remove, ""), STATE_FIELDS_RESERVED)


def decode_entry(key: str, stream_id: bytes, fields: Sequence[bytes]) -> StoredBlock:
    """A stream entry as the server returns it (id, flat field list) as a Block or a Marker.

    Raises MalformedBlock. Fields that this version does not know are ignored.
    """
    try:
        position = Position.parse(stream_id.decode())
        known = dict(zip(fields[::2], fields[1::2], strict=True))
        if known.get(b"k") == b"marker":
            return Marker(
                position,
                {name.decode(): value.decode() for name, value in known.items() if name != b"k"},
            )
        counts = known.get(b"c")
        block = Block(
            position=position,
            lengths=unpack_u32(known[b"n"]),
            payload=known[b"p"],
            counts=None if counts is None else unpack_u32(counts),
            time_ms=int(known[b"t"]),
            chain=known[b"h"],
            publish=known.get(b"x", b"").decode(),
            commits=b"xc" in known,
            by=known.get(b"by", b"").decode(),
        )
        if block.publish:
            publish_of(block.publish)
        if sum(block.lengths) != len(block.payload):
            raise ValueError("lengths do not add up to the payload")
    except (KeyError, ValueError) as error:
        raise MalformedBlock(f"{key} {stream_id!r}: {error!r}") from error
    return block
