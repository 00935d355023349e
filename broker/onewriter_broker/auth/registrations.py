"""The registrations of holders, and the installation's key from which they are computed.

The key is in the store's settings hash. The first broker of an installation creates it and all others read
it, so every broker computes the same registration for the same holder. ``onewriter_core.publish_rights``
describes what a registration proves.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

import structlog

from onewriter_broker.log.store.api import LogStore
from onewriter_core.errors import OnewriterError, Unavailable
from onewriter_core.ids import Identity, TopicName
from onewriter_core.publish_rights import KEY_BYTES, registration_of

KEY_SETTING: Final = "installation-key"
"""Field of the store's settings hash: the key, as text."""

RETRY_SECONDS: Final = 0.2
"""Interval between two attempts to read the key while the store does not answer."""

REFRESH_SECONDS: Final = 10.0
"""Interval between two reads of the key: a failover may have lost a key that was just created."""

log = structlog.get_logger(__name__)


def _new_key() -> str:
    return secrets.token_hex(KEY_BYTES)


class Registrations:
    """Computes registrations. ``wait_for_key`` must return before the first topic is served."""

    def __init__(self, store: LogStore, make_key: Callable[[], str] = _new_key) -> None:
        """``make_key`` returns a key for an installation that has none yet."""
        self._store = store
        self._make_key = make_key
        self._key = ""

    async def wait_for_key(self) -> None:
        """Return once the key is known, however long the store takes."""
        is_logged = False
        while not self._key:
            try:
                await self.refresh()
            except OnewriterError as error:
                if not is_logged:
                    log.warning("registrations.key_unknown", reason=str(error))
                    is_logged = True
                await asyncio.sleep(RETRY_SECONDS)

    async def run(self) -> None:
        """Follow changes of the key in the store, until cancelled."""
        await self.wait_for_key()
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await self.refresh()
            except OnewriterError as error:
                log.debug("registrations.store_away", reason=str(error))

    async def refresh(self) -> None:
        """Use the key in the store, or store this broker's key if there is none. Raises Undecided, and Unavailable if the key
        in the store is empty.
        """
        key = await self._store.settle_setting(KEY_SETTING, self._key or self._make_key())
        if not key:
            raise Unavailable(f"the store has an empty {KEY_SETTING}")
        self._key = key

    def of(self, topic: TopicName, epoch: int, holder: Identity) -> str | None:
        """The registration of an epoch's holder; None while the key is not known."""
        if not self._key:
            return None
        return registration_of(self._key.encode(), topic, epoch, holder)
