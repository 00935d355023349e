"""The connection to all brokers: sends the desired state to each and follows its stream.

Each broker has two tasks. One follows the stream and reconnects with growing pauses; the topics of a
broken stream count as unknown only after ``grace_seconds``, so that a restart does not rewrite a
thousand statuses. The other sends the newest desired state after each change, and again if the broker
reports a different one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeVar

import structlog

from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import Key
from onewriter_core.topic_view import TopicView, parse_view
from onewriter_operator.brokers.buckets import PATIENCE_SECONDS, Buckets
from onewriter_operator.brokers.client import (
    BrokerClient,
    BrokerRefused,
    BrokerUnreachable,
    Credentials,
    NotServedHere,
)
from onewriter_operator.brokers.delays import (
    GATHER_SECONDS_MIN,
    RETRY_SECONDS_MAX,
    RETRY_SECONDS_MIN,
    Backoff,
    Debounce,
)
from onewriter_operator.brokers.lookups import TOGETHER_MAX, LookUps
from onewriter_operator.brokers.quota_problems import QuotaReports, topics_of
from onewriter_operator.brokers.store_problems import LastingProblem, full, read_only, unreachable
from onewriter_operator.brokers.views import View, Views, claims_in
from onewriter_operator.declarations import BODY_BYTES_MAX, Declarations, Desired, Piece
from onewriter_operator.plan.broker_report import BrokerReport, parse_report
from onewriter_operator.plan.facts import (
    Applied,
    BucketFacts,
    FleetState,
    QuotaProblem,
    StoredTopic,
)

GRACE_SECONDS: Final = 10.0
"""A broker whose stream broke still counts as followed for this time."""

SETTLE_SECONDS: Final = 10.0
"""Time for all brokers to answer after a start, before a missing one counts as away."""

CATCH_UP_SECONDS: Final = 5.0
"""Time to send the desired state to a broker that returned with a different one."""

CHECK_SECONDS: Final = 30.0
"""Interval of the check whether a broker still has the desired state that it received."""

AGE_SECONDS_MAX: Final = 3_600.0
"""Age of a topic's state that is older or unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLimits:
    """The times and limits of a fleet: see the constants, also those of delays, buckets and lookups."""

    retry_seconds_min: float = RETRY_SECONDS_MIN
    retry_seconds_max: float = RETRY_SECONDS_MAX
    gather_seconds: float = GATHER_SECONDS_MIN
    grace_seconds: float = GRACE_SECONDS
    settle_seconds: float = SETTLE_SECONDS
    catch_up_seconds: float = CATCH_UP_SECONDS
    check_seconds: float = CHECK_SECONDS
    patience_seconds: float = PATIENCE_SECONDS
    together_max: int = TOGETHER_MAX

    def backoff(self) -> Backoff:
        """The delays between attempts to reach one broker."""
        return Backoff(self.retry_seconds_min, self.retry_seconds_max)


REFUSED_PIECES_MAX: Final = 1_000
"""Objects that one broker may refuse; with more, the whole desired state counts as refused."""

log = structlog.get_logger(__name__)


class Listener(Protocol):
    """Receives changes; it only puts keys into queues."""

    def topic_changed(self, topic: str, claims: Collection[str] | None) -> None:
        """A topic's view changed; ``claims``: the affected claims, None for all."""

    def applied(self, keys: Collection[Key]) -> None:
        """All brokers have accepted these objects, or one refused them."""

    def fleet_changed(self) -> None:
        """The number of followed brokers changed."""

    def buckets_changed(self, topics_in: Callable[[Iterable[str]], Collection[str]]) -> None:
        """Some buckets began or ceased to wait, or all with the store; ``topics_in`` selects their topics."""

    def drifted(self, broker: str) -> None:
        """A broker had a desired state that this operator did not send."""

    def installation_changed(self) -> None:
        """What the brokers report about themselves, the store or the buckets changed."""


