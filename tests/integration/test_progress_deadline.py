"""An application hangs while its client answers pings: only a progress deadline detects it."""

from __future__ import annotations

import time

import pytest
from tests.integration.conftest import RawClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.raw import EXCLUSIVE, WAIT, RawProducer, eventually

from onewriter_core.wire.values import SendReceipt

DEADLINES_SECONDS = (1, 4, 16)
"""A machine too slow to store a message within the first deadline is tested with the next one."""

MANIFESTS = "---".join(
    f"""
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {{name: watched-{seconds}}}
spec: {{access: {{requireClaim: false}}, detection: {{progressDeadlineSeconds: {seconds}}}}}
"""
    for seconds in DEADLINES_SECONDS
)


def keeps_its_turn(
    holder: RawProducer, waiter: RawProducer, deadline: float, asked_at: float
) -> bool:
    """Publish for longer than the deadline; False: the test itself was too slow to keep it.

    ``asked_at``: when the holder asked for the topic. Raises AssertionError if the topic is lost although no two
    messages were stored as far apart as the deadline.
    """
    ends, before = asked_at + 2.5 * deadline, asked_at
    while before < ends:
        sent_at = time.monotonic()
        number = holder.send(b"progress")
        eventually(lambda: waiter.is_ready or is_stored(holder, number))  # noqa: B023 - called here
        is_lost = waiter.is_ready
        if time.monotonic() - before >= deadline:
            return False
        assert not is_lost, "who publishes keeps its turn"
        before = sent_at
        time.sleep(0.1)
    return True


def is_stored(holder: RawProducer, number: int) -> bool:
    return holder.client.has_received(SendReceipt, lambda receipt: receipt.sequence_id == number)


def test_a_holder_that_stops_publishing_hands_over_if_configured(
    raw: RawClients,
) -> None:
    with forked_brokers(manifests=MANIFESTS) as brokers:
        connection = raw(brokers.address())
        elsewhere = connection.producer("unwatched", EXCLUSIVE)
        for deadline in DEADLINES_SECONDS:
            topic = f"watched-{deadline}"
            asked_at = time.monotonic()
            holder = connection.producer(topic, EXCLUSIVE)
            waiter = raw(brokers.address()).ask_producer(topic, WAIT)
            if keeps_its_turn(holder, waiter, deadline, asked_at):
                break
        else:
            pytest.fail("this machine is too slow for any deadline")
        waiter.ready_at_last().publish(b"mine now")
        holder.closed_by_broker()
        elsewhere.publish(b"no deadline here")
        moved = brokers.wait_for_event(
            "topic.transition",
            lambda event: str(event["topic"]).endswith(topic) and event["kind"] == "grant",
            count=2,
        )
        assert moved["cause"] == "ProgressDeadline"
