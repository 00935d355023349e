"""``leadership.guarded``, ``seal``, ``check`` and ``transaction`` against a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from click.testing import CliRunner
from tests.integration.forked_brokers import BUCKETS, forked_brokers
from tests.integration.patience import LASTING, PATIENT
from tests.integration.raw import contents_of
from tests.integration.test_guards import FENCING, beside, elsewhere, guarded_producer
from tests.servers import StoreServer

from onewriter import (
    Client,
    Closed,
    Fenced,
    GuardedBy,
    Leadership,
    NotSent,
    OutcomeUnknown,
    Producer,
    ProducerOptions,
    Refused,
)
from onewriter_broker.verify.cli import verify_command
from onewriter_testing.processes import LocalBrokers


@asynccontextmanager
async def leading(
    broker: LocalBrokers, topic: str, options: ProducerOptions | None = None
) -> AsyncIterator[Leadership]:
    async with (
        Client(broker.service_url, limits=PATIENT) as client,
        client.lead(topic, announce=False, options=options or LASTING) as found,
    ):
        yield found


async def take_over(broker: LocalBrokers, topic: str) -> int:
    """Depose the leader; return the new epoch."""
    async with Client(broker.service_url) as client:
        producer = await client.create_producer(topic, FENCING)
        assert producer.epoch is not None
        return producer.epoch


async def stored(broker: LocalBrokers, topic: str) -> list[bytes]:
    return await asyncio.to_thread(contents_of, broker.address(), topic)


@pytest.fixture(params=["beside", "elsewhere"])
def target(request: pytest.FixtureRequest, broker: LocalBrokers, topic: str) -> str:
    return beside(topic) if request.param == "beside" else elsewhere(broker, topic)


async def test_a_leader_writes_elsewhere_until_it_is_deposed(
    broker: LocalBrokers, topic: str, target: str
) -> None:
    async with leading(broker, topic) as leadership:
        guarded = leadership.guarded(target)
        assert guarded is leadership.guarded(target)
        ids = await asyncio.gather(*(guarded.send(b"%d" % number) for number in range(50)))
        assert ids == sorted(ids)
        assert guarded.is_atomic is (target == beside(topic))
        await leadership.check()
        epoch = await take_over(broker, topic)
        for refused in (guarded.send(b"late"), leadership.seal(target), leadership.check()):
            with pytest.raises(Fenced) as fenced:
                await refused
            assert fenced.value.current_epoch == epoch
    assert await stored(broker, target) == [b"%d" % number for number in range(50)]


async def test_in_another_bucket_a_leader_that_was_not_notified_is_refused_by_the_proof(
    broker: LocalBrokers, topic: str
) -> None:
    """Its connection to the guarding topic's broker is cut: it cannot know, and does not write."""
    target = elsewhere(broker, topic)
    async with leading(broker, topic) as leadership:
        await leadership.guarded(target).send(b"before")
        leadership.lost.reason = None
        epoch = await take_over(broker, topic)
        leadership.lost.reason = None  # as if the notification had not arrived
        with pytest.raises(Fenced) as fenced:
            await leadership.guarded(target).send(b"late")
        assert fenced.value.current_epoch == epoch
    assert await stored(broker, target) == [b"before"]


async def test_a_seal_keeps_earlier_leaders_out_without_a_message(
    broker: LocalBrokers, topic: str
) -> None:
    """Even one whose proof was given before the takeover: the target stores the floor."""
    target = elsewhere(broker, topic)
    async with leading(broker, topic) as leadership, Client(broker.service_url) as other:
        # Not the leadership's own producer, which ends with it: one that does not know of the takeover.
        request = ProducerOptions(properties=leadership.guard.properties())
        old = await other.create_producer(target, request)
        await old.send(b"before")
        successor = Leadership(await other.create_producer(topic, FENCING), other)
        await old.send(b"proved before the takeover, and behind no seal")
        await successor.seal(target)
        with pytest.raises(Fenced):
            await old.send(b"late")
        await successor.seal(target)
    assert len(await stored(broker, target)) == 2


