"""The former name of ``onewriter_pipeline.publish.hashing``; version 0.3 removes it."""

from onewriter_pipeline.publish.hashing import partition_of, partitions_of

__all__ = ["partition_of", "partitions_of"]
