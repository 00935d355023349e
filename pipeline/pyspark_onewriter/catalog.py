"""Tables of a catalog: ``CREATE TABLE orders USING onewriter OPTIONS (...)``.

Spark passes the options of CREATE TABLE only to ``DefaultSource.schema``, and gives queries of the table its columns
without its options. Therefore the first column has the options in its metadata, which catalogs store with the columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from onewriter_pipeline.errors import Invalid
from pyspark_onewriter.options import READ_OPTIONS, Given, known_options
from pyspark_onewriter.sink_options import CAPABILITY_OPTION, WRITE_OPTIONS
from pyspark_onewriter.synonyms import canonical

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_METADATA: Final = "onewriter.options"

_PREFIX: Final = "option."
"""Spark passes each option of CREATE TABLE with this prefix and without, and its own properties only without."""

_SECRETS: Final = ("authToken", CAPABILITY_OPTION)
"""Catalogs show the options of a table to everybody who may read it."""


def table_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a CREATE TABLE; None: these options are of something else. Raises Invalid."""
    if "provider" not in options:
        return None
    given = {
        name[len(_PREFIX) :]: value for name, value in options.items() if name.startswith(_PREFIX)
    }
    known = Given(given, tuple(dict.fromkeys((*READ_OPTIONS, *WRITE_OPTIONS))))
    for name in known.named(*_SECRETS):
        raise Invalid(
            f"{name}: catalogs show the options of tables; use authTokenFile, or the environment"
            " variable ONEWRITER_TOKEN of the driver"
        )
    known_options(only(given, READ_OPTIONS))
    return given


def only(options: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """The options with these names. A table has options for reads and for writes."""
    names = {name.lower() for name in known}
    return {name: value for name, value in canonical(options).items() if name.lower() in names}


def table_schema(columns: Mapping[str, str], options: Mapping[str, str]) -> StructType:
    """The columns of a table, by name and SQL type, with its options."""
    from pyspark.sql import types as kinds  # noqa: PLC0415 - only tables need it

    of_names: dict[str, kinds.DataType] = {
        "BINARY": kinds.BinaryType(),
        "STRING": kinds.StringType(),
        "TIMESTAMP": kinds.TimestampType(),
        "MAP<STRING, STRING>": kinds.MapType(kinds.StringType(), kinds.StringType()),
        "BIGINT": kinds.LongType(),
        "INT": kinds.IntegerType(),
    }
    fields = [kinds.StructField(name, of_names[kind]) for name, kind in columns.items()]
    fields[0].metadata = {_METADATA: json.dumps(dict(sorted(options.items())))}
    return kinds.StructType(fields)


def is_of_table(schema: StructType) -> bool:
    """Whether the columns are those of a table with options."""
    return any(_METADATA in (field.metadata or {}) for field in schema.fields)


def query_options(
    options: Mapping[str, str], schema: StructType, known: Sequence[str]
) -> dict[str, str]:
    """The options of a query: its own, and for what they leave out those of its table. Raises Invalid."""
    found: dict[str, str] = {}
    for field in schema.fields:
        text = (field.metadata or {}).get(_METADATA)
        if text is not None:
            found = only(json.loads(text), known)
    own = canonical(options)
    if not own and not found:
        raise Invalid(
            "Spark passes no options here: create the table without a list of columns and without AS"
            " SELECT (the option columns selects columns), or use format('onewriter') with options"
        )
    given = {name.lower() for name in own}
    return {name: value for name, value in found.items() if name.lower() not in given} | own
