"""The metrics of one broker for Prometheus. Events are counted in plain numbers where they happen, and
collected on demand.

The number of series per topic is bounded: the first TOPIC_SERIES_MAX loaded topics have their own series. The
totals cover all topics, and ``onewriter_topics_without_series`` counts the topics without own series.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from onewriter_broker.connection.clients import Clients
from onewriter_broker.distribution import OUTAGE_SECONDS, SECONDS, Distribution
from onewriter_broker.log.store.api import ShardState
from onewriter_broker.log.store.compacted import view_of
from onewriter_broker.log.topic_log.losses import Loss
from onewriter_broker.ownership.placement import name_of
from onewriter_broker.quotas.book import Quota
from onewriter_broker.ticks import Ticks
from onewriter_broker.topic.compaction.schedule import Compactions
from onewriter_core.ids import escaped, is_printable
from onewriter_core.topic.effects import Record
from onewriter_core.topic.model import Purpose, TransitionCause
from onewriter_http.certificate import ServerCertificate

TOPIC_SERIES_MAX: Final = 1_000
"""Topics with series of their own."""

ITEMS_PER_TICK: Final = 500
"""Topics or records that are counted in one tick of the event loop."""

LAG_SECONDS: Final = 0.25
"""Interval between two measurements of the event loop's lag."""

_NOT_FENCED: Final = frozenset({TransitionCause.NONE, TransitionCause.CLOSED})
"""Causes by which a holder leaves voluntarily."""


def escaped_labels(page: bytes) -> bytes:
    """A page of metrics with the control characters of names escaped, and escaped again for the format."""
    text = page.decode()
    lines = text.split("\n")
    if all(map(is_printable, lines)):
        return page
    return "\n".join(escaped(line, backslash="\\\\") for line in lines).encode()


@dataclass(slots=True)
class BlockStreams:
    """Streams of blocks: their present number, the bytes sent, and the readers that were disconnected because
    they accepted nothing.
    """

    open: int = 0
    bytes: int = 0
    cut_off: int = 0


