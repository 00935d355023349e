"""How blocks and markers are written into stream entries, and the hash that chains blocks.

The format is public (docs/log-format.md) and has a version. Nothing here does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from onewriter_broker.log.store.api import Append, Block, Marker, StoredBlock
from onewriter_core.errors import OnewriterError
from onewriter_core.ids import NUMBER_MAX, Position
from onewriter_core.log_format import field_names
from onewriter_core.log_format.chain import CHAIN_BYTES
from onewriter_core.log_format.field_names import STATE_FIELDS_RESERVED
from onewriter_core.log_format.integers import unpack_u32
from onewriter_core.log_format.limits import PUBLISH_BLOCKS_MAX
from onewriter_core.publish_rights import APP_LENGTH_MAX

READ_BYTES = 1024 * 1024
"""Bytes that one read of blocks aims at: the reader asks for as many blocks as the largest one so far suggests."""

_PUBLISH = re.compile(rf"[A-Za-z0-9._:-]{{1,{APP_LENGTH_MAX}}}/(0|[1-9][0-9]{{0,15}})")


class MalformedBlock(OnewriterError, ValueError):
    """A stream entry that this format does not explain; the message names key and id."""


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
        if known.get(field_names.KIND) == field_names.MARKER_KIND:
            return Marker(
                position,
                {
                    name.decode(): value.decode()
                    for name, value in known.items()
                    if name != field_names.KIND
                },
            )
        counts = known.get(field_names.COUNTS)
        block = Block(
            position=position,
            lengths=unpack_u32(known[field_names.LENGTHS]),
            payload=known[field_names.PAYLOAD],
            counts=None if counts is None else unpack_u32(counts),
            time_ms=int(known[field_names.TIME]),
            chain=known[field_names.CHAIN],
            publish=known.get(field_names.PUBLISH, b"").decode(),
            commits=field_names.COMMITS in known,
            by=known.get(field_names.PUBLISHED_BY, b"").decode(),
        )
        if block.publish:
            publish_of(block.publish)
        if sum(block.lengths) != len(block.payload):
            raise ValueError("lengths do not add up to the payload")
    except (KeyError, ValueError) as error:
        raise MalformedBlock(f"{key} {stream_id!r}: {error!r}") from error
    return block
