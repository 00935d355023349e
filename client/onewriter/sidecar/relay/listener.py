"""The relay: listens on loopback, connects to brokers, and watches the links."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from collections.abc import AsyncIterator, Callable, Coroutine

import structlog

from onewriter._config import Address, ClientOptions, parse_service_url, token_of
from onewriter._errors import ConfigurationError, Unavailable
from onewriter.sidecar.metrics import Metrics
from onewriter.sidecar.relay.link import CLOSE_SECONDS, SILENT, LinkLimits, RelayEnd, RelayLink
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import InvalidTopicName, TopicName

HOSTS = ("127.0.0.1", "::1")
"""Only processes of the pod reach these. The relay adds the pod's token to each connection."""

CONNECTIONS_MAX = 100
"""Connections of clients. One uses at most 0.4 MB, with both of its sockets full."""

BROKERS_MAX = 1_000
"""Brokers that look-ups named, and that clients may therefore ask for."""

TICK_SECONDS = 0.5
"""Interval of the watch."""

STALL_SECONDS = 1.0
"""A tick that is later than this shows that this process itself did not run."""

OPEN_SECONDS = 1.5
"""For one attempt to connect to a broker, with TLS."""

ANY_BROKER_SECONDS = 8.0
"""For all attempts to reach any broker. Behind a Service, each attempt may lead to another one."""

PAUSE_SECONDS = 0.2
"""Between two attempts."""

_NO_IPV6 = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}

log = structlog.get_logger(__name__)

Spawn = Callable[[Coroutine[object, object, None]], asyncio.Task[None]]


class Relay:
    """Stock clients' way to the brokers of a service URL. Use ``running``. Implements Host for its links.

    ``led_topic``: the topic that the sidecar leads itself. Clients of the relay get no producer of it.
    """

    def __init__(
        self,
        service_url: str,
        options: ClientOptions,
        spawn: Spawn,
        metrics: Metrics,
        *,
        led_topic: str = "",
        limits: LinkLimits | None = None,
        connections_max: int = CONNECTIONS_MAX,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits or LinkLimits()
        self.now = now
        self._addresses = parse_service_url(service_url)
        self._first = 0
        self._options = options
        self._spawn = spawn
        self._metrics = metrics
        self._led_topic = _topic_of(led_topic) if led_topic else None
        self._connections_max = connections_max
        self._links: dict[RelayLink, None] = {}
        self._brokers: dict[Address, None] = {}
        self._servers: list[asyncio.Server] = []
        self._checked_at = now()

    @contextlib.asynccontextmanager
    async def running(self, port: int) -> AsyncIterator[None]:
        """Listen on this port inside the block. Raises ConfigurationError if it is in use."""
        watch: asyncio.Task[None] | None = None
        try:
            await self._listen(port)
            watch = self._spawn(self._watch_for_ever())
            yield
        finally:
            if watch is not None:
                watch.cancel()
            await self._stop()

    async def _listen(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        for host in HOSTS:
            try:
                server = await loop.create_server(lambda: RelayLink(self).client, host, port)
            except OSError as error:
                if host != HOSTS[0] and error.errno in _NO_IPV6:
                    continue
                raise ConfigurationError(
                    f"the relay cannot listen at {host} port {port}: {error}"
                ) from error
            self._servers.append(server)
        log.info("relay.listening", port=port, brokers=[str(each) for each in self._addresses])

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        for link in list(self._links):
            link.close("stop")
        await asyncio.sleep(0)  # the transports close their sockets in the next tick

    # ------------------------------------------------------------ Host

    @property
    def is_tls(self) -> bool:
        return self._addresses[0].is_tls

    def spawn(self, work: Coroutine[object, object, None]) -> object:
        return self._spawn(work)

    async def token(self) -> str | None:
        source = self._options.token
        return None if source is None else (await token_of(source)).decode()

    async def open(self, broker: Address | None, end: RelayEnd) -> Address:
        if broker is None:
            return await self._open_any(end)
        if broker not in self._brokers:
            # The token would go to whatever a process of the pod names.
            raise ProtocolError("no look-up through this relay named this broker")
        address = broker._replace(is_tls=self.is_tls)
        await self._open_one(address, end)
        return address

    def learned(self, broker: Address) -> None:
        key = broker._replace(is_tls=False)
        self._brokers.pop(key, None)
        self._brokers[key] = None
        if len(self._brokers) > BROKERS_MAX:
            del self._brokers[next(iter(self._brokers))]

    @property
    def leads(self) -> bool:
        return self._led_topic is not None

    def is_led(self, topic: str) -> bool:
        return self._led_topic is not None and _topic_of(topic) == self._led_topic

    def admits(self, link: RelayLink) -> bool:
        if len(self._links) >= self._connections_max:
            log.warning("relay.too_many_connections", at_most=self._connections_max)
            return False
        self._links[link] = None
        self._metrics.relay_connections.set(len(self._links))
        return True

    def ended(self, link: RelayLink, reason: str) -> None:
        self._links.pop(link, None)
        self._metrics.relay_connections.set(len(self._links))
        self._metrics.relay_closed.labels(reason).inc()
        if reason == SILENT:
            log.warning("relay.broker_silent", broker=str(link.address))
            if link.address == self._present:
                self._first += 1

    # ------------------------------------------------------------ inside

    @property
    def _present(self) -> Address:
        """The address of the service URL that is tried first."""
        return self._addresses[self._first % len(self._addresses)]

    async def _open_any(self, end: RelayEnd) -> Address:
        until = self.now() + ANY_BROKER_SECONDS
        while True:
            address = self._present
            try:
                await self._open_one(address, end)
            except Unavailable as error:
                if (
                    address == self._present
                ):  # another link may have gone on to the next one already
                    self._first += 1
                if self.now() >= until:
                    raise
                log.info("relay.not_reached", broker=str(address), reason=str(error))
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                return address

    async def _open_one(self, address: Address, end: RelayEnd) -> None:
        """Connect once. Raises Unavailable, ConfigurationError (the TLS files)."""
        tls = await asyncio.to_thread(self._options.tls.context) if address.is_tls else None
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await asyncio.get_running_loop().create_connection(
                    lambda: end,
                    address.host,
                    address.port,
                    ssl=tls,
                    ssl_shutdown_timeout=None if tls is None else CLOSE_SECONDS,
                )
        except TimeoutError as error:
            raise Unavailable(f"{address} did not answer within {OPEN_SECONDS:g} s") from error
        except (OSError, UnicodeError) as error:
            raise Unavailable(f"{address} cannot be reached: {error}") from error

    async def _watch_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.check(self.now())

    def check(self, now: float) -> None:
        """Run one round of the watch."""
        was_frozen = now - self._checked_at > TICK_SECONDS + STALL_SECONDS
        self._checked_at = now
        for link in list(self._links):
            link.check(now, was_frozen=was_frozen)


def _topic_of(name: str) -> TopicName | None:
    """The topic that a client names, for a partition the whole topic; None for a name that every broker refuses."""
    try:
        return TopicName.parse(name).base
    except InvalidTopicName:
        return None
