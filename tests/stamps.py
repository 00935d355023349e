"""The first stamp of a bucket, as a broker makes it."""

from __future__ import annotations

import itertools

from onewriter_broker.log.store.api import Binding, LogStore, Outcome

_birthmarks = itertools.count(1)


async def stamp_anew(store: LogStore, binding: Binding) -> Outcome:
    """Stamp a bucket that may have no record yet."""
    seen = (await store.observe([binding.bucket])).units[binding.bucket]
    if seen.generation == 0 and not seen.birthmark:
        await store.bear(binding.bucket, f"{binding.owner}/{next(_birthmarks)}")
        seen = (await store.observe([binding.bucket])).units[binding.bucket]
    return await store.stamp(binding, birthmark=seen.birthmark)