async def test_guarded_producers_are_closed_after_a_handover(
    broker: LocalBrokers, topic: str
) -> None:
    async with leading(broker, topic) as leadership:
        guarded = leadership.guarded(beside(topic))
        await guarded.send(b"before")
        await leadership.handover()
        for refused in (guarded.send(b"late"), leadership.check(), leadership.seal(topic)):
            with pytest.raises(Closed):
                await refused


async def test_guarded_writes_continue_through_a_dead_broker(topic: str) -> None:
    with forked_brokers() as brokers:
        targets = [beside(topic), elsewhere(brokers, topic)]
        async with leading(brokers, topic) as leadership:
            receipts = []
            for number in range(200):
                receipts += [
                    await leadership.guarded(target, LASTING).submit(b"%d" % number)
                    for target in targets
                ]
                if number == 100:
                    brokers.replace()
            await asyncio.gather(*receipts)
        for target in targets:
            assert await stored(brokers, target) == [b"%d" % number for number in range(200)]


# --- transactions


async def test_a_transaction_stores_all_of_it(broker: LocalBrokers, topic: str) -> None:
    audit = beside(topic)
    async with leading(broker, topic) as leadership:
        await leadership.send(b"first")
        async with leadership.transaction({"seen": 7}) as transaction:
            first = transaction.send(b"own")
            second = transaction.send(b"audit", topic=audit, key="k", properties={"a": "b"})
            assert not first.done()
        assert (await first).entry == 2
        assert (await second).entry == 1
        await leadership.send(b"last")
    contents = await stored(broker, topic)
    assert (contents[0], contents[1], contents[3]) == (b"first", b"own", b"last")
    assert b'"seen": 7' in contents[2].replace(b'"seen":7', b'"seen": 7')
    assert await stored(broker, audit) == [b"audit"]


async def test_a_deposed_leaders_transaction_stores_nothing(
    broker: LocalBrokers, topic: str
) -> None:
    """Also a transaction that names only other topics, by a leader that does not know of its end."""
    audits = [beside(topic), f"{beside(topic)}-2"]
    async with leading(broker, topic) as leadership:
        producers = {}
        for audit in audits:
            producers[audit] = await leadership.guarded(audit).producer()
        epoch = await take_over(broker, topic)
        transaction = leadership.transaction(announce=False)
        transaction.send(b"late", topic=audits[0])
        with pytest.raises(Fenced) as fenced:
            await transaction.commit()
        assert fenced.value.current_epoch == epoch
        with pytest.raises(Closed):
            transaction.send(b"more")
    assert [await stored(broker, audit) for audit in audits] == [[], []]


async def test_a_guard_that_is_over_is_found_by_the_store(broker: LocalBrokers, topic: str) -> None:
    audit = beside(topic)
    async with leading(broker, topic) as leadership:
        await leadership.guarded(audit).producer()
        transaction = leadership.transaction(announce=False)
        receipt = transaction.send(b"late", topic=audit)
        other = leadership.guarded(f"{audit}-2")
        transaction.send(b"late, too", topic=other.topic)
        await other.producer()
        await take_over(broker, topic)
        leadership.lost.reason = None  # as if the notification had not arrived
        with pytest.raises((Fenced, NotSent)):
            await transaction.commit()
        with pytest.raises((Fenced, NotSent)):
            await receipt
    assert await stored(broker, audit) == []


async def test_topics_of_other_buckets_are_refused_with_the_name_that_would_do(
    broker: LocalBrokers, topic: str
) -> None:
    target = elsewhere(broker, topic)
    async with leading(broker, topic) as leadership:
        transaction = leadership.transaction()
        transaction.send(b"own")
        transaction.send(b"far", topic=target)
        with pytest.raises(Refused, match=rf"\{{{topic}\}}-{target}"):
            await transaction.commit()
    assert await stored(broker, topic) == []


async def test_an_exception_in_the_block_sends_nothing(broker: LocalBrokers, topic: str) -> None:
    async with leading(broker, topic) as leadership:
        receipts = []
        with contextlib.suppress(RuntimeError):
            async with leadership.transaction() as transaction:
                receipts.append(transaction.send(b"never"))
                raise RuntimeError
        with pytest.raises(Closed):
            await receipts[0]
    assert await stored(broker, topic) == []


