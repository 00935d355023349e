"""Publishing staged parts as a whole, under the epoch that leads.

A publish stands among what the epoch's holder sends. Once begun it goes on whether or not anybody waits
for the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final
from weakref import WeakValueDictionary

import structlog

from onewriter_broker.log.appender import Appender
from onewriter_broker.log.store.api import VERSION_PREFIX, Binding, LogStore
from onewriter_broker.log.topic_log.atomic_publish import (
    PUBLISHES_WAITING_MAX,
    Entries,
    Publish,
    StoodStill,
    check_app,
    check_owner,
)
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.log.topic_log.termination import terminated_at
from onewriter_broker.topic.epoch_checks import check_leads, count_led, leads, standing_of
from onewriter_broker.topic.publish import staged_rows
from onewriter_broker.topic.publish.layouts import Layouts
from onewriter_broker.topic.publish.publisher_records import PublisherRecords
from onewriter_broker.topic.publish.requests import OngoingPublish, PublishRequest, PublishResult
from onewriter_broker.topic.publish.staging import MissingPart, Staging
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.errors import (
    OnewriterError,
    Refused,
    ServerError,
    Unavailable,
    Undecided,
)
from onewriter_core.ids import TopicName

STANDSTILL_SECONDS: Final = 20.0
"""A publish is given up where nothing of its log was stored, or became durable, for so long: it holds
memory that others wait for. Less than a request may take, so that who asks is told."""

LOOKS: Final = 10
"""At a publish, in that time."""

log = structlog.get_logger(__name__)


def _duplicate(held: int) -> PublishResult:
    return PublishResult(is_duplicate=True, held=held)


class AtomicPublishes:
    """Publishes to the logs that this broker serves."""

    def __init__(
        self,
        store: LogStore,
        appender: Appender,
        staging: Staging,
        *,
        is_full: Callable[[], bool] = lambda: False,
        standstill_seconds: float = STANDSTILL_SECONDS,
    ) -> None:
        """``is_full``: whether the store is so full that nothing more is to be published."""
        self.layouts = Layouts(store, appender.prove)
        self._store = store
        self._appender = appender
        self._staging = staging
        self._is_full = is_full
        self._standstill_seconds = standstill_seconds
        self._publishers = PublisherRecords()
        self._requests: dict[TopicLog, list[OngoingPublish]] = {}
        self._kept_still: set[tuple[TopicLog, str]] = set()
        self._locks: WeakValueDictionary[tuple[TopicLog, str], asyncio.Lock] = WeakValueDictionary()
        """One publish of an app after the other."""

    async def publish(
        self, name: TopicName, topic: LoadedTopic, asked: PublishRequest, time_ms: int
    ) -> PublishResult:
        """Publish these parts, in their order.

        Raises Fenced where the epoch is not the one that leads, MissingPart, TooLarge, Refused (the
        right was not proved; too many ask), Unavailable where nothing was published and asking again may help,
        Undecided where nobody can tell: asked again it is published, or found to be a duplicate.
        """
        partition = topic.partition_of(name)
        topic_log = topic.runner.logs[partition]
        if (topic_log, asked.app) in self._kept_still:
            text = f"what {name} knows of {asked.app} is being changed; nothing was published"
            raise Unavailable(f"{text}; retry later")
        requests = self._requests.setdefault(topic_log, [])
        request = next((each for each in requests if each.asked.is_same(asked)), None)
        is_counted = request is not None and not request.askers  # somebody went, and comes again
        count = sum(max(1, each.askers) for each in requests)
        if count >= PUBLISHES_WAITING_MAX and not is_counted:
            text = f"{PUBLISHES_WAITING_MAX} publish requests for {name} are waiting, which is the maximum; retry later"
            raise Refused(ServerError.TOO_MANY_REQUESTS, text)
        if request is None:
            request = OngoingPublish(asked)
            requests.append(request)
            self._start(topic.runner, partition, request)
        request.time_ms = time_ms
        with request.heard():
            return await request.ended()

    def check_nothing_on_its_way(self, topic_log: TopicLog, app: str, version: int) -> None:
        """Raises Undecided while this version of an app, or a later one, may still be published.

        For who is refused before anything is performed.
        """
        publishes = topic_log.publishes
        requests = self._requests.get(topic_log, ())
        if (publishes is not None and publishes.may_count(app, version)) or any(
            each.asked.app == app and each.asked.version >= version and not each.done.done()
            for each in requests
        ):
            raise Undecided(
                f"unknown yet whether version {version} of {app} is published: ask for its status again"
            )

    @contextlib.contextmanager
    def keeping_still(self, topic_log: TopicLog, app: str) -> Iterator[None]:
        """Nothing is published to a log under an app meanwhile.

        Raises Unavailable while something is, or may be for all that is known of the store.
        """
        key = topic_log, app
        publishes, requests = topic_log.publishes, self._requests.get(topic_log, ())
        may_count = publishes is not None and publishes.may_count(app, 0)
        if may_count or key in self._kept_still or any(each.asked.app == app for each in requests):
            text = f"{topic_log.name} may have a publish of {app} in progress; retry later"
            raise Unavailable(text)
        self._kept_still.add(key)
        try:
            yield
        finally:
            self._kept_still.remove(key)

    def _start(self, runner: TopicRunner, partition: int, request: OngoingPublish) -> None:
        topic_log, asked, done = runner.logs[partition], request.asked, request.done

        async def perform() -> None:
            try:
                async with self._locks.setdefault((topic_log, asked.app), asyncio.Lock()):
                    with self._certain(topic_log, asked):
                        answer = await self._perform(runner, partition, request)
            except OnewriterError as error:
                done.set_exception(error)
                done.exception()  # nobody may be left to hear it
            except Exception:  # ends this request; what may close the topic stands in ``changing``
                log.exception("publish.failed", topic=str(topic_log.name), app=asked.app)
                text = "publishing failed; the broker's log says why: ask again whether it is published"
                done.set_exception(Undecided(text))
                done.exception()
            else:
                done.set_result(answer)

        def ended(_task: object) -> None:
            requests = self._requests[topic_log]
            requests.remove(request)
            if not requests:
                del self._requests[topic_log]
            if not done.done():
                done.set_exception(
                    Undecided("unknown whether this was published: ask for its status")
                )
                done.exception()

        runner.spawn(perform()).add_done_callback(ended)

    @contextlib.contextmanager
    def _certain(self, topic_log: TopicLog, asked: PublishRequest) -> Iterator[None]:
        """No error but Undecided leaves it while what was asked for earlier may yet be published.

        Requests of one app are performed in the order in which they came, so all earlier ones have ended.
        """
        try:
            yield
        except Undecided:
            raise
        except OnewriterError:
            self._check_heard(topic_log, asked)
            raise

    def _check_heard(self, topic_log: TopicLog, asked: PublishRequest) -> None:
        """Raises Undecided where a publish was handed to the store of which nothing has been heard yet.

        Who was to be told that this version is not published is told that nobody can tell.
        """
        publishes = topic_log.publishes
        if publishes is not None and publishes.may_count(asked.app, asked.version):
            text = f"whether version {asked.version} of {asked.app} is published"
            raise Undecided(f"unknown yet {text}: ask for its status")

    async def _perform(
        self, runner: TopicRunner, partition: int, request: OngoingPublish
    ) -> PublishResult:
        topic_log, asked = runner.logs[partition], request.asked
        answer = await self._without_rows(runner, partition, asked)
        if answer is not None:
            return answer
        try:
            answer = await self._publish_rows(runner, partition, request)
        except (Unavailable, MissingPart) as error:
            try:
                held = await self._known(topic_log, asked)  # by another request
                if held is not None:
                    return _duplicate(held)
                await self._check_epoch(runner, partition, asked)
            except Undecided:
                if not isinstance(error, StoodStill):
                    raise  # else: of a store that stands still more is not heard
            raise
        # Whoever has staged this version, too, is answered "duplicate" whatever became of its parts.
        with contextlib.suppress(OnewriterError):  # they expire
            prefix = f"{asked.app}/{asked.version}/"
            await self._staging.drop(topic_log.name, prefix)
            others = [part.key for part in asked.parts if not part.key.startswith(prefix)]
            if others:  # staged under another version
                await self._staging.drop_parts(topic_log.name, others)
        return answer

    async def _without_rows(
        self, runner: TopicRunner, partition: int, asked: PublishRequest
    ) -> PublishResult | None:
        """The answer where no rows are to be published; None: they may be. Raises what forbids it."""
        topic_log = runner.logs[partition]
        held = await self._known(topic_log, asked)
        if held is not None:  # whatever became of its epoch since
            return _duplicate(held)
        await self._check_epoch(runner, partition, asked)
        if terminated_at(topic_log.state) is not None:
            raise Refused(ServerError.TOPIC_TERMINATED_ERROR, f"{topic_log.name} was terminated")
        check_app(topic_log.name, topic_log.state, asked.app, asked.require_right().owner)
        if asked.rows == 0:  # the store is not written to, where a deposed broker would learn of it
            await standing_of(topic_log, self._appender.prove)
            return PublishResult(is_duplicate=False)
        if self._is_full():
            raise Unavailable("the store is nearly full: nothing is published until it is not")
        if topic_log.share.refusal:
            code = ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR
            raise Refused(code, topic_log.share.refusal)
        await self._store.staged.check_rights()
        return None

    async def _publish_rows(
        self, runner: TopicRunner, partition: int, request: OngoingPublish
    ) -> PublishResult:
        topic_log, asked = runner.logs[partition], request.asked
        with self._staging.loading(topic_log.name, asked.parts):
            entries = await self._entries(topic_log.name, request)
            binding = await self._recorded(runner, topic_log, asked)

            def may_write() -> bool:
                """PublishRequest when the first block is formed: the epoch leads, and its audit names who asks."""
                return topic_log.binding == binding and leads(runner.topic, partition, asked.epoch)

            return await self._append(runner, partition, asked, entries, may_write)

    async def _recorded(
        self, runner: TopicRunner, topic_log: TopicLog, asked: PublishRequest
    ) -> Binding:
        """The binding under which the audit names who asks. Raises StoodStill, and as PublisherRecords.record."""
        try:
            async with asyncio.timeout(self._standstill_seconds):
                return await self._publishers.record(runner, topic_log, asked)
        except TimeoutError:
            why = f"the store has taken nothing for {self._standstill_seconds:g} s"
            raise StoodStill(f"{why}; nothing was published; retry later") from None

    async def _check_epoch(
        self, runner: TopicRunner, partition: int, asked: PublishRequest
    ) -> None:
        await check_leads(runner, partition, asked.epoch, self._appender.prove)
        asked.require_right()

    async def count_led(self, runner: TopicRunner, partitions: int, epoch: int) -> int:
        """As ``leading.count_led``."""
        return await count_led(runner, partitions, epoch, self._appender.prove)

    async def _known(self, topic_log: TopicLog, asked: PublishRequest) -> int | None:
        """The version of the app that is certainly published, where that is this one or a later one.

        What is on its way is waited for: it may yet fail. What is read holds only once it is seen
        that no other broker wrote it, and that it is as durable as an acknowledgement.
        """
        under_way = None if topic_log.publishes is None else topic_log.publishes.of(asked.app)
        if under_way is not None:  # the store stands still, and it was given up
            await asyncio.wait((under_way.done,), timeout=self._standstill_seconds)
        self._check_heard(topic_log, asked)
        binding = topic_log.binding
        if binding is None:
            raise Unavailable(f"{topic_log.name} is not open here")
        held = await self._held(topic_log, asked)
        if held < asked.version:
            return None
        try:
            await standing_of(topic_log, self._appender.prove)
        except Unavailable as error:  # it is known, perhaps elsewhere
            raise Undecided(f"{error}: ask again") from error
        if topic_log.binding != binding:
            raise Undecided(f"{topic_log.name} was reconnected to the store: ask for its status")
        return held

    async def held_version(self, topic_log: TopicLog, app: str) -> int:
        """The version that an app has published last, as the store has it now; -1: none.

        Raises Unavailable, Undecided, and Refused for a state that must be repaired.
        """
        return _version(topic_log, app, await self.state_of(topic_log))

    async def _held(self, topic_log: TopicLog, asked: PublishRequest) -> int:
        """As ``held_version``, for whoever may publish under the app. Raises BoundElsewhere, too."""
        state = await self.state_of(topic_log)
        if asked.right is not None:  # else it asks what became of a version
            check_owner(topic_log.name, state, asked.app, asked.right.owner)
        return _version(topic_log, asked.app, state)

    async def state_of(self, topic_log: TopicLog) -> dict[str, str]:
        """A log's state as the store has it now. Raises Unavailable, Undecided."""
        binding = topic_log.binding
        if binding is None:
            raise Unavailable(f"{topic_log.name} is not open here")
        return await self._store.read_state(topic_log.name, replid=binding.replid)

    async def _entries(self, name: TopicName, request: OngoingPublish) -> Entries:
        made, asked = Entries(), request.asked
        for part in asked.parts:
            if part.rows:
                body = await self._staging.load(name, part)
                rows = staged_rows.entries(body, asked.app, asked.version, request.time_ms)
                async for send, payload in rows:
                    made.add(send, payload)
        return made

    async def _append(
        self,
        runner: TopicRunner,
        partition: int,
        asked: PublishRequest,
        entries: Entries,
        may_write: Callable[[], bool],
    ) -> PublishResult:
        topic_log = runner.logs[partition]
        owner = asked.require_right().owner
        publish = Publish(asked.app, asked.version, entries, may_write, owner, asked.by)
        with runner.changing(), _progressing(runner, partition):
            topic_log.publish(publish)
            self._appender.gathered(topic_log)
            await self._watch(runner, topic_log, publish)
            where = await publish.done
        log.info(
            "publish.ended",
            topic=str(topic_log.name),
            publish=publish.name,
            last=None if where is None else str(where.last),
        )
        if where is not None:
            return PublishResult(is_duplicate=False, where=where)
        try:  # the store refused it for the version that it knows
            held = await self._held(topic_log, asked)
        except Unavailable as error:
            raise Undecided(f"{error}: ask again") from error
        if held < asked.version:
            raise Undecided(f"{topic_log.name} knows version {held} of {asked.app}: ask again")
        return _duplicate(held)

    async def _watch(self, runner: TopicRunner, topic_log: TopicLog, publish: Publish) -> None:
        """Until a publish has ended; one that stands still is given up.

        Raises Undecided: all of it was handed to the store, which may store it yet.
        """
        now = asyncio.get_running_loop().time
        seen, moved_at = _how_far(topic_log), now()
        while True:
            await asyncio.wait((publish.done,), timeout=self._standstill_seconds / LOOKS)
            if publish.done.done():
                return
            found = _how_far(topic_log)
            if found != seen:
                seen, moved_at = found, now()
            elif now() - moved_at >= self._standstill_seconds:
                break
        log.warning(
            "publish.given_up",
            topic=str(topic_log.name),
            publish=publish.name,
            has_begun=publish.has_begun,
            is_formed=publish.is_formed,
        )
        why = f"the store has taken nothing for {self._standstill_seconds:g} s"
        if self._appender.abandon(topic_log, publish, why):
            runner.dataset_changed()
        if not publish.done.done():
            text = f"{why}; unknown yet whether this is published: ask for its status"
            raise Undecided(text)


@contextlib.contextmanager
def _progressing(runner: TopicRunner, partition: int) -> Iterator[None]:
    """Inside, something is published under the epoch of a partition's holder: no deadline passes for it."""
    with contextlib.ExitStack() as writing:
        for producer in list(runner.producers.values()):
            if producer.is_active and producer.request.partition == partition:
                writing.enter_context(producer.progressing())
        yield


def _how_far(topic_log: TopicLog) -> tuple[object, ...]:
    """What changes whenever a log gets on."""
    undecided = len(topic_log.undecided)
    return topic_log.ledger, topic_log.entries_in, undecided, topic_log.committed


def _version(topic_log: TopicLog, app: str, state: Mapping[str, str]) -> int:
    """The version that an app has published last; -1: none. Raises Refused: the state must be repaired."""
    name = f"{VERSION_PREFIX}{app}"
    held = state.get(name, "-1")
    if not held.removeprefix("-").isdecimal():
        text = f"the state of {topic_log.name} must be repaired: {name} is not a number"
        raise Refused(ServerError.PERSISTENCE_ERROR, text)
    return int(held)
