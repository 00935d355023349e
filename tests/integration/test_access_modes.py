"""All four access modes with Pulsar's clients: each cell of the decision table, the queue, and the cases of
Pulsar's own tests.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest
from pulsar import ProducerAccessMode as Mode
from tests.integration.conftest import RawClients, StockClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.raw import (
    EXCLUSIVE,
    FENCING,
    SHARED,
    WAIT,
    RawClient,
    RawProducer,
    RefusedByBroker,
    contents_of,
)

from onewriter_core.errors import ServerError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.processes import LocalBrokers

NOBODY, SHARED_ONES, SHARED_AND_WAITERS, OWNER, OWNER_AND_WAITERS = (
    "nobody",
    "shared",
    "shared and a waiter",
    "an exclusive owner",
    "an owner and a waiter",
)
MODES = {"Shared": SHARED, "Exclusive": EXCLUSIVE, "WaitForExclusive": WAIT}

GRANTED, WAITS = "granted", "waits"
BUSY, FENCED = ServerError.PRODUCER_BUSY, ServerError.PRODUCER_FENCED

TABLE = {
    ("Shared", NOBODY): GRANTED,
    ("Shared", SHARED_ONES): GRANTED,
    ("Shared", SHARED_AND_WAITERS): BUSY,
    ("Shared", OWNER): BUSY,
    ("Shared", OWNER_AND_WAITERS): BUSY,
    ("Exclusive", NOBODY): GRANTED,
    ("Exclusive", SHARED_ONES): FENCED,
    ("Exclusive", SHARED_AND_WAITERS): FENCED,
    ("Exclusive", OWNER): FENCED,
    ("Exclusive", OWNER_AND_WAITERS): FENCED,
    ("WaitForExclusive", NOBODY): GRANTED,
    ("WaitForExclusive", SHARED_ONES): WAITS,
    ("WaitForExclusive", SHARED_AND_WAITERS): WAITS,
    ("WaitForExclusive", OWNER): WAITS,
    ("WaitForExclusive", OWNER_AND_WAITERS): WAITS,
}
STATES = (NOBODY, SHARED_ONES, SHARED_AND_WAITERS, OWNER, OWNER_AND_WAITERS)


def occupy(
    client: RawClient, topic: str, state: str
) -> tuple[list[RawProducer], list[RawProducer]]:
    """Bring a topic into a state; return its writers and its waiters."""
    writers, waiters = [], []
    if state in {SHARED_ONES, SHARED_AND_WAITERS}:
        writers = [client.producer(topic, SHARED, name=f"shared-{n}") for n in range(2)]
    if state in {OWNER, OWNER_AND_WAITERS}:
        writers = [client.producer(topic, EXCLUSIVE, name="owner")]
    if state in {SHARED_AND_WAITERS, OWNER_AND_WAITERS}:
        waiters = [client.waiter(topic, name="waiter")]
    return writers, waiters


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("mode", MODES)
def test_a_newcomer_is_answered_by_the_table(
    broker: LocalBrokers, raw: RawClients, topic: str, mode: str, state: str
) -> None:
    writers, _ = occupy(raw(broker.address()), topic, state)
    newcomer = raw(broker.address()).ask_producer(topic, MODES[mode], name="newcomer")
    match TABLE[mode, state]:
        case "granted":
            newcomer.ready().publish(b"the newcomer writes")
        case "waits":
            newcomer.waits()
        case code:
            with pytest.raises(RefusedByBroker) as refusal:
                newcomer.ready()
            assert refusal.value.code is code
    for writer in writers:  # a new producer disturbs none of them
        writer.publish(b"those who were there still write")


@pytest.mark.parametrize("state", STATES)
def test_a_fencing_newcomer_throws_everybody_out(
    broker: LocalBrokers, raw: RawClients, topic: str, state: str
) -> None:
    others = raw(broker.address())
    writers, waiters = occupy(others, topic, state)
    newcomer = raw(broker.address()).producer(topic, FENCING, name="newcomer")
    for waiter in waiters:
        with pytest.raises(RefusedByBroker, match="Fenced out") as refusal:
            waiter.ready()
        assert refusal.value.code is FENCED
    for writer in writers:
        writer.closed_by_broker()  # it learns this at once, without having sent anything
        writer.send(b"too late")
    others.ping()  # its late sends close no connection
    newcomer.publish(b"mine")
    assert contents_of(broker.address(), topic) == [b"mine"]


def test_every_exclusive_grant_has_a_higher_epoch(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())
    epochs = []
    for mode in (EXCLUSIVE, WAIT, FENCING, EXCLUSIVE):
        producer = client.producer(topic, mode)
        assert producer.epoch is not None
        epochs.append(producer.epoch)
        producer.close()
    assert epochs == sorted(set(epochs))


def test_the_sequence_of_upstreams_simple_test(
    broker: LocalBrokers, stock: StockClients, raw: RawClients, topic: str
) -> None:
    client = stock(broker.service_url)
    first = client.create_producer(topic, access_mode=Mode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=Mode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, access_mode=Mode.Shared)
    first.close()
    second = client.create_producer(topic, access_mode=Mode.Exclusive)
    third = client.create_producer(topic, access_mode=Mode.ExclusiveWithFencing)
    with pytest.raises(pulsar.ProducerFenced):
        second.send(b"second")
    third.send(b"third")
    third.close()

    fourth = client.create_producer(topic, access_mode=Mode.Exclusive)
    fifth = raw(broker.address()).waiter(topic)
    sixth = client.create_producer(topic, access_mode=Mode.ExclusiveWithFencing)
    with pytest.raises(RefusedByBroker):
        fifth.ready()
    with pytest.raises(pulsar.ProducerFenced):
        fourth.send(b"fourth")
    sixth.send(b"sixth before")
    seventh = raw(broker.address()).waiter(topic)
    sixth.send(b"sixth after")
    sixth.close()
    seventh.ready().publish(b"seventh")
    assert contents_of(broker.address(), topic) == [
        b"third",
        b"sixth before",
        b"sixth after",
        b"seventh",
    ]


def test_waiters_behind_shared_producers_are_promoted_when_the_last_one_leaves(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())
    first, second = client.producer(topic), client.producer(topic)
    waiter = raw(broker.address()).waiter(topic)
    first.close()
    raw(broker.address()).ping()
    assert not waiter.is_ready
    second.close()
    waiter.ready()


def test_waiters_are_promoted_in_their_order(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())
    owner = client.producer(topic, EXCLUSIVE)
    waiters = [raw(broker.address()).waiter(topic, name=f"w{n}") for n in range(3)]
    for waiter in waiters:
        owner.close()
        owner = waiter.ready()
    assert not any(waiter.is_ready for waiter in waiters)


def test_a_waiting_stock_client_is_not_timed_out_while_it_may_wait(
    broker: LocalBrokers, stock: StockClients, topic: str
) -> None:
    """The C++ library gives up after its operation time-out, so one that may wait has a long one."""
    owner = stock(broker.service_url).create_producer(topic, access_mode=Mode.Exclusive)
    waiting = stock(broker.service_url, operation_timeout_seconds=2**31 - 1)
    won: list[Any] = []

    def wait() -> None:
        won.append(waiting.create_producer(topic, access_mode=Mode.WaitForExclusive))

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(1.5)
    assert not won
    owner.close()
    waiter.join(60)
    won[0].send(b"at last")


def test_a_ghosts_win_goes_to_the_next_in_line(
    broker: LocalBrokers, stock: StockClients, raw: RawClients, topic: str
) -> None:
    """A stock client whose creation timed out answers its later promotion with CLOSE_PRODUCER."""
    owner = raw(broker.address()).producer(topic, EXCLUSIVE)
    former = stock(broker.service_url, operation_timeout_seconds=1)
    with pytest.raises(pulsar.Timeout):
        former.create_producer(topic, access_mode=Mode.WaitForExclusive)
    next_in_line = raw(broker.address()).waiter(topic)
    owner.close()
    next_in_line.ready().publish(b"the ghost does not keep it")


def test_waiters_that_left_are_skipped(broker: LocalBrokers, raw: RawClients, topic: str) -> None:
    owner = raw(broker.address()).producer(topic, EXCLUSIVE)
    closes, drops = raw(broker.address()), raw(broker.address())
    closing = closes.waiter(topic)
    drops.waiter(topic)
    stays = raw(broker.address()).waiter(topic)
    closing.close()
    drops.close()
    owner.close()
    stays.ready()


# ---------------------------------------------------------------- PIP-440


def test_waiters_are_ordered_by_priority_and_then_by_arrival(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())
    owner = client.producer(topic, EXCLUSIVE)
    requests = {
        "low": 1,
        "high": 5,
        "none": None,
        "also high": 5,
        "negative": -1,
        "unreadable": "x",
    }
    waiters = {}
    for name, priority in requests.items():
        properties = {} if priority is None else {"onewriter.queue-priority": str(priority)}
        waiters[name] = client.waiter(topic, name=name, properties=properties)
    by_field = client.waiter(topic, name="field", priority_field=(14, 3))
    order = ["high", "also high", "field", "low", "none", "unreadable", "negative"]
    for name in order:
        owner.close()
        owner = (by_field if name == "field" else waiters[name]).ready()


def test_the_field_wins_over_the_property(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())
    owner = client.producer(topic, EXCLUSIVE)
    middle = client.waiter(topic, properties={"onewriter.queue-priority": "5"})
    both = client.waiter(
        topic, properties={"onewriter.queue-priority": "9"}, priority_field=(14, -2)
    )
    owner.close()
    middle.ready().close()
    both.ready()


@pytest.mark.parametrize("mode", [SHARED, EXCLUSIVE, FENCING])
def test_a_priority_outside_wait_for_exclusive_is_ignored(
    broker: LocalBrokers, raw: RawClients, topic: str, mode: Any
) -> None:
    properties = {"onewriter.queue-priority": "7"}
    raw(broker.address()).producer(topic, mode, properties=properties).publish(b"fine")


def test_a_holder_is_not_deposed_by_a_higher_priority(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())
    holder = client.producer(topic, WAIT)
    client.waiter(topic, properties={"onewriter.queue-priority": "1000"})
    holder.publish(b"still mine")


def test_the_priority_of_a_producer_never_changes(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())
    owner = client.producer(topic, WAIT, properties={"onewriter.queue-priority": "1"})
    waiter = client.waiter(topic, properties={"onewriter.queue-priority": "1"})
    for producer in (owner, waiter):
        with pytest.raises(RefusedByBroker, match="priority of a producer never changes") as found:
            client.producer(
                topic,
                WAIT,
                properties={"onewriter.queue-priority": "2"},
                producer_id=producer.producer_id,
            )
        assert found.value.code is ServerError.NOT_ALLOWED_ERROR
    owner.publish(b"and it goes on as it was")
    owner.close()
    waiter.ready()


def test_the_same_producer_id_again_is_answered_again(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())
    owner = client.producer(topic, EXCLUSIVE)
    again = client.producer(topic, EXCLUSIVE, producer_id=owner.producer_id)
    assert (again.name, again.epoch) == (owner.name, owner.epoch)
    waiter = client.waiter(topic)
    with pytest.raises(RefusedByBroker, match="already present") as found:
        client.producer(topic, WAIT, producer_id=waiter.producer_id)
    assert found.value.code is ServerError.SERVICE_NOT_READY


# ---------------------------------------------------------------- claims

CLAIMS = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: guarded}
spec:
  access: {modes: [Exclusive, WaitForExclusive, ExclusiveWithFencing], requireClaim: true}
---
apiVersion: onewriter.dev/v1alpha1
kind: ProducerClaim
metadata: {name: primary}
spec:
  topicRef: {name: guarded}
  subject: {tokenSubject: primary}
  mode: WaitForExclusive
  priority: 100
  defaultPriority: 50
  allow: [lead, takeover]
---
apiVersion: onewriter.dev/v1alpha1
kind: ProducerClaim
metadata: {name: rival}
spec:
  topicRef: {name: guarded}
  subject: {tokenSubject: rival}
  mode: WaitForExclusive
  allow: [lead, takeover]
---
apiVersion: onewriter.dev/v1alpha1
kind: ProducerClaim
metadata: {name: standby}
spec:
  topicRef: {name: guarded}
  subject: {tokenSubject: standby}
  mode: WaitForExclusive
  priority: 10
  allow: [lead]
"""
SECRET = "a secret of at least thirty-two bytes, for HS256"  # noqa: S105 - a test's


