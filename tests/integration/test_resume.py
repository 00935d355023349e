"""Resuming an epoch: PIP-68's reconnect scenarios, and a clean second start."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pulsar import ProducerAccessMode as Mode
from tests.integration.conftest import RawClients, StockClients
from tests.integration.cutting_proxy import PROXY_HOST, CuttingProxy
from tests.integration.forked_brokers import forked_brokers
from tests.integration.raw import (
    EXCLUSIVE,
    FENCING,
    SHARED,
    WAIT,
    RefusedByBroker,
    contents_of,
    eventually,
)

from onewriter_core.errors import ServerError
from onewriter_testing.processes import LocalBrokers

MODES = {"Exclusive": EXCLUSIVE, "WaitForExclusive": WAIT, "ExclusiveWithFencing": FENCING}


@pytest.mark.parametrize("mode", MODES)
def test_a_holder_that_reconnects_before_anybody_else_keeps_its_epoch(
    broker: LocalBrokers, raw: RawClients, topic: str, mode: str
) -> None:
    holder = raw(broker.address()).producer(topic, MODES[mode], name="holder")
    holder.publish(b"0")
    holder.client.close()
    back = raw(broker.address()).producer(
        topic, MODES[mode], name="holder", epoch=holder.epoch, reconnects=1
    )
    assert back.epoch == holder.epoch
    back.publish(b"1", 1)
    assert contents_of(broker.address(), topic) == [b"0", b"1"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("waiters", [1, 20])
def test_a_holder_that_reconnects_after_a_waiter_was_promoted_is_fenced(
    broker: LocalBrokers, raw: RawClients, topic: str, mode: str, waiters: int
) -> None:
    """Without a change of the broker no time is reserved for it, so no waiter waits in vain."""
    holder = raw(broker.address()).producer(topic, MODES[mode], name="holder")
    queue = raw(broker.address())
    waiting = [
        queue.waiter(topic, properties={"onewriter.queue-priority": str(n % 5)})
        for n in range(waiters)
    ]
    holder.client.close()
    first = waiting[min(4, waiters - 1)].ready()
    with pytest.raises(RefusedByBroker) as found:
        raw(broker.address()).producer(
            topic, MODES[mode], name="holder", epoch=holder.epoch, reconnects=1
        )
    assert found.value.code is ServerError.PRODUCER_FENCED
    first.publish(b"undisturbed")
    assert not any(waiter.is_ready for waiter in waiting)


@pytest.mark.parametrize("mode", MODES)
def test_a_holder_whose_old_connection_still_looks_alive_replaces_it(
    broker: LocalBrokers, raw: RawClients, topic: str, mode: str
) -> None:
    """Pulsar fences it for ever, or queues it after its own lost connection."""
    former = raw(broker.address()).producer(topic, MODES[mode], name="holder")
    former.client.freeze()
    back = raw(broker.address()).producer(
        topic, MODES[mode], name="holder", epoch=former.epoch, reconnects=1
    )
    assert back.epoch == former.epoch
    former.client.thaw()
    former.closed_by_broker()
    back.publish(b"only once")


def test_an_epoch_that_was_never_granted_is_fenced(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    holder = raw(broker.address()).producer(topic, EXCLUSIVE, name="holder")
    for epoch in ((holder.epoch or 0) + 1, 0):
        with pytest.raises(RefusedByBroker) as found:
            raw(broker.address()).producer(
                topic, EXCLUSIVE, name="holder", epoch=epoch, reconnects=9
            )
        assert found.value.code is ServerError.PRODUCER_FENCED
    holder.publish(b"undisturbed")


def test_a_shared_producer_in_between_ends_the_right_to_resume(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    holder = raw(broker.address()).producer(topic, EXCLUSIVE, name="holder")
    holder.client.close()
    eventually(lambda: _is_let_in(broker, raw, topic))
    with pytest.raises(RefusedByBroker) as found:
        raw(broker.address()).producer(
            topic, EXCLUSIVE, name="holder", epoch=holder.epoch, reconnects=1
        )
    assert found.value.code is ServerError.PRODUCER_FENCED


def _is_let_in(broker: LocalBrokers, raw: RawClients, topic: str) -> bool:
    try:
        raw(broker.address()).producer(topic, SHARED).publish(b"in between")
    except RefusedByBroker as refused:
        if refused.code is ServerError.PRODUCER_BUSY:
            return False
        raise
    return True


def test_a_stock_client_resumes_through_a_cut_and_through_a_second_start(
    tmp_path: Path, stock: StockClients, topic: str
) -> None:
    """The same messages and the same epoch. Only the next producer has another one."""
    brokers = LocalBrokers(tmp_path, settings={"advertised_host": PROXY_HOST})
    brokers.start()
    try:
        with CuttingProxy(brokers.address(), cuts=0, bytes_between=2) as proxy:
            producer = stock(proxy.url).create_producer(
                topic, access_mode=Mode.Exclusive, send_timeout_millis=0
            )
            producer.send(b"0")
            granted = brokers.events("topic.transition")[-1]["epoch"]
            proxy.cut()
            producer.send(b"1")
            resumed = brokers.wait_for_event("topic.transition", lambda e: e["kind"] == "resume")
            assert resumed["epoch"] == granted

            assert brokers.stop() == 0
            sending = threading.Thread(target=producer.send, args=(b"2",))
            sending.start()
            brokers.start()
            sending.join(120)
            assert not sending.is_alive()
            resumed = brokers.wait_for_event(
                "topic.transition", lambda e: e["kind"] == "resume", count=2
            )
            assert resumed["epoch"] == granted
            assert contents_of(brokers.address(), topic) == [b"0", b"1", b"2"]
            producer.close()
            successor = stock(proxy.url).create_producer(topic, access_mode=Mode.WaitForExclusive)
            successor.send(b"3")
            assert brokers.events("topic.transition")[-1]["epoch"] != granted
            successor.close()
    finally:
        brokers.stop()


def test_after_a_second_start_a_waiter_is_promoted_if_the_holder_does_not_return(
    raw: RawClients, topic: str
) -> None:
    with forked_brokers() as brokers:
        holder = raw(brokers.address()).producer(topic, EXCLUSIVE, name="holder")
        holder.publish(b"0")
        brokers.kill()
        brokers.restart(0)
        waiter = raw(brokers.address()).ask_producer(topic, WAIT).ready_at_last()
        assert (waiter.epoch or 0) > (holder.epoch or 0)
        with pytest.raises(RefusedByBroker):
            raw(brokers.address()).producer(
                topic, EXCLUSIVE, name="holder", epoch=holder.epoch, reconnects=1
            )
