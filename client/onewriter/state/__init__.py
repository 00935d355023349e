"""Shared state on a topic (PIP-137): ``SharedState`` and ``SharedMap``.

fold.py is the core: it defines the effect of an entry of the log. replica.py follows the log, pending_writes.py and
writer.py append to it, checkpoints.py bounds the time to read it. topic_log.py is the log on a topic, memory.py the
log in memory for tests.
"""

from onewriter.state.checkpoints import Checkpoints, CheckpointStore, Snapshots
from onewriter.state.errors import (
    StateError,
    StateGap,
    UnreadableEntry,
    VersionConflict,
    WatchOverflow,
    WrongType,
)
from onewriter.state.map_operations import COMPACT, SAMPLE, MapFormat, MapSnapshots
from onewriter.state.memory import MemoryLog
from onewriter.state.serializers import (
    BYTES,
    INTEGER,
    STRING,
    Serializer,
    json_values,
    pydantic_model,
)
from onewriter.state.shared_map import Change, MapView, SharedMap
from onewriter.state.shared_state import SharedState, SharedStateBuilder, Versioned
from onewriter.state.writer import StateLimits

__all__ = [
    "BYTES",
    "COMPACT",
    "INTEGER",
    "SAMPLE",
    "STRING",
    "Change",
    "CheckpointStore",
    "Checkpoints",
    "MapFormat",
    "MapSnapshots",
    "MapView",
    "MemoryLog",
    "Serializer",
    "SharedMap",
    "SharedState",
    "SharedStateBuilder",
    "Snapshots",
    "StateError",
    "StateGap",
    "StateLimits",
    "UnreadableEntry",
    "VersionConflict",
    "Versioned",
    "WatchOverflow",
    "WrongType",
    "json_values",
    "pydantic_model",
]
