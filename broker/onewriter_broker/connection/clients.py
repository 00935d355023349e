"""State that all connections of a broker share, and the watch for silent connections.

A connection is silent if it has sent no byte for a while although the broker pinged it. The broker
pings connections with exclusive producers (active or waiting) each second, and all others as rarely
as Pulsar does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.auth.authentication import Authenticator
from onewriter_broker.auth.authorization import Authorization
from onewriter_broker.auth.registrations import Registrations
from onewriter_broker.connection.deadlines import ProgressDeadlines
from onewriter_broker.connection.hangups import HangUps
from onewriter_broker.connection.listings import NAMES_PER_STEP, Listings
from onewriter_broker.connection.requests import REQUESTS_MAX
from onewriter_broker.connection.rounds import Rounds
from onewriter_broker.connection.withdrawals import ConnectionConsumers, Withdrawals
from onewriter_broker.log.appender import AppendPath
from onewriter_broker.log.store.api import LogStore
from onewriter_broker.quotas.book import QuotaBook
from onewriter_broker.quotas.problems import QuotaProblems
from onewriter_broker.quotas.requests import RequestsInFlight
from onewriter_broker.resources.ownerships import Ownerships
from onewriter_broker.settings import Settings
from onewriter_broker.tls import over_plain, over_tls
from onewriter_broker.topic.registry.loaded_topic import Detection
from onewriter_broker.topic.registry.topics import Topics
from onewriter_broker.topic.schemas.checks import SchemaChecks

TICK_SECONDS = 0.25
"""Interval of the watch over the connections."""

STALL_SECONDS = 1.0
"""A longer gap between two rounds of the watch means that this broker itself was stopped. It then
starts to measure again."""

log = structlog.get_logger(__name__)


def _call_soon(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(call)


class Watched(Protocol):
    """A connection, as seen by the watch."""

    detection: Detection | None
    """None if no exclusive producer depends on the connection."""
    last_inbound: float
    last_ping: float
    asked_at: float
    """Time of the first ping since the last received byte."""

    @property
    def consumers(self) -> ConnectionConsumers | None:
        """The consumers of the connection; None before it is connected."""
        ...

    def ping(self) -> None: ...

    def store_has_changed(self) -> None: ...

    def declarations_changed(self) -> None: ...

    def silent(self) -> None: ...

    def check(self, now: float) -> None: ...

    def close(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of all connections of one broker."""

    requests_max: int = REQUESTS_MAX
    names_per_step: int = NAMES_PER_STEP


@dataclass(slots=True, eq=False)
class Clients:
    """State that all connections of one broker share."""

    settings: Settings
    topics: Topics
    ownerships: Ownerships
    appender: AppendPath
    authenticator: Authenticator
    addresses: Addresses
    incarnation: str
    """Unique to this process, so that generated producer names do not repeat after a restart."""
    authorization: Authorization
    now: Callable[[], float]
    wall_ms: Callable[[], int]
    token_seconds: Callable[[], float]
    """The clock by which tokens expire, in Unix seconds."""
    store: LogStore
    registrations: Registrations
    connections: dict[Watched, None] = field(default_factory=dict)
    """In order of arrival, so that a simulation visits them in the same order in each run."""
    pending_bytes: int = 0
    held_back_bytes: int = 0
    """Pending bytes of connections that are held back. They do not count against the limit of other connections."""
    store_is_full: bool = False
    """The store is near its memory limit, so the broker holds producers back."""
    opened: int = 0
    has_declarations: bool = True
    """The broker has received its declarations. Until then it cannot decide who has which right."""
    hang_ups: HangUps = field(default_factory=HangUps)
    quotas: QuotaBook = field(default_factory=QuotaBook)
    schema_checks: SchemaChecks = field(default_factory=SchemaChecks)
    limits: ConnectionLimits = ConnectionLimits()
    rounds: Rounds = field(init=False)
    listings: Listings = field(init=False)
    in_flight: RequestsInFlight = field(init=False)
    quota_problems: QuotaProblems = field(init=False)
    withdrawals: Withdrawals = field(init=False)
    _checked_at: float = 0.0
    _deadlines: ProgressDeadlines = field(init=False)

    def __post_init__(self) -> None:
        self.in_flight = RequestsInFlight(self.quotas)
        self.quota_problems = QuotaProblems(self.now, self.wall_ms)
        self._deadlines = ProgressDeadlines(self.topics)
        self.rounds = Rounds(self.now, _call_soon)
        self.listings = Listings(self.topics, names_per_step=self.limits.names_per_step)
        self.withdrawals = Withdrawals(
            self.authorization,
            lambda: (each.consumers for each in self.connections if each.consumers is not None),
            lambda: self.topics.desired,
        )

    def store_filled(self, is_full: bool) -> None:
        """Record whether the store is almost full."""
        self.store_is_full = is_full

    def shares_freed(self) -> None:
        """Let connections write again to logs that were held or slowed down."""
        for connection in list(self.connections):
            connection.store_has_changed()

    def over_tls(self, addresses: Addresses) -> Addresses:
        """The TLS addresses of the broker with these addresses; empty if it does not serve TLS."""
        return over_tls(addresses, self.settings)

    def over_plain(self, addresses: Addresses) -> Addresses:
        """The plain addresses of the broker with these addresses; empty if it does not serve
        clients without TLS.
        """
        return over_plain(addresses, self.settings)

    def named(self, addresses: Addresses, *, is_secure: bool = False) -> Addresses:
        """The addresses to which a client of that broker is sent; ``is_secure``: the client
        connected over TLS.
        """
        tls = self.over_tls(addresses)
        return tls if tls.http_url and (is_secure or self.settings.tls_only) else addresses

    def declarations_changed(self) -> None:
        """Apply changed declarations to the open connections."""
        for connection in list(self.connections):
            connection.declarations_changed()
        self.withdrawals.check()

    def close_all(self, reason: str) -> None:
        """Close every connection."""
        for connection in list(self.connections):
            connection.close(reason)

    async def watch_for_ever(self) -> None:
        """Ping connections and detect silent ones, until cancelled."""
        self._checked_at = self.now()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.check(self.now())

    def check(self, now: float) -> None:
        """Run one round over all connections."""
        stalled = now - self._checked_at > STALL_SECONDS
        self._checked_at = now
        self.withdrawals.check()
        if stalled:
            # Bytes that this process did not read while it was stopped are not the clients'
            # silence.
            log.warning("broker.stalled")
            for connection in self.connections:
                connection.last_inbound = now
        else:  # after a stall, what the producers published meanwhile is not read yet
            self._deadlines.check(now)
        for connection in list(self.connections):
            detection = connection.detection
            if detection is None:
                interval = self.settings.idle_ping_interval_seconds
                silent_after = 2 * interval
            else:
                interval = detection.ping_interval_seconds
                silent_after = detection.silent_after_seconds
                # After a stall, the broker has not noticed yet what the peer accepted.
                if not stalled:
                    connection.check(now)
            # A connection is first pinged once a producer depends on it, which may be long after its
            # last byte: its topic was being loaded.
            patience = silent_after - interval - TICK_SECONDS
            is_asked = connection.asked_at >= connection.last_inbound
            has_time_passed = is_asked and now - connection.asked_at >= patience
            if has_time_passed and now - connection.last_inbound > silent_after:
                connection.silent()
            # Also connections that are not being read: if the peer is gone, the ping is answered
            # with a reset.
            if now - max(connection.last_ping, connection.last_inbound) >= interval - TICK_SECONDS:
                if connection.last_ping <= connection.last_inbound:
                    connection.asked_at = now
                connection.last_ping = now
                connection.ping()
