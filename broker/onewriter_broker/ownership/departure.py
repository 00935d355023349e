"""How a broker that stops leaves: its buckets change hands while it still says where they are.

It goes on serving until the others have heard that it goes; they watch for its buckets from then on.
Then it gives them back, and stays reachable until somebody has them: who asks it, or was led to it by
a broker that did not know better yet, is told to look again. With nobody else there it just goes.
"""

from __future__ import annotations

import asyncio

from onewriter_broker.ownership.buckets import BucketOwnership
from onewriter_broker.ownership.membership import BEAT_SECONDS, Membership

NOTICE_SECONDS = 2 * BEAT_SECONDS
"""Between saying that it goes and going: everybody has read the heartbeat that says so."""

STAY_SECONDS_MAX = 3.0
"""How long it stays at most after it has given everything back."""

STORE_SECONDS_MAX = 3.0
"""How long it waits for a store that is away. Without it nothing can be given back in order, and
where the store has another dataset afterwards, nobody may go on under the epoch they had. Time to drain
and to release the buckets all the same must be left of ``stop_seconds``."""

LOOK_SECONDS = 0.05


async def leave(membership: Membership, ownership: BucketOwnership) -> None:
    """Give everything back. Raises Unavailable, Undecided; the caller bounds the time."""
    await _announce(membership, ownership)
    if ownership.held() and _has_successor(membership):
        await asyncio.sleep(NOTICE_SECONDS)
    buckets = list(ownership.held())
    await ownership.give_back_all()
    await _stay(membership, ownership, buckets)
    await membership.leave()


async def _announce(membership: Membership, ownership: BucketOwnership) -> None:
    """Say that it goes; while the store is away, again, as long as there is anything to give back."""
    now = asyncio.get_running_loop().time
    until = now() + STORE_SECONDS_MAX
    while True:
        is_heard = await membership.announce_leaving()
        if is_heard or not ownership.held() or now() >= until:
            return
        await asyncio.sleep(LOOK_SECONDS)


async def _stay(membership: Membership, ownership: BucketOwnership, buckets: list[int]) -> None:
    """Until all of these buckets are with others, or nobody is there who would take them."""
    now = asyncio.get_running_loop().time
    until = now() + STAY_SECONDS_MAX
    while _has_successor(membership) and now() < until:
        if all(ownership.owner_of(bucket) is not None for bucket in buckets):
            return
        await asyncio.sleep(LOOK_SECONDS)


def _has_successor(membership: Membership) -> bool:
    view = membership.view()
    return view is not None and bool(view.settled)