def token(subject: str) -> str:
    return jwt.encode({"sub": subject}, SECRET, algorithm="HS256")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    secret: Path = tmp_path_factory.mktemp("keys") / "secret"
    secret.write_text(SECRET)
    with forked_brokers(manifests=CLAIMS, settings={"token_secret_file": secret}) as brokers:
        yield brokers


def test_claims_decide_who_may_write_and_with_which_priority(
    guarded: LocalBrokers, raw: RawClients
) -> None:
    def client(subject: str) -> RawClient:
        return raw(guarded.address(), token=token(subject))

    for unauthorized in (client("stranger"), raw(guarded.address())):
        with pytest.raises(RefusedByBroker) as found:
            unauthorized.producer("guarded", WAIT)
        assert found.value.code is ServerError.AUTHORIZATION_ERROR
    owner = client("primary").producer("guarded", WAIT)
    asks_too_much = client("standby").waiter(
        "guarded", properties={"onewriter.queue-priority": "1000"}
    )
    asks_nothing = client("primary").waiter("guarded")
    owner.close()
    asks_nothing.ready()  # its claim's default, 50, against the other claim's maximum, 10
    with pytest.raises(RefusedByBroker) as found:
        client("standby").producer("guarded", FENCING)
    assert found.value.code is ServerError.AUTHORIZATION_ERROR
    taker = client("primary").producer("guarded", FENCING)
    with pytest.raises(RefusedByBroker):
        asks_too_much.ready()
    taker.publish(b"taken over")


