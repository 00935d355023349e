"""Publishes staged parts atomically, under the epoch that leads.

The log orders a publish among the entries of the epoch's holder. A publish that has begun continues even if all
its callers disconnect.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final
from weakref import WeakValueDictionary

import structlog

from onewriter_broker.log.appender import AppendPath
from onewriter_broker.log.limits import LogLimits
from onewriter_broker.log.store.api import Binding, LogStore
from onewriter_broker.log.topic_log.atomic_publish import (
    PUBLISHES_WAITING_MAX,
    Entries,
    Publish,
    StoreStalled,
    check_app,
    check_owner,
)
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.log.topic_log.termination import terminated_at
from onewriter_broker.topic.epoch_checks import check_leads, count_led, epoch_status_of, leads
from onewriter_broker.topic.publish import staged_rows
from onewriter_broker.topic.publish.layouts import Layouts
from onewriter_broker.topic.publish.publisher_records import PublisherLimits, PublisherRecords
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
from onewriter_core.log_format.field_names import VERSION_PREFIX

STANDSTILL_SECONDS: Final = 20.0
"""The broker abandons a publish if nothing of its log was stored or became durable for this time, because the
publish holds memory that others need. It is shorter than the timeout of a request, so that the caller gets the
answer."""

POLLS: Final = 10
"""Progress checks of a publish within STANDSTILL_SECONDS."""

log = structlog.get_logger(__name__)


def _duplicate(held: int) -> PublishResult:
    return PublishResult(is_duplicate=True, held=held)


class AtomicPublishes:
    """Publishes to the logs that this broker serves."""

    def __init__(
        self,
        store: LogStore,
        appender: AppendPath,
        staging: Staging,
        *,
        is_full: Callable[[], bool] = lambda: False,
        standstill_seconds: float = STANDSTILL_SECONDS,
        publisher_limits: PublisherLimits = PublisherLimits(),
        log_limits: LogLimits = LogLimits(),
    ) -> None:
        """``is_full``: whether the store is so full that the broker must reject publishes."""
        self.layouts = Layouts(store, appender.prove)
        self._store = store
        self._appender = appender
        self._staging = staging
        self._is_full = is_full
        self._standstill_seconds = standstill_seconds
        self._publishers = PublisherRecords(publisher_limits)
        self._log_limits = log_limits
        self._requests: dict[TopicLog, list[OngoingPublish]] = {}
        self._blocked: set[tuple[TopicLog, str]] = set()
        self._locks: WeakValueDictionary[tuple[TopicLog, str], asyncio.Lock] = WeakValueDictionary()
        """The publish reservations: at most one publish per log and app at a time."""

    async def publish(
        self, name: TopicName, topic: LoadedTopic, requested: PublishRequest, time_ms: int
    ) -> PublishResult:
        """Publish the parts in their order.

        Raises Fenced if the epoch does not lead the topic; MissingPart; TooLarge; Refused if the right was not
        proved or too many requests wait; Unavailable if nothing was published and a retry may succeed;
        Undecided if the result is unknown. A retry then publishes the version or finds the duplicate.
        """
        partition = topic.partition_of(name)
        topic_log = topic.runner.logs[partition]
        if (topic_log, requested.app) in self._blocked:
            text = f"an administrator changes the records of {requested.app} on {name}; nothing was published"
            raise Unavailable(f"{text}; retry later")
        requests = self._requests.setdefault(topic_log, [])
        request = next((each for each in requests if each.requested.is_same(requested)), None)
        # A caller that disconnected and returns is counted already.
        is_counted = request is not None and not request.askers
        count = sum(max(1, each.askers) for each in requests)
        if count >= PUBLISHES_WAITING_MAX and not is_counted:
            text = f"{PUBLISHES_WAITING_MAX} publish requests for {name} are waiting, which is the maximum; retry later"
            raise Refused(ServerError.TOO_MANY_REQUESTS, text)
        if request is None:
            request = OngoingPublish(requested)
            requests.append(request)
            self._start(topic.runner, partition, request)
        request.time_ms = time_ms
        with request.received():
            return await request.ended()

    def check_not_in_progress(self, topic_log: TopicLog, app: str, version: int) -> None:
        """Raise Undecided while this version of an app, or a later one, may still be published.

        Callers use it before they reject a request that was not performed.
        """
        publishes = topic_log.publishes
        requests = self._requests.get(topic_log, ())
        if (publishes is not None and publishes.may_count(app, version)) or any(
            each.requested.app == app and each.requested.version >= version and not each.done.done()
            for each in requests
        ):
            raise Undecided(
                f"unknown yet whether version {version} of {app} is published: ask for its status again"
            )

    @contextlib.contextmanager
    def blocking(self, topic_log: TopicLog, app: str) -> Iterator[None]:
        """Block publishes of an app to a log.

        Raises Unavailable if a publish is in progress, or if the store may still perform one.
        """
        key = topic_log, app
        publishes, requests = topic_log.publishes, self._requests.get(topic_log, ())
        may_count = publishes is not None and publishes.may_count(app, 0)
        if may_count or key in self._blocked or any(each.requested.app == app for each in requests):
            text = f"{topic_log.name} may have a publish of {app} in progress; retry later"
            raise Unavailable(text)
        self._blocked.add(key)
        try:
            yield
        finally:
            self._blocked.remove(key)

    def _start(self, runner: TopicRunner, partition: int, request: OngoingPublish) -> None:
        topic_log, requested, done = runner.logs[partition], request.requested, request.done

        async def perform() -> None:
            try:
                async with self._locks.setdefault((topic_log, requested.app), asyncio.Lock()):
                    with self._certain(topic_log, requested):
                        answer = await self._perform(runner, partition, request)
            except OnewriterError as error:
                done.set_exception(error)
                done.exception()  # the callers may be gone, so mark the exception as retrieved
            except Exception:
                # It fails this request only; ``changing`` handles errors that must close the topic.
                log.exception("publish.failed", topic=str(topic_log.name), app=requested.app)
                text = "publishing failed; the broker's log says why. The result is unknown: request its status"
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
    def _certain(self, topic_log: TopicLog, requested: PublishRequest) -> Iterator[None]:
        """Raise only Undecided while an earlier publish of the app may still be stored.

        Requests of one app are performed in the order of their arrival, so all earlier requests have ended.
        """
        try:
            yield
        except Undecided:
            raise
        except OnewriterError:
            self._check_received(topic_log, requested)
            raise

    def _check_received(self, topic_log: TopicLog, requested: PublishRequest) -> None:
        """Raise Undecided if the store has not yet answered a publish of this version or a later one.

        Without this check the caller would learn that the version is not published, although it may be.
        """
        publishes = topic_log.publishes
        if publishes is not None and publishes.may_count(requested.app, requested.version):
            text = f"whether version {requested.version} of {requested.app} is published"
            raise Undecided(f"unknown yet {text}: ask for its status")

    async def _perform(
        self, runner: TopicRunner, partition: int, request: OngoingPublish
    ) -> PublishResult:
        topic_log, requested = runner.logs[partition], request.requested
        answer = await self._without_rows(runner, partition, requested)
        if answer is not None:
            return answer
        try:
            answer = await self._publish_rows(runner, partition, request)
        except (Unavailable, MissingPart) as error:
            try:
                held = await self._known(
                    topic_log, requested
                )  # another request may have published it
                if held is not None:
                    return _duplicate(held)
                await self._check_epoch(runner, partition, requested)
            except Undecided:
                if not isinstance(error, StoreStalled):
                    raise  # a stalled store cannot answer this either
            raise
        # Another caller that staged this version gets "duplicate" even if its parts are gone.
        with contextlib.suppress(OnewriterError):  # they expire
            prefix = f"{requested.app}/{requested.version}/"
            await self._staging.drop(topic_log.name, prefix)
            others = [part.key for part in requested.parts if not part.key.startswith(prefix)]
            if others:  # staged under another version
                await self._staging.drop_parts(topic_log.name, others)
        return answer

    async def _without_rows(
        self, runner: TopicRunner, partition: int, requested: PublishRequest
    ) -> PublishResult | None:
        """The answer if no rows have to be published. None: publish the rows. Raises an error that forbids it."""
        topic_log = runner.logs[partition]
        held = await self._known(topic_log, requested)
        if held is not None:  # also if its epoch has ended since
            return _duplicate(held)
        await self._check_epoch(runner, partition, requested)
        if terminated_at(topic_log.state) is not None:
            raise Refused(ServerError.TOPIC_TERMINATED_ERROR, f"{topic_log.name} was terminated")
        owner = requested.require_right().owner
        check_app(topic_log.name, topic_log.state, requested.app, owner, topic_log.limits)
        if requested.rows == 0:  # there is no write that would reject a deposed broker
            await epoch_status_of(topic_log, self._appender.prove)
            return PublishResult(is_duplicate=False)
        if self._is_full():
            raise Unavailable("the store is almost full; nothing is published; retry later")
        if topic_log.share.refusal:
            code = ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR
            raise Refused(code, topic_log.share.refusal)
        await self._store.staged.check_rights()
        return None

    async def _publish_rows(
        self, runner: TopicRunner, partition: int, request: OngoingPublish
    ) -> PublishResult:
        topic_log, requested = runner.logs[partition], request.requested
        with self._staging.loading(topic_log.name, requested.parts):
            entries = await self._entries(topic_log.name, request)
            binding = await self._recorded(runner, topic_log, requested)

            def may_write() -> bool:
                """Called when the first block is formed: the epoch leads, and the audit names the publisher."""
                return topic_log.binding == binding and leads(
                    runner.topic, partition, requested.epoch
                )

            return await self._append(runner, partition, requested, entries, may_write)

    async def _recorded(
        self, runner: TopicRunner, topic_log: TopicLog, requested: PublishRequest
    ) -> Binding:
        """The binding under which the audit names the publisher. Raises StoreStalled, and as PublisherRecords.record."""
        try:
            async with asyncio.timeout(self._standstill_seconds):
                return await self._publishers.record(runner, topic_log, requested)
        except TimeoutError:
            why = f"the store has taken nothing for {self._standstill_seconds:g} s"
            raise StoreStalled(f"{why}; nothing was published; retry later") from None

    async def _check_epoch(
        self, runner: TopicRunner, partition: int, requested: PublishRequest
    ) -> None:
        await check_leads(runner, partition, requested.epoch, self._appender.prove)
        requested.require_right()

    async def count_led(self, runner: TopicRunner, partitions: int, epoch: int) -> int:
        """As ``epoch_checks.count_led``."""
        return await count_led(runner, partitions, epoch, self._appender.prove)

    async def _known(self, topic_log: TopicLog, requested: PublishRequest) -> int | None:
        """The newest certainly published version of the app, if it is at least the requested one.

        The method waits for a publish in progress, because it may still fail. A version that it reads counts
        only after a check that this broker still serves the log and that the version is as durable as an
        acknowledgement.
        """
        under_way = None if topic_log.publishes is None else topic_log.publishes.of(requested.app)
        if under_way is not None:  # it was abandoned because the store was stalled
            await asyncio.wait((under_way.done,), timeout=self._standstill_seconds)
        self._check_received(topic_log, requested)
        binding = topic_log.binding
        if binding is None:
            raise Unavailable(f"{topic_log.name} is not open here")
        held = await self._held(topic_log, requested)
        if held < requested.version:
            return None
        try:
            await epoch_status_of(topic_log, self._appender.prove)
        except Unavailable as error:  # the version may be published under another broker
            raise Undecided(f"{error}: ask again") from error
        if topic_log.binding != binding:
            raise Undecided(f"{topic_log.name} was reconnected to the store: ask for its status")
        return held

    async def held_version(self, topic_log: TopicLog, app: str) -> int:
        """The last version of an app in the store. -1: none.

        Raises Unavailable, Undecided, and Refused if the state must be repaired.
        """
        return _version(topic_log, app, await self.state_of(topic_log))

    async def _held(self, topic_log: TopicLog, requested: PublishRequest) -> int:
        """As ``held_version``, with a check of the app's owner. Raises BoundElsewhere, too."""
        state = await self.state_of(topic_log)
        if requested.right is not None:  # otherwise the request only asks for a result
            check_owner(topic_log.name, state, requested.app, requested.right.owner)
        return _version(topic_log, requested.app, state)

    async def state_of(self, topic_log: TopicLog) -> dict[str, str]:
        """The current state of a log in the store. Raises Unavailable, Undecided."""
        binding = topic_log.binding
        if binding is None:
            raise Unavailable(f"{topic_log.name} is not open here")
        return await self._store.read_state(topic_log.name, replid=binding.replid)

    async def _entries(self, name: TopicName, request: OngoingPublish) -> Entries:
        entries = Entries(block_entries_max=self._log_limits.publish_block_entries_max)
        requested = request.requested
        for part in requested.parts:
            if part.rows:
                body = await self._staging.load(name, part)
                rows = staged_rows.entries(body, requested.app, requested.version, request.time_ms)
                async for send, payload in rows:
                    entries.add(send, payload)
        return entries

    async def _append(
        self,
        runner: TopicRunner,
        partition: int,
        requested: PublishRequest,
        entries: Entries,
        may_write: Callable[[], bool],
    ) -> PublishResult:
        topic_log = runner.logs[partition]
        owner = requested.require_right().owner
        publish = Publish(requested.app, requested.version, entries, may_write, owner, requested.by)
        with runner.changing(), _progressing(runner, partition):
            topic_log.publish(publish)
            self._appender.append_soon(topic_log)
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
        try:  # the store rejected it because of the version that it has
            held = await self._held(topic_log, requested)
        except Unavailable as error:
            raise Undecided(f"{error}: ask again") from error
        if held < requested.version:
            raise Undecided(f"{topic_log.name} knows version {held} of {requested.app}: ask again")
        return _duplicate(held)

    async def _watch(self, runner: TopicRunner, topic_log: TopicLog, publish: Publish) -> None:
        """Wait until a publish has ended, and abandon it if it makes no progress.

        Raises Undecided if the whole publish was sent to the store, which may still store it.
        """
        now = asyncio.get_running_loop().time
        seen, moved_at = _progress_of(topic_log), now()
        while True:
            await asyncio.wait((publish.done,), timeout=self._standstill_seconds / POLLS)
            if publish.done.done():
                return
            found = _progress_of(topic_log)
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
    """Suspend the progress deadlines of a partition's holder during a publish under its epoch."""
    with contextlib.ExitStack() as writing:
        for producer in list(runner.producers.values()):
            if producer.is_active and producer.request.partition == partition:
                writing.enter_context(producer.publishing())
        yield


def _progress_of(topic_log: TopicLog) -> tuple[object, ...]:
    """Values that change whenever the log makes progress."""
    undecided = len(topic_log.undecided)
    return topic_log.ledger, topic_log.entries_in, undecided, topic_log.committed


def _version(topic_log: TopicLog, app: str, state: Mapping[str, str]) -> int:
    """The last published version of an app. -1: none. Raises Refused if the state must be repaired."""
    name = f"{VERSION_PREFIX}{app}"
    held = state.get(name, "-1")
    if not held.removeprefix("-").isdecimal():
        text = f"the state of {topic_log.name} must be repaired: {name} is not a number"
        raise Refused(ServerError.PERSISTENCE_ERROR, text)
    return int(held)
