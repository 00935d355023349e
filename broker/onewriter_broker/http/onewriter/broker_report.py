"""What a broker reports about itself and its store, for the operator's object of the installation.

The memory of the store is rounded, so that the report of an idle installation stays the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from onewriter_broker.http.onewriter import views
from onewriter_broker.http.pulsar.stats import iso
from onewriter_broker.http.site import Site
from onewriter_broker.log.store.api import UNWRITTEN
from onewriter_broker.log.store.redis.primary import is_cluster_url
from onewriter_broker.settings import Settings
from onewriter_core.api.topic import Durability
from onewriter_core.command import DISTRIBUTION

MEMORY_STEP_BYTES: Final = 1024 * 1024
"""The reported memory is a multiple of this."""

CERTIFICATES_SECONDS: Final = 60.0
"""The files of certificates are read again after this time."""

FILE_BYTES_MAX: Final = 1024 * 1024

_STRENGTH: Final = (
    Durability.ALL_REPLICAS,
    Durability.REPLICATED,
    Durability.LOCAL,
    Durability.NONE,
)


class BrokerReport:
    """The report of one broker. ``now``: monotonic seconds."""

    def __init__(self, site: Site, now: Callable[[], float] = time.monotonic) -> None:
        self._site = site
        self._now = now
        self._read_at = float("-inf")
        self._store_dates: dict[str, str] = {}
        self._version = metadata.version(DISTRIBUTION)

    async def line(self) -> dict[str, Any]:
        """The line of a watch."""
        site = self._site
        files = _store_files(site.clients.settings)
        if files and self._now() - self._read_at >= CERTIFICATES_SECONDS:
            self._read_at = self._now()
            self._store_dates = await asyncio.to_thread(_dates, files)
        dates = dict(self._store_dates)
        if site.certificate is not None:
            dates["broker"] = iso(round(site.certificate.not_after * 1000))
        return {
            "type": "BROKER",
            "version": self._version,
            "store": self._store(),
            "certificates": [{"name": name, "notAfter": dates[name]} for name in sorted(dates)],
        }

    def _store(self) -> dict[str, Any]:
        settings, seen = self._site.clients.settings, self._site.seen()
        is_reachable = self._site.membership.view() is not None
        promises = self._site.topics.promises
        strongest = next((each.value for each in _STRENGTH if each in promises), None)
        used = 0 if seen is None else seen.memory_bytes_used
        return {
            "url": address(settings),
            "topology": _topology(settings),
            "reachable": is_reachable,
            "problem": None if is_reachable else self._site.store_problem() or None,
            "durability": strongest,
            "full": self._site.clients.store_is_full,
            "faults": [] if seen is None else list(seen.faults),
            "refusesWrites": seen is not None and UNWRITTEN in seen.faults,
            "declared": list(self._site.declared),
            "memoryBytesUsed": round(used / MEMORY_STEP_BYTES) * MEMORY_STEP_BYTES,
            "memoryBytesMax": (seen.memory_bytes_max or None) if seen is not None else None,
            "shards": [
                views.shard(*each, step_bytes=MEMORY_STEP_BYTES)
                for each in self._site.shards()
                if each[0].buckets is not None
            ],
        }


def _topology(settings: Settings) -> str:
    if settings.redis_sentinels:
        return "Sentinel"
    return "Cluster" if is_cluster_url(settings.redis_url) else "Single"


def address(settings: Settings) -> str:
    """The address of the store, without user and password."""
    if settings.redis_sentinels:
        each = (name.strip() for name in settings.redis_sentinels.split(","))
        return ",".join(name.rpartition("@")[2] for name in each if name)
    parts = urlsplit(settings.redis_url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.scheme else ""


def _store_files(settings: Settings) -> dict[str, Path]:
    found = {"store-ca": settings.redis_ca_file, "store-client": settings.redis_cert_file}
    return {name: file for name, file in found.items() if file is not None}


def _dates(files: dict[str, Path]) -> dict[str, str]:
    """The expiry of the certificate in each file; the latest one of several. Blocks on the file system."""
    from cryptography import x509  # noqa: PLC0415 - it takes a part of every start without TLS

    found: dict[str, str] = {}
    for name, file in files.items():
        try:
            with file.open("rb") as stream:
                certificates = x509.load_pem_x509_certificates(stream.read(FILE_BYTES_MAX))
        except (OSError, ValueError):
            continue  # the connection to the store reports an unusable file
        last = max(each.not_valid_after_utc for each in certificates)
        found[name] = iso(round(last.timestamp() * 1000))
    return found
