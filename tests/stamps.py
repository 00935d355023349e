"""The first stamp of a bucket, as a broker makes it, and one fence at a time."""

from __future__ import annotations

import itertools

from onewriter_broker.log.store.api import Binding, BrokenKey, Fence, LogStore, Outcome

_birthmarks = itertools.count(1)


async def stamp_anew(store: LogStore, binding: Binding) -> Outcome:
    """Stamp a bucket that may have no record yet."""
    seen = (await store.observe([binding.bucket])).units[binding.bucket]
    if seen.generation == 0 and not seen.birthmark:
        await store.write_birthmark(binding.bucket, f"{binding.owner}/{next(_birthmarks)}")
        seen = (await store.observe([binding.bucket])).units[binding.bucket]
    return await store.stamp(binding, birthmark=seen.birthmark)


async def fence_once(store: LogStore, fence: Fence) -> Outcome:
    """The answer to a call with one fence. Raises BrokenKey."""
    (answer,) = await store.fence([fence])
    if isinstance(answer, BrokenKey):
        raise answer
    return answer
