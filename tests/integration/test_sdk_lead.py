"""Leading and publishing with the SDK on a real onewriter, and on a real Pulsar except for what Pulsar lacks.

Each case runs on both. Pulsar has no priorities, proves nothing by CHECK, notifies a deposed leader only when
it sends, and may have stored what was under way then. The cases state what follows from that.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, NamedTuple

import pulsar
import pytest
from bench.pulsar_lab import PulsarStandalone
from tests.integration.conftest import StockClients
from tests.integration.http_calls import PERSISTENT, Http

import onewriter.sync
from onewriter import (
    AccessMode,
    Batching,
    Candidacy,
    Client,
    Closed,
    Compression,
    Fenced,
    Leadership,
    OnewriterError,
    OutcomeUnknown,
    ProducerOptions,
    Refused,
    ServerError,
)
from onewriter_testing.processes import LocalBrokers

pytestmark = pytest.mark.timeout(900)  # Pulsar's jars are fetched once, which takes minutes

SECONDS_MAX = 120.0
RECEIVE_MS = 60_000
FENCING = ProducerOptions(access_mode=AccessMode.EXCLUSIVE_WITH_FENCING)

_topics = itertools.count(1)


class Server(NamedTuple):
    """A real broker, and its kind."""

    url: str
    is_onewriter: bool


@pytest.fixture(params=["onewriter", pytest.param("pulsar", marks=pytest.mark.full)])
def server(request: pytest.FixtureRequest) -> Server:
    if request.param == "onewriter":
        broker: LocalBrokers = request.getfixturevalue("broker")
        return Server(broker.service_url, is_onewriter=True)
    pulsar_lab: PulsarStandalone = request.getfixturevalue("standalone")
    return Server(pulsar_lab.service_url, is_onewriter=False)


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/led-{next(_topics)}"


async def contents_of(url: str, topic: str) -> list[bytes]:
    """Return all of a topic's messages except those that name the leader, with a reader of the SDK."""
    found = []
    async with Client(url) as client, await client.create_reader(topic) as reader:
        while await reader.has_message_available():
            message = await reader.next(timeout_seconds=SECONDS_MAX)
            if "onewriter.kind" not in message.properties:
                found.append(message.content)
    return found


async def notice(server: Server, leadership: Leadership) -> None:
    """Pulsar notifies a deposed leader only when it sends, and then cuts the connection."""
    if not server.is_onewriter:
        with pytest.raises((Fenced, OutcomeUnknown)):
            await leadership.send(b"am I still it?")


# ---------------------------------------------------------------- leading


async def test_leaders_follow_each_other_and_announce_themselves(
    server: Server, topic: str
) -> None:
    epochs = []
    async with Client(server.url) as client:
        assert await client.leader(topic) is None
        for name in ("first", "second", "third"):
            async with client.lead(
                topic, identity=name, priority=3, metadata={"by": name}
            ) as leads:
                epochs.append(leads.epoch)
                await leads.send(name.encode())
            announced = await client.leader(topic)
            assert announced is not None
            assert (announced.identity, announced.epoch, announced.priority) == (
                name,
                leads.epoch,
                3,
            )
            assert announced.metadata == {"by": name}
            assert announced == leads.info({"by": name})
    assert epochs == sorted(set(epochs))
    assert await contents_of(server.url, topic) == [b"first", b"second", b"third"]


async def test_a_leader_knows_what_the_one_before_left_and_loses_nothing_of_it(
    server: Server, topic: str
) -> None:
    async with Client(server.url) as client, Client(server.url) as other:
        async with client.lead(topic, identity="first", read_predecessor=True) as first:
            assert first.predecessor is None
            for number in range(200):
                await first.submit(b"%d" % number)
            await first.announce({"number": 199})
            await first.send(b"200")
            await (await other.create_producer(topic, FENCING)).close()
        # It ends before it has announced anything of its own.
        async with client.lead(topic, identity="second", read_predecessor=True) as second:
            assert second.predecessor == first.info({"number": 199})
        async with client.lead(topic, identity="third", read_predecessor=True) as third:
            assert third.predecessor == second.info({"number": 199})
            announced = await client.leader(topic)
            assert announced == third.info({"number": 199})
    assert await contents_of(server.url, topic) == [b"%d" % number for number in range(201)]


async def test_the_leader_is_found_before_many_later_messages(server: Server, topic: str) -> None:
    async with Client(server.url) as client, client.lead(topic, metadata="old") as leadership:
        receipts = [await leadership.submit(b"%d" % number) for number in range(3_000)]
        await asyncio.gather(*receipts)
        announced = await client.leader(topic)
        assert announced == leadership.info("old")
        await leadership.announce("new")
        announced = await client.leader(topic)
        assert announced == leadership.info("new")


