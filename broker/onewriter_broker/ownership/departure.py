"""Departure of a stopping broker: other brokers acquire its buckets while it still answers look-ups.

It serves until the other brokers have read that it leaves; from then on they watch for its buckets.
Then it releases the buckets, and stays reachable until other brokers own them. It asks clients that
connect meanwhile to look up again. If there is no other broker, it stops at once.
"""

from __future__ import annotations

import asyncio

from onewriter_broker.ownership.buckets import BucketOwnership
from onewriter_broker.ownership.member_observer import BEAT_SECONDS
from onewriter_broker.ownership.membership import Membership

NOTICE_SECONDS = 2 * BEAT_SECONDS
"""Pause between the announcement and the release, in which all brokers read the heartbeat."""

STAY_SECONDS_MAX = 3.0
"""Largest time for which it stays after it has released everything."""

STORE_SECONDS_MAX = 3.0
"""Largest time for which it waits for an unavailable store. Without the store it cannot release buckets in order, and if
the store then has another dataset, no producer may keep its epoch. ``stop_seconds`` must leave time to
drain and release the buckets anyway."""

POLL_SECONDS = 0.05


async def leave(membership: Membership, ownership: BucketOwnership) -> None:
    """Release all buckets. Raises Unavailable, Undecided; the caller limits the time."""
    await _announce(membership, ownership)
    if ownership.held() and _has_successor(membership):
        await asyncio.sleep(NOTICE_SECONDS)
    buckets = list(ownership.held())
    await ownership.give_back_all()
    await _stay(membership, ownership, buckets)
    await membership.leave()


async def _announce(membership: Membership, ownership: BucketOwnership) -> None:
    """Announce that it leaves; retry while the store is unavailable and there is a bucket to release."""
    now = asyncio.get_running_loop().time
    until = now() + STORE_SECONDS_MAX
    while True:
        is_announced = await membership.announce_leaving()
        if is_announced or not ownership.held() or now() >= until:
            return
        await asyncio.sleep(POLL_SECONDS)


async def _stay(membership: Membership, ownership: BucketOwnership, buckets: list[int]) -> None:
    """Wait until other brokers own all of these buckets, or no broker could acquire them."""
    now = asyncio.get_running_loop().time
    until = now() + STAY_SECONDS_MAX
    while _has_successor(membership) and now() < until:
        if all(ownership.owner_of(bucket) is not None for bucket in buckets):
            return
        await asyncio.sleep(POLL_SECONDS)


def _has_successor(membership: Membership) -> bool:
    view = membership.view()
    return view is not None and bool(view.settled)
