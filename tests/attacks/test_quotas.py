"""One subject, or one namespace, takes as much as its quotas allow; others do not notice."""

from __future__ import annotations

import pytest
from tests.attacks.guarded import ADMINISTRATOR, GuardedBrokers, address_of, http_as, wire_as
from tests.integration.conftest import RawClients
from tests.integration.http_calls import PERSISTENT
from tests.integration.raw import RawClient
from tests.integration.raw_connection import RefusedByBroker

from onewriter_broker.in_process import in_process_broker
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

SHARED, EXCLUSIVE = pb.SHARED, pb.EXCLUSIVE


def granted(client: RawClient, topics: list[str], setting: str) -> int:
    """How many of these topics give the client a producer; the others name the setting."""
    count = 0
    for producer in [client.ask_producer(topic, SHARED) for topic in topics]:
        try:
            producer.ready()
        except RefusedByBroker as refusal:
            assert setting in str(refusal)  # noqa: PT017 - some are refused, and some are not
        else:
            count += 1
    return count


def bystander_publishes(client: RawClient) -> None:
    client.producer("calm", EXCLUSIVE).publish(b"still served")


def test_one_subject_cannot_take_all_connections(guarded: GuardedBrokers, raw: RawClients) -> None:
    broker = guarded(quota_connections_per_subject=3)
    for _ in range(3):
        wire_as(broker, raw, "greedy")
    with pytest.raises(RefusedByBroker, match="quota_connections_per_subject"):
        wire_as(broker, raw, "greedy")
    bystander_publishes(wire_as(broker, raw, "bystander"))


def test_clients_without_a_token_count_by_the_host_that_they_come_from(raw: RawClients) -> None:
    with in_process_broker(settings={"quota_connections_per_subject": 2}) as broker:
        for _ in range(2):
            raw(address_of(broker))
        with pytest.raises(RefusedByBroker, match=r"anonymous client at 127\.0\.0\.1 has 2"):
            raw(address_of(broker))


def test_one_subject_cannot_make_thousands_of_topics(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    setting = "quota_topics_per_subject"
    broker = guarded(quota_topics_per_subject=20)
    greedy = wire_as(broker, raw, "greedy")
    assert granted(greedy, [f"many-{number}" for number in range(30)], setting) == 20
    again = wire_as(broker, raw, "greedy")
    assert granted(again, [f"more-{number}" for number in range(5)], setting) == 0
    assert granted(again, ["many-0"], setting) == 1, "what is there may be used"
    bystander_publishes(wire_as(broker, raw, "bystander"))


def test_partitions_by_name_count_like_topics(guarded: GuardedBrokers, raw: RawClients) -> None:
    broker = guarded(quota_topics_per_subject=5)
    names = [f"parted-partition-{number}" for number in range(12)]
    assert granted(wire_as(broker, raw, "greedy"), names, "quota_topics_per_subject") == 5


def test_a_namespace_that_is_full_takes_no_topic_by_any_way_in(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    setting = "quota_topics_per_namespace"
    broker = guarded(quota_topics_per_namespace=4, allow_undeclared="public/default,public/calm")
    greedy = wire_as(broker, raw, "greedy")
    assert granted(greedy, [f"t{number}" for number in range(6)], setting) == 4
    with pytest.raises(RefusedByBroker, match=setting):
        greedy.subscribe("by-a-consumer")
    http = http_as(broker, ADMINISTRATOR)
    for path in (f"{PERSISTENT}/by-http", f"{PERSISTENT}/by-http/subscription/s"):
        status, answer = http("PUT", path)
        assert status == 429
        assert setting in answer["reason"]
    assert http("PUT", f"{PERSISTENT}/parted/partitions", 3)[0] == 429
    greedy.producer("persistent://public/calm/t", EXCLUSIVE).publish(b"room here")
    assert http("DELETE", f"{PERSISTENT}/t0?force=true")[0] == 204
    assert granted(greedy, ["t9"], setting) == 1, "a deletion makes room"


def test_one_subject_cannot_take_all_producers(guarded: GuardedBrokers, raw: RawClients) -> None:
    setting = "quota_producers_per_subject"
    broker = guarded(quota_producers_per_subject=4)
    first, second = (wire_as(broker, raw, "greedy") for _ in range(2))
    assert granted(first, ["t"] * 3, setting) == 3
    assert granted(second, ["t"] * 3, setting) == 1
    bystander_publishes(wire_as(broker, raw, "bystander"))


def test_producers_on_one_namespace_leave_room_on_others(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    setting = "quota_producers_per_namespace"
    broker = guarded(quota_producers_per_namespace=3, allow_undeclared="public/default,public/calm")
    assert granted(wire_as(broker, raw, "greedy"), ["t"] * 5, setting) == 3
    other = wire_as(broker, raw, "bystander")
    assert granted(other, ["persistent://public/calm/t"], setting) == 1


def test_one_subject_cannot_take_all_consumers(guarded: GuardedBrokers, raw: RawClients) -> None:
    broker = guarded(quota_consumers_per_subject=2)
    greedy = wire_as(broker, raw, "greedy")
    for number in range(2):
        greedy.subscribe("t", f"s{number}")
    with pytest.raises(RefusedByBroker, match="quota_consumers_per_subject"):
        greedy.subscribe("t", "s2")
    wire_as(broker, raw, "bystander").subscribe("t", "calm")


def test_subscriptions_of_a_namespace_are_bounded_by_any_way_in(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    setting = "quota_subscriptions_per_namespace"
    broker = guarded(
        quota_subscriptions_per_namespace=3, allow_undeclared="public/default,public/calm"
    )
    greedy = wire_as(broker, raw, "greedy")
    for number in range(3):
        greedy.subscribe("t", f"s{number}")
    with pytest.raises(RefusedByBroker, match=setting):
        greedy.subscribe("t", "s3")
    http = http_as(broker, ADMINISTRATOR)
    assert http("PUT", f"{PERSISTENT}/t/subscription/by-http")[0] == 429
    assert http("DELETE", f"{PERSISTENT}/t/subscription/s0?force=true")[0] == 204
    assert http("PUT", f"{PERSISTENT}/t/subscription/by-http")[0] == 204
    greedy.subscribe("persistent://public/calm/t", "s")


def test_refusals_are_counted(guarded: GuardedBrokers, raw: RawClients) -> None:
    setting = "quota_producers_per_subject"
    broker = guarded(quota_producers_per_subject=1)
    assert granted(wire_as(broker, raw, "greedy"), ["t"] * 3, setting) == 1
    _, metrics = http_as(broker, ADMINISTRATOR)("GET", "/metrics")
    assert 'onewriter_quota_refusals_total{quota="producers_per_subject"} 2.0' in metrics
    assert 'onewriter_quota_used_most{quota="producers_per_subject"} 1.0' in metrics