class Metrics:
    """The figures of one broker process."""

    def __init__(
        self,
        clients: Clients,
        now: Callable[[], float],
        certificate: ServerCertificate | None = None,
        compactions: Compactions | None = None,
        shards: Callable[[], Sequence[tuple[ShardState, int]]] = tuple,
        *,
        is_store_reachable: Callable[[], bool] = lambda: True,
        clocks_ahead_ms: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """``shards``: the latest observation of each primary of the store, with its number of failovers.

        ``clocks_ahead_ms``: see MemberObserver.
        """
        self._clients = clients
        self._observed_shards = shards
        self._compactions = compactions
        self._certificate = certificate
        self._is_store_reachable = is_store_reachable
        self._clocks_ahead_ms = clocks_ahead_ms
        self._now = now
        self._transitions: Counter[tuple[str, str]] = Counter()
        self.fenced: Counter[str] = Counter()
        """Epochs that ended involuntarily, by cause."""
        self._leaderless: dict[str, Distribution] = {}
        self._detection: dict[str, Distribution] = {}
        self._handover: dict[str, Distribution] = {}
        # With a series for every cause: a counter that appears with its first event shows no increase.
        self._outage = {each.value: Distribution(OUTAGE_SECONDS) for each in TransitionCause}
        self._first_message: dict[str, Distribution] = {}
        self._lag = Distribution(SECONDS)
        self._last_lag = 0.0
        self._lost_entries = 0
        self._ranges_at_risk = 0
        self.block_streams = BlockStreams()

    # ------------------------------------------------------------ what happens

    def moved(self, record: Record) -> None:
        """Count a transition of a topic, or a resume."""
        self._transitions[record.purpose.value, record.cause.value] += 1
        ends_an_epoch = record.purpose in {Purpose.GRANT, Purpose.DEPOSE}
        if ends_an_epoch and record.former is not None and record.cause not in _NOT_FENCED:
            self.fenced[record.cause.value] += 1
        cause = record.cause.value
        _observe(self._leaderless, cause, record.leaderless_seconds)
        if record.outage is not None:
            _observe(self._detection, cause, record.outage.detection_seconds)
            _observe(self._handover, cause, record.outage.handover_seconds)
            _observe(self._outage, cause, record.outage.seconds)

    def wrote_first(self, cause: str, seconds: float) -> None:
        """Count the first message of a holder; ``cause``: why the tenure before it ended."""
        _observe(self._first_message, cause, seconds)

    def lost(self, loss: Loss) -> None:
        """Count lost acknowledged entries."""
        self._lost_entries += loss.entries

    def at_risk(self) -> None:
        """Count a range at risk."""
        self._ranges_at_risk += 1

    async def run(self) -> None:
        """Measure the lag of the event loop until cancelled."""
        while True:
            due = self._now() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self._last_lag = max(0.0, self._now() - due)
            self._lag.observe(self._last_lag)

    # ------------------------------------------------------------ reading out

    async def snapshot(self) -> list[Metric]:
        """All present figures. Figures over all topics and records are counted in steps."""
        found = [*self._ownership(), *await self._topics_counted()]
        for part in (self._topics, self._path, self._shards, self._compacted, self._quotas):
            found += part()
            await asyncio.sleep(0)
        return [*found, *await self._owned(), *self._process()]

    @staticmethod
    def render(families: list[Metric]) -> bytes:
        """A snapshot in Prometheus' format; may be called in another thread."""
        registry = CollectorRegistry()
        registry.register(_Taken(families))
        ProcessCollector(registry=registry)
        return escaped_labels(generate_latest(registry))

    @staticmethod
    def histogram(name: str, text: str, spread: Distribution) -> Metric:
        """A distribution as a histogram of Prometheus."""
        return HistogramMetricFamily(
            f"onewriter_{name}", text, buckets=spread.cumulative(), sum_value=spread.total
        )

    def _ownership(self) -> Iterator[Metric]:
        ownership = self._clients.topics.ownership
        yield _gauge("buckets_owned", "Buckets that this broker serves.", len(ownership.held()))
        buckets = range(self._clients.settings.buckets)
        waiting = sum(bool(ownership.waiting_reason(bucket)) for bucket in buckets)
        yield _gauge(
            "buckets_waiting", "Buckets that this broker could not take or fully serve.", waiting
        )

    async def _topics_counted(self) -> list[Metric]:
        topics, ticks = list(self._clients.topics.loaded.values()), Ticks(ITEMS_PER_TICK)
        held = waiters = producers = 0
        for topic in topics:
            runner = topic.runner
            held += bool(runner.topic.holders)
            waiters += len(runner.topic.queue)
            producers += len(runner.producers)
            await ticks.step()
        return [
            _gauge("topics_held", "Of these, topics with an exclusive writer.", held),
            _gauge("waiters", "Waiting producers of all topics.", waiters),
            _gauge("producers", "Connected producers, including waiting ones.", producers),
        ]

    def _topics(self) -> Iterator[Metric]:
        loaded = self._clients.topics.loaded
        yield _gauge("topics_loaded", "Topics that this broker serves at present.", len(loaded))
        unloaded = len(self._clients.topics.unloaded)
        text = "Topics that left memory because no client used them, and were not loaded again."
        yield _gauge("topics_unloaded", text, unloaded)
        broken = len(self._clients.topics.broken)
        yield _gauge(
            "topics_broken", "Topics that are refused because a key must be repaired.", broken
        )
        unlisted = max(0, len(loaded) - TOPIC_SERIES_MAX)
        yield _gauge("topics_without_series", "Loaded topics without their own series.", unlisted)
        epoch = GaugeMetricFamily("onewriter_topic_epoch", "Topic epoch.", labels=["topic"])
        queue = GaugeMetricFamily(
            "onewriter_topic_waiters", "Waiting producers of a topic.", labels=["topic"]
        )
        holder = GaugeMetricFamily(
            "onewriter_topic_holder_info",
            "Holder of a topic; 1 for each exclusive writer.",
            labels=["topic", "producer", "claim", "address"],
        )
        for name, topic in islice(loaded.items(), TOPIC_SERIES_MAX):
            state = topic.runner.topic
            epoch.add_metric([name], state.epoch)
            queue.add_metric([name], len(state.queue))
            if state.holders:
                first = state.holders[0]
                holder.add_metric([name, first.producer_name, first.admitted_by, first.address], 1)
        yield from (epoch, queue, holder)
        yield _counters("transitions", "Transitions.", ["kind", "cause"], self._transitions.items())
        yield _counters(
            "fenced",
            "Epochs that ended without a release by the writer.",
            ["reason"],
            (((reason,), count) for reason, count in self.fenced.items()),
        )
        text = "Time without a writer before a grant, from when the former writer left or was found dead."
        yield _by_cause("leaderless", text, self._leaderless)
        text = "Time in which no producer could write before a grant: detection and handover."
        yield _by_cause("outage", text, self._outage)
        text = "Time from the former writer's last sign of life to the end of its right to write."
        yield _by_cause("detection", text, self._detection)
        text = "Time from the end of the former writer's right to write to a grant."
        yield _by_cause("handover", text, self._handover)
        text = "Time from a grant to its holder's first message, if that follows within a minute."
        yield _by_cause("first_message", text, self._first_message)
        yield _counter(
            "lost_entries", "Acknowledged entries that the store lost.", self._lost_entries
        )
        yield _counter(
            "ranges_at_risk",
            "Logs in which entries were perhaps acknowledged and lost, with the broker that knew.",
            self._ranges_at_risk,
        )

    def _compacted(self) -> Iterator[Metric]:
        if self._compactions is None:
            return
        totals = self._compactions.totals
        yield _counters(
            "compactions",
            "Compactions of logs.",
            ["result"],
            ((("success",), totals.succeeded), (("error",), totals.failed)),
        )
        yield _counter(
            "compacted_out_messages", "Messages that compactions left out.", totals.messages_removed
        )
        last = totals.last_success_ms / 1000
        yield _gauge(
            "compaction_last_success_seconds", "Unix time of the last successful compaction.", last
        )
        held_back = self._compactions.held_back
        text = "Logs that retention does not trim because they could not be compacted."
        yield _gauge("retention_held_back", text, held_back)
        size = GaugeMetricFamily(
            "onewriter_compacted_bytes", "Bytes in a topic's compacted views.", labels=["topic"]
        )
        for name, topic in islice(self._clients.topics.loaded.items(), TOPIC_SERIES_MAX):
            views = [view_of(topic_log.state) for topic_log in topic.runner.logs.values()]
            held = [view.size for view in views if view is not None]
            if held:
                size.add_metric([name], sum(held))
        yield size

    async def _owned(self) -> list[Metric]:
        ownerships = self._clients.ownerships
        now, resource_buckets = self._clients.now(), list(ownerships.loaded_buckets())
        entries = [
            entry
            for resource_bucket in resource_buckets
            for entry in resource_bucket.entries.values()
        ]
        owned, ticks = 0, Ticks(ITEMS_PER_TICK)
        for entry in entries:
            owned += entry.current(now).is_owned
            await ticks.step()
        found = [
            _gauge("ownerships", "Resources with an owner, in loaded buckets.", owned),
            _gauge("ownership_records", "Ownership records, in loaded buckets.", len(entries)),
        ]
        figures = ownerships.statistics
        for name, text, label, counted in (
            ("ownerships_granted", "Ownerships granted.", "cause", figures.granted),
            ("ownerships_denied", "Ownerships denied.", "code", figures.denied),
        ):
            rows = (((value,), count) for value, count in counted.items())
            found.append(_counters(name, text, [label], rows))
        return [
            *found,
            _counter(
                "readers_refused",
                "Consumers refused because they are not the owner.",
                figures.readers_refused,
            ),
            _counter(
                "readers_closed",
                "Consumers closed because their ownership ended.",
                figures.readers_closed,
            ),
        ]

    def _quotas(self) -> Iterator[Metric]:
        quotas = self._clients.quotas
        self._clients.topics.creations.measure()
        limit = GaugeMetricFamily(
            "onewriter_quota_limit", "Limit of a quota; 0: no limit.", labels=["quota"]
        )
        most = GaugeMetricFamily(
            "onewriter_quota_used_most",
            "Usage of the subject or namespace that uses most of a quota.",
            labels=["quota"],
        )
        for quota in Quota:
            limit.add_metric([quota.value], quotas.limit(quota))
            is_in_flight = quota is Quota.REQUESTS_PER_SUBJECT
            used = self._clients.in_flight.most() if is_in_flight else quotas.most(quota)[1]
            most.add_metric([quota.value], used)
        yield from (limit, most)
        shares = self._clients.topics.shares
        yield _gauge("shares_held", "Shares of the store that are used up.", shares.held)
        yield _counter(
            "share_refusals", "Producers refused because of a share of the store.", shares.refused
        )
        stored = GaugeMetricFamily(
            "onewriter_stored_bytes", "Bytes that the logs in use store.", labels=["declared"]
        )
        for is_declared in (True, False):
            sizes = [n for whose, n in shares.stored.items() if whose.is_declared is is_declared]
            stored.add_metric([str(is_declared).lower()], sum(sizes))
        yield stored
        yield _counters(
            "quota_refusals",
            "Requests refused because of a quota.",
            ["quota"],
            (((quota.value,), quotas.refused[quota]) for quota in Quota),
        )

    def _path(self) -> Iterator[Metric]:
        figures = self._clients.appender.statistics
        is_full = int(self._clients.store_is_full)
        yield _gauge(
            "store_reachable",
            "1 while the store answers this broker's heartbeats.",
            int(self._is_store_reachable()),
        )
        yield _gauge(
            "store_is_full",
            "1 while producers are slowed down because the store is almost full.",
            is_full,
        )
        yield _counter("published_entries", "Entries appended.", figures.entries)
        yield _counter("published_bytes", "Bytes appended.", figures.bytes)
        yield _counter("published_blocks", "Blocks appended.", figures.blocks)
        yield _counters(
            "store_writes",
            "Round trips of the write path with a definite result.",
            ["kind"],
            ((("append",), figures.calls), (("fence",), figures.fences)),
        )
        yield _counter(
            "store_undecided", "Round trips without a definite result.", figures.undecided_calls
        )
        yield self.histogram(
            "publish_seconds",
            "Time from a block's first entry until the block has the durability of its topic.",
            figures.publish_seconds,
        )
        yield self.histogram(
            "append_seconds",
            "Time of an append call to the store, including retries.",
            figures.call_seconds,
        )
        yield self.histogram("block_entries", "Entries in a block.", figures.block_entries)
        yield self.histogram("call_blocks", "Blocks in an append call.", figures.call_blocks)

    def _shards(self) -> Iterator[Metric]:
        """The primaries of the store, by their place in the order of their slots; see ``StoreWatch.shards``."""
        up = GaugeMetricFamily(
            "onewriter_store_shard_up",
            "1 while the primary of the shard answers.",
            labels=["shard", "primary"],
        )
        shards = self._observed_shards()
        figures = {
            "buckets": "Buckets of the shard.",
            "replicas": "Replicas that are connected to the primary of the shard.",
            "replication_lag_bytes": "Bytes that the slowest connected replica is behind.",
            "memory_used_bytes": "Memory that the primary uses.",
            "memory_max_bytes": "Memory limit of the primary; 0: none.",
            "faults": "Failures of the primary's files that it reports; see store.fault in the log.",
        }
        families = {
            name: GaugeMetricFamily(f"onewriter_store_shard_{name}", text, labels=["shard"])
            for name, text in figures.items()
        }
        for place, (shard, _) in enumerate(shards):
            labels, seen = [str(place)], shard.seen
            up.add_metric([*labels, shard.address], int(seen is not None))
            count = self._clients.settings.buckets
            families["buckets"].add_metric(
                labels, count if shard.buckets is None else len(shard.buckets)
            )
            if seen is not None:
                families["replicas"].add_metric(labels, seen.replicas)
                families["replication_lag_bytes"].add_metric(labels, seen.replication_lag_bytes)
                families["memory_used_bytes"].add_metric(labels, seen.memory_bytes_used)
                families["memory_max_bytes"].add_metric(labels, seen.memory_bytes_max)
                families["faults"].add_metric(labels, len(seen.faults))
        yield up
        yield from families.values()
        yield _counters(
            "store_shard_failovers",
            "Times that another primary took the place of a shard's primary.",
            ["shard"],
            (((str(place),), failovers) for place, (_, failovers) in enumerate(shards)),
        )
        yield _counters(
            "store_shard_sync_seconds",
            "Time for which the primary wrote and synced its append-only file.",
            ["shard"],
            (
                ((str(place),), shard.seen.sync_seconds)
                for place, (shard, _) in enumerate(shards)
                if shard.seen is not None
            ),
        )

    def clocks(self) -> Metric:
        """Other brokers whose wall clocks differ from this broker's."""
        return _gauges(
            "clock_ahead_seconds",
            "By how much the wall clock of another broker is ahead of this broker's; absent up to 5 s.",
            ["member"],
            # A broker that has just restarted may count as two processes.
            {(name_of(each),): ms / 1000 for each, ms in self._clocks_ahead_ms().items()},
        )

    def _process(self) -> Iterator[Metric]:
        clients, streams = self._clients, self.block_streams
        yield _gauge("block_streams", "Logs being read as blocks.", streams.open)
        yield _counter("block_stream_bytes", "Bytes of logs sent as blocks.", streams.bytes)
        text = "Readers of blocks that were disconnected because they read too slowly."
        yield _counter("block_streams_cut_off", text, streams.cut_off)
        if self._certificate is not None:
            yield _gauge(
                "tls_certificate_not_after_seconds",
                "Unix time at which the served certificate expires.",
                self._certificate.not_after,
            )
        refused = (((right,), count) for right, count in clients.authorization.refusals.items())
        yield _counters(
            "refusals", "Requests refused because a right is missing.", ["right"], refused
        )
        yield _gauge(
            "desired_known",
            "0 until the broker has received its declarations.",
            int(clients.has_declarations),
        )
        yield self.clocks()
        yield _gauge("connections", "Client connections.", len(clients.connections))
        yield _counter("connections_opened", "Client connections since the start.", clients.opened)
        yield _gauge(
            "pending_bytes", "Bytes from clients without a receipt.", clients.pending_bytes
        )
        yield _gauge(
            "event_loop_lag_last_seconds", "Last measured delay of the event loop.", self._last_lag
        )
        yield self.histogram("event_loop_lag_seconds", "Delay of the event loop.", self._lag)


class _Taken(Collector):
    """Metric families that are already collected."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"onewriter_{name}", text, value=value)


def _gauges(
    name: str, text: str, labels: list[str], values: Mapping[tuple[str, ...], float]
) -> Metric:
    family = GaugeMetricFamily(f"onewriter_{name}", text, labels=labels)
    for names, value in values.items():
        family.add_metric(list(names), value)
    return family


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"onewriter_{name}", text, value=value)


def _counters(
    name: str, text: str, labels: list[str], values: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    family = CounterMetricFamily(f"onewriter_{name}", text, labels=labels)
    for names, value in values:
        family.add_metric(list(names), value)
    return family


def _by_cause(name: str, text: str, spreads: Mapping[str, Distribution]) -> Metric:
    family = HistogramMetricFamily(f"onewriter_{name}_seconds", text, labels=["cause"])
    for cause, spread in spreads.items():
        family.add_metric([cause], spread.cumulative(), spread.total)
    return family


def _observe(spreads: dict[str, Distribution], cause: str, seconds: float | None) -> None:
    if seconds is not None:
        spreads.setdefault(cause, Distribution(OUTAGE_SECONDS)).observe(seconds)
