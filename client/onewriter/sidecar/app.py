"""The sidecar as one process: composition, signals, and how it leaves."""

from __future__ import annotations

import asyncio
import signal

import structlog

from onewriter._client import Client
from onewriter._config import Tls
from onewriter.sidecar.candidate import Candidate
from onewriter.sidecar.http import HttpServer
from onewriter.sidecar.metrics import Metrics
from onewriter.sidecar.settings import Settings

VERSION = "onewriter-sidecar"
"""What brokers are told it is."""

log = structlog.get_logger(__name__)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Run until ``stop``, then release the topic and go. Raises ConfigurationError."""
    metrics = Metrics()
    async with Client(
        settings.service_url,
        token=settings.token_file,
        tls=Tls(
            ca_file=settings.tls_ca_file,
            certificate_file=settings.tls_certificate_file,
            key_file=settings.tls_key_file,
        ),
        version=VERSION,
    ) as client:
        candidate = Candidate(settings, client, metrics)
        server = HttpServer(candidate)
        try:
            await server.start()
            async with candidate.leadership:
                await stop.wait()
                # The next one in line leads before we are gone, and our application hears of it.
                log.info("sidecar.leaving", phase=candidate.standing.phase.value)
                await candidate.release(rejoin=False)
        finally:
            await server.stop()
    log.info("sidecar.left")


async def run(settings: Settings) -> None:
    """``serve`` until SIGTERM or SIGINT; a second one does not wait for the release."""
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