async def test_transactions_through_a_dead_broker_are_whole(topic: str) -> None:
    """Each is in both topics or in neither, in the same order. An answered one is stored."""
    audit = beside(topic)
    answered, unknown = [], []
    with forked_brokers() as brokers:
        async with leading(brokers, topic) as leadership:
            leadership.guarded(audit, LASTING)
            for number in range(80):
                if number in {20, 50}:
                    asyncio.get_running_loop().call_later(0.003, brokers.replace)
                transaction = leadership.transaction(announce=False)
                transaction.send(b"%d" % number)
                transaction.send(b"%d" % number, topic=audit)
                try:
                    await transaction.commit()
                except OutcomeUnknown:
                    unknown.append(b"%d" % number)
                else:
                    answered.append(b"%d" % number)
                await leadership.send(b"alone")
        own = [each for each in await stored(brokers, topic) if each != b"alone"]
        assert own == await stored(brokers, audit)
    assert set(answered) <= set(own)
    assert set(own) <= {*answered, *unknown}
    assert len(own) == len(set(own))
    assert own == sorted(own, key=int)


# --- ownerships


async def test_an_ownership_guards_writes_to_what_it_owns(broker: LocalBrokers, topic: str) -> None:
    resource = f"persistent://public/default/{topic}"

    def guarded_by(generation: int) -> ProducerOptions:
        guard = GuardedBy(resource, generation, "workers")
        return ProducerOptions(properties=guard.properties())

    async with Client(broker.service_url) as client:
        with pytest.raises(Refused, match="never owned"):
            await client.create_producer(topic, guarded_by(1))
        async with client.own("workers", [(resource, 1)]):
            producer = await client.create_producer(topic, guarded_by(1))
            await producer.send(b"first")
            async with Client(broker.service_url) as other, other.own("workers", [(resource, 2)]):
                with pytest.raises(Fenced):
                    await producer.send(b"late")
                successor = await other.create_producer(topic, guarded_by(2))
                await successor.send(b"second")
    assert await stored(broker, topic) == [b"first", b"second"]


# --- the resulting logs


async def test_refused_blocks_leave_no_hole_that_verify_would_find(
    valkey: StoreServer, topic: str
) -> None:
    """Guarded and other writers of one log, with takeovers and transactions in between."""
    audit = beside(topic)
    with forked_brokers(redis_url=valkey.url) as brokers:
        async with Client(brokers.service_url) as client, Client(brokers.service_url) as other:
            plain = await client.create_producer(audit)
            refused = 0
            for _ in range(3):
                leader = await other.create_producer(topic, FENCING)
                guarded = await guarded_producer(client, audit, leader)
                over = asyncio.Event()

                async def take_over_at_last(over: asyncio.Event = over) -> None:
                    await take_over(brokers, topic)
                    over.set()

                stream = _stream(guarded, plain, over)
                refused += (await asyncio.gather(stream, take_over_at_last()))[0]
            assert refused > 0
            async with (
                client.lead(topic, announce=False) as leadership,
                leadership.transaction() as transaction,
            ):
                transaction.send(b"own")
                transaction.send(b"audit", topic=audit)
        for name in (topic, audit):
            words = [name, "--redis-url", valkey.url, "--buckets", str(BUCKETS)]
            result = await asyncio.to_thread(CliRunner().invoke, verify_command, words)
            assert result.exit_code == 0, result.output
            assert "holds" in result.output


async def _stream(guarded: Producer, plain: Producer, over: asyncio.Event) -> int:
    """Let both write, beyond the end of the takeover; return how many guarded messages were refused."""
    receipts = []
    for number in itertools.count():
        if over.is_set() and number >= 2_000:
            break
        with contextlib.suppress(Fenced):
            receipts.append(await guarded.submit(b"guarded"))
        receipts.append(await plain.submit(b"plain"))
        await asyncio.sleep(0)
    results = await asyncio.gather(*receipts, return_exceptions=True)
    return sum(isinstance(each, Fenced) for each in results)
