"""A cluster as RedisLogStore uses it: its map, its channels, and which buckets each primary serves."""

from __future__ import annotations

from collections.abc import Sequence

from onewriter_broker.log.store.keys import Keys
from onewriter_broker.log.store.redis.channel import ClusterChannel
from onewriter_broker.log.store.redis.primary import Endpoint, OpenAt, RedisSettings, open_at
from onewriter_broker.log.store.redis.topology import ReadView, Topology
from onewriter_core.cluster_views import Shard, SlotMap, slot_of


class Cluster:
    """The topology of one cluster, and a channel for writes and one for reads."""

    def __init__(
        self,
        settings: RedisSettings,
        keys: Keys,
        open_: OpenAt = open_at,
        read_view: ReadView | None = None,
    ) -> None:
        """``open_`` and ``read_view`` connect to the nodes; a test replaces them."""
        self.topology = Topology(settings, self._changed, read_view)
        self.writes = ClusterChannel(settings, self.topology, open_)
        self.reads = ClusterChannel(settings, self.topology, open_)
        self._keys = keys
        self._slots = {bucket: slot_of(keys.unit(bucket)) for bucket in range(keys.buckets)}

    async def shards(self) -> list[tuple[Shard, list[int]]]:
        """The primaries by a majority's views, each with its buckets. Raises Undecided."""
        return self._placed(await self.topology.refreshed())

    async def member_keys(self) -> Sequence[tuple[str, frozenset[int]]]:
        """The key of the heartbeats on each shard that has a bucket, and its buckets: the key of the lowest one."""
        found = self.topology.last or await self.topology.read()
        placed = self._placed(found)
        return [(self._keys.members(min(each)), frozenset(each)) for _, each in placed if each]

    def suspect(self, key: str) -> None:
        """Note that the key's primary did not answer in time: the next call for the key reads the map."""
        self.topology.suspect(slot_of(key))

    def replicas_of(self, primary: Endpoint) -> int:
        """How many replicas the primary has by the last map, failed ones included."""
        found = self.topology.last
        shards = [] if found is None else found.shards()
        address = (primary.host, primary.port)
        return next((len(each.replicas) for each in shards if each.primary.address == address), 0)

    def _placed(self, found: SlotMap) -> list[tuple[Shard, list[int]]]:
        buckets: dict[str, list[int]] = {}
        for bucket, slot in self._slots.items():
            primary = found.primary_of(slot)
            if primary is not None:
                buckets.setdefault(primary.node_id, []).append(bucket)
        return [(shard, buckets.get(shard.primary.node_id, [])) for shard in found.shards()]

    def _changed(self, found: SlotMap) -> None:
        self.writes.keep(found)
        self.reads.keep(found)
