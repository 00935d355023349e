"""The Spark data source of onewriter: ``spark.read.format("onewriter")``. Spark finds it without registration.

When Spark resolves a format, it imports every top-level module whose name begins with ``pyspark_``, also on
workers. Therefore this module imports nothing heavy; the other modules are imported when they are needed.
"""

from __future__ import annotations

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

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Topics as tables and streams. docs/pipeline-source.md has the options."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "onewriter"

    def schema(self) -> str:
        """The columns of messages, as SQL."""
        from onewriter_pipeline.schema import message_ddl  # noqa: PLC0415
        from pyspark_onewriter.options import known_options  # noqa: PLC0415

        options = known_options(self.options)
        return message_ddl(options.columns, json=options.json)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the current contents of topics."""
        from pyspark_onewriter.options import read_options  # noqa: PLC0415
        from pyspark_onewriter.source import TopicReader  # noqa: PLC0415

        return TopicReader(read_options(self.options, _types(schema)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Reads topics as they grow."""
        from pyspark_onewriter.options import stream_options  # noqa: PLC0415
        from pyspark_onewriter.stream import TopicStreamReader  # noqa: PLC0415

        return TopicStreamReader(stream_options(self.options, _types(schema)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Writes a batch to a topic, once."""
        from pyspark_onewriter.sink import TopicWriter, begun, write_options  # noqa: PLC0415

        options = write_options(self.options, schema.names, is_stream=False, overwrites=overwrite)
        return TopicWriter(begun(options))

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamArrowWriter:
        """Writes the batches of a stream to a topic, each once."""
        from pyspark_onewriter.sink import TopicStreamWriter, begun, write_options  # noqa: PLC0415

        options = write_options(self.options, schema.names, is_stream=True, overwrites=overwrite)
        return TopicStreamWriter(begun(options))


def _types(schema: StructType) -> dict[str, str]:
    """The SQL type of each column."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}
