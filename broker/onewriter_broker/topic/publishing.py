"""Publishing staged parts as a whole: under the epoch that leads, or in a turn of its own.

A publish under an epoch stands among what the epoch's holder sends. Without one it takes the topic as
an exclusive producer would, through the topic machine, and gives it back when it has ended. Once begun
it goes on whether or not anybody waits for the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

import structlog

from onewriter_broker.log.api import VERSION_PREFIX, LogStore, Outcome
from onewriter_broker.log.appender import Appender
from onewriter_broker.log.publishing import PUBLISHES_WAITING_MAX, Entries, Publish, Published
from onewriter_broker.log.termination import terminated_at
from onewriter_broker.log.topic_log import TopicLog
from onewriter_broker.topic import staged_rows
from onewriter_broker.topic.checking import standing_of
from onewriter_broker.topic.loaded import LoadedTopic
from onewriter_broker.topic.producer import Producer
from onewriter_broker.topic.runner import TopicRunner
from onewriter_broker.topic.staging import Claimed, MissingPart, Staging
from onewriter_core.errors import (
    Fenced,
    OnewriterError,
    Refused,
    ServerError,
    Unavailable,
    Undecided,
)
from onewriter_core.ids import Identity, TopicName
from onewriter_core.topic.lookups import is_changing_hands, tenure_of
from onewriter_core.topic.model import AccessMode, Departure, Request, Reserved, Topic

ENTRIES_PER_TURN: Final = 16
"""Entries made before others get a turn of the event loop: 2 MiB where they are full."""

TURN_SECONDS: Final = 10.0
"""How long a publish waits for the topic to be its own."""

log = structlog.get_logger(__name__)


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

    @property
    def rows(self) -> int:
        """Of all parts."""
        return sum(part.rows for part in self.parts)

    def is_same(self, other: Asked) -> bool:
        """Whether both ask for the same, on behalf of the same identity."""
        return self._what == other._what

    @property
    def _what(self) -> tuple[object, ...]:
        return self.app, self.version, self.epoch, self.identity, tuple(self.parts)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of it: ``where`` is None for a duplicate, and for a publish without rows."""

    is_duplicate: bool
    where: Published | None = None


DUPLICATE: Final = Answer(is_duplicate=True)


def leads(topic: Topic, slot: int, epoch: int) -> bool:
    """Whether an epoch's tenure is the one that may write a slot, or come back to it."""
    found = topic.slot(slot)
    tenure = None if found is None else tenure_of(found)
    if found is None or tenure is None or topic.is_closed:
        return False
    return tenure.epoch == epoch and not is_changing_hands(topic, found)


@dataclass(slots=True, eq=False)
class _Request:
    """One that is performed, and those that were told to wait for its end."""

    asked: Asked
    done: asyncio.Future[Answer]
    joined: int = 0

    async def join(self) -> Answer:
        """The same, asked once more, ends with it. Raises what it raises."""
        self.joined += 1
        try:
            answer = await asyncio.shield(self.done)
        finally:
            self.joined -= 1
        return answer if answer.where is None else DUPLICATE


