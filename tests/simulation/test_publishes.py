"""Atomic publishes under faults, over many seeds.

Each version is stored completely, once, and in order. No version that was answered is lost. Two drivers publish the
same versions of one app, like a query and its zombie, while brokers and stores freeze, die and fail over. Blocks and
calls are small, so one publish needs many of them. ``ONEWRITER_SEEDS`` works as in test_simulation.py. README.md explains
seeds.
"""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from tests.contents import stored_in
from tests.mutants.mutant import Mutant
from tests.script_bugs import plant
from tests.simulation.actors import roles
from tests.simulation.history import History
from tests.simulation.nemesis import Nemesis
from tests.simulation.recording import value_of
from tests.simulation.world import BUCKETS, REPLICATED_TOPIC, BrokerNode, World, run

from onewriter_broker.app import BrokerLimits
from onewriter_broker.log.limits import LogLimits
from onewriter_broker.log.store.api import Block, Marker, Outcome, Unit
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.log.topic_log.log import TopicLog, payloads
from onewriter_broker.topic.limits import TopicLimits
from onewriter_broker.topic.producers.producer import Producer
from onewriter_broker.topic.publish.atomic_publishes import AtomicPublishes
from onewriter_broker.topic.publish.requests import PublishRequest, PublishResult, PublishRight
from onewriter_broker.topic.publish.staging import MissingPart, StagedPartRef
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_broker.verify.observer import LogObserver
from onewriter_broker.verify.reader import stored_state
from onewriter_core.audit.facts import PublishRun
from onewriter_core.audit.findings import Finding
from onewriter_core.audit.publishes import VersionChecker
from onewriter_core.errors import OnewriterError, Refused, ServerError, Unavailable, Undecided
from onewriter_core.ids import Identity, TopicName, bucket_of
from onewriter_core.log_format.staged_rows import MAGIC
from onewriter_core.topic.model import AccessMode, Request, Reserved, TransitionCause
from onewriter_core.wire.messages import build_batch
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

SEEDS_DEFAULT = 6
MUTANTS_SEEDS = 12
"""Runs in which a mutant must be found. Nearly every run finds it, because of kill_during_publishes."""

KILLS_APART_SECONDS = (0.5, 4.0)
KILLED_SECONDS = (1.0, 4.0)
SMALL = BrokerLimits(TopicLimits(LogLimits(publish_block_entries_max=2, call_bytes_max=200)))
"""Blocks of two entries, calls of a few blocks."""

POLL_SECONDS = 0.0005

TOPIC = TopicName.parse(REPLICATED_TOPIC)
APP = "query"
FRAMES = 12
ATTEMPT_SECONDS = 8.0
"""A driver repeats a request after this time if it got no answer."""


def seeds() -> range:
    text = os.environ.get("ONEWRITER_SEEDS", str(SEEDS_DEFAULT))
    first, _, end = text.rpartition(":")
    return range(int(first or 0), int(end))


def body_of(version: int) -> bytes:
    frames = [MAGIC]
    for number in range(FRAMES):
        content = f"{version}/{number}".encode()
        messages = build_batch([(pb.SingleMessageMetadata(), content)])
        frames += [(4 + len(messages)).to_bytes(4, "little"), (1).to_bytes(4, "little"), messages]
    return b"".join(frames)


Publishers = WeakKeyDictionary[Any, AtomicPublishes]
"""For each broker, its atomic publishes."""


MODES = (
    AccessMode.EXCLUSIVE,
    AccessMode.EXCLUSIVE_WITH_FENCING,
    AccessMode.WAIT_FOR_EXCLUSIVE,
)


class DriverChannel:
    """Makes a driver the topic's leader, in the broker's process. Implements ProducerChannel.

    ``epoch`` gets the epoch under which the driver leads, or Refused or Unavailable if it does not lead.
    """

    client_version = "driver"
    receives_queue_notices = False
    last_inbound = 0.0

    def __init__(
        self, topic: LoadedTopic, mode: AccessMode, append_soon: Callable[[TopicLog], None]
    ) -> None:
        self.epoch: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._runner, partition = topic.runner, topic.partition_of(TOPIC)
        name = f"driver-{uuid.uuid4().hex}"
        found = self._runner.topic.partition(partition)
        kept: int | None = None
        if found is not None and isinstance(found.ownership, Reserved):
            tenure = found.ownership.tenure  # of a driver whose broker died; the driver resumes
            kept = tenure.epoch if tenure.producer_name == APP else None
        request = Request(
            registration=name,
            connection=name,
            producer_name=APP,
            name_given=True,
            mode=mode,
            partition=partition,
            alone=True,
            identity=Identity(),
            topic_epoch=kept,
        )
        self._producer = Producer(self, 0, 0, request, self._runner.logs[partition], append_soon)
        self._runner.request(self._producer)

    def leave(self) -> None:
        """Leave the queue, or the topic."""
        self._end(Unavailable("the driver left"))
        self._runner.gone(self._producer, TransitionCause.CLOSED)

    def producer_ready(self, producer: Producer, epoch: int | None) -> None:
        del producer
        if not self.epoch.done() and epoch is not None:
            self.epoch.set_result(epoch)

    def producer_waits(self, producer: Producer) -> None:
        """The driver waits."""

    def producer_refused(self, producer: Producer, code: ServerError, message: str) -> None:
        del producer
        self._end(Refused(code, message))

    def producer_closed(self, producer: Producer) -> None:
        del producer
        self._end(Unavailable("the producer was closed"))

    def send_answered(self, frames: bytes, size: int) -> None:
        """The driver sends nothing through this channel."""

    def send_dropped(self, size: int) -> None:
        """The driver sends nothing through this channel."""

    def guard_refused(self, producer: Producer, outcome: Outcome) -> None:
        """The driver has no guard."""

    def drop(self, reason: str) -> None:
        self._end(Unavailable(reason))

    def probe(self) -> None:
        """The driver is alive."""

    def queue_changed(self, producer: Producer, waiting: int) -> None:
        """The driver ignores this, because it leaves soon."""

    def _end(self, reason: OnewriterError) -> None:
        if not self.epoch.done():
            self.epoch.set_exception(reason)
            self.epoch.exception()


