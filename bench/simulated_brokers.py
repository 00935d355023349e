"""Hundreds of brokers on a virtual clock: who finds a dead broker when, and who takes its buckets when.

The decisions are the broker's own code: which brokers are alive (``MemberObserver``), to which broker a bucket belongs
(``Targets``), which buckets to take, give back and release (``plan``), the pauses and the bounds. The API server,
the store and the brokers' processors are queues with the measured costs of ``Costs``.

Brokers with nearly the same phase share one observer, because they see the same heartbeats at nearly the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from onewriter_broker.anchor.api import Addresses, Record
from onewriter_broker.anchor.kubernetes import WRITE_SECONDS_MAX, pause_seconds
from onewriter_broker.kubernetes_api import ApiLimits
from onewriter_broker.ownership.acquisition import backoff_seconds
from onewriter_broker.ownership.buckets import ACQUISITIONS_MAX, PLACEMENT_SECONDS
from onewriter_broker.ownership.heartbeats import Beat
from onewriter_broker.ownership.member_observer import BEAT_SECONDS, MEMBERS_MAX, MemberObserver
from onewriter_broker.ownership.placement import LiveView, Targets, plan
from onewriter_core.api.anchor import BUCKETS_PER_OBJECT_MAX

OBSERVERS = 8
"""Observers of which each stands for the brokers of its phase."""

SETS_MAX = 64
"""Sets of names whose buckets are remembered."""

BUSY_SLICE_SECONDS = 0.02
"""A broker that takes topics over lets its other work run in between after this time."""

WARM_UP_SECONDS = 8.0
"""All observers know the brokers after this time."""

POLL_SECONDS = 0.05

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of CPU unless the name says otherwise. docs/scale.md names the measurement of each."""

    read: float = 1.6e-3
    read_record: float = 93e-6
    """Of API server and etcd for a read of the anchor's object, and for each record in it."""
    write: float = 1.7e-3
    write_record: float = 540e-6
    refused: float = 1.5e-3
    refused_record: float = 137e-6
    """Of a write that is refused because the object has changed."""
    record_bytes: int = 734
    parse: float = 0.7e-3
    parse_record: float = 20e-6
    """Of the broker for an answer of the API server."""
    compare: float = 0.7e-6
    """Of the broker for the comparison of a bucket with a name."""
    place: float = 0.5e-6
    """Of the broker for a bucket whose target is known."""
    beat_write: float = 95e-6
    beat_read: float = 20e-6
    beat_read_member: float = 0.17e-6
    """Of the store for a heartbeat, for a reading of all, and for each heartbeat in it."""
    beat_bytes: int = 305
    beat_evaluate: float = 5.7e-6
    beat_evaluate_shard: float = 10.2e-6
    """Of the broker for each heartbeat that it evaluates, and for each of them on each shard of a cluster."""
    store_seconds: float = 2e-3
    """Time of a call of the store, its sync included."""
    topic: float = 2.9e-3
    """Of the broker that takes a topic over, with a holder and a waiter."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The size of an installation, and how it uses the anchor.

    ``reads_own``: a broker reads only the objects with buckets that concern it, and only if they may have changed.
    Otherwise it reads all objects each PLACEMENT_SECONDS, as the broker's code does.
    """

    brokers: int
    buckets: int
    shards: int
    topics: int
    api_cores: int = 12
    buckets_per_object: int = BUCKETS_PER_OBJECT_MAX
    reads_own: bool = False
    members_max: int = MEMBERS_MAX
    costs: Costs = field(default_factory=Costs)

    @property
    def names(self) -> tuple[str, ...]:
        """The brokers' names, as a StatefulSet gives them."""
        return tuple(f"onewriter-broker-{number}" for number in range(self.brokers))

    @property
    def objects(self) -> int:
        """The number of the anchor's objects."""
        return -(-self.buckets // self.buckets_per_object)

    def records_in(self, number: int) -> int:
        """The number of records in an object."""
        return min(self.buckets_per_object, self.buckets - number * self.buckets_per_object)

    def shard_of(self, bucket: int) -> int:
        """The shard of a bucket."""
        return bucket % self.shards

    @property
    def beat_seconds_of_cpu(self) -> float:
        """CPU of a broker for one heartbeat and the evaluation of all."""
        costs = self.costs
        each = costs.beat_evaluate + (
            costs.beat_evaluate_shard * self.shards if self.shards > 1 else 0
        )
        return each * self.brokers


@dataclass(frozen=True, slots=True)
class Loads:
    """Part of its capacity that each component needs while nothing happens; above 1 it is overloaded."""

    api_server: float
    api_network: float
    store: float
    store_network: float
    broker_membership: float
    broker_anchor: float

    def by_weight(self) -> list[tuple[str, float]]:
        """The components, the most loaded first."""
        found = [
            ("CPU of the API servers: reads of the anchor", self.api_server),
            ("network of the API servers: reads of the anchor", self.api_network),
            ("CPU of each store process: heartbeats", self.store),
            ("network of each store process: heartbeats", self.store_network),
            ("CPU of each broker: heartbeats of the others", self.broker_membership),
            ("CPU of each broker: the anchor's records", self.broker_anchor),
        ]
        return sorted(found, key=lambda each: -each[1])


NETWORK_BYTES = 1.25e9
"""Bytes per second of a network interface with 10 Gbit/s."""

API_SERVERS = 3


def loads_at_rest(layout: Layout) -> Loads:
    """The load by heartbeats and by reads of the anchor."""
    costs, brokers = layout.costs, layout.brokers
    beats = brokers / BEAT_SECONDS
    if layout.reads_own:
        reads = records = 0.0
    else:
        reads, records = layout.objects / PLACEMENT_SECONDS, layout.buckets / PLACEMENT_SECONDS
    read_cpu = reads * costs.read + records * costs.read_record
    beat_cpu = costs.beat_write + costs.beat_read + brokers * costs.beat_read_member
    evaluate = layout.beat_seconds_of_cpu
    return Loads(
        api_server=brokers * read_cpu / layout.api_cores,
        api_network=brokers * records * costs.record_bytes / (API_SERVERS * NETWORK_BYTES),
        store=beats * beat_cpu,
        store_network=beats * brokers * costs.beat_bytes / NETWORK_BYTES,
        broker_membership=evaluate / (BEAT_SECONDS + evaluate),
        broker_anchor=reads * costs.parse
        + records * costs.parse_record
        + layout.buckets * costs.place / PLACEMENT_SECONDS,
    )


# ------------------------------------------------------------ placement


def assignment(layout: Layout, names: Iterable[str], targets: Targets) -> dict[int, str]:
    """The broker of each bucket."""
    table = targets.among(frozenset(names))
    return {bucket: table.of(bucket) for bucket in range(layout.buckets)}


def moved(before: Mapping[int, str], after: Mapping[int, str]) -> int:
    """The number of buckets with another broker."""
    return sum(after[bucket] != name for bucket, name in before.items())


def spread(assigned: Mapping[int, str], names: Sequence[str]) -> list[int]:
    """The number of buckets of each broker, ascending."""
    counts = Counter(assigned.values())
    return sorted(counts[name] for name in names)


# ------------------------------------------------------------ virtual time


class _Clock(selectors.SelectSelector):
    """Skips the time for which a loop would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every simulated task waits for another one")
        self.now += max(0.0, timeout)
        return []


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._clock.now


def run_virtually(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine on a loop whose clock advances only by waits."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(main)


def _now() -> float:
    return asyncio.get_running_loop().time()


class Processors:
    """Some cores that work through a queue. ``arrived``: the pieces of work of each second."""

    def __init__(self, cores: int) -> None:
        self._free_at = [0.0] * cores
        self.arrived: Counter[int] = Counter()
        self.longest_wait = 0.0

    def forget(self) -> None:
        """Begin the statistics again."""
        self.arrived.clear()
        self.longest_wait = 0.0

    def wait_seconds(self) -> float:
        """The time until a core is free."""
        return max(0.0, self._free_at[0] - _now())

    async def work(self, seconds: float) -> None:
        """Wait for a core, and until it has done this."""
        now = _now()
        self.arrived[int(now)] += 1
        begins = max(now, heapq.heappop(self._free_at))
        self.longest_wait = max(self.longest_wait, begins - now)
        heapq.heappush(self._free_at, begins + seconds)
        await asyncio.sleep(begins + seconds - now)


# ------------------------------------------------------------ the anchor


class Overloaded(Exception):
    """The API server did not answer in time."""


@dataclass(slots=True)
class _Object:
    version: int
    records: Mapping[int, Record]


class SimulatedAnchor:
    """The anchor's objects in an API server, which replaces an object only if it has not changed since it was read."""

    def __init__(self, layout: Layout, owners: Mapping[int, str]) -> None:
        self._layout = layout
        self.processors = Processors(layout.api_cores)
        self.requests: Counter[str] = Counter()
        per = layout.buckets_per_object
        self._objects = [
            _Object(
                1, {bucket: Record(owner=owners[bucket]) for bucket in range(first, first + size)}
            )
            for number in range(layout.objects)
            for first, size in ((number * per, layout.records_in(number)),)
        ]

    async def read(self, number: int) -> tuple[int, Mapping[int, Record]]:
        """The version and the records of an object. Raises Overloaded."""
        costs, size = self._layout.costs, self._layout.records_in(number)
        await self._request("reads", costs.read + size * costs.read_record)
        found = self._objects[number]
        return found.version, found.records

    async def write(self, number: int, version: int, changes: Mapping[int, Record]) -> int | None:
        """Replace records; None if the object has another version. Raises Overloaded."""
        costs, size = self._layout.costs, self._layout.records_in(number)
        found = self._objects[number]
        if found.version == version:
            await self._request("writes", costs.write + size * costs.write_record)
            if found.version == version:
                found.version, found.records = version + 1, {**found.records, **changes}
                return found.version
        await self._request("refused writes", costs.refused + size * costs.refused_record)
        return None

    async def _request(self, kind: str, seconds: float) -> None:
        self.requests[kind] += 1
        limit = ApiLimits().request_seconds
        if self.processors.wait_seconds() + seconds > limit:
            self.requests["without an answer"] += 1
            await asyncio.sleep(limit)
            raise Overloaded
        await self.processors.work(seconds)


# ------------------------------------------------------------ the brokers


def incarnation(name: str) -> str:
    """The incarnation of a broker that lives through the simulation."""
    return f"{name}~1"


@dataclass(slots=True)
class _Pending:
    attempts: int
    retry_at: float


class SimulatedBroker:
    """One broker: its heartbeats, its placement, and the buckets that it takes."""

    def __init__(self, crowd: Crowd, name: str) -> None:
        self._crowd = crowd
        self.name = name
        self.me = incarnation(name)
        self.counter = 0
        self.changed = asyncio.Event()
        self._processor = Processors(1)
        self._pending: dict[int, _Pending] = {}
        self._busy: set[int] = set()
        self._acquisitions = asyncio.Semaphore(ACQUISITIONS_MAX)
        self._next_acquisitions = asyncio.Lock()
        self._names: frozenset[str] = frozenset()

    async def beat(self, observed: Callable[[], None]) -> None:
        """Send heartbeats and evaluate those of the others."""
        layout = self._crowd.layout
        while True:
            self.counter += 1
            await asyncio.sleep(layout.costs.store_seconds)
            await self._processor.work(layout.beat_seconds_of_cpu)
            observed()
            await asyncio.sleep(BEAT_SECONDS)

    async def place(self, tasks: asyncio.TaskGroup) -> None:
        """Follow the placement plan, like BucketOwnership.run."""
        while True:
            await self._place_once(tasks)
            try:
                async with asyncio.timeout(PLACEMENT_SECONDS):
                    await self.changed.wait()
            except TimeoutError:
                continue
            self.changed.clear()

    async def _place_once(self, tasks: asyncio.TaskGroup) -> None:
        crowd, layout = self._crowd, self._crowd.layout
        view = crowd.view_of(self.name)
        objects: Iterable[int] = range(layout.objects)
        if layout.reads_own:
            concern = set() if view is None or not view.complete else self._concern(view)
            objects = sorted({bucket // layout.buckets_per_object for bucket in concern})
        read = await asyncio.gather(*(self._read(number) for number in objects))
        records = {bucket: record for found in read if found for bucket, record in found[1].items()}
        view = crowd.view_of(self.name)
        if view is None:
            return
        await self._processor.work(self._planning_seconds(view))
        mine = {bucket: records[bucket] for bucket in self._concern(view) if bucket in records}
        held = {bucket for bucket in mine if crowd.server_of.get(bucket) == self.name}
        todo = plan(self.me, view, mine, held, crowd.targets)
        by_object: dict[int, list[int]] = {}
        for bucket in todo.acquire:
            pending = self._pending.get(bucket)
            if bucket not in self._busy and (pending is None or pending.retry_at <= _now()):
                by_object.setdefault(bucket // layout.buckets_per_object, []).append(bucket)
        for number, buckets in by_object.items():
            self._busy.update(buckets)
            for first in range(0, len(buckets), ACQUISITIONS_MAX):
                some = buckets[first : first + ACQUISITIONS_MAX]
                tasks.create_task(self._take(number, some))

    def _concern(self, view: LiveView) -> set[int]:
        """The buckets that belong to this broker; if it reads its own only, those that it does not serve yet."""
        crowd = self._crowd
        found = crowd.belonging_to(self.name, view.settled | {self.name})
        if not crowd.layout.reads_own:
            return found
        return {bucket for bucket in found if crowd.server_of.get(bucket) != self.name}

    def _planning_seconds(self, view: LiveView) -> float:
        """CPU for one plan: the names that are new, and the buckets whose broker is gone, are compared again."""
        crowd, costs = self._crowd, self._crowd.layout.costs
        names = view.settled | {self.name}
        buckets, compared = crowd.layout.buckets, 0
        if names != self._names and self._names:
            gone, new = self._names - names, names - self._names
            orphans = sum(len(crowd.belonging_to(name, self._names)) for name in gone)
            compared = orphans * len(names) + (buckets - orphans) * len(new)
        self._names = names
        return buckets * costs.place + compared * costs.compare

    async def _read(self, number: int) -> tuple[int, Mapping[int, Record]] | None:
        costs, layout = self._crowd.layout.costs, self._crowd.layout
        try:
            found = await self._crowd.anchor.read(number)
        except Overloaded:
            return None
        await self._processor.work(costs.parse + layout.records_in(number) * costs.parse_record)
        return found

    async def _take(self, number: int, buckets: list[int]) -> None:
        """Acquire buckets with records in one object, like Acquirer and KubernetesAnchor, and load their topics."""
        crowd, costs = self._crowd, self._crowd.layout.costs
        async with self._next_acquisitions:
            for _ in buckets:
                await self._acquisitions.acquire()
        try:
            is_written = await self._write(number, buckets)
        finally:
            for _ in buckets:
                self._acquisitions.release()
        if not is_written:
            for bucket in buckets:
                attempts = self._pending[bucket].attempts + 1 if bucket in self._pending else 1
                retry_at = _now() + backoff_seconds(attempts, crowd.randomness)
                self._pending[bucket] = _Pending(attempts, retry_at)
            self._busy.difference_update(buckets)
            return
        await asyncio.sleep(costs.store_seconds)  # the stamp
        crowd.store_calls[int(_now())] += 2 * len(buckets)
        for bucket in buckets:
            self._pending.pop(bucket, None)
            crowd.now_served(bucket, self.name)
        self._busy.difference_update(buckets)
        for bucket in buckets:
            left = costs.topic * crowd.layout.topics / crowd.layout.buckets
            while left > 0:
                await self._processor.work(min(left, BUSY_SLICE_SECONDS))
                left -= BUSY_SLICE_SECONDS
            crowd.loaded_at[bucket] = _now()

    async def _write(self, number: int, buckets: list[int]) -> bool:
        crowd, costs = self._crowd, self._crowd.layout.costs
        began_at, refusals, pause = _now(), 0, 0.0
        while _now() + pause - began_at <= WRITE_SECONDS_MAX:
            await asyncio.sleep(pause)
            attempt_at = _now()
            found = await self._read(number)
            if found is None:
                return False
            version, records = found
            await asyncio.sleep(costs.store_seconds)  # the observation of the dataset
            changes = {}
            for bucket in buckets:
                changes[bucket] = Record(owner=self.me, generation=records[bucket].generation + 1)
            try:
                if await crowd.anchor.write(number, version, changes) is not None:
                    return True
            except Overloaded:
                return False
            refusals += 1
            pause = pause_seconds(refusals, _now() - attempt_at, crowd.randomness)
        return False

    async def refence(self, buckets: Sequence[int]) -> None:
        """Register the dataset of a promoted replica for buckets that this broker owns; retry until it is written."""
        layout = self._crowd.layout
        attempts = Counter[int]()

        async def work(number: int, chosen: list[int]) -> None:
            while chosen[0] not in self._crowd.loaded_at:
                await self._read(number)
                await self._take(number, chosen)
                attempts[number] += 1
                if chosen[0] not in self._crowd.loaded_at:
                    await asyncio.sleep(backoff_seconds(attempts[number], self._crowd.randomness))

        by_object: dict[int, list[int]] = {}
        for bucket in buckets:
            by_object.setdefault(bucket // layout.buckets_per_object, []).append(bucket)
        await asyncio.gather(
            *(
                work(number, chosen[first : first + ACQUISITIONS_MAX])
                for number, chosen in by_object.items()
                for first in range(0, len(chosen), ACQUISITIONS_MAX)
            )
        )


class Observer:
    """The production observer of one broker, which stands for all brokers of its phase."""

    def __init__(self, crowd: Crowd, host: SimulatedBroker) -> None:
        self._crowd = crowd
        self._host = host
        self._observer = MemberObserver(host.me, members_max=crowd.layout.members_max)
        self.members: list[SimulatedBroker] = []
        self._view: LiveView | None = None

    def observe(self) -> None:
        """Read the heartbeats, and wake the brokers of this phase if the view changed."""
        self._observer.feed(_now(), self._crowd.reading())
        view = self._observer.view(_now())
        if view != self._view:
            self._view = view
            self._crowd.now_observed(self._host.name, view)
            for broker in self.members:
                broker.changed.set()

    def view_for(self, name: str) -> LiveView | None:
        """The view of a broker of this phase."""
        view = self._view
        if view is None or name == self._host.name:
            return view
        host = self._host.name
        return LiveView(
            (view.alive | {host}) - {name}, (view.settled | {host}) - {name}, view.complete
        )


def _nothing() -> None:
    """A broker whose observer is another one's."""


def _addresses(name: str) -> Addresses:
    host = f"{name}.onewriter-brokers.onewriter.svc.cluster.local"
    return Addresses(f"pulsar+ssl://{host}:6651", f"https://{host}:8443")


_Failure = Callable[[asyncio.TaskGroup], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one failure led to; times in seconds since the failure."""

    lost_brokers: int
    lost_buckets: int
    detected_first: float
    detected_last: float
    served_half: float
    served_all: float
    loaded_all: float
    unserved: int
    requests: Mapping[str, int]
    api_wait: float
    api_requests_peak: int
    store_calls_peak: int
    wrongly_dead: int
    buckets_per_broker_max: int


class Crowd:
    """All brokers of an installation, and what they share."""

    def __init__(self, layout: Layout, targets: Targets | None = None, *, seed: int = 1) -> None:
        self.layout = layout
        self.randomness = random.Random(seed)
        self.targets = Targets() if targets is None else targets
        self._belonging: dict[frozenset[str], dict[str, set[int]]] = {}
        self.brokers = {name: SimulatedBroker(self, name) for name in layout.names}
        self.assigned = assignment(layout, layout.names, self.targets)
        self.server_of = dict(self.assigned)
        owners = {bucket: incarnation(name) for bucket, name in self.assigned.items()}
        self.anchor = SimulatedAnchor(layout, owners)
        self.store_calls: Counter[int] = Counter()
        self.served_at: dict[int, float] = {}
        self.loaded_at: dict[int, float] = {}
        self._lost: frozenset[str] = frozenset()
        self._observer_of: dict[str, Observer] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self.detected_at: dict[str, float] = {}
        self.wrongly_dead: set[str] = set()
        self._texts = {
            broker.me: Beat(0, _addresses(name))
            .encode()
            .replace('"counter": 0', '"counter": {}', 1)
            for name, broker in self.brokers.items()
        }

    def belonging_to(self, name: str, names: frozenset[str]) -> set[int]:
        """The buckets that belong to a broker among these."""
        found = self._belonging.get(names)
        if found is None:
            if len(self._belonging) > SETS_MAX:
                del self._belonging[next(iter(self._belonging))]
            found = self._belonging[names] = {}
            for bucket, target in assignment(self.layout, names, self.targets).items():
                found.setdefault(target, set()).add(bucket)
        return found.get(name, set())

    def reading(self) -> dict[str, str]:
        """The heartbeats as the store has them."""
        return {
            broker.me: self._texts[broker.me].replace("{}", str(broker.counter), 1)
            for broker in self.brokers.values()
        }

    def view_of(self, name: str) -> LiveView | None:
        """The view of a broker."""
        return self._observer_of[name].view_for(name)

    def now_observed(self, host: str, view: LiveView | None) -> None:
        """Note when an observer has found all lost brokers dead, and living brokers that it takes for dead."""
        if view is None or not view.complete or not self._lost:
            return
        if host not in self.detected_at and not self._lost & view.alive:
            self.detected_at[host] = _now()
        self.wrongly_dead |= self.brokers.keys() - self._lost - view.alive - {host}

    def now_served(self, bucket: int, name: str) -> None:
        """Note that a bucket has an owner again."""
        self.server_of[bucket] = name
        self.served_at[bucket] = _now()

    async def lose_brokers(self, count: int, *, seconds_max: float) -> Outcome:
        """Kill brokers at the same time, and wait until all of their buckets are served."""
        lost = self.randomness.sample(self.layout.names, count)
        buckets = [bucket for bucket, name in self.assigned.items() if name in set(lost)]

        def fail(_tasks: asyncio.TaskGroup) -> None:
            self._lost = frozenset(lost)
            for name in lost:
                self._running[name].cancel()
            for bucket in buckets:
                del self.server_of[bucket]

        return await self._fail(fail, buckets, lost, seconds_max)

    async def lose_shard(
        self, *, promoted_after: float, noticed_after: float, seconds_max: float
    ) -> Outcome:
        """Lose the primary of a shard: the owners of its buckets register the promoted replica."""
        buckets = [bucket for bucket in self.assigned if self.layout.shard_of(bucket) == 0]

        def fail(tasks: asyncio.TaskGroup) -> None:
            by_broker: dict[str, list[int]] = {}
            for bucket in buckets:
                by_broker.setdefault(self.assigned[bucket], []).append(bucket)
            for name, chosen in by_broker.items():
                after = promoted_after + self.randomness.uniform(0.0, noticed_after)
                tasks.create_task(self._refence(self.brokers[name], chosen, after, seconds_max))

        return await self._fail(fail, buckets, (), seconds_max)

    async def _refence(
        self, broker: SimulatedBroker, buckets: list[int], after: float, seconds_max: float
    ) -> None:
        await asyncio.sleep(after)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await broker.refence(buckets)

    async def _fail(
        self, fail: _Failure, buckets: Sequence[int], lost: Sequence[str], seconds_max: float
    ) -> Outcome:
        survivors = [name for name in self.layout.names if name not in set(lost)]
        hosts = self.randomness.sample(survivors, min(OBSERVERS, len(survivors)))
        observers = [Observer(self, self.brokers[name]) for name in hosts]
        for number, (name, broker) in enumerate(self.brokers.items()):
            self._observer_of[name] = observers[number % len(observers)]
            observers[number % len(observers)].members.append(broker)
        for observer, host in zip(observers, hosts, strict=True):
            self._observer_of[host] = observer
        async with asyncio.TaskGroup() as tasks:
            world = tasks.create_task(self._run(dict(zip(hosts, observers, strict=True))))
            await asyncio.sleep(WARM_UP_SECONDS)
            self.anchor.requests.clear()
            self.anchor.processors.forget()
            failed_at = _now()
            fail(tasks)
            while any(bucket not in self.loaded_at for bucket in buckets):
                if _now() - failed_at > seconds_max:
                    break
                await asyncio.sleep(POLL_SECONDS)
            world.cancel()
        return self._outcome(failed_at, buckets, lost)

    async def _run(self, observers: Mapping[str, Observer]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name, broker in self.brokers.items():
                observed = observers[name].observe if name in observers else _nothing
                self._running[name] = tasks.create_task(self._start(broker, observed))

    async def _start(self, broker: SimulatedBroker, observed: Callable[[], None]) -> None:
        await asyncio.sleep(self.randomness.uniform(0.0, PLACEMENT_SECONDS))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(broker.beat(observed))
            tasks.create_task(broker.place(tasks))

    def _outcome(self, failed_at: float, buckets: Sequence[int], lost: Sequence[str]) -> Outcome:
        never = float("inf")
        served = sorted(self.served_at.get(bucket, never) - failed_at for bucket in buckets)
        served = served or [0.0]  # the lost brokers had no bucket
        loaded = [self.loaded_at.get(bucket, never) - failed_at for bucket in buckets]
        detected = sorted(at - failed_at for at in self.detected_at.values()) or [never]
        return Outcome(
            lost_brokers=len(lost),
            lost_buckets=len(buckets),
            detected_first=detected[0],
            detected_last=detected[-1],
            served_half=served[len(served) // 2],
            served_all=served[-1],
            loaded_all=max(loaded, default=0.0),
            unserved=sum(seconds == never for seconds in served),
            requests=dict(self.anchor.requests),
            api_wait=self.anchor.processors.longest_wait,
            api_requests_peak=max(self.anchor.processors.arrived.values(), default=0),
            store_calls_peak=max(self.store_calls.values(), default=0),
            wrongly_dead=len(self.wrongly_dead),
            buckets_per_broker_max=max(Counter(self.server_of.values()).values()),
        )
