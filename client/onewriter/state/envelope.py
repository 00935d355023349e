"""What stands in an entry of the log: the operations of some writes, and where they belong.

An entry's **stamp** places it: which grant of which writer (``writer``), the how-manieth entry of
that grant (``sequence``), and the state's version in front of it (``base_version``). It is what
tells a resend from a new entry, a hole in a refused pipeline from a log that was cut, and a write
that is in the log from one that is not.

Two framings: ``CompactFraming`` puts everything into one message; ``MessageFraming`` gives each
operation a message of its own and the stamp into properties, as PIP-137's sample has it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

from onewriter.state.log import LogMessage
from onewriter_core.property_names import STAMP_PROPERTY

WRITER_BYTES = 8
"""The length of what names a writer's grant: random, so that no two are the same."""

_MAGIC = b"OWS1"
_HEADER = struct.Struct(f"<4s{WRITER_BYTES}sQQII")
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where an entry belongs; see the module."""

    writer: bytes
    sequence: int
    base_version: int


@dataclass(frozen=True, slots=True)
class Envelope:
    """An entry's content. ``stamp`` is None for entries of others, who do not know of stamps."""

    stamp: Stamp | None
    writes: tuple[tuple[bytes, ...], ...]
    """The serialised operations of each write, in order."""


class Framing(Protocol):
    """How envelopes become messages."""

    @property
    def writes_max(self) -> int | None:
        """How many writes one entry may hold; None: as many as fit."""
        ...

    @property
    def is_batched(self) -> bool:
        """Whether an entry may have several messages."""
        ...

    @property
    def operations_max(self) -> int:
        """How many operations one write may have."""
        ...

    @property
    def operation_bytes(self) -> int:
        """What an operation takes in an entry beside its own bytes, at most."""
        ...

    def pack(self, envelope: Envelope) -> tuple[LogMessage, ...]:
        """The messages of one entry; none: such an envelope cannot be written."""
        ...

    def unpack(self, messages: Sequence[LogMessage]) -> Envelope:
        """The other way round. Raises ValueError for what nobody wrote like this."""
        ...


class CompactFraming:
    """All in one message: a header, the lengths, the operations' bytes."""

    writes_max = None
    is_batched = False
    operations_max = 1_000_000
    operation_bytes = _LENGTH_BYTES

    def pack(self, envelope: Envelope) -> tuple[LogMessage, ...]:
        stamp = envelope.stamp
        if stamp is None:
            raise ValueError("an entry of ours has a stamp")
        operations = [operation for write in envelope.writes for operation in write]
        counts = [len(write) for write in envelope.writes]
        header = _HEADER.pack(
            _MAGIC,
            stamp.writer,
            stamp.sequence,
            stamp.base_version,
            len(counts),
            len(operations),
        )
        numbers = [*counts, *map(len, operations)]
        lengths = struct.pack(f"<{len(numbers)}I", *numbers)
        return (LogMessage(b"".join((header, lengths, *operations))),)

    def unpack(self, messages: Sequence[LogMessage]) -> Envelope:
        if len(messages) != 1:
            raise ValueError("an entry of several messages")
        content = messages[0].content
        if len(content) < _HEADER.size or content[:4] != _MAGIC:
            raise ValueError("not an entry of shared state")
        _, writer, sequence, base_version, writes, operations = _HEADER.unpack_from(content)
        start = _HEADER.size + _LENGTH_BYTES * (writes + operations)
        if start > len(content):
            raise ValueError("an entry that is cut short")
        numbers = struct.unpack_from(f"<{writes + operations}I", content, _HEADER.size)
        bounds = list(accumulate(numbers[writes:], initial=start))
        if bounds[-1] != len(content) or sum(numbers[:writes]) != operations:
            raise ValueError("an entry whose lengths are not its own")
        parts = [content[begin:stop] for begin, stop in pairwise(bounds)]
        ends = list(accumulate(numbers[:writes], initial=0))
        stamp = Stamp(writer, sequence, base_version)
        return Envelope(stamp, tuple(tuple(parts[begin:stop]) for begin, stop in pairwise(ends)))


class MessageFraming:
    """A message per operation, one write per entry, the stamp in a property of each message.

    Entries of others are taken as one write each, without a stamp: a log that was cut in front of
    such an entry is not noticed at that entry.
    """

    writes_max = 1
    is_batched = True
    operations_max = 10_000
    operation_bytes = 160
    """The stamp, and the metadata of a message in a batch."""

    def pack(self, envelope: Envelope) -> tuple[LogMessage, ...]:
        stamp = envelope.stamp
        if stamp is None or len(envelope.writes) > 1:
            raise ValueError("an entry of ours has a stamp and one write")
        text = f"{stamp.writer.hex()}:{stamp.sequence}:{stamp.base_version}"
        properties = {STAMP_PROPERTY: text}
        return tuple(
            LogMessage(operation, properties) for write in envelope.writes for operation in write
        )

    def unpack(self, messages: Sequence[LogMessage]) -> Envelope:
        contents = tuple(message.content for message in messages)
        text = messages[0].properties.get(STAMP_PROPERTY) if messages else None
        if text is None:
            return Envelope(None, (contents,))
        writer, sequence, base_version = text.split(":")
        stamp = Stamp(bytes.fromhex(writer), int(sequence), int(base_version))
        return Envelope(stamp, (contents,))