class Driver:
    """Publishes one version after the other. It repeats each version until it is answered.

    With ``shares``, both drivers use the same AtomicPublishes of a broker. Otherwise each attempt has its own.
    """

    def __init__(self, world: World, name: str, publishers: Publishers, *, shares: bool) -> None:
        self._world = world
        self._publishers = publishers
        self._shares = shares
        self._name = name
        self._randomness = world.random(name)
        self._attempts = 0
        self.answered: dict[int, PublishResult] = {}

    async def run(self) -> None:
        version = 0
        while True:
            version += 1
            while version not in self.answered:
                answer = await self._attempt(version)
                if answer is not None:
                    self.answered[version] = answer
                    self._world.recorder.seen("duplicate" if answer.is_duplicate else "published")
                await asyncio.sleep(self._randomness.uniform(0.02, 0.3))

    async def _attempt(self, version: int) -> PublishResult | None:
        up = [node for node in self._world.nodes if node.is_up and hasattr(node, "broker")]
        if not up:
            return None
        node = self._randomness.choice(up)
        self._attempts += 1
        done: asyncio.Future[PublishResult] = asyncio.get_running_loop().create_future()
        self._world.loop.spawn(node.process, self._ask(node, version, self._attempts, done))
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                return await done
        except MissingPart:
            self._world.recorder.seen("a staged part was lost")
        except Undecided:
            self._world.recorder.seen("unknown")
        except (OnewriterError, TimeoutError):
            self._world.recorder.seen("not published")
        return None

    async def _ask(
        self, node: BrokerNode, version: int, attempt: int, done: asyncio.Future[PublishResult]
    ) -> None:
        """Publish like the HTTP handler, in the broker's process."""
        try:
            answer = await self._publish(node, version, attempt)
        except OnewriterError as error:
            if not done.done():
                done.set_exception(error)
                done.exception()
        else:
            if not done.done():
                done.set_result(answer)

    async def _publish(self, node: BrokerNode, version: int, attempt: int) -> PublishResult:
        broker = node.broker
        topic = await broker.topics.serve(TOPIC)
        key = f"{APP}/{version}/{self._name}/{attempt}"
        part: StagedPartRef = await broker.staging.keep(TOPIC, key, body_of(version))
        publisher = self._publishers.get(broker)
        if publisher is None:
            publisher = AtomicPublishes(
                broker.store, broker.appender, broker.staging, log_limits=SMALL.topic.log
            )
        if self._shares:
            self._publishers[broker] = publisher
        leading = DriverChannel(topic, self._randomness.choice(MODES), broker.appender.append_soon)
        try:
            epoch = await leading.epoch
            request = PublishRequest(
                APP, version, epoch, [part], right=PublishRight(epoch, Identity())
            )
            answer = await publisher.publish(TOPIC, topic, request, self._world.wall_ms())
        except OnewriterError:
            leading.leave()
            raise
        leading.leave()  # not in ``finally``: an attempt in a killed broker does not leave
        return answer


async def kill_during_publishes(world: World, randomness: random.Random) -> None:
    """Repeatedly kill the broker that publishes, as soon as the store has a part of a version.

    So every run has interrupted publishes, whichever other faults it has. Another broker then opens the next ledger,
    and no broker may commit the part.
    """
    bucket = bucket_of(TOPIC, BUCKETS)
    key = Keys(BUCKETS).state(TOPIC).encode()
    pause = randomness.uniform(*KILLS_APART_SECONDS)
    while True:
        await asyncio.sleep(pause)
        if b"open" not in (world.server.primary.keyspace.hash(key) or {}):
            pause = POLL_SECONDS
            continue
        for node in world.nodes:
            if node.is_up and bucket in node.broker.ownership.held():
                node.kill()
                world.recorder.seen("a publish was interrupted")
                await asyncio.sleep(randomness.uniform(*KILLED_SECONDS))
                node.start()
        pause = randomness.uniform(*KILLS_APART_SECONDS)


