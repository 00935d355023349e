"""Names of the fields in stream entries and in a log's state. docs/log-format.md describes their values."""

from __future__ import annotations

from typing import Final

# ------------------------------------------------------------ stream entries

KIND: Final = b"k"
MARKER_KIND: Final = b"marker"
LENGTHS: Final = b"n"
PAYLOAD: Final = b"p"
TIME: Final = b"t"
CHAIN: Final = b"h"
COUNTS: Final = b"c"
PUBLISH: Final = b"x"
COMMITS: Final = b"xc"
PUBLISHED_BY: Final = b"by"

MARKER_FIELDS_RESERVED: Final = frozenset({"k", "owner", "gen", "aborted"})
"""Fields of a marker that the store's script sets."""

# ------------------------------------------------------------ a log's state

OPEN_PUBLISH: Final = "open"
"""The atomic publish that has begun and is not committed: its name, and its blocks' ledger and entries."""

STATE_FIELDS_RESERVED: Final = frozenset({"tok", "ledger", OPEN_PUBLISH})
"""Fields of the state that only fences and appends change."""

FLOOR_PREFIX: Final = "guard:"
"""State fields: the highest number of each guard of another bucket under which the log was written."""

GUARDIAN_PREFIX: Final = "guardian:"
"""State fields: the subject whose quota counts the floor of the same name."""

VERSION_PREFIX: Final = "txn:"
"""State fields: the last version that each app has published atomically."""

OWNER_PREFIX: Final = "publisher:"
"""State fields: the subject to which each of these apps is bound, if it is bound."""

TRIMMED: Final = "trimmed"
"""State field: the position below which blocks were dropped on purpose, or may have been."""

LEDGER_ENDS: Final = "ledgerEnds"
"""State field: the last entry before each ledger at which the log was trimmed most recently."""

SETTLED: Final = "settled"
"""State field: the registration of the dataset in which the log's losses were determined and reported."""

TERMINATED: Final = "terminated"
"""State field: the last entry's position, ``0-0`` if there is none; absent: the log is not terminated."""

COMPACTED: Final = "compacted"
"""State field: the compacted view that counts; absent: the log was never compacted."""

COMPACTING: Final = "compacting"
"""State field: the latest attempt that writes to the slot which readers do not use; absent: that slot is empty."""

WITNESS_PREFIX: Final = "witness:"
"""State fields: what was copied of the log to the table with this id (``onewriter_core.witnesses``)."""
