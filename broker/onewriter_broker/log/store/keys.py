"""The names of everything in the store, and which bucket's tag each key carries.

Every key of a bucket has the same hash tag, ``{b17}``, so that one script may name them all.
docs/log-format.md explains what each key holds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from onewriter_core.ids import TopicName, bucket_of

BUCKETS_DEFAULT = 64
"""Buckets that topics hash into; fixed for the life of a store."""

MEMBERS = "ow:members"
SETTINGS = "ow:settings"


TOPICS_REMEMBERED_MAX = 2_048
"""Topics whose key names are kept ready; the least recently used are formed again, in 4 us."""


class LogKeys(NamedTuple):
    """A topic's own keys: the stream of its blocks, the hash of its state."""

    log: str
    state: str


class Keys:
    """Key names for a store whose topics hash into ``buckets`` buckets."""

    def __init__(self, buckets: int = BUCKETS_DEFAULT) -> None:
        self.buckets = buckets
        self.of: Callable[[TopicName], LogKeys] = lru_cache(TOPICS_REMEMBERED_MAX)(self._form)

    def bucket(self, topic: TopicName) -> int:
        """The bucket that holds a topic."""
        return bucket_of(topic, self.buckets)

    def unit(self, bucket: int) -> str:
        """Hash: who may write to the bucket."""
        return f"ow:{{b{bucket}}}:unit"

    def members(self, bucket: int) -> str:
        """Hash: the heartbeats of the brokers, on the shard that has this bucket (only in a cluster)."""
        return f"ow:{{b{bucket}}}:members"

    def audit(self, bucket: int) -> str:
        """Stream: what happened to the bucket's topics."""
        return f"ow:{{b{bucket}}}:audit"

    def topics(self, bucket: int) -> str:
        """Hash: the bucket's catalog."""
        return f"ow:{{b{bucket}}}:topics"

    def own(self, bucket: int) -> str:
        """Hash: the bucket's ownerships, each name to its generation, a plain number."""
        return f"ow:{{b{bucket}}}:own"

    def owners(self, bucket: int) -> str:
        """Hash: who owns what, each name to JSON."""
        return f"ow:{{b{bucket}}}:owners"

    def staged(self, bucket: int, part: str = "") -> str:
        """Hash: one part that is staged, its chunks by number; without a name, what parts there are."""
        return f"ow:{{b{bucket}}}:staged:{part}" if part else f"ow:{{b{bucket}}}:staged"

    def log(self, topic: TopicName) -> str:
        """Stream: a topic's blocks."""
        return self.of(topic).log

    def state(self, topic: TopicName) -> str:
        """Hash: a topic's token, cursors and snapshots."""
        return self.of(topic).state

    def compacted(self, topic: TopicName, slot: int) -> str:
        """Stream: one of the keys that a topic's compacted views take turns in."""
        return f"ow:{{b{self.bucket(topic)}}}:compacted{slot}:{topic}"

    def _form(self, topic: TopicName) -> LogKeys:
        bucket = self.bucket(topic)
        return LogKeys(f"ow:{{b{bucket}}}:log:{topic}", f"ow:{{b{bucket}}}:state:{topic}")
