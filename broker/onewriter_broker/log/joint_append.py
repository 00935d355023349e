"""Entries of several logs of one bucket, stored all or none.

The appender sends them in a separate call (scripts/together.lua), after the call under way and
after the entries that their logs had gathered. It does not gather them again if they were not stored:
a second attempt could succeed for some of them only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onewriter_broker.log.store.api import Guard, Outcome
from onewriter_broker.log.topic_log.guards import has_space, too_many_floors
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.log.topic_log.pending_blocks import PendingBlock, PendingEntry
from onewriter_core.errors import (
    Fenced,
    OnewriterError,
    Refused,
    ServerError,
    Unavailable,
    Undecided,
)
from onewriter_core.ids import Position
from onewriter_core.log_format.limits import BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX, CALL_BYTES_MAX
from onewriter_core.wire.values import Send


@dataclass(slots=True, eq=False)
class JointEntry:
    """One entry for one log. Its log reports the result to it as to a Sender."""

    topic_log: TopicLog
    send: Send
    payload: memoryview
    guard: Guard | None
    position: Position | None = None
    is_answered: bool = False
    is_unknown: bool = False
    _on_answered: Callable[[], None] = lambda: None

    def on_answered(self, callback: Callable[[], None]) -> None:
        """Set the callback that runs once the entry is answered."""
        self._on_answered = callback

    def stored(self, _entries: Sequence[PendingEntry], first: Position, _size: int) -> None:
        self.position = first
        self._answer()

    def refused(self, _size: int) -> None:
        self._answer()

    def unknown(self, _size: int) -> None:
        self.is_unknown = True
        self._answer()

    def _answer(self) -> None:
        self.is_answered = True
        self._on_answered()


class JointAppend:
    """One request to store entries together. ``done`` ends when the results of all of them are known.

    Its result is their positions, or an error: Fenced if a guard is over, Unavailable if they are
    certainly not stored for another reason and may be retried, Undecided if the result is unknown,
    Refused if a log has no space for another floor.
    The appender calls ``may_write`` directly before the call. Raises Refused for parts that cannot be stored
    together.
    """

    def __init__(self, parts: Sequence[JointEntry], may_write: Callable[[], bool]) -> None:
        self.parts = tuple(parts)
        self.logs = tuple(dict.fromkeys(part.topic_log for part in parts))
        self._may_write = may_write
        self._outcomes: set[Outcome] = set()
        for topic_log in self.logs:
            _check_block([part for part in parts if part.topic_log is topic_log])
        if not parts or sum(len(part.payload) for part in parts) > CALL_BYTES_MAX:
            text = f"together at least one message and at most {CALL_BYTES_MAX} bytes are stored"
            raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
        self.done: asyncio.Future[list[Position]] = asyncio.get_running_loop().create_future()
        for part in self.parts:
            part.on_answered(self._part_answered)

    def form(self, time_ms: int) -> list[tuple[TopicLog, PendingBlock]]:
        """The blocks, one per log; empty if they cannot be written now: ``done`` then has an error."""
        bindings = {topic_log.binding for topic_log in self.logs}
        is_open = all(each.is_writable and not each.is_publishing for each in self.logs)
        if not is_open or len(bindings) != 1 or not self._may_write():
            self.give_up(Unavailable("not all of these topics can be written now"))
            return []
        for part in self.parts:
            floors_max = part.topic_log.limits.floors_max
            if not has_space(part.topic_log.state, part.guard, floors_max):
                self.give_up(too_many_floors(part.topic_log.name, floors_max))
                return []
        formed = []
        for topic_log in self.logs:
            own = [part for part in self.parts if part.topic_log is topic_log]
            entries: list[PendingEntry] = [(part, part.send, part.payload) for part in own]
            payloads = [part.payload for part in own]
            lengths = [len(payload) for payload in payloads]
            pending = topic_log.form_block(entries, payloads, lengths, time_ms, own[0].guard)
            pending.joint_append = self
            formed.append((topic_log, pending))
        return formed

    def refused_by_store(self, outcome: Outcome) -> None:
        """One of the blocks was rejected with this outcome: it is certainly not in the log."""
        self._outcomes.add(outcome)

    def give_up(self, reason: OnewriterError) -> None:
        """End the request: none of its entries was or will be written."""
        if not self.done.done():
            self.done.set_exception(reason)
            self.done.exception()  # the caller may not wait any more

    def _part_answered(self) -> None:
        if self.done.done() or not all(part.is_answered for part in self.parts):
            return
        positions = [part.position for part in self.parts if part.position is not None]
        if len(positions) == len(self.parts):
            self.done.set_result(positions)
        elif positions or any(part.is_unknown for part in self.parts):
            self.give_up(Undecided("unknown whether these messages are stored"))
        elif Outcome.STALE in self._outcomes:
            self.give_up(Fenced("a guard of these messages is over"))
        else:
            self.give_up(
                Unavailable("this broker no longer serves these topics; nothing was stored; retry")
            )


def _check_block(parts: Sequence[JointEntry]) -> None:
    if len({part.guard for part in parts}) > 1:
        text = "messages for one topic are stored together under one guard only"
        raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
    size = sum(len(part.payload) for part in parts)
    if len(parts) > BLOCK_ENTRIES_MAX or (len(parts) > 1 and size > BLOCK_BYTES_MAX):
        text = (
            f"together at most {BLOCK_ENTRIES_MAX} messages and {BLOCK_BYTES_MAX} bytes"
            " are stored in one topic"
        )
        raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
