"""Reaching a data directory's store whether or not ``onewriter up`` runs on it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from onewriter_broker.local.datadir import DirectoryLock
from onewriter_broker.local.embedded import EmbeddedServer, EmbeddedSettings
from onewriter_broker.settings import Settings
from onewriter_core.errors import ConfigurationError


@contextlib.asynccontextmanager
async def reachable(settings: Settings) -> AsyncIterator[Settings]:
    """Settings whose store answers: the named one, the running embedded one, or one started here.

    A server that is started here has the data directory's lock, and is stopped at the end. Raises
    ConfigurationError when there is no data, or no way to its store.
    """
    if settings.redis_url or settings.redis_sentinels:
        yield settings
        return
    lock = DirectoryLock(settings.data_dir, what="onewriter")
    running = _acquire_or_find(lock, settings)
    if running is not None:
        yield running
        return
    try:
        directory = settings.data_dir / "valkey"
        if not directory.is_dir():
            raise ConfigurationError(
                f"{settings.data_dir} has no embedded store: name the one it belongs to, --redis-url"
            )
        server = EmbeddedServer(EmbeddedSettings(directory))
        await server.start()
        try:
            yield settings.model_copy(update={"redis_url": server.url, "redis_is_alone": True})
        finally:
            await server.stop()
    finally:
        lock.release()


def _acquire_or_find(lock: DirectoryLock, settings: Settings) -> Settings | None:
    """None when the lock is ours now; else the settings of a broker that runs on the directory."""
    try:
        lock.acquire()
    except ConfigurationError:
        for path in sorted((settings.data_dir / "run").glob("*.json")):
            with contextlib.suppress(OSError, ValueError):  # half written, or not ours to read
                return Settings.model_validate_json(path.read_text())
        raise
    return None