@dataclass(slots=True)
class _Broker:
    """One broker and its state.

    ``revision`` and ``pieces``: the desired state that it received, or had already, by digest;
    ``reported``: the revision that it reported. Until ``behind_until`` it may lack the desired state.
    ``refused``: the digest of each refused object and the broker's reason. ``accepted``: the pieces
    that it accepted last. ``kept``: the earlier pieces of refused objects that it keeps.
    """

    client: BrokerClient
    is_synced: bool = False
    problem: str = "not connected yet"
    incarnation: str = ""
    reported: str = ""
    revision: str = ""
    pieces: Mapping[Key, str] = field(default_factory=dict)
    behind_until: float = 0.0
    refused: dict[Key, tuple[str, str]] = field(default_factory=dict)
    accepted: Mapping[Key, Piece] = field(default_factory=dict)
    kept: dict[Key, Piece] = field(default_factory=dict)
    general_refusal: str = ""
    is_wanted: asyncio.Event = field(default_factory=asyncio.Event)
    lines: int = 0
    report: BrokerReport | None = None
    lost: asyncio.TimerHandle | None = None

    def cancel_loss(self) -> None:
        """Cancel the timer that counts the broker as lost."""
        if self.lost is not None:
            self.lost.cancel()
            self.lost = None


_Answer = TypeVar("_Answer")


