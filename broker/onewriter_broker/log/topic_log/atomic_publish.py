"""Atomic publishes: many blocks of one log that readers see all or none.

The blocks of a publish are consecutive in one ledger; other entries wait until they are stored. The
append of the first block opens the publish in the log's state, the append of the last one commits it
there. The watermark stays before the first block until the last one is durable. If a publish is
interrupted (by a fence, a failover, or the end of this broker), the log's next fence removes its blocks,
in the same script call. So no reader ever sees a part of it, and readers need no special case.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from onewriter_broker.log.limits import LogLimits
from onewriter_broker.log.store.api import Block
from onewriter_broker.log.store.blocks import publish_of
from onewriter_core.errors import (
    OnewriterError,
    Refused,
    ServerError,
    Unavailable,
    Undecided,
)
from onewriter_core.ids import Position, TopicName
from onewriter_core.log_format.field_names import OWNER_PREFIX, VERSION_PREFIX
from onewriter_core.log_format.limits import (
    BLOCK_BYTES_MAX,
    BLOCK_ENTRIES_MAX,
    PUBLISH_BLOCKS_MAX,
    PUBLISH_BYTES_MAX,
    PUBLISH_ENTRIES_MAX,
    PUBLISH_ENTRY_BYTES_MAX,
)

if TYPE_CHECKING:
    from onewriter_broker.log.topic_log.log import TopicLog
    from onewriter_broker.log.topic_log.pending_blocks import PendingBlock, PendingEntry
    from onewriter_core.wire.values import Send

PUBLISHES_WAITING_MAX = 16
"""Largest number of publishes to one log that are under way or queued."""

_IN_BLOCK = memoryview(b"")


class Published(NamedTuple):
    """The positions of a whole publish."""

    first: Position
    last: Position


class TooLarge(Refused):
    """The request exceeds a limit of atomic publishes; a retry cannot succeed."""

    def __init__(self, message: str) -> None:
        super().__init__(ServerError.NOT_ALLOWED_ERROR, message)


class BoundElsewhere(Refused):
    """The app is bound to another subject, ``owner``. Not every caller may see its name."""

    def __init__(self, name: TopicName, app: str, owner: str) -> None:
        text = f"{app} is another subject's app on {name}: publish under an app of your own"
        super().__init__(ServerError.AUTHORIZATION_ERROR, text)
        self.owner = owner


class StoreStalled(Unavailable):
    """The store stored nothing of a publish for too long. The publish was abandoned, and is certainly not stored."""


class Entries:
    """The entries of a publish, block by block. They are removed when their blocks are formed."""

    __slots__ = ("_block_entries_max", "_blocks", "_bytes", "_count", "_space")

    def __init__(
        self,
        entries: Iterable[tuple[Send, bytes | memoryview]] = (),
        *,
        block_entries_max: int = BLOCK_ENTRIES_MAX,
    ) -> None:
        self._block_entries_max = block_entries_max
        self._blocks: deque[list[tuple[Send, bytes | memoryview]]] = deque()
        self._bytes = self._count = self._space = 0
        for send, payload in entries:
            self.add(send, payload)

    def add(self, send: Send, payload: bytes | memoryview) -> None:
        """Append an entry. Raises TooLarge."""
        size = len(payload)
        self._bytes += size
        self._count += 1
        if size > PUBLISH_ENTRY_BYTES_MAX or self._bytes > PUBLISH_BYTES_MAX:
            text = (
                f"at most {PUBLISH_BYTES_MAX} bytes in entries of at most {PUBLISH_ENTRY_BYTES_MAX} are"
                " published as a whole"
            )
            raise TooLarge(text)
        if self._count > PUBLISH_ENTRIES_MAX:
            raise TooLarge(f"at most {PUBLISH_ENTRIES_MAX} entries are published as a whole")
        if size > self._space or len(self._blocks[-1]) >= self._block_entries_max:
            if len(self._blocks) >= PUBLISH_BLOCKS_MAX:
                raise TooLarge(f"at most {PUBLISH_BLOCKS_MAX} blocks are published as a whole")
            self._blocks.append([])
            self._space = BLOCK_BYTES_MAX
        self._blocks[-1].append((send, payload))
        self._space -= size

    def clear(self) -> None:
        """Drop all remaining entries."""
        self._blocks.clear()

    @property
    def sizes(self) -> list[int]:
        """The number of entries of each block that is not formed yet."""
        return [len(block) for block in self._blocks]

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def next_block(self) -> list[tuple[Send, memoryview]]:
        """Remove and return the entries of the next block."""
        return [(send, memoryview(payload)) for send, payload in self._blocks.popleft()]


class Publish:
    """One request to publish entries as a whole. Implements Sender for its log.

    ``done`` is the result: the positions, or None if this version or a later one was published before. It
    raises Unavailable if the publish is certainly not stored: ``may_write``, called directly before the
    first block, returned False, or the topic has moved. It raises Undecided if the result is unknown: a
    repeated request publishes, or finds a duplicate. ``entries`` are consumed. ``owner`` is the subject to
    which the request binds the app; None: subjects are not compared. ``by``: the publisher, as in ``Block.by``.
    """

    def __init__(
        self,
        app: str,
        version: int,
        entries: Entries,
        may_write: Callable[[], bool],
        owner: str | None = None,
        by: str = "",
    ) -> None:
        self.app = app
        self.by = by
        self.owner = owner
        self.version = version
        self.name = f"{app}/{version}"
        self.may_write = may_write
        self.entries_before = 0
        """The number of entries that the log had received when the publish was queued: these are appended first."""
        self.formed = 0
        self._blocks = len(entries.sizes)
        self._entries = entries
        self._opens: tuple[Position, ...] = ()
        self.is_unknown = False
        """Whether the publish is in the log is unknown, and this broker will not learn it."""
        self.done: asyncio.Future[Published | None] = asyncio.get_running_loop().create_future()

    @property
    def has_begun(self) -> bool:
        """Whether a block of the publish may be in the log."""
        return self.formed > 0

    @property
    def is_formed(self) -> bool:
        """Whether all blocks were formed: the result of the last one is the result of the publish."""
        return self.formed == self._blocks

    def form(self, topic_log: TopicLog, time_ms: int) -> PendingBlock:
        """Form the next block of the publish, at the log's end."""
        if not self.has_begun:
            self._opens = tuple(self._positions(topic_log.ledger, topic_log.next_entry))
        opens = () if self.has_begun else self._opens
        taken = self._entries.next_block()
        self.formed += 1
        payloads = [payload for _, payload in taken]
        # From here on the block has their bytes; the pending entries keep no copy.
        entries: list[PendingEntry] = [(self, send, _IN_BLOCK) for send, _ in taken]
        pending = topic_log.form_block(
            entries, payloads, list(map(len, payloads)), time_ms, publish=self
        )
        pending.opens = opens
        return pending

    def _positions(self, ledger: int, entry: int) -> Iterable[Position]:
        for size in self._entries.sizes:
            yield Position(ledger, entry)
            entry += size

    def stored(self, entries: Sequence[PendingEntry], first: Position, _size: int) -> None:
        """The last block is in the log, and so all blocks are: end with their positions."""
        if not self.done.done():
            last = Position(first.ledger, first.entry + len(entries) - 1)
            self.done.set_result(Published(self._opens[0], last))

    def given_up(self, block: Block, *, is_definite: bool) -> None:
        """A block is certainly not in the log of the current dataset (``is_definite``), or its result is unknown."""
        if block.commits and not is_definite:
            self.fail(Undecided("unknown whether this was published: ask for its status"))
        elif block.commits or not self.is_formed:
            self.cut_short()

    def duplicate(self) -> None:
        """End with None: the store has this version, or a later one."""
        if not self.done.done():
            self.done.set_result(None)

    def cut_short(self) -> None:
        """End with Unavailable: the last block is not in the log, and will not be."""
        self.fail(
            Unavailable("this broker no longer serves the topic; nothing was published; retry")
        )

    def fail(self, reason: OnewriterError) -> None:
        """End the publish with this result, and drop its entries."""
        if not self.done.done():
            self.is_unknown = isinstance(reason, Undecided)
            self.done.set_exception(reason)
            self.done.exception()  # asyncio would complain if no caller waits any more
        self._entries.clear()

    def refused(self, _size: int) -> None:
        """Nothing: ``given_up`` reports the result of the whole publish."""

    def unknown(self, _size: int) -> None:
        """Nothing: ``given_up`` reports the result of the whole publish."""


