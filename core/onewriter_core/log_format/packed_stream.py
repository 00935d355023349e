"""The packed stream of a log's blocks, the answer to ``GET .../blocks`` (docs/http.md, "Blocks").

The stream begins with HEAD. Each frame has its length (u32, which does not count itself), a kind (u8) and the kind's
content. All integers are little-endian. Brokers write the stream, and the pipeline parses it into arrays.
"""

from __future__ import annotations

import struct
from typing import Final

HEAD: Final = b"OWB2"
"""Name and version of the stream."""

BLOCK: Final = 1
MARKER: Final = 2
END: Final = 3
ERROR: Final = 4

HAS_COUNTS: Final = 1
"""Flag: the number of messages of each entry follows the lengths; without it, each entry has one."""

IS_ATOMIC: Final = 2
"""Flag: the block is part of an atomic publish. The publish's name follows lengths and counts."""

ENDS_PUBLISH: Final = 4
"""Flag: the block is the last part of its atomic publish."""

NO_PAYLOAD: Final = 8
"""Flag: the request did not ask for the entries' bytes, and they are left out."""

NAMES_PUBLISHER: Final = 16
"""Flag: the publisher's name, which may be empty, follows the name of the atomic publish."""

FRAME_HEAD = struct.Struct("<IB")
"""Length and kind."""

BLOCK_HEAD = struct.Struct("<QQQIB16s")
"""Ledger, first entry, time (ms), number of entries, flags, chain hash."""

MARKER_HEAD = struct.Struct("<Q")
"""Ledger; the marker's fields follow as JSON."""

END_CONTENT = struct.Struct("<QQ")
"""Ledger and entry before which the answer contains everything that is committed."""

NAME_HEAD = struct.Struct("<H")
"""Length of a name."""

LENGTH = struct.Struct("<I")
"""Length of a frame."""

FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
"""Length of a frame. Brokers send no larger ones."""


def framed(content: struct.Struct) -> struct.Struct:
    """FRAME_HEAD and a kind's fixed content, packed in one call."""
    return struct.Struct(FRAME_HEAD.format + content.format.removeprefix("<"))
