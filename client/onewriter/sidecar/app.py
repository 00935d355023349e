"""The sidecar as one process: composition, signals and shutdown."""

from __future__ import annotations

import asyncio
import signal

import structlog

from onewriter._client import Client
from onewriter._config import Tls
from onewriter.sidecar.candidate import Candidate
from onewriter.sidecar.http import HttpServer
from onewriter.sidecar.map_http import MapRoutes
from onewriter.sidecar.maps import Maps
from onewriter.sidecar.metrics import Metrics
from onewriter.sidecar.ownerships import OwnershipRoutes
from onewriter.sidecar.settings import Settings
from onewriter.sidecar.streams import EventStreams
from onewriter.state import SharedMap, StateLimits

VERSION = "onewriter-sidecar"
"""The client name in the handshake with brokers."""

log = structlog.get_logger(__name__)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Run until ``stop``, then release the topic and return. Raises ConfigurationError."""
    metrics = Metrics()
    async with _client(settings) as client, _maps(settings, client, metrics) as maps:
        candidate = Candidate(settings, client, metrics)
        streams = EventStreams(settings.event_streams_max, metrics)
        owning = OwnershipRoutes(client, streams, metrics)
        sharing = MapRoutes(settings, maps, streams, metrics)
        server = HttpServer(candidate, streams, [owning.add_routes, sharing.add_routes])
        try:
            await server.start()
            async with candidate.candidacy:
                await stop.wait()
                # Release first: the next leader begins before this process ends, and the application is notified.
                log.info("sidecar.leaving", phase=candidate.standing.phase.value)
                async with asyncio.TaskGroup() as releases:
                    releases.create_task(candidate.release(rejoin=False))
                    releases.create_task(_release(owning, settings.stop_seconds))
        finally:
            await server.stop()
    log.info("sidecar.left")


def _client(settings: Settings) -> Client:
    return Client(
        settings.service_url,
        token=settings.token_file,
        tls=Tls(
            ca_file=settings.tls_ca_file,
            certificate_file=settings.tls_certificate_file,
            key_file=settings.tls_key_file,
        ),
        version=VERSION,
    )


def _maps(settings: Settings, client: Client, metrics: Metrics) -> Maps:
    limits = StateLimits(timeout_seconds=settings.publish_timeout_seconds)
    return Maps(
        lambda topic: SharedMap(client, topic, bytes, bytes, limits=limits),
        metrics,
        maps_max=settings.maps_max,
        timeout_seconds=settings.publish_timeout_seconds,
        stop_seconds=settings.stop_seconds,
    )


async def _release(owning: OwnershipRoutes, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await owning.release()
    except TimeoutError:
        log.warning("sidecar.ownerships_not_released")  # brokers detect the lost connection


async def run(settings: Settings) -> None:
    """Run ``serve`` until SIGTERM or SIGINT. A second signal ends the process without the release."""
    stop = asyncio.Event()
    serving = asyncio.current_task()
    loop = asyncio.get_running_loop()

    def asked() -> None:
        if stop.is_set() and serving is not None:
            serving.cancel()
        stop.set()

    for which in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(which, asked)
    await serve(settings, stop)
