"""The sidecar's metrics; all names begin with ``onewriter_sidecar_``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from onewriter._lead.candidacy import Phase, Standing
from onewriter.sidecar.errors import Failure

_PREFIX = "onewriter_sidecar_"

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class PublishOutcome:
    """The result of one publish; at first unknown."""

    def __init__(self) -> None:
        self.name = "unknown"

    def stored(self) -> None:
        """Record that the receipt has arrived."""
        self.name = "stored"

    def failed(self, failure: Failure) -> None:
        """Record the failure."""
        self.name = failure.error


class Metrics:
    """The metrics of one sidecar, in a registry of their own, so that a test can run several sidecars."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._leading = self._gauge("leading", "1 while the sidecar leads")
        self._connected = self._gauge("connected", "1 while a broker knows the sidecar")
        self._epoch = self._gauge("latest_epoch", "Newest topic epoch that the sidecar knows")
        self._terms = self._counter("terms", "Number of terms as the leader")
        self.conflicts = self._counter("session_conflicts", "Requests with a session that is over")
        self._publishes = self._counter("publishes", "Messages by outcome", "outcome")
        self._publish_seconds = self._histogram(
            "publish_seconds", "Time from the request to the receipt"
        )
        self._pending = self._gauge("pending_messages", "Messages without a receipt")
        self._pending_bytes = self._gauge("pending_bytes", "Bytes of messages without a receipt")
        self.event_streams = self._gauge("event_streams", "Readers of server-sent events")
        self.maps_open = self._gauge("maps_open", "Open shared maps")
        self._map_requests = self._counter(
            "map_requests", "Requests to shared maps by outcome", "operation", "outcome"
        )
        self._map_seconds = self._histogram(
            "map_request_seconds", "Time from the request to the answer", "operation"
        )
        self.ownerships = self._gauge("ownerships", "Ownerships of the sidecar")
        self.relay_connections = self._gauge("relay_connections", "Clients of the relay")
        self.relay_closed = self._counter(
            "relay_closed",
            "Connections of clients that the relay closed or lost, by reason",
            "reason",
        )
        self._led_epoch: int | None = None

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(_PREFIX + name, text, registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(_PREFIX + name, text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(_PREFIX + name, text, labels, registry=self._registry, buckets=_BUCKETS)

    def candidate_changed(self, standing: Standing) -> None:
        """Record a new standing."""
        leads = standing.phase is Phase.LEADING
        self._leading.set(leads)
        self._connected.set(standing.is_connected)
        if standing.latest_epoch is not None:
            self._epoch.set(standing.latest_epoch)
        if leads and standing.term is not None and standing.term.epoch != self._led_epoch:
            self._led_epoch = standing.term.epoch
            self._terms.inc()

    def watch_pending(self, messages: Callable[[], int], size: Callable[[], int]) -> None:
        """Set the functions that return the messages and bytes without a receipt at each scrape."""
        self._pending.set_function(messages)
        self._pending_bytes.set_function(size)

    @contextmanager
    def publishing(self) -> Iterator[PublishOutcome]:
        """Count and time one publish."""
        outcome = PublishOutcome()
        begun = time.monotonic()
        try:
            yield outcome
        except Failure as failure:
            outcome.failed(failure)
            raise
        finally:
            self._publishes.labels(outcome.name).inc()
            self._publish_seconds.observe(time.monotonic() - begun)

    @contextmanager
    def sharing(self, operation: str) -> Iterator[None]:
        """Count and time one request to a shared map."""
        outcome = "done"
        begun = time.monotonic()
        try:
            yield
        except Failure as failure:
            outcome = failure.error
            raise
        except BaseException:
            outcome = "cut-off"
            raise
        finally:
            self._map_requests.labels(operation, outcome).inc()
            self._map_seconds.labels(operation).observe(time.monotonic() - begun)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
