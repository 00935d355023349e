"""The Spark data source of onewriter: ``spark.read.format("onewriter")``. Spark finds it without registration.

When Spark resolves a format, it imports every top-level module whose name begins with ``pyspark_``, also on
workers. Therefore this module imports nothing heavy; the other modules are imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

    from pyspark_onewriter.sink_options import WriteOptions

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Topics as tables and streams. docs/pipeline-source.md has the options."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "onewriter"

    def schema(self) -> StructType | str:
        """The columns of messages."""
        from onewriter_pipeline.schema import column_types, message_ddl  # noqa: PLC0415
        from pyspark_onewriter.catalog import only, table_options, table_schema  # noqa: PLC0415
        from pyspark_onewriter.options import READ_OPTIONS, known_options  # noqa: PLC0415
        from pyspark_onewriter.user_errors import without_traceback  # noqa: PLC0415

        with without_traceback():
            of_table = table_options(self.options)
            options = known_options(
                self.options if of_table is None else only(of_table, READ_OPTIONS)
            )
        if of_table is None:
            return message_ddl(options.columns, json=options.json)
        types = column_types(json=options.json)
        return table_schema({name: types[name] for name in options.columns}, of_table)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the current contents of topics."""
        from pyspark_onewriter.catalog import query_options  # noqa: PLC0415
        from pyspark_onewriter.options import READ_OPTIONS, read_options  # noqa: PLC0415
        from pyspark_onewriter.source import TopicReader  # noqa: PLC0415
        from pyspark_onewriter.user_errors import without_traceback  # noqa: PLC0415

        with without_traceback():
            options = query_options(self.options, schema, READ_OPTIONS)
            return TopicReader(read_options(options, _types(schema)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Reads topics as they grow."""
        from pyspark_onewriter.catalog import query_options  # noqa: PLC0415
        from pyspark_onewriter.options import READ_OPTIONS, stream_options  # noqa: PLC0415
        from pyspark_onewriter.stream import TopicStreamReader  # noqa: PLC0415
        from pyspark_onewriter.user_errors import without_traceback  # noqa: PLC0415

        with without_traceback():
            options = query_options(self.options, schema, READ_OPTIONS)
            return TopicStreamReader(stream_options(options, _types(schema)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Writes a batch to a topic, once."""
        from pyspark_onewriter.sink import TopicWriter, begun  # noqa: PLC0415
        from pyspark_onewriter.user_errors import without_traceback  # noqa: PLC0415

        with without_traceback():
            return TopicWriter(begun(_writing(self.options, schema, overwrite, is_stream=False)))

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamArrowWriter:
        """Writes the batches of a stream to a topic, each once."""
        from pyspark_onewriter.sink import TopicStreamWriter, begun  # noqa: PLC0415
        from pyspark_onewriter.user_errors import without_traceback  # noqa: PLC0415

        with without_traceback():
            return TopicStreamWriter(
                begun(_writing(self.options, schema, overwrite, is_stream=True))
            )


def _writing(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, is_stream: bool
) -> WriteOptions:
    """The options of a write. Rows of a table also have the columns that only brokers write."""
    from pyspark_onewriter.catalog import is_of_table, query_options  # noqa: PLC0415
    from pyspark_onewriter.sink import write_options  # noqa: PLC0415
    from pyspark_onewriter.sink_options import WRITE_OPTIONS  # noqa: PLC0415

    return write_options(
        query_options(options, schema, WRITE_OPTIONS),
        schema.names,
        is_stream=is_stream,
        overwrites=overwrite,
        is_table=is_of_table(schema),
    )


def _types(schema: StructType) -> dict[str, str]:
    """The SQL type of each column."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}
