"""The turn of a publish without an epoch, which takes its topic as a producer that nobody is connected to.

One that waits for the topic stands in the topic's line for longer than a request of HTTP takes. It keeps
its place while it is asked for again and again, and its turn is used only while somebody asks: whoever was
told to ask again was told truly that nothing is published.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from typing import Final

from onewriter_broker.log.api import Outcome
from onewriter_broker.log.topic_log import TopicLog
from onewriter_broker.topic.producer import Producer
from onewriter_broker.topic.publish_requests import FORGOTTEN_SECONDS, Asked, PublishRequest
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.errors import OnewriterError, Refused, ServerError, Unavailable
from onewriter_core.ids import Identity
from onewriter_core.topic.model import Departure, Request, Reserved, Topic

TURN_SECONDS: Final = 10.0
"""How long whoever asks waits for the topic to be its own, until it is told to ask again."""

MOMENT_SECONDS: Final = 0.001
"""Less than this is not waited for: a loop's timers may be early by as much as its clock cannot tell."""


def kept_for(topic: Topic, slot: int, app: str, identity: Identity) -> int | None:
    """The epoch of an earlier turn of this app for which the topic is kept, since its broker died."""
    found = topic.slot(slot)
    if found is None or not isinstance(found.ownership, Reserved):
        return None
    tenure = found.ownership.tenure
    is_own = (tenure.producer_name, tenure.identity) == (app, identity)
    return tenure.epoch if is_own else None


@contextlib.contextmanager
def progress(runner: TopicRunner, slot: int) -> Iterator[None]:
    """Inside, something is published in the turn of whoever writes a slot: no deadline passes for it."""
    with contextlib.ExitStack() as writing:
        for producer in list(runner.producers.values()):
            if producer.is_active and producer.request.slot == slot:
                writing.enter_context(producer.progressing())
        yield


class Turn:
    """A place in a topic's line, and the topic once the turn has come. Implements ProducerChannel.

    ``ready`` ends then; it raises Refused or Unavailable where the turn does not come. ``over`` is set
    when it has ended, or never comes.
    """

    client_version = "onewriter-publish"
    hears_of_queue = False

    def __init__(
        self, runner: TopicRunner, slot: int, asked: Asked, gathered: Callable[[TopicLog], None]
    ) -> None:
        """Asks for the topic, in the mode that is asked for."""
        self.requests: list[PublishRequest] = []
        """Those that share this place, first asked first."""
        self.is_used = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()
        self._runner = runner
        self._registration = f"publish-{uuid.uuid4().hex}"
        request = Request(
            registration=self._registration,
            connection=self._registration,
            producer_name=asked.app,
            name_given=True,
            mode=asked.mode,
            slot=slot,
            alone=True,
            identity=asked.identity,
            topic_epoch=kept_for(runner.topic, slot, asked.app, asked.identity),
            claim=asked.claim,
            address=asked.address,
            priority=asked.priority,
        )
        self._producer = Producer(self, 0, 0, request, runner.logs[slot], gathered)
        runner.request(self._producer)

    def may_write(self) -> bool:
        """Whether the topic is its own now."""
        return self._producer.is_active

    @property
    def has_topic(self) -> bool:
        """Whether the topic is its own, or is just being given to it."""
        waiters = (member for waiter in self._runner.topic.queue for member in waiter.members)
        is_in_line = any(member.registration == self._registration for member in waiters)
        return not (self.over.is_set() or is_in_line)

    async def come(self, request: PublishRequest) -> None:
        """Until the turn has come, and somebody asks for what is to be done in it.

        Raises Unavailable, also where nobody asks any more; Refused.
        """
        while True:
            request.stirred.clear()
            if self.ready.done():
                self.ready.result()
                if self.over.is_set():
                    raise Unavailable("the topic has changed hands; nothing was published")
                if request.askers and not self.is_used:
                    return
            left = request.seconds_left
            if left < MOMENT_SECONDS:
                text = f"nobody has asked for it for {FORGOTTEN_SECONDS:g} s; nothing was published"
                raise Unavailable(text)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await request.stirred.wait()

    def stir(self) -> None:
        """Have all that share this place look at it again."""
        for request in self.requests:
            request.stirred.set()

    def give_back(self) -> None:
        """Leave the line, or the topic."""
        self._end(Unavailable("its turn is over; nothing was published"))
        self._runner.gone(self._producer, Departure.CLOSED)

    def producer_ready(self, producer: Producer, epoch: int | None) -> None:
        del producer, epoch
        if not self.ready.done():
            self.ready.set_result(None)
            self.stir()

    def producer_waits(self, producer: Producer) -> None:
        """It waits for its turn: see ``come``."""

    def producer_refused(self, producer: Producer, code: ServerError, message: str) -> None:
        del producer
        self._end(Refused(code, message))

    def producer_closed(self, producer: Producer) -> None:
        del producer
        self._end(Unavailable("the topic has moved on; nothing was published"))

    def send_answered(self, frames: bytes, size: int) -> None:
        """Nothing is sent through it."""

    def send_dropped(self, size: int) -> None:
        """Nothing is sent through it."""

    def guard_refused(self, producer: Producer, outcome: Outcome) -> None:
        """It has no guard."""

    def drop(self, reason: str) -> None:
        self._end(Unavailable(f"{reason}; nothing was published"))

    def probe(self) -> None:
        """It answers for itself: it is here."""

    def queue_changed(self, producer: Producer, waiting: int) -> None:
        """It leaves soon anyway."""

    def _end(self, reason: OnewriterError) -> None:
        self.over.set()
        if not self.ready.done():
            self.ready.set_exception(reason)
            self.ready.exception()
        self.stir()