class Fleet:
    """The brokers of one installation, by name."""

    def __init__(
        self,
        urls: Mapping[str, str],
        credentials: Credentials,
        declarations: Declarations,
        listener: Listener,
        limits: FleetLimits = FleetLimits(),
    ) -> None:
        self._limits = limits
        self._declarations = declarations
        self._listener = listener
        self._views = Views()
        self._buckets = Buckets(limits.patience_seconds)
        self._quotas = QuotaReports()
        self._buckets_timer: asyncio.TimerHandle | None = None
        self._store_away, self._store_fault, self._store_full = (
            LastingProblem(judge, limits.patience_seconds)
            for judge in (unreachable, read_only, full)
        )
        self._store_timer: asyncio.TimerHandle | None = None
        self._desired: Desired | None = None
        self._dirty = asyncio.Event()
        self._debounce = Debounce(limits.gather_seconds)
        self._look_ups = LookUps(self._synced_clients, limits.together_max)
        self._is_settling = bool(urls)
        self._brokers = {
            name: _Broker(BrokerClient(name, url, credentials)) for name, url in urls.items()
        }

    async def run(self) -> None:
        """Follow the brokers and send the desired state until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._settle_in_time())
            group.create_task(self._look_ups.run())
            group.create_task(self._compose())
            for broker in self._brokers.values():
                group.create_task(self._follow(broker))
                group.create_task(self._send_changes(broker))

    def declare(self) -> None:
        """Build and send the desired state again."""
        self._dirty.set()

    # ------------------------------------------------------------ what is known

    def state(self) -> FleetState:
        """The state of all brokers together."""
        problems = [
            f"{name}: {broker.problem}"
            for name, broker in sorted(self._brokers.items())
            if broker.problem
        ]
        synced = sum(broker.is_synced for broker in self._brokers.values())
        return FleetState(len(self._brokers), synced, tuple(problems), self._is_settling)

    def view(self, topic: str) -> View | None:
        """The view of the broker that serves the topic."""
        return self._views.best(topic)

    def age_seconds(self, topic: str) -> float:
        """The time since the topic's state changed, or since the last broker stopped serving it."""
        view = self._views.best(topic)
        since = self._views.gone_at(topic) if view is None else view.since
        return AGE_SECONDS_MAX if since is None else asyncio.get_running_loop().time() - since

    def is_lost(self, topic: str) -> bool:
        """Whether the operator cannot follow the broker that served the topic last."""
        broker = self._brokers.get(self._views.server(topic))
        return broker is not None and not broker.is_synced

    def why_waiting(self, topic: str) -> str:
        """Why no broker serves the topic's bucket; empty when one does, or nothing is known."""
        return self._buckets.why_waiting(topic, asyncio.get_running_loop().time())

    def store_away(self) -> str:
        """A sentence if no broker has reached the store for some time; otherwise empty."""
        return self._store_away.why(asyncio.get_running_loop().time())

    def store_fault(self) -> str:
        """A sentence if the store has refused all writes for some time; otherwise empty."""
        return self._store_fault.why(asyncio.get_running_loop().time())

    def store_full(self) -> str:
        """A sentence if the store has been almost full for some time; otherwise empty."""
        return self._store_full.why(asyncio.get_running_loop().time())

    def quota(self, topic: str) -> QuotaProblem | None:
        """The quota that refuses producers of the topic; None if none does."""
        view = self._views.best(topic)
        return self._quotas.problem(topic, "" if view is None else view.broker)

    def reports(self) -> dict[str, BrokerReport]:
        """What the followed brokers report about themselves, by name."""
        return {
            name: broker.report
            for name, broker in sorted(self._brokers.items())
            if broker.is_synced and broker.report is not None
        }

    def buckets(self) -> BucketFacts | None:
        """The buckets that no broker serves; None if no broker reports them."""
        return self._buckets.facts(asyncio.get_running_loop().time())

    def why_not_durable(self, topic: str, durability: str) -> str | None:
        """Why the store does not provide a durability. Empty: it does. None: unknown."""
        return self._buckets.why_not_durable(topic, durability)

    def applied(self, key: Key, piece: str) -> Applied:
        """Which brokers have the present piece of an object."""
        synced = [broker for broker in self._brokers.values() if broker.is_synced]
        having = [broker for broker in synced if piece and broker.pieces.get(key) == piece]
        now = asyncio.get_running_loop().time()
        is_catching_up = any(broker.behind_until > now for broker in synced)
        refusal = ""
        for broker in synced:
            digest, reason = broker.refused.get(key, ("", ""))
            if piece and digest == piece:
                refusal = f"{broker.client.name}: {reason}"
            elif broker.general_refusal and broker.pieces.get(key) != piece:
                refusal = f"{broker.client.name}: {broker.general_refusal}"
        is_everywhere = bool(synced) and len(having) == len(synced)
        return Applied(len(having), is_everywhere, refusal, is_catching_up=is_catching_up)

    # ------------------------------------------------------------ requests

    async def stored(self, topic: str) -> StoredTopic:
        """Any broker's answer about a topic; ``is_known`` False if no broker could answer."""
        return await self._look_ups.stored(topic)

    async def fence(self, topic: str, epoch: int) -> None:
        """Fence exactly this epoch. Raises BrokerRefused, BrokerUnreachable."""
        await self._ask(topic, lambda client: client.fence(topic, epoch))

    async def hand_over(self, topic: str, epoch: int, to: str) -> None:
        """Hand over from the holder of exactly this epoch. Raises BrokerRefused, BrokerUnreachable."""
        await self._ask(topic, lambda client: client.hand_over(topic, epoch, to))

    async def delete(self, topic: str, *, only_if_empty: bool, declared_by: str = "") -> bool:
        """Delete the log of a topic that a namespace declared. False: it has entries and stays.

        Raises BrokerRefused (412: a client is connected), BrokerUnreachable.
        """

        async def erase(client: BrokerClient) -> bool:
            partitions = await client.partitions(topic)
            # Brokers of an earlier version do not know onlyIfEmpty, so their entries are counted first.
            if only_if_empty and await client.entries(topic, partitions):
                return False
            return await client.delete(
                topic, partitions, only_if_empty=only_if_empty, declared_by=declared_by
            )

        return await self._ask(topic, erase)

    async def confirm(self, topic: str) -> TopicView | None:
        """Ask the broker that serves the topic for its present state; None: the topic does not exist.

        Raises BrokerRefused, BrokerUnreachable (also if the answering broker does not serve it).
        """
        found = await self._ask(topic, lambda client: client.topic(topic))
        if found is not None and not found.is_served:
            raise BrokerUnreachable(found.waiting_reason or "no broker serves it at present")
        return found

    async def members(self, seconds: float) -> Mapping[str, bool]:
        """Whether each broker is alive, as the first broker says that answers in time; empty if none does."""
        for client in self._synced_clients():
            try:
                return await client.members(seconds)
            except (BrokerUnreachable, BrokerRefused):
                continue
        return {}

    async def answers(self, name: str, seconds: float) -> bool:
        """Whether this broker answers the operator in time. A broker that the operator does not know counts as one."""
        broker = self._brokers.get(name)
        if broker is None:
            return True
        try:
            await broker.client.members(seconds)
        except BrokerUnreachable:
            return False
        except BrokerRefused:
            return True
        return True

    def suspect(self, name: str) -> None:
        """Begin the grace of a broker that does not answer, although its stream has not ended yet.

        It ends as soon as the stream continues.
        """
        broker = self._brokers.get(name)
        if broker is None or not broker.is_synced or broker.lost is not None:
            return
        broker.problem = "the other brokers and the operator get no answer from it"
        loop = asyncio.get_running_loop()
        broker.lost = loop.call_later(self._limits.grace_seconds, self._lose, broker)

    def _synced_clients(self) -> list[BrokerClient]:
        return [each.client for _, each in sorted(self._brokers.items()) if each.is_synced]

    async def _ask(
        self, topic: str, question: Callable[[BrokerClient], Awaitable[_Answer]]
    ) -> _Answer:
        """Ask the broker that serves the topic, then the others, until one answers itself."""
        view = self._views.best(topic)
        first = "" if view is None else view.broker
        names = sorted(self._brokers, key=lambda name: (name != first, name))
        problem: BrokerUnreachable | None = None
        for name in names:
            broker = self._brokers[name]
            if not broker.is_synced:
                continue
            try:
                return await question(broker.client)
            except NotServedHere as elsewhere:
                problem = problem or elsewhere
            except BrokerUnreachable as error:
                problem = error
        raise problem or BrokerUnreachable("no broker can be reached")

    # ------------------------------------------------------------ desired state

    async def _compose(self) -> None:
        """Build the desired state after each change, and wake the tasks that send it."""
        now = asyncio.get_running_loop().time
        await self._wait_for_look_ups()
        while True:
            await self._dirty.wait()
            await self._debounce.wait()
            self._dirty.clear()
            started = now()
            self._desired = self._declarations.compose()
            self._debounce.took(now() - started)
            for broker in self._brokers.values():
                broker.is_wanted.set()

    async def _wait_for_look_ups(self) -> None:
        """Wait for the brokers' answers about the topics that existed at the start."""
        await self._dirty.wait()
        try:
            async with asyncio.timeout(self._limits.settle_seconds):
                while self._declarations.awaits_answers():
                    self._dirty.clear()
                    await self._dirty.wait()  # each answer calls declare()
        except TimeoutError:
            log.warning(
                "topics.unknown", reason="no broker could say in time what it stores of some"
            )
        self._dirty.set()

    async def _send_changes(self, broker: _Broker) -> None:
        """Send the newest desired state to one broker until it has accepted it."""
        pause = self._limits.backoff()
        while True:
            try:
                async with asyncio.timeout(self._limits.check_seconds):
                    await broker.is_wanted.wait()
            except TimeoutError:
                await self._check(broker)
            broker.is_wanted.clear()
            if self._desired is None or not broker.is_synced:
                continue
            try:
                await self._send(broker, self._desired)
            except BrokerUnreachable as error:
                log.warning("desired.not_taken", broker=broker.client.name, reason=str(error))
                await asyncio.sleep(pause.longer())
                broker.is_wanted.set()
            else:
                pause.reset()

    async def _check(self, broker: _Broker) -> None:
        """Check that the broker still has the desired state that this operator sent."""
        if not broker.is_synced or not broker.revision:
            return
        try:
            revision = await broker.client.revision()
        except (BrokerUnreachable, BrokerRefused) as error:
            log.info("desired.unchecked", broker=broker.client.name, reason=str(error))
            return
        if revision != broker.revision:
            self._listener.drifted(broker.client.name)
            broker.revision, broker.pieces, broker.reported = "", {}, revision

    async def _send(self, broker: _Broker, desired: Desired) -> None:
        """Send the desired state, with the earlier pieces of the objects that the broker refused."""
        digests = desired.digests()
        broker.refused = {
            key: entry for key, entry in broker.refused.items() if digests.get(key) == entry[0]
        }
        broker.kept = {key: piece for key, piece in broker.kept.items() if key in broker.refused}
        if broker.refused:
            desired = self._declarations.compose(
                {(key, digest): broker.kept.get(key) for key, (digest, _) in broker.refused.items()}
            )
            digests = desired.digests()
        if len(desired.body) > BODY_BYTES_MAX:
            self._refuse_all(broker, f"all of it has {len(desired.body)} bytes, too many")
            return
        if broker.revision == desired.revision and broker.pieces == digests:
            return
        if broker.reported != desired.revision:  # equal revisions have equal contents
            now = asyncio.get_running_loop().time
            started = now()
            try:
                answer = await broker.client.put_desired(desired.body)
            except BrokerRefused as refused:
                broker.behind_until = 0.0
                self._note_refusal(broker, desired, refused)
                return
            self._debounce.took(now() - started)
            for warning in answer.get("warnings") or ():
                log.info("desired.warning", broker=broker.client.name, warning=warning)
        before, broker.pieces, broker.accepted = broker.pieces, digests, desired.pieces
        broker.revision = broker.reported = desired.revision
        broker.general_refusal, broker.behind_until = "", 0.0
        others = [each.pieces for each in self._brokers.values() if each.is_synced]
        changed = {
            key
            for key, digest in digests.items()
            # While another broker lacks an object, its state is not reported.
            if before.get(key) != digest and all(each.get(key) == digest for each in others)
        }
        self._listener.applied(changed)

    def _note_refusal(self, broker: _Broker, desired: Desired, refused: BrokerRefused) -> None:
        """Find the objects that the broker's errors name. The broker keeps their earlier pieces.

        An object without an earlier piece, or whose earlier piece is refused, too, is left out.
        """
        rejected: dict[Key, tuple[str, str]] = {}
        dropped = set()
        for key, piece in desired.pieces.items():
            errors = [error for error in refused.errors if _names(error, key)]
            if errors and broker.kept.get(key) == piece:
                dropped.add(key)
            elif errors:
                rejected[key] = (piece.digest, "; ".join(errors))
        log.warning(
            "desired.refused",
            broker=broker.client.name,
            errors=refused.errors[:10],
            rejected=len(rejected) + len(dropped),
        )
        is_named = bool(rejected or dropped)
        if not is_named or len(broker.refused) + len(rejected) > REFUSED_PIECES_MAX:
            self._refuse_all(broker, "; ".join(refused.errors))
            return
        broker.refused |= rejected
        broker.kept |= {key: broker.accepted[key] for key in rejected if key in broker.accepted}
        for key in dropped:
            del broker.kept[key]
        broker.is_wanted.set()
        self._listener.applied(set(rejected))

    def _refuse_all(self, broker: _Broker, reason: str) -> None:
        """Count the whole desired state as refused until it changes."""
        desired = self._desired
        broker.general_refusal, broker.behind_until = reason, 0.0
        if desired is not None:
            keys = {
                key for key, digest in desired.digests().items() if broker.pieces.get(key) != digest
            }
            self._listener.applied(keys)

    # ------------------------------------------------------------ streams

    async def _follow(self, broker: _Broker) -> None:
        """Follow a broker's stream until cancelled."""
        pause = self._limits.backoff()
        try:
            while True:
                lines = broker.lines
                try:
                    await broker.client.open()
                    broker.problem = await self._listen(broker)
                except (BrokerUnreachable, BrokerRefused) as error:
                    broker.problem = str(error)
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    broker.problem = f"what it says is not understood: {error!r}"
                    log.exception("broker.not_understood", broker=broker.client.name)
                if broker.lines != lines:
                    pause.reset()
                if broker.is_synced and broker.lost is None:
                    loop = asyncio.get_running_loop()
                    broker.lost = loop.call_later(self._limits.grace_seconds, self._lose, broker)
                await asyncio.sleep(pause.longer())
        finally:
            broker.cancel_loss()
            await broker.client.close()

    async def _listen(self, broker: _Broker) -> str:
        """Take in one stream until it ends; the reason of its end."""
        name = broker.client.name
        reported: set[str] = set()
        is_complete = False
        async for line in broker.client.watch():
            broker.lines += 1
            if is_complete:
                broker.cancel_loss()
                if not broker.is_synced:
                    return "it continues after it counted as lost"
            topic = str(line.get("topic", ""))
            match line.get("type"):
                case "TOPIC":
                    self._take_in(name, topic, parse_view(line["status"]))
                    reported.add(topic)
                case "GONE":
                    now = asyncio.get_running_loop().time()
                    self._report_gone(topic, self._views.drop(name, topic, now))
                    reported.discard(topic)
                case "BUCKETS":
                    now = asyncio.get_running_loop().time()
                    self._note_buckets(self._buckets.put(name, line, now))
                case "QUOTAS":
                    self._note_quotas(self._quotas.put(name, line))
                case "BROKER":
                    broker.report = parse_report(line)
                    self._note_store()
                    self._listener.installation_changed()
                case "SYNCED" if not is_complete:
                    is_complete = True
                    broker.cancel_loss()
                    self._synced(broker, line, reported)
                case _:
                    continue  # PING, and lines that later versions may add
        return "its stream ended"

    def _take_in(self, broker: str, topic: str, status: TopicView) -> None:
        now = asyncio.get_running_loop().time()
        before = self._views.put(broker, topic, status, now)
        best = self._views.best(topic)
        after = None if best is None else best.status
        if before is None:
            self._listener.topic_changed(topic, None)
        elif before != after:
            self._listener.topic_changed(topic, claims_in(before) | claims_in(after))

    def _report_gone(self, topic: str, before: TopicView | None) -> None:
        if before is not None:
            self._listener.topic_changed(topic, claims_in(before))

    def _synced(self, broker: _Broker, line: Json, reported: set[str]) -> None:
        """The broker has reported all topics that it serves."""
        now = asyncio.get_running_loop().time()
        for topic in self._views.keep_only(broker.client.name, reported, now):
            self._listener.topic_changed(topic, None)
        incarnation, revision = str(line.get("broker", "")), str(line.get("revision") or "")
        is_same = broker.incarnation == incarnation
        if broker.revision != revision:
            if broker.revision and is_same:
                self._listener.drifted(broker.client.name)
            broker.revision, broker.pieces = "", {}
            broker.behind_until = now + self._limits.catch_up_seconds
        broker.incarnation, broker.reported = incarnation, revision
        was_synced, broker.is_synced, broker.problem = broker.is_synced, True, ""
        self._is_settling &= not self.state().all_synced
        log.info(
            "broker.synced", broker=broker.client.name, topics=len(reported), revision=revision
        )
        self._note_store()
        if not was_synced:
            self._listener.fleet_changed()
        broker.is_wanted.set()

    async def _settle_in_time(self) -> None:
        """Count brokers that have not answered in time as away."""
        await asyncio.sleep(self._limits.settle_seconds)
        if self._is_settling:
            self._is_settling = False
            self._listener.fleet_changed()

    def _lose(self, broker: _Broker) -> None:
        """The broker did not return in time: the state of its topics is unknown now."""
        broker.is_synced, broker.lost, broker.report = False, None, None
        log.warning("broker.lost", broker=broker.client.name, reason=broker.problem)
        for topic in self._views.lose(broker.client.name):
            self._listener.topic_changed(topic, None)
        self._report_buckets(
            self._buckets.lose(broker.client.name, asyncio.get_running_loop().time())
        )
        self._quotas.lose(broker.client.name)
        self._note_store()
        self._listener.fleet_changed()

    def _note_quotas(self, changed: tuple[set[str], set[str]]) -> None:
        """Reconcile the topics, and those of the namespaces, whose quotas are used up now or no longer are."""
        topics, namespaces = changed
        for topic in topics:
            self._listener.topic_changed(topic, ())
        if namespaces:
            self._listener.buckets_changed(partial(topics_of, namespaces))

    def _note_buckets(self, ceased: set[int]) -> None:
        """Reconcile the topics of buckets that no longer wait, and later those of waiting buckets."""
        self._report_buckets(ceased)
        if self._buckets.are_waiting and self._buckets_timer is None:
            loop = asyncio.get_running_loop()
            self._buckets_timer = loop.call_later(
                self._limits.patience_seconds, self._check_buckets
            )

    def _check_buckets(self) -> None:
        self._buckets_timer = None
        self._note_buckets(self._buckets.due(asyncio.get_running_loop().time()))

    def _report_buckets(self, changed: set[int]) -> None:
        if changed:
            self._listener.buckets_changed(partial(self._buckets.topics_in, changed))
            self._listener.installation_changed()

    def _note_store(self) -> None:
        """Reconcile all topics when a problem of the store has lasted some time, and when it ends."""
        loop = asyncio.get_running_loop()
        reports, problems = self.reports().values(), self._store_problems()
        have_ended = [each for each in problems if each.put(reports, loop.time())]
        if have_ended:
            self._report_store()
        if any(each.is_pending for each in problems) and self._store_timer is None:
            self._store_timer = loop.call_later(self._limits.patience_seconds, self._check_store)

    def _check_store(self) -> None:
        self._store_timer = None
        now = asyncio.get_running_loop().time()
        are_due = [each for each in self._store_problems() if each.is_due(now)]
        if are_due:
            self._report_store()
        self._note_store()

    def _store_problems(self) -> tuple[LastingProblem, ...]:
        return self._store_away, self._store_fault, self._store_full

    def _report_store(self) -> None:
        self._listener.buckets_changed(list)
        self._listener.installation_changed()


def _names(error: str, key: Key) -> bool:
    """Whether a broker's error names an object (``namespace/name``)."""
    position = error.find(str(key))
    if position < 0:
        return False
    following = error[position + len(str(key)) :][:1]
    before = error[:position][-1:]
    is_inside = following.isalnum() or following in {"-", "."} or before.isalnum() or before == "-"
    return not is_inside and (key.kind in error or "Exclusive" not in error)