async def test_of_a_compacted_topic_the_leader_is_still_known(
    broker: LocalBrokers, topic: str
) -> None:
    url = f"{PERSISTENT}/{topic.rpartition('/')[2]}/compaction"
    http = Http(broker.http_url)
    async with Client(broker.service_url) as client, client.lead(topic, metadata="m") as leads:
        for _ in range(20):
            await leads.send(b"of one key", key="k")
        assert (await asyncio.to_thread(http, "PUT", url))[0] == 204
        async with asyncio.timeout(SECONDS_MAX):
            while (await asyncio.to_thread(http, "GET", url))[1]["status"] != "SUCCESS":  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.02)
        assert await client.leader(topic) == leads.info("m")


async def test_the_next_in_line_leads_as_soon_as_the_former_has_handed_over(
    server: Server, topic: str
) -> None:
    order: list[str] = []

    async def lead(client: Client, name: str) -> None:
        async with client.lead(topic, identity=name) as leadership:
            order.append(name)
            await leadership.send(name.encode())

    async with (
        Client(server.url) as client,
        asyncio.timeout(SECONDS_MAX),
        client.lead(topic) as former,
        asyncio.TaskGroup() as tasks,
    ):
        for name in ("a", "b", "c"):
            tasks.create_task(lead(client, name))
        await asyncio.sleep(0.5)
        assert order == []
        await former.send(b"former")
        await former.handover()
        assert isinstance(former.lost.reason, Closed)
    assert sorted(order) == ["a", "b", "c"]
    contents = await contents_of(server.url, topic)
    assert contents == [b"former", *(name.encode() for name in order)]


async def test_a_deposed_leader_is_notified_and_writes_no_more(server: Server, topic: str) -> None:
    reported: list[OnewriterError] = []
    async with (
        Client(server.url) as client,
        Client(server.url) as other,
        client.lead(topic, on_lost=reported.append) as leadership,
    ):
        await leadership.send(b"mine")
        taker = await other.create_producer(topic, FENCING)
        async with asyncio.timeout(SECONDS_MAX):
            await notice(server, leadership)
            reason = await leadership.lost
        assert isinstance(reason, Fenced)
        assert reported == [reason]
        with pytest.raises(Fenced):
            await leadership.send(b"too late")
        await taker.send(b"taken")
        assert taker.epoch is not None
        assert taker.epoch > leadership.epoch
    assert await contents_of(server.url, topic) == [b"mine", b"taken"]


