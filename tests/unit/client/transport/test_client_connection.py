"""Connections to brokers: look-ups, credentials, TLS, silence."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.clock import skip
from tests.cluster.pki import Authority
from tests.unit.client.fake_broker import (
    Clock,
    FakeBroker,
    FakeLink,
    begin,
    client_of,
    fake_broker,
)
from tests.unit.client.producing import never_made

from onewriter import (
    AccessMode,
    Closed,
    ConfigurationError,
    Limits,
    ProducerOptions,
    ProducerState,
    Refused,
    Tls,
    Unavailable,
)
from onewriter._transport.connection import TOKEN_RETRY_SECONDS
from onewriter_core.errors import ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.commands import MESSAGE_LENGTH_MAX
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

WRONG = "wrong"
EXCLUSIVE = ProducerOptions(access_mode=AccessMode.EXCLUSIVE)


# ---------------------------------------------------------------- which broker


async def test_the_broker_that_a_lookup_names_gets_the_producer(broker: FakeBroker) -> None:
    async with fake_broker() as owner, client_of(broker) as client:
        broker.answers[pb.CommandLookup] = lambda link, command: link.write(
            replies.lookup_connect(command.request_id, owner.url)
        )
        await client.create_producer("orders", EXCLUSIVE)
        assert broker.all(pb.CommandProducer) == []
        assert owner.all(pb.CommandProducer)[0].topic == "persistent://public/default/orders"


def redirect(url: str) -> Callable[[FakeLink, pb.CommandLookup], None]:
    """Answers a look-up as a Pulsar broker does whose look-ups another broker answers with authority."""
    return lambda link, command: link.say(
        pb.CommandLookupResponse(
            request_id=command.request_id,
            response=pb.CommandLookupResponse.REDIRECT,
            broker_service_url=url,
            authoritative=True,
        )
    )


async def test_a_redirect_is_followed_with_its_authority(broker: FakeBroker) -> None:
    async with fake_broker() as other, client_of(broker) as client:
        broker.answers[pb.CommandLookup] = redirect(other.url)
        await client.create_producer("orders", EXCLUSIVE)
        assert [each.authoritative for each in other.all(pb.CommandLookup)] == [True]


async def test_a_broker_behind_a_proxy_is_reached_through_it(broker: FakeBroker) -> None:
    broker.answers[pb.CommandLookup] = lambda link, command: link.say(
        pb.CommandLookupResponse(
            request_id=command.request_id,
            response=pb.CommandLookupResponse.CONNECT,
            broker_service_url="pulsar://unreachable:6650",
            proxy_through_service_url=True,
        )
    )
    async with client_of(broker) as client:
        await client.create_producer("orders", EXCLUSIVE)
    first, second = broker.all(pb.CommandConnect)
    assert not first.HasField("proxy_to_broker_url")
    assert second.proxy_to_broker_url == "unreachable:6650"


async def test_redirects_in_a_circle_end(broker: FakeBroker) -> None:
    async with client_of(broker) as client:
        broker.answers[pb.CommandLookup] = redirect(broker.url)
        await never_made(client, "10 redirects")


@pytest.mark.parametrize("url", ["", "nonsense"])
async def test_a_lookup_without_a_usable_address_is_asked_again(
    broker: FakeBroker, url: str
) -> None:
    def first_badly(link: FakeLink, command: pb.CommandLookup) -> None:
        named = url if len(broker.all(pb.CommandLookup)) == 1 else broker.url
        link.write(replies.lookup_connect(command.request_id, named))

    broker.answers[pb.CommandLookup] = first_badly
    async with client_of(broker) as client:
        await client.create_producer("orders", EXCLUSIVE)
    assert len(broker.all(pb.CommandLookup)) == 2


async def test_a_permanent_refusal_of_a_look_up_ends_the_producer(broker: FakeBroker) -> None:
    broker.answers[pb.CommandLookup] = lambda link, command: link.write(
        replies.lookup_failed(command.request_id, ServerError.AUTHORIZATION_ERROR, "not you")
    )
    async with client_of(broker) as client:
        with pytest.raises(Refused, match="not you"):
            await client.create_producer("orders", EXCLUSIVE)


async def test_the_second_broker_of_the_url_when_the_first_is_gone(broker: FakeBroker) -> None:
    async with fake_broker() as gone:
        await gone.stop()
        async with client_of(gone, broker) as client:
            await client.create_producer("orders", EXCLUSIVE)


async def test_all_producers_of_a_broker_share_a_connection(broker: FakeBroker) -> None:
    async with client_of(broker) as client:
        await asyncio.gather(
            *(client.create_producer(f"orders-{number}", EXCLUSIVE) for number in range(10))
        )
        assert len(broker.links) == 1
        assert len({each.producer_id for each in broker.all(pb.CommandProducer)}) == 10


async def test_a_partitioned_topic_is_refused_by_name(broker: FakeBroker) -> None:
    broker.answers[pb.CommandPartitionedMetadata] = lambda link, command: link.write(
        replies.partitions(command.request_id, 4)
    )
    async with client_of(broker) as client:
        with pytest.raises(Refused, match="orders-partition-0"):
            await client.create_producer("orders", EXCLUSIVE)


async def test_the_metadata_of_a_partition_is_requested_on_the_owners_connection(
    broker: FakeBroker,
) -> None:
    """That is how a broker knows that it competes for that partition alone."""
    async with fake_broker() as owner, client_of(broker) as client:
        broker.answers[pb.CommandLookup] = lambda link, command: link.write(
            replies.lookup_connect(command.request_id, owner.url)
        )
        await client.create_producer("orders-partition-3", EXCLUSIVE)
        assert owner.all(pb.CommandPartitionedMetadata)[0].topic.endswith("orders-partition-3")
        owner.links[-1].cut()
        await owner.received_of(pb.CommandProducer, 2)
        assert len(owner.all(pb.CommandPartitionedMetadata)) == 2


async def test_a_wrong_topic_name_is_refused_here(broker: FakeBroker) -> None:
    async with client_of(broker) as client:
        with pytest.raises(ConfigurationError, match="not a topic name"):
            await client.create_producer("persistent://only-a-tenant", EXCLUSIVE)
    assert broker.links == []


# ---------------------------------------------------------------- who we are


async def test_a_token_file_is_read_at_each_connection_and_at_each_challenge(
    broker: FakeBroker, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with client_of(broker, token=token) as client:
        await client.create_producer("orders", EXCLUSIVE)
        connect = broker.all(pb.CommandConnect)[0]
        assert (connect.auth_method_name, connect.auth_data) == ("token", b"first")
        assert connect.feature_flags.supports_auth_refresh
        token.write_text("second")
        link = broker.links[-1]
        link.write(link.wire.challenge("fake", "token"))
        assert (await broker.received_of(pb.CommandAuthResponse)).response.auth_data == b"second"
        token.write_text("third")
        link.cut()
        assert (await broker.received_of(pb.CommandConnect, 2)).auth_data == b"third"


async def test_a_token_that_is_just_being_replaced_is_waited_for(
    broker: FakeBroker, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    async with client_of(broker, token=token) as client:
        await client.create_producer("orders", EXCLUSIVE)
        token.unlink()
        link = broker.links[-1]
        link.write(link.wire.challenge("fake", "token"))
        await asyncio.sleep(0.05)
        token.write_text("second")
        skip(TOKEN_RETRY_SECONDS)
        assert (await broker.received_of(pb.CommandAuthResponse)).response.auth_data == b"second"
        assert not link.is_lost


async def test_a_connection_that_is_lost_while_the_token_is_read_is_tried_again(
    broker: FakeBroker,
) -> None:
    reads = 0

    async def token() -> str:
        nonlocal reads
        reads += 1
        if reads == 2:  # the holder comes back, and the broker goes once more
            while len(broker.links) < 2:  # noqa: ASYNC110 - the broker's doing
                await asyncio.sleep(0)
            broker.links[-1].cut()
            await asyncio.sleep(0.05)
        return "fresh"

    async with client_of(broker, token=token) as client:
        producer = await client.create_producer("orders", EXCLUSIVE)
        broker.links[-1].cut()
        await broker.received_of(pb.CommandConnect, 2)
        await producer.send(b"goes on")
        assert (reads, producer.state) == (3, ProducerState.READY)


async def test_refused_credentials_are_a_definite_no(broker: FakeBroker) -> None:
    broker.answers[pb.CommandConnect] = lambda link, _command: link.write(
        link.wire.refuse(ServerError.AUTHENTICATION_ERROR, "who are you?")
    )
    async with client_of(broker, token=WRONG) as client:
        with pytest.raises(Refused, match="who are you"):
            await client.create_producer("orders", EXCLUSIVE)


async def test_a_holder_continues_asking_when_its_token_is_refused_on_return(
    broker: FakeBroker,
) -> None:
    """It may have expired between two rotations; the topic may still be ours."""
    async with client_of(broker, token=WRONG) as client:
        producer = await client.create_producer("orders", EXCLUSIVE)
        broker.answers[pb.CommandConnect] = lambda link, _command: link.write(
            link.wire.refuse(ServerError.AUTHENTICATION_ERROR, "expired")
        )
        broker.links[-1].cut()
        await broker.received_of(pb.CommandConnect, 3)
        assert producer.state is ProducerState.DETACHED
        del broker.answers[pb.CommandConnect]
        await producer.send(b"back")


async def test_a_challenge_without_a_token_ends_the_connection(broker: FakeBroker) -> None:
    broker.answers[pb.CommandConnect] = lambda link, _command: link.write(
        link.wire.challenge("fake", "token")
    )
    async with client_of(broker) as client:
        with pytest.raises(Refused, match="asks for a token"):
            await client.create_producer("orders", EXCLUSIVE)


# ---------------------------------------------------------------- TLS


async def test_tls_with_an_authority_of_our_own(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    authority.server("broker", ["127.0.0.1"])
    broker = await tls_broker(authority, "broker")
    try:
        async with client_of(broker, tls=Tls(ca_file=authority.certificate)) as client:
            producer = await client.create_producer("orders", EXCLUSIVE)
            await producer.send(b"over TLS")
        assert broker.contents() == [b"over TLS"]
    finally:
        await broker.stop()


@pytest.mark.parametrize("mistake", ["another authority", "another name"])
async def test_a_certificate_that_is_not_the_brokers_is_refused(
    tmp_path: Path, mistake: str
) -> None:
    authority = Authority(tmp_path / "pki")
    authority.server("broker", ["127.0.0.1" if mistake == "another authority" else "elsewhere"])
    trusted = Authority(tmp_path / "other") if mistake == "another authority" else authority
    broker = await tls_broker(authority, "broker")
    try:
        async with client_of(broker, tls=Tls(ca_file=trusted.certificate)) as client:
            await never_made(client, "CERTIFICATE_VERIFY_FAILED")
        assert broker.received == []
    finally:
        await broker.stop()


async def test_tls_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    authority.server("broker", ["127.0.0.1"])
    broker = await tls_broker(authority, "broker")
    try:
        async with client_of(broker, tls=Tls(ca_file=tmp_path / "absent")) as client:
            with pytest.raises(ConfigurationError, match="TLS files"):
                await client.create_producer("orders", EXCLUSIVE)
    finally:
        await broker.stop()


async def tls_broker(authority: Authority, name: str) -> FakeBroker:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(
        authority.directory / f"{name}.crt", authority.directory / f"{name}.key"
    )
    broker = FakeBroker()
    await broker.start(context)
    return broker


# ---------------------------------------------------------------- silence


async def test_pings_are_answered(broker: FakeBroker) -> None:
    async with client_of(broker) as client:
        await client.create_producer("orders", EXCLUSIVE)
        broker.links[-1].write(replies.PING)
        await broker.received_of(pb.CommandPong)


async def test_a_broker_that_falls_silent_is_pinged_and_left(broker: FakeBroker) -> None:
    limits = Limits(ping_after_seconds=0.2, silent_after_seconds=4.0)
    async with client_of(broker, limits=limits) as client:
        producer = await client.create_producer("orders", EXCLUSIVE)
        await broker.received_of(pb.CommandPing, 3)
        link = broker.links[-1]
        assert not link.is_lost, "it answers its pings"
        broker.answers[pb.CommandPing] = None
        await broker.received_of(pb.CommandProducer, 2)
        assert link.is_lost
        assert producer.epoch == 7


async def test_a_process_that_stood_still_does_not_blame_the_broker(
    broker: FakeBroker, clock: Clock
) -> None:
    async with client_of(broker) as client:
        await client.create_producer("orders", EXCLUSIVE)
        clock.ahead += 600.0
        await broker.received_of(pb.CommandPing)
        await asyncio.sleep(0.6)  # another tick
        assert not broker.links[-1].is_lost


async def test_a_broker_with_an_invalid_answer_is_abandoned(broker: FakeBroker) -> None:
    async with client_of(broker) as client:
        producer = await client.create_producer("orders", EXCLUSIVE)
        broker.links[-1].write(b"\xff" * 16)
        await broker.received_of(pb.CommandProducer, 2)
        await producer.send(b"on a new connection")


async def test_a_broker_that_never_answers_a_connect_is_left(broker: FakeBroker) -> None:
    broker.answers[pb.CommandConnect] = None
    async with client_of(broker) as client:
        making = begin(client.create_producer("orders", EXCLUSIVE, timeout_seconds=60))
        await broker.received_of(pb.CommandConnect)
        skip(60)
        with pytest.raises(Unavailable, match="no producer"):
            await making
    await broker.eventually(lambda: all(link.is_lost for link in broker.links))


async def test_a_connection_that_was_being_opened_does_not_outlive_the_client(
    broker: FakeBroker,
) -> None:
    requests: list[FakeLink] = []
    broker.answers[pb.CommandConnect] = lambda link, _command: requests.append(link)
    async with client_of(broker) as client:
        owning = begin(client.own("group", ["shard"]).__aenter__())
        await broker.eventually(lambda: bool(requests))
    requests[0].write(
        requests[0].wire.connected("onewriter fake", max_message_size=MESSAGE_LENGTH_MAX)
    )
    await broker.eventually(lambda: requests[0].is_lost)
    (owned,) = await owning
    assert isinstance(owned.end, Closed)
