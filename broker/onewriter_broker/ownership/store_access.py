"""Whether this broker alone lost the store, or all brokers did: the readiness of the broker follows from it.

A broker that lost the store alone must get no new clients: other brokers take its buckets. If no broker reaches
the store, another broker would serve a client no better, so all stay ready, and clients keep their connections.

``next_reach`` is pure: what was observed and the time go in. ``StoreAccessWatch`` is the loop around it, which
asks the other brokers while the store does not answer this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from enum import Enum

import structlog

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.ownership.member_observer import DEAD_SECONDS, RETURN_SECONDS
from onewriter_broker.ownership.membership import Membership
from onewriter_broker.ownership.placement import name_of

LOOK_SECONDS = 0.5
"""Interval between two observations."""

ASK_SECONDS = 1.0
"""Time limit for the answers of the other brokers."""

ASKED_MAX = 16
"""Largest number of brokers that are asked at the same time. If there are more, others are asked each time."""

_log = structlog.get_logger(__name__)


class StoreAccess(Enum):
    """Whether a broker reaches the store, and whether others do."""

    NEVER = "Never"
    """This process has not reached the store yet."""
    REACHED = "Reached"
    RETURNED = "Returned"
    """The store answers again; the broker binds its buckets again."""
    UNCERTAIN = "Uncertain"
    """The store does not answer this broker. Others reach it or do not say, but only since a moment."""
    LOST_BY_ALL = "LostByAll"
    """The store does not answer this broker, and no broker is known that reaches it."""
    LOST_ALONE = "LostAlone"
    """The store does not answer this broker, but it answers others, or none of them answers this broker either."""


@dataclass(frozen=True, slots=True)
class StoreReach:
    """What a broker knows about its access to the store.

    ``since``: when UNCERTAIN or RETURNED began. ``patience_seconds``: time after which UNCERTAIN becomes LOST_ALONE.
    """

    access: StoreAccess = StoreAccess.NEVER
    since: float = 0.0
    patience_seconds: float = DEAD_SECONDS


def next_reach(
    before: StoreReach, now: float, *, is_reached: bool, others: Collection[bool | None]
) -> StoreReach:
    """The next state after one observation at ``now`` (monotonic seconds).

    ``others``: for each other broker that was alive when the store answered last, whether it reaches the store;
    None: it does not say. Brokers notice a loss at different moments, and the return too, so their answers count
    only after a time. The silence of all others shows that this broker is cut off, unless another broker has
    reported before that it lost the store too.
    """
    access = before.access
    if is_reached:
        return _reached(before, now)
    if access is StoreAccess.NEVER:
        return before
    shows_loss = not others or False in others or access is StoreAccess.LOST_BY_ALL
    if shows_loss and True not in others:
        return StoreReach(StoreAccess.LOST_BY_ALL)
    if access is StoreAccess.LOST_ALONE:
        return before
    if access is not StoreAccess.UNCERTAIN:
        lost_by_all = access is StoreAccess.LOST_BY_ALL
        patience = RETURN_SECONDS if lost_by_all else DEAD_SECONDS
        return StoreReach(StoreAccess.UNCERTAIN, now, patience)
    if now - before.since >= before.patience_seconds:
        return StoreReach(StoreAccess.LOST_ALONE)
    return before


def _reached(before: StoreReach, now: float) -> StoreReach:
    match before.access:
        case StoreAccess.NEVER | StoreAccess.REACHED:
            return StoreReach(StoreAccess.REACHED)
        case StoreAccess.RETURNED:
            is_over = now - before.since >= RETURN_SECONDS
            return StoreReach(StoreAccess.REACHED) if is_over else before
        case StoreAccess.UNCERTAIN | StoreAccess.LOST_BY_ALL | StoreAccess.LOST_ALONE:
            return StoreReach(StoreAccess.RETURNED, now)


Ask = Callable[[Addresses], Awaitable[bool | None]]
"""Asks another broker whether it reaches the store; None if it does not say."""


class StoreAccessWatch:
    """Observes the store through the heartbeats. ``run`` is the caller's task; ``now`` gives monotonic seconds.

    ``owners`` returns the other brokers that own buckets by the anchor. A broker that loses the store just after
    its start may know them only from there.
    """

    def __init__(
        self,
        membership: Membership,
        me: str,
        ask: Ask,
        *,
        owners: Callable[[], Collection[Addresses]],
        now: Callable[[], float],
    ) -> None:
        self._membership = membership
        self._me = me
        self._ask = ask
        self._owners = owners
        self._now = now
        self._next_asked = 0
        self._reach = StoreReach()

    @property
    def access(self) -> StoreAccess:
        """The present state."""
        return self._reach.access

    @property
    def is_reached(self) -> bool:
        """Whether the store answers this broker now."""
        return self._membership.store_answers

    async def run(self) -> None:
        """Observe until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Make one observation."""
        others: list[bool | None] = []
        if not self.is_reached and self.access is not StoreAccess.NEVER:
            others = await self._ask_others()
        before = self._reach
        is_reached = self.is_reached  # it may have returned while the others were asked
        self._reach = next_reach(before, self._now(), is_reached=is_reached, others=others)
        if self._reach.access is not before.access:
            _log.info("store.access", access=self.access.value, before=before.access.value)

    async def _ask_others(self) -> list[bool | None]:
        mine = name_of(self._me)
        alive = {
            addresses
            for member, (addresses, is_alive) in self._membership.observer.members().items()
            if is_alive and name_of(member) != mine
        }
        known = sorted(alive | set(self._owners()), key=lambda each: each.http_url)
        start = self._next_asked if len(known) > ASKED_MAX else 0
        asked = (known[start:] + known[:start])[:ASKED_MAX]
        self._next_asked = (start + ASKED_MAX) % max(1, len(known))
        answers = await asyncio.gather(*(self._answer(each) for each in asked))
        # An owner that no heartbeat shows may be dead: its silence says nothing.
        return [
            answer
            for each, answer in zip(asked, answers, strict=True)
            if answer is not None or each in alive
        ]

    async def _answer(self, addresses: Addresses) -> bool | None:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await self._ask(addresses)
        except TimeoutError:
            return None
