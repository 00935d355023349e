"""A subject or a namespace uses at most its quotas; others are not affected."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any

import pytest
from tests.attacks.guarded import ADMINISTRATOR, GuardedBrokers, address_of, http_as, wire_as
from tests.integration.conftest import RawClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import OWN, PERSISTENT, Http
from tests.integration.raw import RawClient, eventually
from tests.integration.raw_connection import RefusedByBroker
from tests.servers import running_server

from onewriter_core.errors import ServerError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.in_process import InProcessBroker, in_process_broker

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


def other_client_publishes(client: RawClient) -> None:
    client.producer("calm", EXCLUSIVE).publish(b"still served")


def test_a_subject_cannot_take_all_connections(guarded: GuardedBrokers, raw: RawClients) -> None:
    broker = guarded(quota_connections_per_subject=3)
    for _ in range(3):
        wire_as(broker, raw, "greedy")
    with pytest.raises(RefusedByBroker, match="quota_connections_per_subject"):
        wire_as(broker, raw, "greedy")
    other_client_publishes(wire_as(broker, raw, "bystander"))


def test_clients_without_a_token_are_counted_by_host(raw: RawClients) -> None:
    with in_process_broker(settings={"quota_connections_per_subject": 2}) as broker:
        for _ in range(2):
            raw(address_of(broker))
        with pytest.raises(RefusedByBroker, match=r"anonymous client at 127\.0\.0\.1 has 2"):
            raw(address_of(broker))


def test_a_subject_cannot_create_thousands_of_topics(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    setting = "quota_topics_per_subject"
    broker = guarded(quota_topics_per_subject=20)
    greedy = wire_as(broker, raw, "greedy")
    assert granted(greedy, [f"many-{number}" for number in range(30)], setting) == 20
    again = wire_as(broker, raw, "greedy")
    assert granted(again, [f"more-{number}" for number in range(5)], setting) == 0
    assert granted(again, ["many-0"], setting) == 1, "what is there may be used"
    other_client_publishes(wire_as(broker, raw, "bystander"))


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


def test_a_subject_cannot_take_all_producers(guarded: GuardedBrokers, raw: RawClients) -> None:
    setting = "quota_producers_per_subject"
    broker = guarded(quota_producers_per_subject=4)
    first, second = (wire_as(broker, raw, "greedy") for _ in range(2))
    assert granted(first, ["t"] * 3, setting) == 3
    assert granted(second, ["t"] * 3, setting) == 1
    other_client_publishes(wire_as(broker, raw, "bystander"))


def test_producers_on_one_namespace_do_not_use_up_the_quota_of_others(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    setting = "quota_producers_per_namespace"
    broker = guarded(quota_producers_per_namespace=3, allow_undeclared="public/default,public/calm")
    assert granted(wire_as(broker, raw, "greedy"), ["t"] * 5, setting) == 3
    other = wire_as(broker, raw, "bystander")
    assert granted(other, ["persistent://public/calm/t"], setting) == 1


def test_a_subject_cannot_take_all_consumers(guarded: GuardedBrokers, raw: RawClients) -> None:
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


NAMESPACES = "public/default,public/calm"
FULL = ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR


def fill(client: RawClient, other: RawClient, topic: str, setting: str) -> None:
    """Publish until a new producer of another connection is refused because of the setting."""
    producer = client.producer(topic)
    for _ in range(2_000):
        producer.send(bytes(100_000))
        time.sleep(0.02)  # a few megabytes a second: the broker sums up once a second
        try:
            other.producer(f"{topic}-new").close()
        except RefusedByBroker as refusal:
            assert refusal.code is FULL  # noqa: PT017 - it comes in the end
            assert setting in str(refusal)  # noqa: PT017
            return
    raise AssertionError("nothing was ever refused")


def test_a_namespace_at_its_limit_leaves_the_holder_of_another_alone(raw: RawClients) -> None:
    setting = "quota_stored_bytes_per_namespace"
    limits = {setting: 1_000_000, "allow_undeclared": NAMESPACES, "undeclared_store_share": 0}
    with in_process_broker(settings=limits) as broker:
        address = address_of(broker)
        holder = raw(address).producer("persistent://public/calm/t", EXCLUSIVE)
        greedy = raw(address)
        fill(greedy, raw(address), "many", setting)
        for _ in range(50):
            holder.publish(bytes(1_000))
        present = greedy.producer("persistent://public/calm/u")
        present.publish(b"the same connection writes elsewhere")


def test_a_namespace_has_space_again_when_a_topic_is_deleted(raw: RawClients) -> None:
    setting = "quota_stored_bytes_per_namespace"
    with in_process_broker(settings={setting: 500_000, "undeclared_store_share": 0}) as broker:
        address = address_of(broker)
        fill(raw(address), raw(address), "many", setting)
        waiting = raw(address)
        assert Http(broker.http_url)("DELETE", f"{PERSISTENT}/many?force=true")[0] == 204

        def is_let_in() -> bool:
            try:
                waiting.producer("other").publish(b"room")
            except RefusedByBroker:
                return False
            return True

        eventually(is_let_in)


DECLARED = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: declared, namespace: default}
spec: {topic: persistent://public/default/declared, access: {requireClaim: false}}
"""


