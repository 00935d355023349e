"""``import onewriter`` against a real broker: through cut connections, dead brokers and takeovers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.integration.conftest import ROUNDS, RawClients
from tests.integration.cutting_proxy import PROXY_HOST, CuttingProxy
from tests.integration.forked_brokers import forked_brokers
from tests.integration.patience import SECONDS
from tests.integration.raw import FENCING, contents_of

from onewriter import (
    AccessMode,
    Batching,
    Candidacy,
    Client,
    Fenced,
    Leadership,
    MessageId,
    OutcomeUnknown,
    ProducerOptions,
    Refused,
)
from onewriter_testing.processes import LocalBrokers

MESSAGES = 1_200
CUTS = 6

EXCLUSIVE = ProducerOptions(access_mode=AccessMode.EXCLUSIVE, send_timeout_seconds=SECONDS)


@pytest.mark.parametrize("mode", AccessMode)
async def test_every_access_mode_writes(broker: LocalBrokers, topic: str, mode: AccessMode) -> None:
    async with Client(broker.service_url) as client:
        producer = await client.create_producer(topic, ProducerOptions(access_mode=mode))
        ids = [await producer.send(b"%d" % number) for number in range(3)]
        await producer.close()
    assert ids == sorted(ids)
    assert await asyncio.to_thread(contents_of, broker.address(), topic) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("mode", "batching"),
    [
        pytest.param(AccessMode.EXCLUSIVE, None, id="exclusive, single"),
        # the one above, and test_resends.py: batches of a Shared producer are sent again whole
        pytest.param(
            AccessMode.SHARED,
            Batching(messages_max=20),
            id="shared, in batches",
            marks=pytest.mark.full,
        ),
    ],
)
async def test_a_stream_through_a_network_that_cuts(
    topic: str, mode: AccessMode, batching: Batching | None
) -> None:
    """Neither a hole nor a duplicate, and a single epoch."""
    options = ProducerOptions(
        access_mode=mode,
        pending_messages_max=200,
        batching=batching,
        send_timeout_seconds=SECONDS,
    )
    contents = [b"%d" % number + b"." * 200 for number in range(MESSAGES)]
    with forked_brokers(settings={"advertised_host": PROXY_HOST}) as brokers:
        volume = sum(map(len, contents))
        with CuttingProxy(
            brokers.address(), cuts=CUTS, bytes_between=volume // (2 * CUTS)
        ) as proxy:
            async with Client(proxy.url) as client:
                producer = await client.create_producer(topic, options)
                epoch = producer.epoch
                receipts = [await producer.submit(content) for content in contents]
                ids = await asyncio.gather(*receipts)
                assert producer.epoch == epoch
            assert proxy.cuts_left <= 0, "nothing was cut"
            async with Client(proxy.url) as client, await client.create_reader(topic) as reader:
                stored = [(await reader.next(timeout_seconds=SECONDS)).content for _ in contents]
                assert not await reader.has_message_available()
    assert stored == contents
    known = [each for each in ids if each.ledger >= 0]
    assert known == sorted(set(known))


async def test_a_writer_outlives_its_broker(topic: str) -> None:
    with forked_brokers() as brokers:
        async with Client(brokers.service_url) as client:
            producer = await client.create_producer(topic, EXCLUSIVE)
            receipts = []
            for number in range(400):
                receipts.append(await producer.submit(b"%d" % number))
                if number == 200:
                    brokers.replace()
                await asyncio.sleep(0.0005)
            await asyncio.gather(*receipts)
            await asyncio.to_thread(brokers.wait_ready)
        log = await asyncio.to_thread(contents_of, brokers.address(), topic)
    assert log == [b"%d" % number for number in range(400)]


@pytest.mark.campaign
@pytest.mark.timeout(360 + 5 * ROUNDS)
async def test_under_load_a_takeover_leaves_no_doubt(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    """On a live connection each message is either stored or definitely not: none is unknown."""
    answer = Said()
    async with Client(broker.service_url) as client, Candidacy(client, topic) as candidate:
        for number in range(ROUNDS):
            term = await candidate.lead()
            taking = asyncio.get_running_loop().run_in_executor(
                None, _take_over, broker, raw, topic
            )
            await answer.publish(term, number)
            await taking
            await term.over()
    log = await asyncio.to_thread(contents_of, broker.address(), topic)
    answer.check(log)
    assert answer.unknown == set()
    assert answer.stored == set(log)


@pytest.mark.campaign
@pytest.mark.timeout(360 + 5 * ROUNDS)
async def test_a_network_cut_with_a_takeover_is_reported_correctly(
    raw: RawClients, topic: str
) -> None:
    """Messages in flight are unknown. Results that are reported as definite are correct."""
    answer = Said()
    with forked_brokers(settings={"advertised_host": PROXY_HOST}) as brokers:
        with CuttingProxy(brokers.address(), cuts=0, bytes_between=2) as proxy:

            def cut_and_take_over(number: int) -> None:
                time.sleep(0.01 + 0.01 * (number % 7))
                proxy.cut()
                _take_over(brokers, raw, topic)

            async with Client(proxy.url) as client, Candidacy(client, topic) as candidate:
                for number in range(ROUNDS):
                    term = await candidate.lead()
                    loop = asyncio.get_running_loop()
                    taking = loop.run_in_executor(None, cut_and_take_over, number)
                    await answer.publish(term, number)
                    await taking
        log = await asyncio.to_thread(contents_of, brokers.address(), topic)
    answer.check(log)


class Said:
    """The results that the SDK reported for each message."""

    def __init__(self) -> None:
        self.stored: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.unknown: set[bytes] = set()

    async def publish(self, term: Leadership, number: int) -> None:
        """Publish a thousand messages under one term, or as many as it allows."""
        contents = [b"%d/%d" % (number, each) for each in range(1_000)]
        receipts: list[asyncio.Future[MessageId]] = []
        for content in contents:
            try:
                receipts.append(await term.producer.submit(content))
            except Fenced:
                break
            if len(receipts) % 20 == 0:
                await asyncio.sleep(0.001)
        endings = await asyncio.gather(*receipts, return_exceptions=True)
        for content, ending in zip(contents, endings, strict=False):
            match ending:
                case OutcomeUnknown():
                    self.unknown.add(content)
                case Fenced():
                    self.refused.add(content)
                case BaseException():
                    raise ending
                case _:
                    self.stored.add(content)

    def check(self, log: list[bytes]) -> None:
        """Compare the results with the log."""
        assert len(set(log)) == len(log), "a message stands twice"
        assert self.stored <= set(log), "an acknowledged message is missing"
        assert not self.refused & set(log), "a message that was refused is in the log"
        assert set(log) <= self.stored | self.unknown, "nobody was told of a message in the log"


def _take_over(broker: LocalBrokers, raw: RawClients, topic: str) -> None:
    raw(broker.address()).producer(topic, FENCING).close()


async def test_a_claim_that_is_missing_is_a_definite_no(tmp_path: Path) -> None:
    manifest = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: guarded}
spec: {access: {requireClaim: true}}
"""
    with forked_brokers(manifests=manifest) as brokers:
        async with Client(brokers.service_url) as client:
            with pytest.raises(Refused, match="ProducerClaim"):
                await client.create_producer("guarded", EXCLUSIVE)


async def test_a_partition_named_directly_competes_alone(topic: str, raw: RawClients) -> None:
    manifest = f"""
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {{name: {topic}}}
spec: {{partitions: 2, access: {{requireClaim: false}}}}
"""
    with forked_brokers(manifests=manifest) as brokers:
        async with Client(brokers.service_url) as client:
            with pytest.raises(Refused, match=f"{topic}-partition-0"):
                await client.create_producer(topic, EXCLUSIVE)
            for partition in range(2):
                producer = await client.create_producer(f"{topic}-partition-{partition}", EXCLUSIVE)
                await producer.send(b"x")
