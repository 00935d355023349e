"""Publish requests, the right to publish, and results."""

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
    """The right to publish under an epoch. ``holder``: the identity that got the epoch.

    ``is_passed_on``: the caller shows a capability from the holder. Otherwise the caller is the holder.
    """

    epoch: int
    holder: Identity
    is_passed_on: bool = False
    owner: str | None = None
    """The subject that owns the app. None: the broker does not distinguish subjects, and apps have no owner."""


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """A publish as a caller requested it."""

    app: str
    version: int
    epoch: int
    parts: Sequence[StagedPartRef]
    identity: Identity = Identity()
    right: PublishRight | None = None
    """None: the caller proved no right, and asks for the result of a version."""

    @property
    def rows(self) -> int:
        """Number of rows of all parts."""
        return sum(part.rows for part in self.parts)

    def is_same(self, other: PublishRequest) -> bool:
        """Whether both requests are equal and come from the same identity."""
        return self._what == other._what

    def require_right(self) -> PublishRight:
        """The right to publish under the epoch. Raises Refused if the caller proved none."""
        if self.right is None or self.right.epoch != self.epoch:
            text = f"the right to publish under epoch {self.epoch} was not proved"
            raise Refused(ServerError.AUTHORIZATION_ERROR, text)
        return self.right

    @property
    def by(self) -> str:
        """The publisher in the form that blocks and segments store. Empty: the caller has no proved identity."""
        return encode_publisher(publisher_of(self.identity))

    @property
    def _what(self) -> tuple[object, ...]:
        return self.app, self.version, self.epoch, self.identity, tuple(self.parts)


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The result of a publish. ``where`` is None for a duplicate and for a publish without rows.

    ``held``: the version of the app in the log that makes the request a duplicate.
    """

    is_duplicate: bool
    where: Published | None = None
    held: int | None = field(default=None, compare=False)


class OngoingPublish:
    """A publish in progress. Equal requests share it, at the same time or one after the other."""

    def __init__(self, requested: PublishRequest) -> None:
        self.requested = requested
        self.time_ms = 0
        """Time of the latest request."""
        self.done: asyncio.Future[PublishResult] = asyncio.get_running_loop().create_future()
        self.askers = 0
        """Callers that wait now."""
        self._is_reported = False

    @contextlib.contextmanager
    def received(self) -> Iterator[None]:
        """Count the caller as waiting."""
        self.askers += 1
        try:
            yield
        finally:
            self.askers -= 1

    async def ended(self) -> PublishResult:
        """Wait for the result. Only the first caller gets the positions; later callers get a duplicate."""
        answer = await asyncio.shield(self.done)
        if answer.where is not None and self._is_reported:
            return replace(answer, is_duplicate=True, where=None, held=self.requested.version)
        self._is_reported = True
        return answer
