"""The operator's Prometheus metrics; docs/operator.md documents their names."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from onewriter_core.kubernetes.kinds import Key
from onewriter_core.kubernetes.objects import TopicStatus
from onewriter_operator.plan.store_shards import StoreState

CONDITION_STATES: Final = {"True": 1.0, "False": 0.0, "Unknown": -1.0}

_FAILOVER_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The operator's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("namespace", "name")
        self.is_leader = self._gauge("onewriter_leader", "1 while this replica leads")
        self.depth = self._gauge("onewriter_workqueue_depth", "Objects that wait for a reconcile")
        self.brokers = self._gauge(
            "onewriter_brokers_followed", "Brokers that the operator can reach"
        )
        self.fence_requested = self._gauge(
            "onewriter_fence_annotations", "Topics that carry the annotation onewriter.dev/fence"
        )
        self._epoch = self._gauge("onewriter_topic_epoch", "Topic epoch in status", labels)
        self._condition = self._gauge(
            "onewriter_topic_condition",
            "Conditions of an ExclusiveTopic: 1 True, 0 False, -1 Unknown",
            (*labels, "condition"),
        )
        self._claims = self._gauge("onewriter_claims", "ProducerClaims by state", ("state",))
        self.fenced = Counter(
            "onewriter_fenced",
            "Writers fenced as stale, by cause",
            ("reason",),
            registry=self.registry,
        )
        self.removed = Counter(
            "onewriter_fenced_pods",
            "Pods of fenced writers, by outcome",
            ("outcome",),
            registry=self.registry,
        )
        self.drift = Counter(
            "onewriter_drift_repaired",
            "Objects that others changed and the operator repaired",
            ("kind",),
            registry=self.registry,
        )
        self.events_dropped = Counter(
            "onewriter_events_dropped",
            "Kubernetes Events not written because too many were waiting",
            registry=self.registry,
        )
        self.failover = Histogram(
            "onewriter_failover_seconds",
            "Time without a writer, per transition, from when the former writer left or was found dead",
            buckets=_FAILOVER_BUCKETS,
            registry=self.registry,
        )
        self.outage = Histogram(
            "onewriter_topic_outage_seconds",
            "Time in which no producer could write, per transition: detection and handover",
            ("cause",),
            buckets=_FAILOVER_BUCKETS,
            registry=self.registry,
        )
        self.reconcile = Histogram(
            "onewriter_reconcile_seconds",
            "Time of a reconcile",
            ("kind", "result"),
            registry=self.registry,
        )
        self._store_state = self._gauge(
            "onewriter_store_cluster_state",
            "State of the installed store's cluster: 1 at the present state",
            ("state",),
        )
        self.store_commands = Counter(
            "onewriter_store_cluster_commands",
            "Commands that formed, repaired or moved parts of the store's cluster",
            ("command",),
            registry=self.registry,
        )
        self._received: dict[str, float] = {}
        self._watch = self._gauge(
            "onewriter_watch_last_event_seconds",
            "Seconds since the watch was last known to be complete: an event, or a listing that agreed",
            ("kind",),
        )
        self._states: dict[Key, str] = {}
        self._certificate: Gauge | None = None

    def _gauge(self, name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
        return Gauge(name, text, tuple(labels), registry=self.registry)

    # ------------------------------------------------------------ what happened

    def watch_received(self, kind: str) -> None:
        """Note an event of a watch, or a listing."""
        if kind not in self._received:
            self._watch.labels(kind).set_function(lambda: time.monotonic() - self._received[kind])
        self._received[kind] = time.monotonic()

    def reconciled(self, key: Key, seconds: float, result: str) -> None:
        """Count a reconcile; see workqueue.Observer."""
        self.reconcile.labels(key.kind, result).observe(seconds)

    def certificate(self, not_after: float) -> None:
        """Set the expiry of the webhook's certificate; without a certificate the metric does not exist."""
        if self._certificate is None:
            self._certificate = self._gauge(
                "onewriter_tls_certificate_not_after_seconds",
                "Unix time at which the webhook's certificate expires",
            )
        self._certificate.set(not_after)

    def topic(self, key: Key, status: TopicStatus) -> None:
        """Set the metrics of an ExclusiveTopic from its status."""
        labels = (key.namespace, key.name)
        self._epoch.labels(*labels).set(status.epoch or 0)
        for kind, condition in status.conditions.items():
            value = CONDITION_STATES.get(condition.status, -1.0)
            self._condition.labels(*labels, kind).set(value)

    def claim(self, key: Key, state: str) -> None:
        """Set a ProducerClaim's state; empty: the claim is gone."""
        former = self._states.pop(key, "")
        if former:
            self._claims.labels(former).dec()
        if state:
            self._states[key] = state
            self._claims.labels(state).inc()

    def store_planned(self, state: StoreState) -> None:
        """Set the state of the store's cluster; without a cluster the metric has no values."""
        for each in StoreState:
            self._store_state.labels(each.value).set(each is state)

    def forget_topic(self, key: Key) -> None:
        """Remove the metrics of an ExclusiveTopic that is gone."""
        self._epoch.remove(key.namespace, key.name)
        self._condition.remove_by_labels({"namespace": key.namespace, "name": key.name})

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)
