"""Over how many partitions the rows of a batch are routed: noted when it is first asked, and kept.

A topic may get more partitions while a batch is written, or between two attempts at it. Routed anew, rows of
a batch that is half published would be in two partitions, or in none. So whoever routes the rows of a version
asks first, and is told what the first who asked was told. The newest versions of each app are noted: that a
later one was begun keeps nobody from finishing one that is published in part.

Who publishes under an epoch is told of the partitions that it leads: those that the topic got since go to
the epoch's holder under others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from onewriter_broker.log.store.api import LogStore
from onewriter_broker.log.topic_log.atomic_publish import check_owner, check_room
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.epoch_checks import Prove, standing_of
from onewriter_core.errors import OnewriterError, Refused, ServerError, Unavailable
from onewriter_core.log_format.field_names import OWNER_PREFIX

LAYOUT_PREFIX: Final = "layout:"
"""State fields of a topic's first partition: an app's newest versions, each with the partitions it is
routed over; the newest first."""

BEGUN_MAX: Final = 8
"""Versions of an app that are remembered so."""


class Overtaken(OnewriterError):
    """A later version is published, or too many were begun: this one is over. The message follows "it has"."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A version and over how many partitions its rows are routed."""

    version: int
    partitions: int


def encode_layouts(layouts: Sequence[Layout]) -> str:
    """As they are noted."""
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
        self._turns: WeakValueDictionary[tuple[TopicLog, str], asyncio.Lock] = WeakValueDictionary()

    async def note(
        self,
        first: TopicLog,
        app: str,
        version: int,
        counted: Callable[[], Awaitable[int]],
        held: Callable[[], Awaitable[int]],
        owner: str | None = None,
    ) -> int:
        """The partitions that are noted of a version: those ``counted``, unless it was noted before.

        ``first`` is the log of the topic's first partition; ``held`` tells the latest version that any of
        them has; ``owner``: the subject that asks, to which the app is bound from then on (None: subjects are
        not told apart). Raises Overtaken, Refused for one app too many, for an app of another subject
        (BoundElsewhere) and for a state that must be repaired, Unavailable and Undecided: ask again; and what ``counted`` raises.
        """
        async with self.turn(first, app):
            noted = await self._noted(first, app, owner)
            over = await _overtaken(noted, version, held)
            found = next((each for each in noted if each.version == version), None)
            if found is None and not over:
                found = Layout(version, await counted())
                kept = sorted([*noted, found], key=lambda each: each.version, reverse=True)
                text = encode_layouts(kept[:BEGUN_MAX])
                bound = {f"{OWNER_PREFIX}{app}": owner} if owner else {}
                await first.save_state({f"{LAYOUT_PREFIX}{app}": text, **bound})
            # As durable as what is published by it, also where whoever noted it was not told so.
            await standing_of(first, self._prove)
            if over or found is None:
                raise Overtaken(over)
            return found.partitions

    def turn(self, first: TopicLog, app: str) -> asyncio.Lock:
        """Held, nobody else notes anything of this app."""
        return self._turns.setdefault((first, app), asyncio.Lock())

    async def _noted(self, first: TopicLog, app: str, owner: str | None) -> list[Layout]:
        """As the store has it: another broker may have served the topic since it was loaded here."""
        if first.binding is None:
            raise Unavailable(f"{first.name} is not open here")
        state = await self._store.read_state(first.name, replid=first.binding.replid)
        check_owner(first.name.base, state, app, owner)
        field = f"{LAYOUT_PREFIX}{app}"
        if field not in state:
            check_room(first.name.base, state, LAYOUT_PREFIX, app, owner)
            return []
        try:
            return decode_layouts(state[field])
        except ValueError as error:
            text = f"the state of {first.name} must be repaired: {field} is {state[field][:40]!r}"
            raise Refused(ServerError.PERSISTENCE_ERROR, text) from error


async def _overtaken(
    noted: Sequence[Layout], version: int, held: Callable[[], Awaitable[int]]
) -> str:
    """Why a version is over; empty: it is not. Only behind a later one that was begun it can be."""
    if not noted or version >= noted[0].version:
        return ""
    published = await held()
    if published > version:
        return f"version {published} of it already"
    is_full = len(noted) >= BEGUN_MAX
    if is_full and version < noted[-1].version:  # it may have been noted, and forgotten
        return f"{BEGUN_MAX} later versions of it begun already"
    return ""