def test_undeclared_topics_leave_the_holder_of_a_declared_one_alone(raw: RawClients) -> None:
    """An anonymous connection must not fill the store, so that other clients can still write."""
    with (
        running_server(maxmemory="32000000") as server,
        forked_brokers(redis_url=server.url, manifests=DECLARED) as brokers,
    ):
        holder = raw(brokers.address()).producer("declared", EXCLUSIVE)
        greedy, other = (raw(brokers.address()) for _ in range(2))
        fill(greedy, other, "many", "undeclared_store_share")
        for _ in range(20):
            holder.publish(bytes(10_000))
        assert not brokers.events("store.nearly_full")


def quota_of(broker: InProcessBroker, topic: str) -> Any:
    return Http(broker.http_url)("GET", f"{OWN}/{topic}")[1]["quotaExceeded"]


def test_the_topics_status_names_the_quota_that_refuses_its_producers(raw: RawClients) -> None:
    settings = {"quota_producers_per_namespace": 2}
    with in_process_broker(settings=settings) as broker:
        client = raw(address_of(broker))
        first = client.producer("orders", SHARED)
        assert quota_of(broker, "orders") is None
        client.producer("orders", SHARED)
        with pytest.raises(RefusedByBroker, match="quota_producers_per_namespace"):
            client.producer("orders", SHARED)
        found = quota_of(broker, "orders")
        assert "namespace public/default has 2 producers" in found["reason"]
        assert "quota_producers_per_namespace allows 2" in found["reason"]
        assert not found["holds"]
        first.close()
        client.producer("orders", SHARED)
        assert quota_of(broker, "orders") == found, "it is shown for a minute more"


def test_the_watch_reports_refusals_at_declared_topics_only(raw: RawClients) -> None:
    settings = {"quota_producers_per_namespace": 1}
    with in_process_broker(settings=settings, manifests=DECLARED) as broker:
        client = raw(address_of(broker))
        client.producer("declared", EXCLUSIVE)
        for topic in ("declared", "invented"):
            with pytest.raises(RefusedByBroker, match="quota_producers_per_namespace"):
                client.producer(topic, EXCLUSIVE)
        name = "persistent://public/default/declared"
        url = f"{broker.http_url}/onewriter/v1/watch"
        with urllib.request.urlopen(url) as stream:  # noqa: S310 - the broker of this test
            lines = (json.loads(line) for line in stream)
            found = next(line for line in lines if line["type"] == "QUOTAS")
        assert list(found["topics"]) == [name]
        assert found["namespaces"] == {}


def test_the_status_of_a_topic_whose_namespace_is_full_says_that_messages_wait(
    raw: RawClients,
) -> None:
    setting = "quota_stored_bytes_per_namespace"
    with in_process_broker(settings={setting: 500_000, "undeclared_store_share": 0}) as broker:
        fill(raw(address_of(broker)), raw(address_of(broker)), "many", setting)
        found = quota_of(broker, "many")
        assert setting in found["reason"]
        assert found["holds"]
