"""A look at the store now and then: which dataset it has, what it can promise, how full it is.

Nothing of it decides who may write. A store that restarted or failed over has another dataset; a
bucket that nobody writes to would not notice, and could neither load a topic nor move a cursor. A
store near its memory limit is pushed back on before it refuses: producers are read slowly and new
ones are asked to come again, until there is room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from onewriter_broker.log.api import Durability, LogStore, Observation
from onewriter_core.errors import OnewriterError

LOOK_SECONDS = 0.5
"""Between two looks."""

FULL_ABOVE = 0.9
"""The store is nearly full when it uses more than this share of its memory limit,"""

ROOM_BELOW = 0.85
"""and has room again when it uses less than this."""

_log = structlog.get_logger(__name__)


class StoreWatch:
    """Watches one store. ``run`` is the caller's task.

    ``promises`` is what the store was found to promise at the start. ``filled`` is told when it
    becomes nearly full and when it has room again; ``promised`` when it can promise more;
    ``dataset`` which one the primary has, at every look.
    """

    def __init__(
        self,
        store: LogStore,
        promises: frozenset[Durability],
        *,
        replicas: int,
        filled: Callable[[bool], None],
        promised: Callable[[frozenset[Durability]], None],
        dataset: Callable[[str], None],
    ) -> None:
        self.is_full = False
        self.seen: Observation | None = None
        """The last look; None before the first."""
        self._store = store
        self._promises = promises
        self._replicas = replicas
        self._filled = filled
        self._promised = promised
        self._dataset = dataset

    async def run(self) -> None:
        """Look until cancelled; a store that is away is nobody's news here."""
        while True:
            try:
                self.look(await self._store.observe([]))
            except OnewriterError as error:
                _log.debug("store.away", reason=str(error))
            await asyncio.sleep(LOOK_SECONDS)

    def look(self, seen: Observation) -> None:
        """Judge one observation."""
        self.seen = seen
        if seen.is_primary:
            self._dataset(seen.replid)
        is_full = nearly_full(seen, was_full=self.is_full)
        if is_full != self.is_full:
            self.is_full = is_full
            used, limit = seen.memory_bytes_used, seen.memory_bytes_max
            if is_full:
                _log.warning("store.nearly_full", bytes_used=used, bytes_max=limit)
            else:
                _log.info("store.has_room", bytes_used=used, bytes_max=limit)
            self._filled(is_full)
        promises = with_replicas(self._promises, seen.replicas, self._replicas)
        if promises != self._promises:
            self._promises = promises
            _log.info("store.promises", durabilities=sorted(each.value for each in promises))
            self._promised(promises)


def nearly_full(seen: Observation, *, was_full: bool) -> bool:
    """Whether producers should be held back; a store without a limit is never full."""
    share = ROOM_BELOW if was_full else FULL_ABOVE
    return seen.memory_bytes_max > 0 and seen.memory_bytes_used > share * seen.memory_bytes_max


def with_replicas(promises: frozenset[Durability], seen: int, wanted: int) -> frozenset[Durability]:
    """What is promised when ``seen`` replicas are connected; ``wanted``: all there should be.

    A promise stays when a replica goes: what it covers is then not acknowledged until it is back.
    """
    if Durability.LOCAL not in promises and Durability.REPLICATED not in promises:
        return promises  # without a file nothing more can be promised
    more = set(promises)
    if seen >= 1:
        more.add(Durability.REPLICATED)
    if seen >= wanted >= 1:
        more.add(Durability.ALL_REPLICAS)
    return frozenset(more)
