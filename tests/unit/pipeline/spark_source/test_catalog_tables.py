"""Tables of a catalog: their options reach queries in the metadata of the first column."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.schema import MESSAGE_COLUMNS
from pyspark_onewriter import DefaultSource
from pyspark_onewriter.catalog import is_of_table, query_options, table_options
from pyspark_onewriter.options import READ_OPTIONS
from pyspark_onewriter.sink import _row_columns
from pyspark_onewriter.sink_options import WRITE_OPTIONS, write_options

URL = "http://broker:8080"
GIVEN = {"admin.url": URL, "topic": "orders"}
ADDED = {"provider": "onewriter", "owner": "root", "p": "q", "location": "file:/somewhere"}
"""What Spark adds to the options of CREATE TABLE."""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEWRITER_HTTP_URL", raising=False)


def created(**options: str) -> dict[str, str]:
    """The options that Spark passes for CREATE TABLE ... OPTIONS (...)."""
    return {**options, **{f"option.{name}": value for name, value in options.items()}, **ADDED}


def columns(options: Mapping[str, str]) -> StructType:
    found = DefaultSource(dict(options)).schema()
    assert isinstance(found, StructType)
    return found


def test_a_table_keeps_its_options_and_no_properties_of_spark() -> None:
    schema = columns(created(**GIVEN))
    assert schema.names == list(MESSAGE_COLUMNS)
    assert is_of_table(schema)
    assert query_options({}, schema, READ_OPTIONS) == GIVEN
    assert table_options(GIVEN) is None  # of spark.read
    assert isinstance(DefaultSource(dict(GIVEN)).schema(), str)


def test_a_query_adds_options_and_replaces_those_of_its_table() -> None:
    schema = columns(created(**GIVEN, txnAppId="load", startingOffsets="earliest"))
    read = query_options({"startingoffsets": "latest"}, schema, READ_OPTIONS)
    assert read == {**GIVEN, "startingoffsets": "latest"}
    written = query_options({"txnVersion": "3"}, schema, WRITE_OPTIONS)
    assert written == {**GIVEN, "txnAppId": "load", "txnVersion": "3"}


def test_a_table_can_have_some_columns_and_names_of_kafka_options() -> None:
    given = {"kafka.bootstrap.servers": URL, "subscribe": "orders", "columns": "value,__key"}
    schema = columns(created(**given))
    assert schema.names == ["value", "__key"]
    read = query_options({}, schema, READ_OPTIONS)
    assert read == {"admin.url": URL, "topics": "orders", "columns": "value,__key"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tpic": "orders"}, "there is no option 'tpic': 'topic'"),
        ({"authToken": "secret"}, "authToken: catalogs show the options of tables"),
        ({"topic": ""}, "give one of topic, topics, topicsPattern"),
    ],
)
def test_a_table_with_wrong_options_is_not_created(options: dict[str, str], message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        columns(created(**(GIVEN | options)))
    assert "secret" not in str(caught.value)


def test_a_table_without_options_is_refused_with_a_reason() -> None:
    plain = StructType([StructField("value", BinaryType())])
    with pytest.raises(Invalid, match="without a list of columns"):
        query_options({}, plain, READ_OPTIONS)


def test_inserted_rows_leave_out_what_brokers_write() -> None:
    schema = columns(created(**GIVEN))
    given = query_options({"txnAppId": "a", "txnVersion": "1"}, schema, WRITE_OPTIONS)
    options = write_options(
        given, schema.names, is_stream=False, overwrites=False, is_table=is_of_table(schema)
    )
    assert "__entryId" in options.null_columns
    assert "value" not in options.null_columns
    with pytest.raises(Invalid, match="cannot have the columns __batchIndex"):
        write_options(given, schema.names, is_stream=False, overwrites=False)
    row = pa.record_batch({"value": [b"v"], "__entryId": pa.nulls(1, pa.int64())})
    (batch,) = _row_columns([row], ["__entryId"])
    assert batch.schema.names == ["value"]
    with pytest.raises(Invalid, match="cannot set the column __entryId"):
        list(_row_columns([pa.record_batch({"value": [b"v"], "__entryId": [1]})], ["__entryId"]))
