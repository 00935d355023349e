"""The sidecar as one process: composition, signals and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from contextlib import AbstractAsyncContextManager

import structlog

from onewriter._client import Client
from onewriter._config import ClientOptions, Tls, token_file
from onewriter.sidecar.candidate import Candidate
from onewriter.sidecar.http import HttpServer
from onewriter.sidecar.limits import DEFAULT_LIMITS, SidecarLimits
from onewriter.sidecar.map_http import MapRoutes
from onewriter.sidecar.maps import Maps
from onewriter.sidecar.metrics import Metrics
from onewriter.sidecar.ownerships import OwnershipRoutes
from onewriter.sidecar.probes import ProbeServer
from onewriter.sidecar.relay.listener import Relay
from onewriter.sidecar.release_key import ReleaseKey
from onewriter.sidecar.settings import Settings
from onewriter.sidecar.streams import EventStreams
from onewriter.state import SharedMap, StateLimits

VERSION = "onewriter-sidecar"
"""The client name in the handshake with brokers."""

log = structlog.get_logger(__name__)


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    stand_aside: asyncio.Event,
    limits: SidecarLimits = DEFAULT_LIMITS,
) -> None:
    """Run until ``stop``, then release the topic and return. Raises ConfigurationError.

    Each time that ``stand_aside`` is set, the sidecar releases the topic, stays out of the queue, and continues to run.
    """
    metrics = Metrics()
    async with _client(settings) as client, _relaying(settings, client, metrics):
        if settings.topic:
            await _lead(settings, client, metrics, stop, stand_aside, limits)
        else:
            await _only_relay(settings, metrics, stop)
    log.info("sidecar.left")


async def _lead(
    settings: Settings,
    client: Client,
    metrics: Metrics,
    stop: asyncio.Event,
    stand_aside: asyncio.Event,
    limits: SidecarLimits,
) -> None:
    """Be a candidate for the topic, and serve the API, until ``stop``."""
    async with _maps(settings, client, metrics, limits) as maps:
        candidate = Candidate(settings, client, metrics, limits)
        streams = EventStreams(
            settings.event_streams_max, metrics, ping_seconds=limits.ping_seconds
        )
        release_key = ReleaseKey(
            settings.release_key_file, is_required=not settings.release_without_key
        )
        owning = OwnershipRoutes(client, streams, metrics, release_key, limits)
        sharing = MapRoutes(settings, maps, streams, metrics, limits)
        further_routes = [owning.add_routes, sharing.add_routes]
        server = HttpServer(candidate, streams, release_key, further_routes)
        try:
            await server.start()
            async with candidate.candidacy, asyncio.TaskGroup() as following:
                follower = following.create_task(_stand_aside(candidate, stand_aside))
                await stop.wait()
                # Release first: the next leader begins before this process ends, and the application is notified.
                log.info("sidecar.leaving", phase=candidate.standing.phase.value)
                async with asyncio.TaskGroup() as releases:
                    releases.create_task(candidate.release(rejoin=False))
                    releases.create_task(_release(owning, settings.stop_seconds))
                follower.cancel()  # not before: it may be releasing
        finally:
            await server.stop()


async def _only_relay(settings: Settings, metrics: Metrics, stop: asyncio.Event) -> None:
    """Serve probes until ``stop``, beside the relay."""
    probes = ProbeServer(metrics)
    try:
        await probes.start(settings)
        await stop.wait()
    finally:
        await probes.stop()


def _relaying(
    settings: Settings, client: Client, metrics: Metrics
) -> AbstractAsyncContextManager[None]:
    if not settings.relay_port:
        return contextlib.nullcontext()
    options = ClientOptions(
        token=None if settings.token_file is None else token_file(settings.token_file),
        tls=_tls(settings),
    )
    relay = Relay(settings.service_url, options, client.spawn, metrics, led_topic=settings.topic)
    return relay.running(settings.relay_port)


def _tls(settings: Settings) -> Tls:
    return Tls(
        ca_file=settings.tls_ca_file,
        certificate_file=settings.tls_certificate_file,
        key_file=settings.tls_key_file,
    )


def _client(settings: Settings) -> Client:
    return Client(
        settings.service_url,
        token=settings.token_file,
        tls=_tls(settings),
        version=VERSION,
    )


def _maps(settings: Settings, client: Client, metrics: Metrics, limits: SidecarLimits) -> Maps:
    of_state = StateLimits(timeout_seconds=settings.publish_timeout_seconds)
    return Maps(
        lambda topic: SharedMap(client, topic, bytes, bytes, limits=of_state),
        metrics,
        maps_max=settings.maps_max,
        timeout_seconds=settings.publish_timeout_seconds,
        stop_seconds=settings.stop_seconds,
        troubled_seconds=limits.troubled_seconds,
    )


async def _stand_aside(candidate: Candidate, requested: asyncio.Event) -> None:
    """Release the topic each time that the event is set, until cancelled."""
    while True:
        await requested.wait()
        requested.clear()
        log.info("sidecar.stands_aside", phase=candidate.standing.phase.value)
        await candidate.release(rejoin=False)


async def _release(owning: OwnershipRoutes, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await owning.release()
    except TimeoutError:
        log.warning("sidecar.ownerships_not_released")  # brokers detect the lost connection


async def run(settings: Settings) -> None:
    """Run ``serve`` until SIGTERM or SIGINT. A second signal ends the process without the release.

    SIGUSR1 makes the sidecar release the topic and stay out of the queue, as ``POST /release?rejoin=false`` does. A
    preStop hook can send it without starting an interpreter.
    """
    stop, stand_aside = asyncio.Event(), asyncio.Event()
    serving = asyncio.current_task()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set() and serving is not None:
            serving.cancel()
        stop.set()

    for which in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(which, on_signal)
    loop.add_signal_handler(signal.SIGUSR1, stand_aside.set)
    await serve(settings, stop, stand_aside)