class Publishes:
    """The publishes of one log, which are stored one after the other."""

    __slots__ = ("_has_hole", "_held", "_held_bytes", "_queue", "_unknown")

    def __init__(self) -> None:
        self._queue: deque[Publish] = deque()
        self._held: deque[Block] = deque()
        self._held_bytes = 0
        self._has_hole = False
        self._unknown: dict[str, int] = {}  # the highest version of each app

    def add(self, publish: Publish, topic_log: TopicLog) -> None:
        """Queue a publish after the entries that wait now. Raises Refused."""
        self._settle()
        if publish.is_formed:
            raise Refused(ServerError.NOT_ALLOWED_ERROR, "at least one entry is published")
        check_app(topic_log.name, topic_log.state, publish.app, publish.owner, topic_log.limits)
        if len(self._queue) >= PUBLISHES_WAITING_MAX:
            text = f"{PUBLISHES_WAITING_MAX} publishes to {topic_log.name} wait already"
            raise Refused(ServerError.TOO_MANY_REQUESTS, text)
        publish.entries_before = topic_log.entries_in + len(topic_log.waiting)
        self._queue.append(publish)

    @property
    def is_empty(self) -> bool:
        """Whether no publish is queued or under way, and no result is unknown."""
        self._settle()
        return not (self._queue or self._held or self._unknown)

    def of(self, app: str) -> Publish | None:
        """A publish of the app whose result is not known yet."""
        self._settle()
        return next(
            (each for each in self._queue if each.app == app and not each.done.done()), None
        )

    def may_count(self, app: str, version: int) -> bool:
        """Whether this version of an app, or a later one, may be stored by a call whose result is unknown.

        Until then, the version in the store does not prove that it is not published.
        """
        self._settle()
        return self._unknown.get(app, -1) >= version or any(
            each.app == app and each.version >= version and not each.done.done()
            for each in self._queue
        )

    def is_first(self, topic_log: TopicLog) -> bool:
        """Whether the next block belongs to a publish, so that other entries wait."""
        self._settle()
        if not self._queue:
            return False
        first = self._queue[0]
        return (
            first.has_begun or not topic_log.waiting or topic_log.entries_in >= first.entries_before
        )

    def limit(self, topic_log: TopicLog, entries: int) -> int:
        """Lower the number of entries of the next block, so that no later entry is appended before a publish."""
        if not self._queue:
            return entries
        return max(1, min(entries, self._queue[0].entries_before - topic_log.entries_in))

    def has_block(self, topic_log: TopicLog) -> bool:
        """Whether a block of the first publish can be formed now; only if ``is_first``.

        The first block waits until all earlier entries are durable: a publish that is rejected because
        its version is known is then rejected for a version that is certainly stored.
        """
        first = self._queue[0]
        return not first.is_formed and (first.has_begun or not topic_log.undecided)

    def next_block(self, topic_log: TopicLog, time_ms: int) -> PendingBlock | None:
        """The next block of the first publish; None if there is none for now."""
        while self.is_first(topic_log) and self.has_block(topic_log):
            first = self._queue[0]
            if first.has_begun or first.may_write():
                if not first.has_begun:
                    self.forget_held()
                return first.form(topic_log, time_ms)
            first.fail(Unavailable("the holder of the topic has changed; nothing was published"))
        return None

    def reaches(self, topic_log: TopicLog, pending: PendingBlock) -> bool:
        """Record that a block of a publish is durable. Returns whether the watermark may move past it."""
        if not pending.block.commits:
            self._held.append(pending.block)
            self._held_bytes += pending.size
            while self._held_bytes > topic_log.tail_bytes_max:
                self._held_bytes -= len(self._held.popleft().payload)
                self._has_hole = True
            return False
        app, version = publish_of(pending.block.publish)
        topic_log.note_state({f"{VERSION_PREFIX}{app}": str(version)})
        if pending.owner:
            topic_log.note_state({f"{OWNER_PREFIX}{app}": pending.owner})
        if self._has_hole:
            topic_log.forget_tail()
        for block in self._held:
            topic_log.remember(block)
        self.forget_held()
        return True

    def refuse(self) -> None:
        """The holder changes, or the topic leaves this broker: end publishes that were not sent completely."""
        for publish in self._queue:
            if not publish.is_formed:
                publish.cut_short()

    def fenced(self) -> None:
        """A fence has removed a publish that had begun; others continue after it."""
        for publish in self._queue:
            if publish.has_begun and not publish.is_formed:
                publish.cut_short()
        self._settle()
        self._unknown.clear()  # no call of another ledger is executed any more: the store's answer is final

    def _settle(self) -> None:
        while self._queue and self._queue[0].done.done():
            ended = self._queue.popleft()
            if ended.is_unknown:
                known = self._unknown.get(ended.app, -1)
                self._unknown[ended.app] = max(known, ended.version)

    def forget_held(self, *, leaves_hole: bool = False) -> None:
        """Keep no block of a publish for the log's tail; ``leaves_hole``: more blocks of it will follow."""
        self._held.clear()
        self._held_bytes = 0
        self._has_hole = leaves_hole


