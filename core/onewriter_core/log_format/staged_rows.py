"""The frames of a part of staged rows, which the sink packs and a broker checks.

A part is ``OWR1`` followed by frames. A frame is the size of the rest of the frame and the number of rows, both
unsigned 32-bit little-endian, then that number of messages in the form of an uncompressed Pulsar batch. A frame
becomes one entry of the log. docs/http.md describes the format.
"""

from __future__ import annotations

import struct
from typing import Final

from onewriter_core.log_format.limits import PUBLISH_ENTRY_BYTES_MAX

MAGIC: Final = b"OWR1"

FRAME: Final = struct.Struct("<II")
"""The head of a frame: the size of the rest, which includes the number of rows, and the number of rows."""

FRAME_BYTES_MAX: Final = PUBLISH_ENTRY_BYTES_MAX - 4096
"""Size limit of the messages of one frame, and so of one row. The rest of an entry is for its metadata."""

FRAME_ROWS_MAX: Final = 10_000
"""Limit on the messages in one frame. Pulsar's clients put 1000 into a batch."""

PART_FRAMES_MAX: Final = 32_768
"""Limit on the frames of one part. Each frame becomes an entry, which takes memory in addition to its bytes."""

KEY_TAG: Final = 0x12
SIZE_TAG: Final = 0x18
"""The bytes before the key and before the size of the content in the metadata of a message."""