class Publishing:
    """Publishes to the logs that this broker serves."""

    def __init__(self, store: LogStore, appender: Appender, staging: Staging) -> None:
        self._store = store
        self._appender = appender
        self._staging = staging
        self._requests: dict[TopicLog, list[_Request]] = {}
        self._turns: WeakValueDictionary[tuple[TopicLog, str], asyncio.Lock] = WeakValueDictionary()

    async def publish(
        self, name: TopicName, topic: LoadedTopic, asked: Asked, time_ms: int
    ) -> Answer:
        """Publish these parts, in their order.

        Raises Fenced where the epoch is not the one that leads, MissingPart, TooLarge, Refused (somebody
        else has the topic; too many ask), Unavailable where nothing was published and asking again may help,
        Undecided where nobody can tell: asked again it is published, or found to be a duplicate.
        """
        slot = topic.slot_of(name)
        topic_log = topic.runner.logs[slot]
        requests = self._requests.setdefault(topic_log, [])
        if sum(1 + each.joined for each in requests) >= PUBLISHES_WAITING_MAX:
            text = f"{PUBLISHES_WAITING_MAX} requests to publish to {name} wait already: come again"
            raise Refused(ServerError.TOO_MANY_REQUESTS, text)
        same = next((each for each in requests if each.asked.is_same(asked)), None)
        if same is not None:
            return await same.join()
        request = _Request(asked, asyncio.get_running_loop().create_future())
        requests.append(request)
        self._start(topic.runner, slot, request, time_ms)
        return await asyncio.shield(request.done)

    def _start(self, runner: TopicRunner, slot: int, request: _Request, time_ms: int) -> None:
        topic_log, asked, done = runner.logs[slot], request.asked, request.done

        async def perform() -> None:
            try:
                async with self._turn_of(topic_log, asked):
                    answer = await self._perform(runner, slot, asked, time_ms)
            except OnewriterError as error:
                done.set_exception(error)
                done.exception()  # nobody may be left to hear it
            else:
                done.set_result(answer)

        def ended(_task: object) -> None:
            requests = self._requests[topic_log]
            requests.remove(request)
            if not requests:
                del self._requests[topic_log]
            if not done.done():
                done.set_exception(
                    Undecided("nobody can tell whether this is published: ask again")
                )
                done.exception()

        runner.spawn(perform()).add_done_callback(ended)

    def _turn_of(self, topic_log: TopicLog, asked: Asked) -> asyncio.Lock:
        """One of an app after the other; and of those that need the topic for themselves, of all apps."""
        key = (topic_log, "" if asked.epoch is None else asked.app)
        return self._turns.setdefault(key, asyncio.Lock())

    async def _perform(self, runner: TopicRunner, slot: int, asked: Asked, time_ms: int) -> Answer:
        topic_log = runner.logs[slot]
        if await self._is_known(topic_log, asked):  # whatever became of its epoch since
            return DUPLICATE
        await self._check_epoch(runner, slot, asked)
        if terminated_at(topic_log.state) is not None:
            raise Refused(ServerError.TOPIC_TERMINATED_ERROR, f"{topic_log.name} was terminated")
        if asked.rows == 0:
            return Answer(is_duplicate=False)
        await self._store.staged.check_rights()
        try:
            answer = await self._publish_rows(runner, slot, asked, time_ms)
        except (Unavailable, MissingPart):
            if await self._is_known(topic_log, asked):  # by another request
                return DUPLICATE
            await self._check_epoch(runner, slot, asked)
            raise
        # Whoever has staged this version, too, is answered "duplicate" whatever became of its parts.
        with contextlib.suppress(OnewriterError):  # they expire
            await self._staging.drop(topic_log.name, f"{asked.app}/{asked.version}/")
        return answer

    async def _publish_rows(
        self, runner: TopicRunner, slot: int, asked: Asked, time_ms: int
    ) -> Answer:
        topic_log = runner.logs[slot]
        with self._staging.loading(topic_log.name, asked.parts):
            entries = await self._entries(topic_log.name, asked, time_ms)
            if asked.epoch is None:
                return await self._in_turn(runner, slot, asked, entries)
            epoch = asked.epoch
            return await self._append(
                runner, slot, asked, entries, lambda: leads(runner.topic, slot, epoch)
            )

    async def _check_epoch(self, runner: TopicRunner, slot: int, asked: Asked) -> None:
        """As ``check_epoch``; says Fenced only while this broker certainly serves the topic."""
        if asked.epoch is None:
            return
        try:
            check_epoch(runner.topic, slot, asked.epoch)
        except Fenced:
            await standing_of(runner.logs[slot], self._appender.prove)
            raise

    async def _is_known(self, topic_log: TopicLog, asked: Asked) -> bool:
        """Whether this version of the app, or a later one, is certainly published.

        What is on its way is waited for: it may yet fail. What is read holds only once it is seen
        that no other broker wrote it, and that it is as durable as an acknowledgement.
        """
        under_way = None if topic_log.publishes is None else topic_log.publishes.of(asked.app)
        if under_way is not None:  # by another rule: an epoch was named, and was not
            with contextlib.suppress(OnewriterError):
                await asyncio.shield(under_way.done)
        binding = topic_log.binding
        if binding is None:
            raise Unavailable(f"{topic_log.name} is not open here")
        if await self.held_version(topic_log, asked.app) < asked.version:
            return False
        await standing_of(topic_log, self._appender.prove)
        if topic_log.binding != binding:
            raise Undecided(f"{topic_log.name} was bound to the store anew: ask again")
        return True

    async def held_version(self, topic_log: TopicLog, app: str) -> int:
        """The version that an app has published last, as the store has it now; -1: none.

        Raises Unavailable, Undecided, and Refused for a state that must be repaired.
        """
        binding = topic_log.binding
        if binding is None:
            raise Unavailable(f"{topic_log.name} is not open here")
        state = await self._store.read_state(topic_log.name, replid=binding.replid)
        field = f"{VERSION_PREFIX}{app}"
        held = state.get(field, "-1")
        if not held.removeprefix("-").isdecimal():
            text = f"the state of {topic_log.name} must be repaired: {field} is not a number"
            raise Refused(ServerError.PERSISTENCE_ERROR, text)
        return int(held)

    async def _entries(self, name: TopicName, asked: Asked, time_ms: int) -> Entries:
        made, count = Entries(), 0
        for part in asked.parts:
            if part.rows:
                body = await self._staging.load(name, part)
                for send, payload in staged_rows.entries(body, asked.app, asked.version, time_ms):
                    made.add(send, payload)
                    count += 1
                    if count % ENTRIES_PER_TURN == 0:
                        await asyncio.sleep(0)
        return made

    async def _append(
        self,
        runner: TopicRunner,
        slot: int,
        asked: Asked,
        entries: Entries,
        may_write: Callable[[], bool],
    ) -> Answer:
        topic_log = runner.logs[slot]
        publish = Publish(asked.app, asked.version, entries, may_write)
        topic_log.publish(publish)
        self._appender.gathered(topic_log)
        where = await publish.done
        log.info(
            "publish.ended",
            topic=str(topic_log.name),
            publish=publish.name,
            last=None if where is None else str(where.last),
        )
        return DUPLICATE if where is None else Answer(is_duplicate=False, where=where)

    async def _in_turn(
        self,
        runner: TopicRunner,
        slot: int,
        asked: Asked,
        entries: Entries,
    ) -> Answer:
        """Publish as an exclusive producer that comes for this and goes."""
        registration = f"publish-{uuid.uuid4().hex}"
        request = Request(
            registration=registration,
            connection=registration,
            producer_name=asked.app,
            name_given=True,
            mode=AccessMode.EXCLUSIVE,
            slot=slot,
            alone=True,
            identity=asked.identity,
            topic_epoch=_kept_for(runner.topic, slot, asked),
            claim=asked.claim,
            address=asked.address,
        )
        turn = Turn()
        producer = Producer(turn, 0, 0, request, runner.logs[slot], self._appender.gathered)
        runner.request(producer)
        try:
            try:
                async with asyncio.timeout(TURN_SECONDS):
                    await turn.ready
            except TimeoutError as error:
                text = f"the topic was not free within {TURN_SECONDS:g} s; nothing was published"
                raise Unavailable(text) from error
            return await self._append(runner, slot, asked, entries, lambda: producer.is_active)
        finally:
            runner.gone(producer, Departure.CLOSED)


