"""Splits one direction of a connection into bytes that pass unchanged and whole frames of chosen commands.

Every Pulsar client and broker writes the type of a command first, so the type is one byte at a fixed place, or two. A frame
of another type is not buffered: its bytes pass as they arrive.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Final

from onewriter_core.errors import ProtocolError

PASSES: Final = -1
"""The type of bytes that pass unchanged; they may be parts of frames, or many frames."""

_LENGTHS = struct.Struct(">II")
_TYPE_OFFSET = 8
_HEAD_LENGTH = _TYPE_OFFSET + 2
_TYPE_TAG = 0x08
_TWO_BYTES = 0x80
"""From this value on, a type needs two bytes. None needs more."""


class Splitter:
    """``wanted``: the types of commands whose frames are returned whole; each is below 128.

    ``wanted_length_max`` bounds such a frame without its length field, and with it the bytes that are kept here. Both can
    be changed between two frames.
    """

    def __init__(self, wanted: Collection[int], wanted_length_max: int) -> None:
        self.wanted = frozenset(wanted)
        self.wanted_length_max = wanted_length_max
        self._held = bytearray()
        self.left = 0
        """Bytes of a frame that passes which have not arrived. 0: what was returned so far ends with a frame."""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The parts of ``data``, with their types. Raises ProtocolError for what is not a frame."""
        if self._held:
            self._held += data
            data = bytes(self._held)
            self._held.clear()
        parts: list[tuple[int, bytes]] = []
        passed, length = 0, len(data)
        at = min(self.left, length)
        self.left -= at
        while length - at >= _HEAD_LENGTH:
            total, size = _LENGTHS.unpack_from(data, at)
            if size < 2 or size > total - 4 or data[at + _TYPE_OFFSET] != _TYPE_TAG:
                raise ProtocolError("bytes that are not a frame")
            kind = data[at + _TYPE_OFFSET + 1]
            if kind >= _TWO_BYTES:
                if length - at == _HEAD_LENGTH:
                    break
                if not 0 < data[at + _HEAD_LENGTH] < _TWO_BYTES:
                    # For example, a small type that is written in more bytes than it needs.
                    raise ProtocolError("a command of an unknown type")
            end = at + 4 + total
            if kind in self.wanted:
                if total > self.wanted_length_max:
                    raise ProtocolError(
                        f"a command of {total} bytes; at most {self.wanted_length_max} are accepted"
                    )
                if end > length:
                    break
                if passed < at:
                    parts.append((PASSES, data[passed:at]))
                parts.append((kind, data[at:end]))
                passed = end
            elif end > length:
                self.left = end - length
                at = length
                break
            at = end
        if passed < at:
            parts.append((PASSES, data[passed:at] if passed or at < length else data))
        self._held += data[at:]
        return parts
