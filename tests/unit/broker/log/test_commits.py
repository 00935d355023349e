"""Proofs that a broker serves a log wait for replicas and delay no other request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.unit.broker.log.test_guarded_appends import later
from tests.unit.broker.topic.fence_path_world import Gates, World, serving, until

from onewriter_broker.log.commits import PROOF_ATTEMPTS_MAX
from onewriter_broker.log.limits import LogLimits
from onewriter_broker.log.store.api import EpochStatus
from onewriter_broker.topic.epoch_checks import epoch_status_of
from onewriter_broker.topic.limits import TopicLimits
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Undecided
from onewriter_core.topic.model import WHOLE, AccessMode
from onewriter_testing.fake_store.server import FakeNode
from onewriter_testing.fake_store.store import FakeLogStore, Moment

pytestmark = pytest.mark.looptime


class Counted:
    """How often each call of the store was begun."""

    def __init__(self, store: FakeLogStore) -> None:
        self.calls: dict[str, int] = {}
        store.faults.hook = self._hook

    async def _hook(self, call: str, moment: Moment) -> None:
        if moment == "before":
            self.calls[call] = self.calls.get(call, 0) + 1


class Replicated:
    """A topic whose acknowledgements wait for the replica, and a log that waits for none."""

    def __init__(self, world: World, replica: FakeNode, runner: TopicRunner) -> None:
        self.world = world
        self.replica = replica
        self.runner = runner
        self.log = runner.logs[WHOLE]

    @property
    def replid(self) -> str:
        return self.world.server.primary.replid

    def check(self) -> asyncio.Task[EpochStatus]:
        proving = epoch_status_of(self.log, self.world.appender.prove)
        return asyncio.get_running_loop().create_task(proving)

    def prove(self) -> asyncio.Task[None]:
        """The part of a check that waits for the replica."""
        proving = self.world.appender.prove(Durability.REPLICATED, self.replid)
        return asyncio.get_running_loop().create_task(proving)


@asynccontextmanager
async def replicated(limits: LogLimits = LogLimits()) -> AsyncIterator[Replicated]:
    async with serving(commit_timeout_seconds=0.0, limits=TopicLimits(log=limits)) as world:
        replica = world.server.add_replica("node-1")
        runner = await world.load()
        log = runner.logs[WHOLE]
        log._durability = log._wanted_durability = Durability.REPLICATED
        yield Replicated(world, replica, runner)


@pytest.fixture
async def topic() -> AsyncIterator[Replicated]:
    async with replicated() as found:
        yield found


async def test_many_proofs_share_each_question_to_the_store(topic: Replicated) -> None:
    gates = Gates(topic.world.store, "commit")
    checks = [topic.check()]
    await gates.reached("commit")
    checks += [topic.check() for _ in range(200)]
    await asyncio.sleep(0.01)  # they stand behind the question, on the same connection
    counted = Counted(topic.world.store)
    gates.open("commit")
    assert len({await each for each in checks}) == 1
    assert counted.calls["check"] == 200
    assert counted.calls["commit"] < 10


async def test_a_pending_proof_does_not_cover_later_requests(topic: Replicated) -> None:
    gates = Gates(topic.world.store, "commit")
    first = topic.check()
    await gates.reached("commit")
    second = topic.prove()
    await asyncio.sleep(0.01)
    again = Gates(topic.world.store, "commit")
    gates.open("commit")
    await first
    await again.reached("commit")
    assert not second.done()
    again.open("commit")
    await second


async def test_without_the_replica_nothing_is_proved_and_others_continue(topic: Replicated) -> None:
    runner = await topic.world.load(1)
    writer, channel = topic.world.ask(runner, AccessMode.SHARED, "local", partition=1)
    await until(lambda: channel.ready)
    assert runner.logs[1].durability is Durability.LOCAL
    topic.replica.holds_replication = True
    counted = Counted(topic.world.store)
    checks = [topic.check() for _ in range(50)]
    for number in range(20):
        topic.world.send(writer, number)
        await until(lambda: writer.pending == 0)
    assert not all(check.done() for check in checks)
    answers = await asyncio.gather(*checks, return_exceptions=True)
    assert all(isinstance(answer, Undecided) for answer in answers)
    count = counted.calls["commit"] - 20  # one for each local entry; "not yet" is looked at twice
    assert count <= 2 * (PROOF_ATTEMPTS_MAX + 1)
    topic.replica.holds_replication = False
    topic.replica.follow()
    assert isinstance(await topic.check(), EpochStatus)


async def test_a_lost_connection_answers_undecided_and_spares_blocks(topic: Replicated) -> None:
    producer, channel = topic.world.ask(topic.runner, AccessMode.SHARED, "careful")
    await until(lambda: channel.ready)
    gates = Gates(topic.world.store, "append", "commit")
    topic.world.send(producer, 0)
    await gates.reached("append")
    proof = topic.prove()
    await asyncio.sleep(0)
    gates.open("append")
    await gates.reached("commit")
    topic.world.server.primary.drop_connections()
    gates.open("commit")
    with pytest.raises(Undecided, match="connection"):
        await proof
    await later(lambda: producer.pending == 0)
    assert channel.receipts == 1
    assert isinstance(await topic.check(), EpochStatus)


async def test_another_dataset_answers_undecided(topic: Replicated) -> None:
    gates = Gates(topic.world.store, "commit")
    check = topic.check()
    await gates.reached("commit")
    server = topic.world.server
    server.promote(topic.replica)
    server.demote(server.nodes["node-0"], topic.replica)
    gates.open("commit")
    with pytest.raises(Undecided):
        await check


async def test_proofs_that_wait_have_a_bound() -> None:
    async with replicated(LogLimits(proofs_max=2)) as topic:
        gates = Gates(topic.world.store, "commit")
        check = topic.check()
        await gates.reached("commit")
        second = topic.prove()
        await asyncio.sleep(0)
        with pytest.raises(Undecided, match="2 proofs"):
            await topic.prove()
        gates.open("commit")
        await asyncio.gather(check, second)
        assert isinstance(await topic.check(), EpochStatus)


async def test_a_check_fails_if_the_store_does_not_answer_in_time(topic: Replicated) -> None:
    gates = Gates(topic.world.store, "commit")
    with pytest.raises(Undecided, match="in time"):
        await topic.check()
    counted = Counted(topic.world.store)
    gates.open("commit")
    await asyncio.sleep(0.05)
    assert counted.calls.get("commit", 0) == 0  # nobody waits any more, so nothing is asked


async def test_a_broker_that_stops_releases_waiting_callers(topic: Replicated) -> None:
    gates = Gates(topic.world.store, "commit")
    check = topic.check()
    await gates.reached("commit")
    topic.world.appender_task.cancel()
    with pytest.raises(Undecided, match="stops"):
        await check


async def test_a_check_of_a_local_topic_sends_no_request(topic: Replicated) -> None:
    local = (await topic.world.load(1)).logs[1]
    counted = Counted(topic.world.store)
    assert isinstance(await epoch_status_of(local, topic.world.appender.prove), EpochStatus)
    assert counted.calls == {"check": 1}
