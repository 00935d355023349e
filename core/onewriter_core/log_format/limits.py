"""Limits of blocks, calls and atomic publishes."""

from __future__ import annotations

from typing import Final

FORMAT_VERSION: Final = 1
"""Written into each bucket's record. A reader rejects a version that it does not know."""

BLOCK_ENTRIES_MAX: Final = 512
"""Entries of one block."""

BLOCK_BYTES_MAX: Final = 256 * 1024
"""Payload bytes of a block of several entries. A larger entry forms a block alone."""

CALL_BYTES_MAX: Final = 1024 * 1024
"""Payload bytes of one append call. A larger block forms a call alone."""

PUBLISH_BYTES_MAX: Final = 256 * 1024 * 1024
"""Payload bytes of one atomic publish. The broker keeps them in memory until they are stored."""

PUBLISH_ENTRIES_MAX: Final = 262_144
"""Entries of one atomic publish: each takes memory besides its bytes."""

PUBLISH_BLOCKS_MAX: Final = 2_560
"""Blocks of one atomic publish. While it is open, the log's state names their positions. No publish within the two
limits above needs more: 512 blocks may be full by entries, and of the others any two consecutive ones have more than
256 KiB.
"""

PUBLISH_ENTRY_BYTES_MAX: Final = 1024 * 1024
"""Payload bytes of one entry of an atomic publish: a call carries no more."""

PUBLISH_VERSION_MAX: Final = 10**15
"""Versions of atomic publishes are below this number."""