class Line:
    """The turns of publishes that wait for their topics, and of those that do not."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[TopicLog, Hashable], Turn] = {}

    @contextlib.asynccontextmanager
    async def waited_for(
        self, topic_log: TopicLog, what: Hashable, request: PublishRequest, ask: Callable[[], Turn]
    ) -> AsyncIterator[Turn]:
        """Inside, a topic's turn has come, and is used by nobody else. Raises as ``Turn.come``.

        Whoever asks for the same ``what`` shares the place. It is given up when one of them has left the
        block without an error, or when none is left.
        """
        key = (topic_log, what)
        turn = self._waiting.get(key)
        if turn is None or turn.over.is_set():
            turn = self._waiting[key] = ask()
        turn.requests.append(request)
        try:
            await turn.come(request)
            request.begin()
            turn.is_used = True
            try:
                yield turn
            finally:
                turn.is_used = False
                turn.stir()
            turn.give_back()
        finally:
            turn.requests.remove(request)
            if not turn.requests:
                turn.give_back()
                if self._waiting.get(key) is turn:
                    del self._waiting[key]

    @contextlib.asynccontextmanager
    async def soon(self, topic_log: TopicLog, ask: Callable[[], Turn]) -> AsyncIterator[Turn]:
        """Inside, a topic is one's own that was free, or could be taken. Raises Refused, Unavailable.

        A publish that has waited for the topic, and has it now, is nobody to be refused for: it is waited for.
        """
        turn: Turn | None = None
        try:
            try:
                async with asyncio.timeout(TURN_SECONDS):
                    while (other := self._taken(topic_log)) is not None:
                        await other.over.wait()
                    turn = ask()
                    await turn.ready
            except TimeoutError as error:
                text = f"the topic was not free within {TURN_SECONDS:g} s; nothing was published"
                raise Unavailable(text) from error
            yield turn
        finally:
            if turn is not None:
                turn.give_back()

    def _taken(self, topic_log: TopicLog) -> Turn | None:
        turns = (turn for (where, _), turn in self._waiting.items() if where is topic_log)
        return next((turn for turn in turns if turn.has_topic), None)
