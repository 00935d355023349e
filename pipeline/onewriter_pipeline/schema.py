"""The columns of messages (names, SQL types and Arrow types, in a fixed order), the tiers, and the table formats.

The names with two underscores and the types of ``__key`` to ``__messageProperties`` are those of Pulsar's connector
for Spark, so queries written for it keep working.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onewriter_pipeline.errors import Invalid

if TYPE_CHECKING:
    import pyarrow as pa

VALUE = "value"
KEY = "__key"
TOPIC = "__topic"
MESSAGE_ID = "__messageId"
PUBLISH_TIME = "__publishTime"
EVENT_TIME = "__eventTime"
PROPERTIES = "__messageProperties"
EPOCH = "__epoch"
LEDGER = "__ledgerId"
ENTRY = "__entryId"
BATCH_INDEX = "__batchIndex"
PRODUCER = "__producerName"
SEQUENCE = "__sequenceId"
ORDERING_KEY = "__orderingKey"

MESSAGE_COLUMNS: Final = {
    VALUE: "BINARY",
    KEY: "BINARY",
    TOPIC: "STRING",
    MESSAGE_ID: "BINARY",
    PUBLISH_TIME: "TIMESTAMP",
    EVENT_TIME: "TIMESTAMP",
    PROPERTIES: "MAP<STRING, STRING>",
    EPOCH: "BIGINT",
    LEDGER: "BIGINT",
    ENTRY: "BIGINT",
    BATCH_INDEX: "INT",
    PRODUCER: "STRING",
    SEQUENCE: "BIGINT",
}
"""The default columns of a read, with their SQL types."""

EXTRA_COLUMNS: Final = {ORDERING_KEY: "BINARY"}
"""Columns that are read only if the reader names them."""


SNAPSHOT_COLUMNS: Final = (
    KEY,
    VALUE,
    EVENT_TIME,
    PROPERTIES,
    PUBLISH_TIME,
    EPOCH,
    LEDGER,
    ENTRY,
    BATCH_INDEX,
)
"""What a snapshot contains of the newest message of each key."""

HOT: Final = "hot"
COLD: Final = "cold"
ALL: Final = "all"
TIERS: Final = (HOT, COLD, ALL)
"""The sources of a read: the live log, the table, or both as one."""

DELTA: Final = "delta"
PARQUET: Final = "parquet"
FORMATS: Final = (DELTA, PARQUET)
"""The formats of tables: with Delta's log, or without."""


def message_ddl(columns: Sequence[str] = tuple(MESSAGE_COLUMNS), *, json: bool = False) -> str:
    """The columns as SQL: ``value BINARY, __key BINARY, ...``; ``json`` as in ``arrow_schema``."""
    types = column_types(json=json)
    return ", ".join(f"`{name}` {types[name]}" for name in columns)


def arrow_schema(
    columns: Sequence[str] = tuple(MESSAGE_COLUMNS), *, json: bool = False
) -> pa.Schema:
    """The same for Arrow. Raises Invalid for an unknown column.

    ``json``: the values are JSON texts, and the column ``value`` is a string.
    """
    import pyarrow as pa  # noqa: PLC0415 - only decoding needs pyarrow

    kinds = {
        "BINARY": pa.binary(),
        "STRING": pa.string(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
        "MAP<STRING, STRING>": pa.map_(pa.string(), pa.string()),
        "BIGINT": pa.int64(),
        "INT": pa.int32(),
    }
    types = column_types(json=json)
    unknown = [name for name in columns if name not in types]
    if unknown:
        raise Invalid(f"messages have no column {unknown[0]!r}; they have {', '.join(types)}")
    return pa.schema([pa.field(name, kinds[types[name]]) for name in columns])


def column_types(*, json: bool = False) -> dict[str, str]:
    """The SQL type of each column that can be read; ``json`` as in ``arrow_schema``."""
    return {**MESSAGE_COLUMNS, **EXTRA_COLUMNS, VALUE: "STRING" if json else "BINARY"}
