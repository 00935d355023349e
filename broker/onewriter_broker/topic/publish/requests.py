"""What is asked for when parts are to be published, by whom, and what became of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from onewriter_broker.log.topic_log.atomic_publish import Published
from onewriter_broker.topic.publish.staging import StagedPartRef
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import Identity
from onewriter_core.publishers import encode_publisher, publisher_of


@dataclass(frozen=True, slots=True)
class PublishRight:
    """The right to publish under an epoch. ``holder``: whom the epoch was granted to.

    ``is_passed_on``: the holder passed it on by a capability; else the holder itself asks.
    """

    epoch: int
    holder: Identity
    is_passed_on: bool = False
    owner: str | None = None
    """The subject whose apps these are; None: subjects are not told apart, and the app is bound to nobody."""


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """A publish as it was asked for."""

    app: str
    version: int
    epoch: int
    parts: Sequence[StagedPartRef]
    identity: Identity = Identity()
    right: PublishRight | None = None
    """None: the caller proved none, and asks what became of a version."""

    @property
    def rows(self) -> int:
        """Of all parts."""
        return sum(part.rows for part in self.parts)

    def is_same(self, other: PublishRequest) -> bool:
        """Whether both ask for the same, on behalf of the same identity."""
        return self._what == other._what

    def require_right(self) -> PublishRight:
        """The right by which it is published under its epoch. Raises Refused where none was proved."""
        if self.right is None or self.right.epoch != self.epoch:
            text = f"the right to publish under epoch {self.epoch} was not proved"
            raise Refused(ServerError.AUTHORIZATION_ERROR, text)
        return self.right

    @property
    def by(self) -> str:
        """Who asks, as blocks and segments say it; empty: nobody proved who he is."""
        return encode_publisher(publisher_of(self.identity))

    @property
    def _what(self) -> tuple[object, ...]:
        return self.app, self.version, self.epoch, self.identity, tuple(self.parts)


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What became of it: ``where`` is None for a duplicate, and for a publish without rows.

    ``held``: the version that the log knows of the app, which makes it a duplicate.
    """

    is_duplicate: bool
    where: Published | None = None
    held: int | None = field(default=None, compare=False)


class OngoingPublish:
    """A publish that is performed, for all who ask for it: several at once, or one after the other."""

    def __init__(self, asked: PublishRequest) -> None:
        self.asked = asked
        self.time_ms = 0
        """When it was asked for last."""
        self.done: asyncio.Future[PublishResult] = asyncio.get_running_loop().create_future()
        self.askers = 0
        """How many ask now."""
        self._is_told = False

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Inside, one more asks."""
        self.askers += 1
        try:
            yield
        finally:
            self.askers -= 1

    async def ended(self) -> PublishResult:
        """Its end: the first who hears it is told where it stands. Raises what it raises."""
        answer = await asyncio.shield(self.done)
        if answer.where is not None and self._is_told:
            return replace(answer, is_duplicate=True, where=None, held=self.asked.version)
        self._is_told = True
        return answer