def abandon(
    topic_log: TopicLog, publish: Publish, why: str, stored: Sequence[PendingBlock]
) -> bool:
    """Release the memory of a publish; ``stored`` are its blocks that waited to be durable.

    If all its blocks were sent, it may still be published: its last block, and the blocks in the call
    under way, continue, and ``done`` ends with them. Any other publish ends here.
    True: a part of it is stored. The caller then fences the log before anything else is appended
    there: the fence removes the part.
    """
    if publish.is_formed:
        dropped = set(stored)
        topic_log.drop_undecided(lambda each: each in dropped)
        if topic_log.publishes is not None:
            topic_log.publishes.forget_held(leaves_hole=True)
        return False
    publish.fail(StoreStalled(f"{why}; nothing was published; retry later"))
    if not publish.has_begun:
        return False
    topic_log.drop_undecided(lambda each: each.publish is publish)
    topic_log.forget_tail()  # the store may lack some of the blocks
    if topic_log.publishes is not None:
        topic_log.publishes.forget_held()
    return True


def check_owner(name: TopicName, state: Mapping[str, str], app: str, owner: str | None) -> None:
    """Raises BoundElsewhere if the app is bound to another subject. None: subjects are not compared."""
    bound = state.get(f"{OWNER_PREFIX}{app}")
    if owner is not None and bound is not None and bound != owner:
        raise BoundElsewhere(name, app, bound)


def check_app(
    name: TopicName,
    state: Mapping[str, str],
    app: str,
    owner: str | None,
    limits: LogLimits = LogLimits(),
) -> None:
    """Raises Refused for an app of another subject, and if the log or the subject has too many apps."""
    check_owner(name, state, app, owner)
    if f"{VERSION_PREFIX}{app}" not in state:
        check_space(name, state, VERSION_PREFIX, app, owner, limits)


def check_space(
    name: TopicName,
    state: Mapping[str, str],
    prefix: str,
    app: str,
    owner: str | None,
    limits: LogLimits = LogLimits(),
) -> None:
    """Raises Refused if the log has no space for another field with this prefix."""
    advice = "an administrator may have it forget those that are no longer used"
    if sum(1 for field in state if field.startswith(prefix)) >= limits.apps_max:
        text = f"{name} is published to under {limits.apps_max} names already: {advice}"
        raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
    field = f"{OWNER_PREFIX}{app}"
    if not owner or field in state:
        return
    bound = sum(1 for each in state if each.startswith(OWNER_PREFIX) and state[each] == owner)
    if bound >= limits.apps_per_subject_max:
        text = f"{owner} publishes to {name} under {limits.apps_per_subject_max} names already: {advice}"
        raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