def test_a_wrong_token_is_refused_at_the_door(guarded: LocalBrokers, raw: RawClients) -> None:
    forged = jwt.encode({"sub": "primary"}, "x" * 40, algorithm="HS256")
    with pytest.raises(RefusedByBroker) as found:
        raw(guarded.address(), token=forged)
    assert found.value.code is ServerError.AUTHENTICATION_ERROR


def test_a_stock_client_with_a_token_writes(guarded: LocalBrokers, stock: StockClients) -> None:
    client = stock(guarded.service_url, authentication=pulsar.AuthenticationToken(token("primary")))
    producer = client.create_producer("guarded", access_mode=Mode.ExclusiveWithFencing)
    producer.send(b"from a stock client")


def test_a_deposed_identity_may_take_over_only_by_naming_the_epoch(
    guarded: LocalBrokers, raw: RawClients
) -> None:
    """A zombie that resumes never evicts its successor."""
    zombie = raw(guarded.address(), token=token("primary"))
    zombie.producer("guarded", FENCING).publish(b"mine")
    successor = raw(guarded.address(), token=token("rival")).producer("guarded", FENCING)
    for properties in ({}, {"onewriter.if-epoch": str((successor.epoch or 0) - 1)}):
        with pytest.raises(RefusedByBroker) as found:
            zombie.producer("guarded", FENCING, properties=properties)
        assert found.value.code is FENCED
        successor.publish(b"undisturbed")
    knows = {"onewriter.if-epoch": str(successor.epoch)}
    zombie.producer("guarded", FENCING, properties=knows).publish(b"on purpose")
    successor.closed_by_broker()


def test_fields_unknown_to_the_protocol_are_no_error(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    raw(broker.address()).producer(topic, EXCLUSIVE, priority_field=(999, 1)).publish(b"fine")
    assert pb.CommandProducer.DESCRIPTOR.fields_by_number.get(999) is None