async def run_scenario(world: World, *, shares: bool = False) -> None:
    for number in range(2):
        world.add_client(f"consumer-{number}", roles.consumer(REPLICATED_TOPIC))
    await asyncio.sleep(1.0)
    publishers: Publishers = WeakKeyDictionary()
    drivers = [Driver(world, f"driver-{number}", publishers, shares=shares) for number in range(2)]
    tasks = [world.background(driver.run()) for driver in drivers]
    administrator = roles.Administrator(world, [REPLICATED_TOPIC], world.random("administrator"))
    killer = world.background(kill_during_publishes(world, world.random("killer")))
    await Nemesis(world, world.random("nemesis")).run()
    killer.cancel()
    for node in world.nodes:
        node.start()
    for _ in range(8):
        await administrator.adopt()
        await asyncio.sleep(2.0)
    for task in tasks:
        task.cancel()
    await asyncio.sleep(ATTEMPT_SECONDS)
    drivers.append(Driver(world, "last", publishers, shares=shares))
    final = world.background(drivers[-1].run())
    await asyncio.sleep(6.0)
    final.cancel()
    await asyncio.sleep(1.0)
    world.history.anomalies += problems(world, drivers)


def problems(world: World, drivers: list[Driver]) -> list[str]:
    dataset = stored_in(world.server.primary)
    observer, checker = LogObserver(REPLICATED_TOPIC), VersionChecker(REPLICATED_TOPIC)
    found: list[str] = []
    values: dict[int, list[str]] = {}
    for block in dataset.logs[TOPIC].blocks:
        for fact in observer.facts(block):
            if isinstance(fact, Finding):
                found.append(fact.sentence)
            elif isinstance(fact, PublishRun):
                found += [each.sentence for each in checker.published(fact)]
        if isinstance(block, Marker):
            continue
        assert isinstance(block, Block)
        version = int(block.publish.rpartition("/")[2])
        values.setdefault(version, []).extend(_content(each) for each in payloads(block))
    published = stored_state(dataset.states[TOPIC], Unit()).published
    found += [each.sentence for each in checker.finish(published)]
    for version, texts in values.items():
        if texts != [f"{version}/{number}" for number in range(FRAMES)]:
            found.append(f"version {version} holds {texts}")
    destroyed = {_version(value) for value in world.history.destroyed.get(REPLICATED_TOPIC, {})}
    for driver in drivers:
        for version in driver.answered:
            if version not in values and version not in destroyed:
                found.append(f"version {version} was answered, but is not stored")
    if not drivers[-1].answered:
        found.append("no driver could publish after all faults were repaired")
    return found


def _content(payload: memoryview) -> str:
    """Return the content after the size and the metadata of the only message."""
    return value_of(payload)[6:]


def _version(value: str) -> int:
    return int(value[6:].partition("/")[0])


def simulate(seed: int, *, shares: bool = False) -> History:
    return run(seed, partial(run_scenario, shares=shares), brokers=2, limits=SMALL)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shares", [False, True], ids=["apart", "together"])
def test_publishes_are_whole_and_once(*, shares: bool) -> None:
    occurred: dict[str, int] = {}
    for seed in seeds():
        history = simulate(seed, shares=shares)
        assert not history.anomalies, (seed, history.anomalies[:5])
        for name, count in history.seen.items():
            occurred[name] = occurred.get(name, 0) + count
    if len(seeds()) >= SEEDS_DEFAULT:
        missing = {
            "published",
            "duplicate",
            "unknown",
            "not published",
            "a publish was interrupted",
        } - occurred.keys()
        assert not missing, f"these events never occurred: {missing}"


A_FENCE_DROPS_NOTHING = Mutant(
    "a-fence-drops-nothing",
    ("S15",),
    "lua:fence",
    "A fence only forgets that a publish was open.",
    "    drop_open(log.stream, log.state, log.open)\n"
    "    marker[7], marker[8] = 'aborted', string.match(log.open, '^%S+')\n",
    "    redis.call('HDEL', log.state, 'open')\n",
    ("tests/simulation/test_publishes.py",),
)

NO_VERSION_IS_CHECKED = Mutant(
    "no-version-is-checked",
    ("S15",),
    "lua:publish/publish_refusal",
    "The version of an app is not compared before a publish.",
    ">= tonumber(publish.version) then return 'STALE' end",
    ">= tonumber(publish.version) then return nil end",
    ("tests/simulation/test_publishes.py",),
)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "mutant",
    [A_FENCE_DROPS_NOTHING, NO_VERSION_IS_CHECKED],
    ids=lambda mutant: mutant.name,
)
def test_a_store_without_a_check_is_detected(
    monkeypatch: pytest.MonkeyPatch, mutant: Mutant
) -> None:
    if mutant is NO_VERSION_IS_CHECKED:  # the broker's own check would hide the mutant

        async def knows_nothing(*_: object) -> None:
            return None

        monkeypatch.setattr(AtomicPublishes, "_known", knows_nothing)
    plant(monkeypatch, mutant)
    assert any(simulate(seed).anomalies for seed in range(MUTANTS_SEEDS))
