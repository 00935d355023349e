"""The content of an entry: the operations of some writes, and their stamp.

An entry's **stamp** contains the writer's grant (``writer``), the number of the entry in that grant
(``sequence``), and the state's version before the entry (``base_version``). It distinguishes a resend from a new
entry, a hole after a refused entry from a trimmed log, and a write that is in the log from one that is not.

There are two framings. ``CompactFraming`` packs an entry into one message. ``MessageFraming`` packs each operation
into a message of its own and the stamp into properties, as PIP-137's sample does.
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
"""Length of the random name of a writer's grant."""

_MAGIC = b"OWS1"
_HEADER = struct.Struct(f"<4s{WRITER_BYTES}sQQII")
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Stamp:
    """The origin and order of an entry; see the module."""

    writer: bytes
    sequence: int
    base_version: int


@dataclass(frozen=True, slots=True)
class Envelope:
    """An entry's content. ``stamp`` is None for entries of other programs, which write no stamps."""

    stamp: Stamp | None
    writes: tuple[tuple[bytes, ...], ...]
    """The serialized operations of each write, in order."""


class Framing(Protocol):
    """Converts envelopes to messages and back."""

    @property
    def writes_max(self) -> int | None:
        """Largest number of writes in one entry; None: as many as fit."""
        ...

    @property
    def is_batched(self) -> bool:
        """Whether an entry may have several messages."""
        ...

    @property
    def operations_max(self) -> int:
        """Largest number of operations of one write."""
        ...

    @property
    def operation_bytes(self) -> int:
        """Largest overhead of an operation in an entry, in bytes."""
        ...

    def pack(self, envelope: Envelope) -> tuple[LogMessage, ...]:
        """Return the messages of one entry; none if the framing has no messages for such an envelope.

        Raises ValueError for an envelope that cannot be written.
        """
        ...

    def unpack(self, messages: Sequence[LogMessage]) -> Envelope:
        """Return the envelope of an entry. Raises ValueError for messages that ``pack`` does not produce."""
        ...


class CompactFraming:
    """One message per entry: a header, the lengths, the operations' bytes."""

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
    """One message per operation, one write per entry, and the stamp in a property of each message.

    An entry of another program counts as one write without a stamp. Entries that are missing before such an
    entry are not detected at that entry.
    """

    writes_max = 1
    is_batched = True
    operations_max = 10_000
    operation_bytes = 160
    """Size of the stamp and of the metadata of a message in a batch."""

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
