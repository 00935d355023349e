"""The names of everything in the store, and which bucket's tag each key carries.

Every key of a bucket has the same hash tag, ``{b17}``, so that one script may name them all.
docs/log-format.md explains what each key holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from onewriter_core.ids import TopicName, bucket_of

BUCKETS_DEFAULT = 64
"""Buckets that topics hash into; fixed for the life of a store."""

MEMBERS = "ow:members"
SETTINGS = "ow:settings"


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names for a store whose topics hash into ``buckets`` buckets."""

    buckets: int = BUCKETS_DEFAULT

    def bucket(self, topic: TopicName) -> int:
        """The bucket that holds a topic."""
        return bucket_of(topic, self.buckets)

    def unit(self, bucket: int) -> str:
        """Hash: who may write to the bucket."""
        return f"ow:{{b{bucket}}}:unit"

    def audit(self, bucket: int) -> str:
        """Stream: what happened to the bucket's topics."""
        return f"ow:{{b{bucket}}}:audit"

    def topics(self, bucket: int) -> str:
        """Hash: the bucket's catalog."""
        return f"ow:{{b{bucket}}}:topics"

    def log(self, topic: TopicName) -> str:
        """Stream: a topic's blocks."""
        return f"ow:{{b{self.bucket(topic)}}}:log:{topic}"

    def state(self, topic: TopicName) -> str:
        """Hash: a topic's token, cursors and snapshots."""
        return f"ow:{{b{self.bucket(topic)}}}:state:{topic}"