def _kept_for(topic: Topic, slot: int, asked: Asked) -> int | None:
    """The epoch of an earlier turn of this app for which the topic is kept, since its broker died."""
    found = topic.slot(slot)
    if found is None or not isinstance(found.ownership, Reserved):
        return None
    tenure = found.ownership.tenure
    is_own = (tenure.producer_name, tenure.identity) == (asked.app, asked.identity)
    return tenure.epoch if is_own else None


def check_epoch(topic: Topic, slot: int, epoch: int) -> None:
    """Raises Fenced where an epoch is not the one that leads, and never will be again.

    Raises Unavailable where that cannot be told here: the topic moves, or changes hands.
    """
    if topic.is_closed:
        raise Unavailable("the topic moves to another broker: come again")
    if leads(topic, slot, epoch):
        return
    found = topic.slot(slot)
    if found is not None and is_changing_hands(topic, found):
        raise Unavailable("the topic is changing hands: come again")
    current = 0 if found is None else found.epoch
    text = (
        f"epoch {epoch} does not lead the topic, whose newest is {current}; nothing was published"
    )
    raise Fenced(text, epoch=epoch, current_epoch=current)


class Turn:
    """The channel of a producer that nobody is connected to. Implements ProducerChannel."""

    client_version = "onewriter-publish"
    hears_of_queue = False

    def __init__(self) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def producer_ready(self, producer: Producer, epoch: int | None) -> None:
        del producer, epoch
        if not self.ready.done():
            self.ready.set_result(None)

    def producer_waits(self, producer: Producer) -> None:
        """Never: an exclusive producer does not wait."""

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
        if not self.ready.done():
            self.ready.set_exception(reason)
            self.ready.exception()
