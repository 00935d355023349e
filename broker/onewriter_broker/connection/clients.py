"""What all connections of a broker share, and the watch over those that hold topics.

A holder is silent when no byte of it has come for a while although it is pinged. Connections with
exclusive producers, waiting or writing, are pinged each second; all others as seldom as Pulsar does.
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
from onewriter_broker.connection.listings import Listings
from onewriter_broker.connection.rounds import Rounds
from onewriter_broker.connection.withdrawals import Reading, Withdrawals
from onewriter_broker.log.appender import Appender
from onewriter_broker.log.store.api import LogStore
from onewriter_broker.quotas.book import QuotaBook
from onewriter_broker.quotas.requests import RequestsInFlight
from onewriter_broker.resources.ownerships import Ownerships
from onewriter_broker.settings import Settings
from onewriter_broker.tls import over_plain, over_tls
from onewriter_broker.topic.registry.detection import Detection
from onewriter_broker.topic.registry.topics import Topics
from onewriter_broker.topic.schemas.checks import SchemaChecks

TICK_SECONDS = 0.25
"""How often the watch looks at the connections."""

STALL_SECONDS = 1.0
"""A gap between two looks that tells that this broker itself stood still: it looks anew."""

log = structlog.get_logger(__name__)


def _call_soon(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(call)


class Watched(Protocol):
    """A connection, as the watch sees it."""

    detection: Detection | None
    """None: no exclusive producer depends on it."""
    last_inbound: float
    last_ping: float

    @property
    def reading(self) -> Reading | None:
        """Its consumers; None: it is not connected yet."""
        ...

    def ping(self) -> None: ...

    def store_has_changed(self) -> None: ...

    def declared_anew(self) -> None: ...

    def silent(self) -> None: ...

    def look(self, now: float) -> None: ...

    def close(self, reason: str) -> None: ...


@dataclass(slots=True, eq=False)
class Clients:
    """Shared by all connections of one broker."""

    settings: Settings
    topics: Topics
    owning: Ownerships
    appender: Appender
    authenticator: Authenticator
    addresses: Addresses
    incarnation: str
    """Names this process for ever: invented producer names must not come again after a restart."""
    authorization: Authorization
    now: Callable[[], float]
    wall_ms: Callable[[], int]
    store: LogStore
    registrations: Registrations
    connections: dict[Watched, None] = field(default_factory=dict)
    """In the order in which they came: a simulation must look at them in the same order twice."""
    pending_bytes: int = 0
    pressed_bytes: int = 0
    """The same of connections that are read slowly: they take no room from others."""
    store_is_full: bool = False
    """The store is near its memory limit: producers are held back."""
    opened: int = 0
    is_told: bool = True
    """What is wanted of topics is known; until then nobody can tell who may do what."""
    hang_ups: HangUps = field(default_factory=HangUps)
    quotas: QuotaBook = field(default_factory=QuotaBook)
    schema_checks: SchemaChecks = field(default_factory=SchemaChecks)
    rounds: Rounds = field(init=False)
    listings: Listings = field(init=False)
    in_flight: RequestsInFlight = field(init=False)
    withdrawals: Withdrawals = field(init=False)
    _last_look: float = 0.0
    _deadlines: ProgressDeadlines = field(init=False)

    def __post_init__(self) -> None:
        self.in_flight = RequestsInFlight(self.quotas)
        self._deadlines = ProgressDeadlines(self.topics)
        self.rounds = Rounds(self.now, _call_soon)
        self.listings = Listings(self.topics)
        self.withdrawals = Withdrawals(
            self.authorization,
            lambda: (each.reading for each in self.connections if each.reading is not None),
            lambda: self.topics.desired,
        )

    def store_filled(self, is_full: bool) -> None:
        """The store is nearly full, or has room again."""
        self.store_is_full = is_full

    def shares_freed(self) -> None:
        """Some logs that were held, or written to slowly, may be written to again."""
        for connection in list(self.connections):
            connection.store_has_changed()

    def over_tls(self, addresses: Addresses) -> Addresses:
        """Where the broker at these addresses serves TLS; empty: it does not."""
        return over_tls(addresses, self.settings)

    def over_plain(self, addresses: Addresses) -> Addresses:
        """Where the broker at these addresses serves clients without TLS; empty: it does not."""
        return over_plain(addresses, self.settings)

    def named(self, addresses: Addresses, *, is_secure: bool = False) -> Addresses:
        """By which addresses a client is sent to that broker; ``is_secure``: it came over TLS."""
        tls = self.over_tls(addresses)
        return tls if tls.http_url and (is_secure or self.settings.tls_only) else addresses

    def declared_anew(self) -> None:
        """What topics declare has changed: it counts for connections that use them, too."""
        for connection in list(self.connections):
            connection.declared_anew()
        self.withdrawals.look()

    def close_all(self, reason: str) -> None:
        """Close every connection."""
        for connection in list(self.connections):
            connection.close(reason)

    async def watch_for_ever(self) -> None:
        """Ping, and find the silent ones, until cancelled."""
        self._last_look = self.now()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.look(self.now())

    def look(self, now: float) -> None:
        """One look at all connections."""
        stalled = now - self._last_look > STALL_SECONDS
        self._last_look = now
        self.withdrawals.look()
        if stalled:
            # What was not read while this process stood still is not the clients' silence.
            log.warning("broker.stalled")
            for connection in self.connections:
                connection.last_inbound = now
        else:  # after a stall, what they published meanwhile is not read yet
            self._deadlines.look(now)
        for connection in list(self.connections):
            detection = connection.detection
            if detection is None:
                interval = self.settings.idle_ping_interval_seconds
                silent_after = 2 * interval
            else:
                interval = detection.ping_interval_seconds
                silent_after = detection.silent_after_seconds
                if not stalled:  # what they took meanwhile is not seen yet
                    connection.look(now)
            if now - connection.last_inbound > silent_after:
                connection.silent()
            # Also one that we do not read: if its peer has gone, the answer is a reset.
            if now - max(connection.last_ping, connection.last_inbound) >= interval - TICK_SECONDS:
                connection.last_ping = now
                connection.ping()
