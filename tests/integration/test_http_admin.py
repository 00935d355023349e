"""Pulsar's admin API as its clients and their test suites use it, with clients connected.

The statuses and texts are those of Apache Pulsar 4.0.7 to the same requests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pulsar
import pytest
from pulsar import ProducerAccessMode as Mode
from tests.integration.conftest import RawClients, StockClients
from tests.integration.following import placed
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import ADMIN, OWN, PERSISTENT, Http
from tests.integration.raw import eventually

from onewriter_testing.processes import LocalBrokers

INFO = {"adminRoles": [], "allowedClusters": ["standalone"]}


@pytest.fixture
def http(broker: LocalBrokers) -> Http:
    return Http(broker.http_url)


@pytest.fixture
def namespace(http: Http, topic: str) -> Iterator[str]:
    """A tenant and a namespace for one test."""
    tenant = f"tenant-{topic}"
    assert http("PUT", f"{ADMIN}/tenants/{tenant}", INFO)[0] == 204
    assert http("PUT", f"{ADMIN}/namespaces/{tenant}/ns")[0] == 204
    yield f"{tenant}/ns"
    assert http("DELETE", f"{ADMIN}/namespaces/{tenant}/ns?force=true")[0] == 204
    assert http("DELETE", f"{ADMIN}/tenants/{tenant}")[0] == 204


def test_clusters_are_made_changed_and_removed(http: Http) -> None:
    path = f"{ADMIN}/clusters/west"
    assert http("GET", f"{ADMIN}/clusters") == (200, ["standalone"])
    assert http("GET", path) == (404, {"reason": "Cluster does not exist"})
    assert http("PUT", path, {"serviceUrl": "http://west"})[0] == 200
    assert http("PUT", path, {}) == (409, {"reason": "Cluster already exists"})
    assert http("POST", path, {"serviceUrl": "http://far-west"})[0] == 200
    assert http("GET", path) == (200, {"serviceUrl": "http://far-west"})
    assert http("DELETE", path)[0] == 204
    assert http("DELETE", path)[0] == 404


def test_tenants_are_checked_as_pulsar_does(http: Http, namespace: str) -> None:
    tenant = namespace.partition("/")[0]
    assert http("GET", f"{ADMIN}/tenants/{tenant}") == (200, INFO)
    assert http("PUT", f"{ADMIN}/tenants/{tenant}", INFO) == (
        409,
        {"reason": "Tenant already exist"},
    )
    unknown = INFO | {"allowedClusters": ["nowhere"]}
    assert http("PUT", f"{ADMIN}/tenants/other", unknown)[0] == 412
    assert http("PUT", f"{ADMIN}/tenants/other")[0] == 412
    assert http("DELETE", f"{ADMIN}/tenants/{tenant}") == (
        409,
        {"reason": "The tenant still has active namespaces"},
    )
    assert http("GET", f"{ADMIN}/namespaces/{tenant}") == (200, [namespace])


def test_a_client_may_use_a_namespace_as_soon_as_it_is_created(
    broker: LocalBrokers, http: Http, namespace: str, stock: StockClients
) -> None:
    client = stock(broker.service_url)
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer("persistent://nobody/made-this/orders")
    client.create_producer(f"persistent://{namespace}/orders").send(b"first")
    assert http("GET", f"{ADMIN}/namespaces/{namespace}/topics") == (
        200,
        [f"persistent://{namespace}/orders"],
    )
    assert http("DELETE", f"{ADMIN}/namespaces/{namespace}") == (
        409,
        {"reason": "Cannot delete non empty namespace"},
    )


@pytest.mark.parametrize(
    ("policy", "method", "value"),
    [
        ("deduplication", "POST", True),
        ("schemaCompatibilityStrategy", "PUT", "FORWARD"),
        ("retention", "POST", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100}),
        ("messageTTL", "POST", 3600),
        ("persistence", "POST", {"bookkeeperEnsemble": 1}),
        ("permissions/role", "POST", ["consume", "produce"]),
        ("backlogQuota", "POST", {"limitSize": 10_000, "policy": "producer_exception"}),
    ],
)
def test_policies_are_returned_unchanged(
    http: Http, namespace: str, policy: str, method: str, value: object
) -> None:
    path = f"{ADMIN}/namespaces/{namespace}"
    assert http(method, f"{path}/{policy}", value)[0] == 204
    has_effect = policy in {"deduplication", "schemaCompatibilityStrategy"}
    assert ("Warning" in http.headers) == (not has_effect), "no effect, and it says so"
    read, expected = policy, value
    if policy == "permissions/role":
        read, expected = "permissions", {"role": value}
    if policy == "backlogQuota":
        read, expected = "backlogQuotaMap", {"destination_storage": value}
    assert http("GET", f"{path}/{read}") == (200, expected)
    assert http("DELETE", f"{path}/{policy}")[0] == 204
    assert http("GET", f"{path}/{read}")[1] != expected


@pytest.mark.parametrize(
    ("policy", "value", "inherited"),
    [
        ("deduplicationEnabled", True, ("deduplication", True)),
        ("retention", {"retentionTimeInMinutes": 10}, ("retention", {"retentionSizeInMB": 1})),
        ("maxProducers", 3, ("maxProducersPerTopic", 7)),
        ("maxMessageSize", 1024, None),
    ],
)
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_topics_own_policies_come_before_those_of_its_namespace(
    http: Http,
    namespace: str,
    policy: str,
    value: object,
    inherited: tuple[str, object] | None,
    partitions: int,
) -> None:
    topic = f"{ADMIN}/persistent/{namespace}/t"
    assert http("GET", f"{topic}/{policy}")[0] == 404
    parts = "/partitions" if partitions else ""
    assert http("PUT", f"{topic}{parts}", partitions or None)[0] == 204
    assert http("GET", f"{topic}/{policy}") == (200, "")
    if inherited is not None:
        name, of_namespace = inherited
        assert http("POST", f"{ADMIN}/namespaces/{namespace}/{name}", of_namespace)[0] == 204
        assert http("GET", f"{topic}/{policy}") == (200, "")
        assert http("GET", f"{topic}/{policy}?applied=true") == (200, of_namespace)
    assert http("POST", f"{topic}/{policy}", value)[0] == 204
    assert ("Warning" in http.headers) == (policy != "deduplicationEnabled")
    assert http("GET", f"{topic}/{policy}?applied=true") == (200, value)
    assert http("DELETE", f"{topic}/{policy}")[0] == 204
    assert http("GET", f"{topic}/{policy}") == (200, "")


def test_a_deleted_topic_takes_its_policies_along(http: Http, namespace: str) -> None:
    topic = f"{ADMIN}/persistent/{namespace}/t"
    assert http("PUT", topic, {"owner": "audit"})[0] == 204
    assert http("POST", f"{topic}/messageTTL?messageTTL=600")[0] == 204
    assert http("GET", f"{topic}/messageTTL") == (200, 600)
    assert http("PUT", f"{topic}/properties", {"tier": "gold"})[0] == 204
    assert http("GET", f"{topic}/properties") == (200, {"owner": "audit", "tier": "gold"})
    assert http("DELETE", f"{topic}/properties?key=owner")[0] == 204
    assert http("GET", f"{topic}/properties") == (200, {"tier": "gold"})
    assert http("DELETE", topic)[0] == 204
    assert http("PUT", topic)[0] == 204
    assert http("GET", f"{topic}/properties") == (200, {})
    assert http("GET", f"{topic}/messageTTL") == (200, "")


def test_partitions_are_made_added_and_never_taken_away(http: Http, topic: str) -> None:
    path = f"{PERSISTENT}/{topic}/partitions"
    assert http("GET", path)[0] == 404
    assert http("GET", path + "?checkAllowAutoCreation=true")[1]["partitions"] == 0
    assert http("PUT", path, b"3")[0] == 204
    assert http("PUT", path, 3) == (409, {"reason": "This topic already exists"})
    assert http("POST", path, {"partitions": 4, "properties": {}})[0] == 204
    assert http("POST", path, 2)[0] == 422
    assert http("GET", path) == (200, {"partitions": 4, "deleted": False})
    assert http("PUT", f"{PERSISTENT}/{topic}-x/partitions", 0)[0] == 406
    assert http("PUT", f"{PERSISTENT}/{topic}-x/partitions", b"many")[0] == 400
    assert f"persistent://public/default/{topic}" in http("GET", f"{PERSISTENT}/partitioned")[1]
    assert f"persistent://public/default/{topic}-partition-3" in http("GET", PERSISTENT)[1]
    assert http("DELETE", f"{PERSISTENT}/{topic}")[0] == 409
    assert http("DELETE", path)[0] == 204
    assert http("DELETE", path)[0] == 404


def test_a_topic_in_use_is_deleted_only_by_force(
    broker: LocalBrokers, http: Http, topic: str, stock: StockClients
) -> None:
    path = f"{PERSISTENT}/{topic}"
    client = stock(broker.service_url)
    producer = client.create_producer(topic, access_mode=Mode.Exclusive)
    client.subscribe(topic, "reader")
    producer.send(b"one")
    assert http("DELETE", path) == (412, {"reason": "Topic has 2 connected producers/consumers"})
    assert http("DELETE", f"{path}/subscription/reader") == (
        412,
        {"reason": "Subscription has active connected consumers"},
    )
    assert http("DELETE", path + "?force=true")[0] == 204
    producer.send(b"into the topic made anew")


def test_stats_show_the_holder_the_waiters_and_the_written_entries(
    broker: LocalBrokers, http: Http, topic: str, stock: StockClients, raw: RawClients
) -> None:
    client = stock(broker.service_url)
    producer = client.create_producer(topic, producer_name="me", access_mode=Mode.Exclusive)
    client.subscribe(topic, "reader")
    for number in range(3):
        producer.send(b"%d" % number)
    raw(broker.address()).waiter(topic)
    stats = http("GET", f"{PERSISTENT}/{topic}/stats")[1]
    (publisher,) = stats["publishers"]
    assert (publisher["producerName"], publisher["accessMode"]) == ("me", "Exclusive")
    assert publisher["address"].startswith("/127.0.0.1:")
    assert (stats["msgInCounter"], stats["waitingPublishers"]) == (3, 1)
    assert stats["topicEpoch"] > 0
    assert stats["subscriptions"]["reader"]["msgBacklog"] == 3
    internal = http("GET", f"{PERSISTENT}/{topic}/internalStats")[1]
    assert internal["currentLedgerEntries"] == 3


def test_unloading_keeps_the_writer_and_its_epoch(
    broker: LocalBrokers, http: Http, topic: str, stock: StockClients
) -> None:
    producer = stock(broker.service_url).create_producer(topic, access_mode=Mode.Exclusive)
    producer.send(b"before")
    epoch = http("GET", f"{PERSISTENT}/{topic}/stats")[1]["topicEpoch"]
    assert http("PUT", f"{PERSISTENT}/{topic}/unload")[0] == 204
    producer.send(b"after")
    assert http("GET", f"{PERSISTENT}/{topic}/stats")[1]["topicEpoch"] == epoch


def test_subscriptions_are_made_moved_and_removed(
    broker: LocalBrokers, http: Http, topic: str, stock: StockClients
) -> None:
    path = f"{PERSISTENT}/{topic}/subscription"
    client = stock(broker.service_url)
    producer = client.create_producer(topic)
    sent = [producer.send(b"%d" % number) for number in range(5)]
    earliest = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
    assert http("PUT", f"{path}/old", earliest)[0] == 204
    assert http("PUT", f"{path}/old", earliest)[0] == 409
    assert http("PUT", f"{path}/new")[0] == 204
    assert http("GET", f"{PERSISTENT}/{topic}/subscriptions") == (200, ["new", "old"])

    def backlog(name: str) -> int:
        stats = http("GET", f"{PERSISTENT}/{topic}/stats")[1]
        return int(stats["subscriptions"][name]["msgBacklog"])

    assert (backlog("old"), backlog("new")) == (5, 0)
    assert http("POST", f"{path}/old/skip/2")[0] == 204
    assert backlog("old") == 3
    assert http("POST", f"{path}/new/resetcursor/0")[0] == 204
    assert backlog("new") == 5
    third = {"ledgerId": sent[2].ledger_id(), "entryId": sent[2].entry_id(), "partitionIndex": -1}
    assert http("POST", f"{path}/new/resetcursor", third)[0] == 204
    assert client.subscribe(topic, "new").receive(60_000).data() == b"2"
    assert http("POST", f"{path}/old/resetcursor", third | {"excluded": True})[0] == 204
    assert backlog("old") == 2
    assert http("POST", f"{path}/old/skip_all")[0] == 204
    assert backlog("old") == 0
    assert http("DELETE", f"{path}/old")[0] == 204
    assert http("DELETE", f"{path}/old")[0] == 404
    last = http("GET", f"{PERSISTENT}/{topic}/lastMessageId")[1]
    assert (last["ledgerId"], last["entryId"]) == (sent[4].ledger_id(), sent[4].entry_id())


def test_a_stock_client_looks_up_over_http(
    broker: LocalBrokers, http: Http, topic: str, stock: StockClients
) -> None:
    assert http("PUT", f"{PERSISTENT}/{topic}/partitions", 3)[0] == 204
    client = stock(broker.http_url)
    assert len(client.get_topic_partitions(topic)) == 3
    consumer = client.subscribe(topic, "all")
    producer = client.create_producer(f"{topic}-partition-1")
    producer.send(b"found")
    assert consumer.receive(60_000).data() == b"found"


def test_names_with_a_slash_are_one_topic(http: Http, topic: str) -> None:
    assert http("PUT", f"{PERSISTENT}/{topic}%2Fa%20b")[0] == 204
    assert f"persistent://public/default/{topic}/a b" in http("GET", PERSISTENT)[1]
    assert http("DELETE", f"{PERSISTENT}/{topic}%2Fa%20b")[0] == 204


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("PATCH", f"{ADMIN}/clusters", None, 405),
        ("PUT", f"{ADMIN}/clusters/x", b"{", 400),
        ("PUT", f"{ADMIN}/clusters/x", b"[" * 100_000, 400),
        ("PUT", f"{ADMIN}/clusters/x", b"[1]", 400),
        ("PUT", f"{ADMIN}/clusters/x", b'"' + b"x" * 300_000 + b'"', 413),
        ("PUT", f"{PERSISTENT}/t/partitions", b"1e9", 400),
        ("PUT", f"{PERSISTENT}/t/partitions", b"100000", 406),
        ("PUT", f"{PERSISTENT}/%00", None, 412),
        ("PUT", f"{ADMIN}/persistent/a%20b/c/t", None, 412),
        ("POST", f"{PERSISTENT}/never-made/terminate", None, 404),
        ("POST", f"{ADMIN}/namespaces/public/default/deduplication", b'"yes"', 400),
        ("POST", f"{ADMIN}/namespaces/public/default/encryptionRequired", True, 412),
        ("POST", f"{ADMIN}/namespaces/public/default/subscriptionAuthMode", "Prefix", 412),
        ("GET", f"{PERSISTENT}/never-made/ledger/1/entry/1", None, 404),
        ("GET", f"{PERSISTENT}/never-made/ledger/1/entry/-1", None, 404),
        ("PUT", f"{PERSISTENT}/never-made/compaction", None, 404),
        ("POST", f"{PERSISTENT}/never-made/compactionThreshold", 1, 404),
        ("POST", f"{ADMIN}/namespaces/public/default/compactionThreshold", -1, 412),
        ("POST", f"{ADMIN}/namespaces/public/default/compactionThreshold", b'"x"', 412),
        ("POST", f"{ADMIN}/namespaces/public/default/schemaCompatibilityStrategy", "X", 412),
        ("GET", f"{ADMIN}/schemas/public/default/never-made/schema", None, 404),
        ("GET", "/onewriter/v1/topics?limit=-1", None, 400),
        ("POST", "/onewriter/v1/topics/public/default/t/fence", {"ifEpoch": True}, 400),
    ],
)
def test_bad_requests_get_a_reason_and_affect_no_other_client(
    http: Http, method: str, path: str, body: object, status: int
) -> None:
    answered, answer = http(method, path, body)
    assert answered == status
    assert answer["reason"]
    assert http("GET", "/healthz")[0] == 200


def test_a_page_of_another_origin_changes_nothing(http: Http, topic: str) -> None:
    path = f"{PERSISTENT}/{topic}"
    assert http("PUT", path, None, Origin="http://elsewhere.example")[0] == 403
    assert http("GET", path + "/partitions")[0] == 404
    assert http("PUT", path, None, Origin=http.url)[0] == 204


def test_requests_reach_the_owner_whichever_broker_is_asked(stock: StockClients) -> None:
    with forked_brokers(brokers=2) as brokers:
        first, second = (Http(url) for url in brokers.http_urls)
        foreign = next(f"t-{n}" for n in range(100) if brokers.target_of(f"t-{n}") == 1)
        placed(brokers, foreign)
        path = f"{PERSISTENT}/{foreign}"
        assert first("PUT", f"{path}/partitions", 2)[0] == 307
        assert first.location == f"{second.url}{path}/partitions"
        assert second("PUT", f"{path}/partitions", 2)[0] == 204
        reported = f"{OWN}/{foreign}/history"
        assert first("GET", reported)[0] == 307, "a broker reads the audit of its own buckets alone"
        assert first.location == f"{second.url}{reported}"
        assert second("GET", reported)[0] == 200
        assert first("GET", f"{path}/partitions") == (200, {"partitions": 2, "deleted": False})
        assert len(first("GET", f"{ADMIN}/brokers/standalone")[1]) == 2
        name = f"persistent://public/default/{foreign}"
        known = {name: {"declared": False, "epoch": 0, "undivided": False, "declaredBy": None}}
        for broker, found in ((first, ({}, [name])), (second, (known, []))):
            answer = broker("POST", "/onewriter/v1/topics", {"topics": [name, f"{name}-no"]})[1]
            assert (answer["topics"], answer["elsewhere"]) == found

        assert first("PUT", f"{ADMIN}/tenants/far", INFO)[0] == 204
        assert first("PUT", f"{ADMIN}/namespaces/far/away")[0] == 204
        eventually(lambda: second("GET", f"{ADMIN}/namespaces/far") == (200, ["far/away"]))
        client = stock(brokers.service_url)
        for number in range(6):
            client.create_producer(f"persistent://far/away/t-{number}").send(b"x")
        client.close()
        assert first("DELETE", f"{ADMIN}/namespaces/far/away?force=true")[0] == 204
        assert first("GET", f"{ADMIN}/persistent/far/away")[0] == 404