async def test_results_of_sends_under_way_at_a_takeover_are_true(
    server: Server, topic: str
) -> None:
    endings: dict[bytes, Any] = {}

    async def publish(leadership: Leadership) -> None:
        receipts = {}
        for number in itertools.count():
            content = b"%d" % number
            try:
                receipts[content] = await leadership.submit(content)
            except OnewriterError:
                break
            if number % 50 == 0:
                await asyncio.sleep(0)
        found = await asyncio.gather(*receipts.values(), return_exceptions=True)
        endings.update(zip(receipts, found, strict=True))

    async with (
        Client(server.url) as client,
        Client(server.url) as other,
        client.lead(topic) as leadership,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(publish(leadership))
        await asyncio.sleep(0.3)
        await (await other.create_producer(topic, FENCING)).close()
    log = set(await contents_of(server.url, topic))
    unknown = {content for content, end in endings.items() if isinstance(end, OutcomeUnknown)}
    refused = {content for content, end in endings.items() if isinstance(end, Fenced)}
    stored = endings.keys() - unknown - refused
    assert stored <= log, "an acknowledged message is missing"
    assert not refused & log, "a message that was refused is in the log"
    assert log <= stored | unknown
    if server.is_onewriter:
        assert unknown == set(), "on a living connection there is no doubt"


async def test_a_candidate_leads_term_after_term(server: Server, topic: str) -> None:
    async with (
        Client(server.url) as client,
        Client(server.url) as other,
        Candidacy(client, topic) as candidacy,
        asyncio.timeout(SECONDS_MAX),
    ):
        first = await candidacy.lead()
        await (await other.create_producer(topic, FENCING)).close()
        await notice(server, first)
        await first.over()
        second = await candidacy.lead()
        assert second.epoch > first.epoch
        await second.send(b"again")


def test_a_program_without_a_loop_leads_too(server: Server, topic: str) -> None:
    with onewriter.sync.Client(server.url) as client, onewriter.sync.Client(server.url) as other:
        with client.lead(topic, metadata=[1, 2]) as leadership:
            leadership.send(b"blocking")
            if server.is_onewriter:
                assert leadership.check().is_current
                assert client.check(topic).epoch == leadership.epoch
            with other.create_reader(topic) as reader:
                assert reader.has_message_available()
                read = [reader.next(timeout_seconds=SECONDS_MAX) for _ in range(2)]
                assert read[1].content == b"blocking"
                assert reader.last_message_id() == read[1].id
            announced = other.leader(topic)
            assert announced is not None
            assert (announced.epoch, announced.metadata) == (leadership.epoch, [1, 2])
            other.create_producer(topic, FENCING).close()
            if not server.is_onewriter:
                with pytest.raises((Fenced, OutcomeUnknown)):
                    leadership.send(b"am I still it?")
            assert isinstance(leadership.lost.wait(SECONDS_MAX), Fenced)
            with pytest.raises(Fenced):
                leadership.send(b"too late")
        with other.lead(topic) as second:
            assert second.epoch > leadership.epoch


# ---------------------------------------------------------------- publishing


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("batching", [None, Batching(delay_seconds=60.0)], ids=["single", "batch"])
async def test_a_stock_client_reads_what_the_sdk_packs(
    server: Server,
    topic: str,
    stock: StockClients,
    compression: Compression,
    batching: Batching | None,
) -> None:
    consumer = await asyncio.to_thread(stock(server.url).subscribe, topic, "s")
    options = ProducerOptions(compression=compression, batching=batching)
    async with Client(server.url) as client:
        producer = await client.create_producer(topic, options)
        receipts = [
            await producer.submit(
                b"%d " % number * 100,
                key=f"k{number % 3}",
                ordering_key=b"o",
                properties={"number": str(number)},
                event_time_ms=77 + number,
            )
            for number in range(20)
        ]
        receipts.append(await producer.submit(b""))
        await producer.flush()
        ids = [receipt.result() for receipt in receipts]
    assert ids == sorted(set(ids))
    entries = {(each.ledger, each.entry) for each in ids}
    assert len(entries) == (1 if batching else len(ids))
    for number, stored in enumerate(ids):
        message = await asyncio.to_thread(consumer.receive, RECEIVE_MS)
        place = message.message_id()
        assert (place.ledger_id(), place.entry_id()) == (stored.ledger, stored.entry)
        assert place.batch_index() == stored.batch_index
        if number == 20:
            assert message.data() == b""
            continue
        assert message.data() == b"%d " % number * 100
        assert message.partition_key() == f"k{number % 3}"
        assert message.ordering_key() == "o"
        assert message.properties() == {"number": str(number)}
        assert message.event_timestamp() == 77 + number


async def test_a_message_that_is_too_large_is_refused_and_nothing_else_is(
    server: Server, topic: str
) -> None:
    async with Client(server.url) as client:
        producer = await client.create_producer(topic)
        with pytest.raises(Refused, match="chunks"):
            await producer.send(b"x" * 6_000_000)
        await producer.send(b"y" * 5_000_000)
        await producer.send(b"small")
    assert [len(each) for each in await contents_of(server.url, topic)] == [5_000_000, 5]


# ---------------------------------------------------------------- what one of them lacks


async def test_priorities_order_the_line_where_the_broker_knows_them(
    broker: LocalBrokers, topic: str
) -> None:
    order: list[int] = []

    async def lead(client: Client, priority: int) -> None:
        async with client.lead(topic, priority=priority, announce=False):
            order.append(priority)

    async with (
        Client(broker.service_url) as client,
        asyncio.timeout(SECONDS_MAX),
        client.lead(topic) as former,
        asyncio.TaskGroup() as tasks,
    ):
        for priority in (1, 30, 20):
            tasks.create_task(lead(client, priority))
        while former.waiting < 3:  # noqa: ASYNC110 - the property is tested
            await asyncio.sleep(0.01)
        await former.handover()
    assert order == [30, 20, 1]


@pytest.mark.full  # needs Apache Pulsar; test_own_sdk.py has a broker of another kind
async def test_a_stock_broker_is_sent_none_of_our_own_commands(
    standalone: PulsarStandalone, topic: str
) -> None:
    async with Client(standalone.service_url) as client, client.lead(topic) as leadership:
        with pytest.raises(Refused) as refused:
            await client.check(topic, leadership.epoch)
        assert refused.value.code is ServerError.UNSUPPORTED_VERSION_ERROR
        assert leadership.waiting == 0
        await leadership.send(b"the connection lives")


async def test_a_stock_client_takes_part_in_the_same_election(
    server: Server, topic: str, stock: StockClients
) -> None:
    other = stock(server.url)
    mode = pulsar.ProducerAccessMode.WaitForExclusive
    async with Client(server.url) as client:
        async with client.lead(topic, announce=False) as leadership:
            waiting = asyncio.get_running_loop().run_in_executor(
                None, lambda: other.create_producer(topic, access_mode=mode)
            )
            await asyncio.sleep(0.5)
            await leadership.send(b"ours")
            assert not waiting.done()
        producer = await asyncio.wait_for(waiting, SECONDS_MAX)
        await asyncio.to_thread(producer.send, b"theirs")
        await asyncio.to_thread(producer.close)
    assert await contents_of(server.url, topic) == [b"ours", b"theirs"]
