"""Layouts: over how many partitions the rows of a version are routed. The first request decides, and it is stored.

A topic may get more partitions while a version is written, or between two attempts. If the rows of a partly
published version were then routed again, some would be in two partitions or in none. So a writer requests the
layout before it routes rows, and all writers of a version get the same one. The newest versions of each app are
stored, so a partly published version can be finished although a later one has begun.

A layout has only partitions that the writer's epoch leads. Partitions that were added later belong to other epochs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from onewriter_broker.log.store.api import LogStore
from onewriter_broker.log.topic_log.atomic_publish import check_owner, check_space
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.epoch_checks import Prove, epoch_status_of
from onewriter_core.errors import OnewriterError, Refused, ServerError, Unavailable
from onewriter_core.log_format.field_names import OWNER_PREFIX

LAYOUT_PREFIX: Final = "layout:"
"""State fields of a topic's first partition: the newest versions of an app, each with its number of partitions, newest
first."""

BEGUN_MAX: Final = 8
"""Versions of an app whose layouts are stored."""


class Overtaken(OnewriterError):
    """The version is over: a later one is published, or too many have begun. The message follows "it has"."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A version, and the number of partitions over which its rows are routed."""

    version: int
    partitions: int


def encode_layouts(layouts: Sequence[Layout]) -> str:
    """The stored form."""
    return " ".join(f"{each.version} {each.partitions}" for each in layouts)


def decode_layouts(text: str) -> list[Layout]:
    """The inverse of ``encode_layouts``. Raises ValueError."""
    numbers = [int(word) for word in text.split(" ")]
    return [
        Layout(version, partitions)
        for version, partitions in zip(numbers[::2], numbers[1::2], strict=True)
    ]


class Layouts:
    """The layouts of the topics that this broker serves; ``prove`` is the appender's."""

    def __init__(self, store: LogStore, prove: Prove) -> None:
        self._store = store
        self._prove = prove
        self._locks: WeakValueDictionary[tuple[TopicLog, str], asyncio.Lock] = WeakValueDictionary()

    async def note(
        self,
        first: TopicLog,
        app: str,
        version: int,
        counted: Callable[[], Awaitable[int]],
        held: Callable[[], Awaitable[int]],
        owner: str | None = None,
    ) -> int:
        """The number of partitions of a version: the stored one, else the result of ``counted``, which is stored.

        ``first`` is the log of the topic's first partition. ``held`` returns the latest version in any
        partition. ``owner``: the subject of the request, which owns the app from then on (None: the broker
        does not distinguish subjects). Raises Overtaken; Refused for one app too many, for an app of another
        subject (BoundElsewhere), or if the state must be repaired; Unavailable or Undecided if the caller
        should retry; and the errors of ``counted``.
        """
        async with self.lock(first, app):
            stored = await self._stored_layouts(first, app, owner)
            over = await _overtaken(stored, version, held)
            found = next((each for each in stored if each.version == version), None)
            if found is None and not over:
                found = Layout(version, await counted())
                kept = sorted([*stored, found], key=lambda each: each.version, reverse=True)
                text = encode_layouts(kept[:BEGUN_MAX])
                bound = {f"{OWNER_PREFIX}{app}": owner} if owner else {}
                await first.save_state({f"{LAYOUT_PREFIX}{app}": text, **bound})
            # The layout must be as durable as the entries published by it, also if an earlier request stored it.
            await epoch_status_of(first, self._prove)
            if over or found is None:
                raise Overtaken(over)
            return found.partitions

    def lock(self, first: TopicLog, app: str) -> asyncio.Lock:
        """The lock that orders changes of an app's layouts."""
        return self._locks.setdefault((first, app), asyncio.Lock())

    async def _stored_layouts(self, first: TopicLog, app: str, owner: str | None) -> list[Layout]:
        """The layouts in the store. Another broker may have served the topic since this one loaded it."""
        if first.binding is None:
            raise Unavailable(f"{first.name} is not open here")
        state = await self._store.read_state(first.name, replid=first.binding.replid)
        check_owner(first.name.base, state, app, owner)
        field = f"{LAYOUT_PREFIX}{app}"
        if field not in state:
            check_space(first.name.base, state, LAYOUT_PREFIX, app, owner, first.limits)
            return []
        try:
            return decode_layouts(state[field])
        except ValueError as error:
            text = f"the state of {first.name} must be repaired: {field} is {state[field][:40]!r}"
            raise Refused(ServerError.PERSISTENCE_ERROR, text) from error


async def _overtaken(
    stored: Sequence[Layout], version: int, held: Callable[[], Awaitable[int]]
) -> str:
    """Why a version is over. Empty: it is not. It can be over only after a later version has begun."""
    if not stored or version >= stored[0].version:
        return ""
    published = await held()
    if published > version:
        return f"version {published} of it already"
    is_full = len(stored) >= BEGUN_MAX
    if is_full and version < stored[-1].version:  # its layout may have been stored and dropped
        return f"{BEGUN_MAX} later versions of it begun already"
    return ""
