"""Compaction by key: when a log is compacted, and the two passes over it."""
