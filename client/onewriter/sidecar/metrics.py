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
        registry = self._registry = CollectorRegistry()
        self._leading = Gauge(_PREFIX + "leading", "1 while the sidecar leads", registry=registry)
        self._connected = Gauge(
            _PREFIX + "connected", "1 while a broker knows the sidecar", registry=registry
        )
        self._epoch = Gauge(
            _PREFIX + "latest_epoch", "Newest topic epoch that the sidecar knows", registry=registry
        )
        self._terms = Counter(_PREFIX + "terms", "Number of terms as the leader", registry=registry)
        self.conflicts = Counter(
            _PREFIX + "session_conflicts",
            "Requests with a session that is over",
            registry=registry,
        )
        self._publishes = Counter(
            _PREFIX + "publishes", "Messages by outcome", ["outcome"], registry=registry
        )
        self._publish_seconds = Histogram(
            _PREFIX + "publish_seconds",
            "Time from the request to the receipt",
            registry=registry,
            buckets=_BUCKETS,
        )
        self._pending = Gauge(
            _PREFIX + "pending_messages", "Messages without a receipt", registry=registry
        )
        self._pending_bytes = Gauge(
            _PREFIX + "pending_bytes", "Bytes of messages without a receipt", registry=registry
        )
        self.event_streams = Gauge(
            _PREFIX + "event_streams", "Readers of server-sent events", registry=registry
        )
        self.maps_open = Gauge(_PREFIX + "maps_open", "Open shared maps", registry=registry)
        self._map_requests = Counter(
            _PREFIX + "map_requests",
            "Requests to shared maps by outcome",
            ["operation", "outcome"],
            registry=registry,
        )
        self._map_seconds = Histogram(
            _PREFIX + "map_request_seconds",
            "Time from the request to the answer",
            ["operation"],
            registry=registry,
            buckets=_BUCKETS,
        )
        self.ownerships = Gauge(
            _PREFIX + "ownerships", "Ownerships of the sidecar", registry=registry
        )
        self.relay_connections = Gauge(
            _PREFIX + "relay_connections", "Clients of the relay", registry=registry
        )
        self.relay_closed = Counter(
            _PREFIX + "relay_closed",
            "Connections of clients that the relay closed or lost, by reason",
            ["reason"],
            registry=registry,
        )
        self._led_epoch: int | None = None

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
