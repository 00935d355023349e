"""What is asked for when parts are to be published, by whom, and what became of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from onewriter_broker.log.publishing import Published
from onewriter_broker.topic.staging import Claimed
from onewriter_core.ids import Identity
from onewriter_core.topic.model import AccessMode

FORGOTTEN_SECONDS: Final = 15.0
"""How long a publish that nobody asks for keeps its place in the line: the pipeline pauses for 2 s at most
between two requests, and has 5 s to connect."""


@dataclass(frozen=True, slots=True)
class Right:
    """The right to publish under an epoch. ``holder``: whom the epoch was granted to.

    ``is_passed_on``: the holder passed it on by a capability; else the holder itself asks.
    """

    epoch: int
    holder: Identity
    is_passed_on: bool = False
    owner: str | None = None
    """The subject whose apps these are; None: subjects are not told apart, and the app is bound to nobody."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A publish as it was asked for; ``claim``: under which somebody was admitted."""

    app: str
    version: int
    epoch: int | None
    parts: Sequence[Claimed]
    identity: Identity = Identity()
    claim: str = ""
    address: str = ""
    mode: AccessMode = AccessMode.EXCLUSIVE
    """How the topic is taken where no epoch is named."""
    priority: int = 0
    """Its place among those who wait, then."""
    right: Right | None = None
    """By which it is published under its epoch; None: the caller proved none."""

    @property
    def waits(self) -> bool:
        """Whether it waits in the topic's line, for longer than one request does."""
        return self.epoch is None and self.mode is AccessMode.WAIT_FOR_EXCLUSIVE

    @property
    def rows(self) -> int:
        """Of all parts."""
        return sum(part.rows for part in self.parts)

    def is_same(self, other: Asked) -> bool:
        """Whether both ask for the same, on behalf of the same identity."""
        return self._what == other._what

    @property
    def owner(self) -> str | None:
        """The subject to which the app is bound with it; None: subjects are not told apart."""
        return self.identity.subject or None if self.right is None else self.right.owner

    @property
    def by(self) -> str:
        """Who asks, as blocks and segments say it; empty: nobody proved who he is."""
        if self.identity.is_anonymous:
            return ""
        told = {"subject": self.identity.subject, "podUID": self.identity.pod_uid}
        return json.dumps(
            {name: value for name, value in told.items() if value}, separators=(",", ":")
        )

    @property
    def _what(self) -> tuple[object, ...]:
        return self.app, self.version, self.epoch, self.mode, self.identity, tuple(self.parts)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of it: ``where`` is None for a duplicate, and for a publish without rows.

    ``held``: the version that the log knows of the app, which makes it a duplicate.
    """

    is_duplicate: bool
    where: Published | None = None
    held: int | None = field(default=None, compare=False)


class PublishRequest:
    """A publish that is performed, for all who ask for it: several at once, or one after the other."""

    def __init__(self, asked: Asked) -> None:
        loop = asyncio.get_running_loop()
        self.asked = asked
        self.time_ms = 0
        """When it was asked for last."""
        self.done: asyncio.Future[Answer] = loop.create_future()
        self.askers = 0
        """So many ask now."""
        self.stirred = asyncio.Event()
        """Somebody has come, or the turn that it waits for has changed."""
        self._is_in_line = asked.waits
        self._is_told = False
        self._left_at = loop.time()

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Inside, one more asks."""
        self.askers += 1
        self.stirred.set()
        try:
            yield
        finally:
            self.askers -= 1
            self._left_at = asyncio.get_running_loop().time()

    @property
    def seconds_left(self) -> float:
        """How long it is waited for whoever may ask again."""
        if self.askers:
            return FORGOTTEN_SECONDS
        return self._left_at + FORGOTTEN_SECONDS - asyncio.get_running_loop().time()

    @property
    def is_waiting(self) -> bool:
        """Whether it is in the line: nothing of it is published before it has begun, and somebody asks then."""
        return self._is_in_line and not self.done.done()

    def meets(self, others: Iterable[PublishRequest]) -> bool:
        """Whether one of these may yet publish this version of the app, or a later one.

        One by another rule has its turn beside this one, and another attempt shares its place.
        """
        return any(
            other.asked.app == self.asked.app
            and other.asked.version >= self.asked.version
            and not other.done.done()
            for other in others
            if other is not self
        )

    def begin(self) -> None:
        """From here on it may be published, whether or not anybody asks."""
        self._is_in_line = False

    async def ended(self) -> Answer:
        """Its end: whoever hears it first is told where it stands. Raises what it raises."""
        answer = await asyncio.shield(self.done)
        if answer.where is not None and self._is_told:
            return replace(answer, is_duplicate=True, where=None, held=self.asked.version)
        self._is_told = True
        return answer
