"""onewriter's own API: the writer, the queue, the transitions, and commands that change them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import textwrap
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import jwt
import pytest
from tests.integration.conftest import RawClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import ADMIN, OWN, Http, epoch_of
from tests.integration.raw import EXCLUSIVE, RefusedByBroker, eventually

from onewriter_core.errors import ServerError
from onewriter_testing.processes import LocalBrokers, running_brokers

SECRET = secrets.token_hex(32)

MANIFESTS = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: payments}
spec: {partitions: 3, access: {requireClaim: true}, handover: {timeoutSeconds: 1}}
---
apiVersion: onewriter.dev/v1alpha1
kind: ProducerClaim
metadata: {name: primary}
spec:
  topicRef: {name: payments}
  subject: {tokenSubject: writer}
  mode: WaitForExclusive
  priority: 10
  defaultPriority: 10
"""


@pytest.fixture
def http(broker: LocalBrokers) -> Http:
    return Http(broker.http_url)


def test_status_names_the_holder_and_the_waiters_in_their_order(
    broker: LocalBrokers, http: Http, topic: str, raw: RawClients
) -> None:
    client = raw(broker.address())
    holder = client.producer(topic, EXCLUSIVE, name="holder")
    for name, priority in (("low", 1), ("high", 9), ("middle", 5)):
        client.waiter(topic, name=name, properties={"onewriter.queue-priority": str(priority)})
    status, shown = http("GET", f"{OWN}/{topic}")
    assert status == 200
    assert shown["epoch"] == holder.epoch
    assert (shown["state"], shown["waiting"]) == ("Held", 3)
    assert shown["holder"]["producerName"] == "holder"
    assert shown["holder"]["address"].startswith("127.0.0.1:")
    assert shown["holder"]["mode"] == "Exclusive"
    waiters = [(each["place"], each["producerName"], each["priority"]) for each in shown["waiters"]]
    assert waiters == [(1, "high", 9), (2, "middle", 5), (3, "low", 1)]
    assert all(each["waitingSeconds"] >= 0 for each in shown["waiters"])
    (slot,) = shown["slots"]
    assert (slot["epoch"], slot["holder"], slot["open"]) == (holder.epoch, "holder", True)
    assert shown["durability"] == "Local"
    assert shown["store"]["primary"] is True
    assert [each["cause"] for each in shown["transitions"]] == ["Initial"]


def test_a_fence_names_the_epoch_it_ends_and_the_next_in_line_writes(
    broker: LocalBrokers, http: Http, topic: str, raw: RawClients
) -> None:
    holder = raw(broker.address()).producer(topic, EXCLUSIVE, name="holder")
    waiter = raw(broker.address()).waiter(topic, name="next")
    stale = http("POST", f"{OWN}/{topic}/fence", {"ifEpoch": epoch_of(holder) + 1})
    assert stale == (
        412,
        {"reason": f"the topic epoch is {holder.epoch}, not {epoch_of(holder) + 1}"},
    )
    holder.publish(b"still the writer")
    status, answer = http("POST", f"{OWN}/{topic}/fence", {"ifEpoch": holder.epoch})
    assert (status, answer["oldEpoch"]) == (200, holder.epoch)
    holder.closed_by_broker()
    waiter.ready()
    assert epoch_of(waiter) > answer["epoch"] > epoch_of(holder)
    again = http("POST", f"{OWN}/{topic}/fence", {"ifEpoch": holder.epoch})
    assert again[0] == 412


def test_a_handover_grants_the_named_waiter_without_a_gap(
    broker: LocalBrokers, http: Http, topic: str, raw: RawClients
) -> None:
    holder = raw(broker.address()).producer(topic, EXCLUSIVE, name="holder")
    assert http("POST", f"{OWN}/{topic}/handover") == (409, {"reason": "no producer is waiting"})
    assert http("POST", f"{OWN}/{topic}/handover", {"ifEpoch": "1"})[0] == 400
    other = {"ifEpoch": epoch_of(holder) + 1}
    assert http("POST", f"{OWN}/{topic}/handover", other)[0] == 412
    high = raw(broker.address()).waiter(
        topic, name="high", properties={"onewriter.queue-priority": "9"}
    )
    low = raw(broker.address()).waiter(topic, name="low")
    assert http("POST", f"{OWN}/{topic}/handover", {"to": "stranger"})[0] == 409
    status, answer = http("POST", f"{OWN}/{topic}/handover", {"to": "low"})
    assert (status, answer["holder"]["producerName"]) == (200, "low")
    low.ready()
    assert answer["epoch"] == epoch_of(low) > epoch_of(holder)
    holder.closed_by_broker()
    assert not high.is_ready
    last = http("GET", f"{OWN}/{topic}")[1]["transitions"][-1]
    persons = [last[name]["producerName"] for name in ("previous", "holder")]
    assert (last["cause"], persons, last["leaderlessMs"]) == ("Handover", ["holder", "low"], 0)


def test_history_is_read_in_pages_oldest_first(
    broker: LocalBrokers, http: Http, topic: str, raw: RawClients
) -> None:
    epochs = []
    for number in range(4):
        producer = raw(broker.address()).producer(topic, EXCLUSIVE, name=f"p{number}")
        epochs.append(producer.epoch)
        producer.close()
    path = f"{OWN}/{topic}/history"

    def grants_of() -> list[Any]:
        return [each for each in http("GET", path)[1]["records"] if each["kind"] == "grant"]

    # Each grant but the first records how long the topic had no leader.
    eventually(lambda: all("leaderlessMs" in each for each in grants_of()[1:]))
    everything = http("GET", path)[1]["records"]
    grants = grants_of()
    assert [each["epoch"] for each in grants] == epochs
    assert [each["producer"] for each in grants] == ["p0", "p1", "p2", "p3"]
    newest = http("GET", f"{path}?limit=2")[1]
    assert [each["id"] for each in newest["records"]] == [each["id"] for each in everything[-2:]]
    assert newest["earlierOmitted"] is True
    walked, after = [], "0-0"
    while (page := http("GET", f"{path}?limit=2&after={after}")[1])["records"]:
        walked += page["records"]
        after = page["next"]
    assert walked == everything
    assert http("GET", f"{path}?after=yesterday")[0] == 400
    assert http("GET", f"{OWN}/never-made/history")[0] == 404


def test_an_unused_topic_is_shown_without_loading_it(
    broker: LocalBrokers, http: Http, topic: str, raw: RawClients
) -> None:
    producer = raw(broker.address()).producer(topic, EXCLUSIVE, name="gone")
    producer.close()
    assert http("PUT", f"{ADMIN}/persistent/public/default/{topic}/unload")[0] == 204
    before = http("GET", f"{OWN}/{topic}")[1]
    assert (before["loaded"], before["epoch"], before["holder"]) == (False, producer.epoch, None)
    listed = {each["name"]: each for each in http("GET", "/onewriter/v1/topics")[1]["topics"]}
    assert listed[before["name"]]["epoch"] == producer.epoch
    after = http("GET", f"{OWN}/{topic}")[1]
    assert after["slots"] == before["slots"]


def test_topics_are_looked_up_together_without_being_touched(
    broker: LocalBrokers, http: Http, topic: str, raw: RawClients
) -> None:
    names = [f"persistent://public/default/{topic}{end}" for end in ("", "-used", "-never-made")]
    raw(broker.address()).producer(topic, EXCLUSIVE, name="gone").close()
    assert http("PUT", f"{ADMIN}/persistent/public/default/{topic}/unload")[0] == 204
    writer = raw(broker.address()).producer(f"{topic}-used", EXCLUSIVE, name="here")
    code, answer = http("POST", "/onewriter/v1/topics", {"topics": names * 2})
    assert code == 200
    epoch = http("GET", f"{OWN}/{topic}")[1]["epoch"]
    assert answer == {
        "topics": {
            names[0]: {"declared": False, "epoch": epoch, "undivided": True, "declaredBy": None},
            names[1]: {
                "declared": False,
                "epoch": writer.epoch,
                "undivided": True,
                "declaredBy": None,
            },
        },
        "elsewhere": [],
    }
    assert epoch >= 1
    assert http("GET", f"{OWN}/{topic}")[1]["loaded"] is False
    for wrong in ({}, {"topics": "all"}, {"topics": [1]}, {"topics": ["x"] * 501}):
        assert http("POST", "/onewriter/v1/topics", wrong)[0] == 400


def test_topics_are_listed_in_pages(http: Http, topic: str) -> None:
    for number in range(3):
        http("PUT", f"{ADMIN}/persistent/public/default/{topic}-{number}")
    names, after = [], ""
    while True:
        page = http("GET", f"/onewriter/v1/topics?limit=2&after={after}")[1]
        names += [each["name"] for each in page["topics"]]
        if (after := page["next"]) is None:
            break
    assert names == sorted(names)
    assert {f"persistent://public/default/{topic}-{n}" for n in range(3)} <= set(names)


def figure(http: Http, name: str) -> float:
    """The sum of a metric's series."""
    lines = http("GET", "/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_metrics_follow_a_takeover(topic: str, raw: RawClients) -> None:
    with forked_brokers() as broker:  # no earlier client can still have a connection to it
        follow_a_takeover(broker, topic, raw)


def follow_a_takeover(broker: LocalBrokers, topic: str, raw: RawClients) -> None:
    http = Http(broker.http_url)

    value = partial(figure, http)
    lost = 'onewriter_fenced_total{reason="ConnectionLost"}'
    before = value(lost), value("onewriter_published_entries_total")
    first = raw(broker.address())
    first.producer(topic, EXCLUSIVE).publish(b"x")
    waiter = raw(broker.address()).waiter(topic, name="heir")
    first.close()
    waiter.ready()
    full = f'topic="persistent://public/default/{topic}"'
    assert value(f"onewriter_topic_epoch{{{full}}}") == waiter.epoch
    assert f'producer="heir",{full}' in http("GET", "/metrics")[1]
    assert (value(lost), value("onewriter_published_entries_total")) == (
        before[0] + 1,
        before[1] + 1,
    )
    assert value('onewriter_leaderless_seconds_count{cause="ConnectionLost"}') >= 1
    assert value("onewriter_publish_seconds_count") >= 1
    assert value("onewriter_buckets_owned") == broker.buckets


@pytest.fixture(scope="module")
def stopping() -> Iterator[LocalBrokers]:
    """A broker whose store is frozen at times; a handover of the topic ``brief`` has half a second."""
    brief = """
    apiVersion: onewriter.dev/v1alpha1
    kind: ExclusiveTopic
    metadata: {name: brief}
    spec: {access: {requireClaim: false}, handover: {timeoutSeconds: 0.5}}
    """
    with running_brokers(manifests=textwrap.dedent(brief)) as brokers:
        yield brokers


def test_readiness_reports_the_store_and_the_buckets(stopping: LocalBrokers) -> None:
    http = Http(stopping.http_url)
    eventually(lambda: http("GET", "/readyz")[0] == 200)
    status, answer = http("GET", "/readyz")
    assert (status, answer["ready"], answer["buckets"]["held"]) == (200, True, stopping.buckets)
    store = stopping.events("embedded.started")[-1]["process_id"]
    os.kill(int(str(store)), signal.SIGSTOP)
    eventually(lambda: http("GET", "/readyz")[1]["store"]["access"] == "LostByAll")
    status, answer = http("GET", "/readyz")
    assert (status, answer["problems"], answer["store"]["reachable"]) == (200, [], False)
    assert figure(http, "onewriter_store_reachable") == 0
    assert http("GET", "/healthz")[0] == 200
    stopping.thaw(int(str(store)))
    eventually(lambda: http("GET", "/readyz")[1]["store"]["reachable"])
    assert http("GET", "/readyz")[0] == 200
    assert figure(http, "onewriter_store_reachable") == 1


def test_a_handover_that_the_store_cannot_decide_in_time_is_not_called_done(
    stopping: LocalBrokers, raw: RawClients
) -> None:
    http = Http(stopping.http_url)
    holder = raw(stopping.address()).producer("brief", EXCLUSIVE)
    waiter = raw(stopping.address()).waiter("brief", name="next")
    store = int(str(stopping.events("embedded.started")[-1]["process_id"]))
    os.kill(store, signal.SIGSTOP)
    status, answer = http("POST", f"{OWN}/brief/handover")
    assert (status, answer["reason"][:24]) == (504, "not decided within 0.5 s")
    stopping.thaw(store)
    waiter.ready()  # the handover was decided after all, and only once
    holder.closed_by_broker()
    assert http("GET", f"{OWN}/brief")[1]["epoch"] == epoch_of(waiter)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBrokers]:
    """A broker that requires tokens; its administrator is called boss."""
    key = tmp_path_factory.mktemp("keys") / "secret"
    key.write_text(SECRET)
    settings = {
        "authentication_required": True,
        "token_secret_file": key,
        "admin_subjects": "boss, operator",
    }
    with forked_brokers(manifests=MANIFESTS, settings=settings) as brokers:
        eventually(lambda: Http(brokers.http_url)("GET", "/readyz")[0] == 200)
        yield brokers


def token(subject: str, **claims: object) -> str:
    return jwt.encode({"sub": subject, **claims}, SECRET, algorithm="HS256")


def test_reading_needs_a_token_and_changing_an_administrators(guarded: LocalBrokers) -> None:
    anonymous, reader = Http(guarded.http_url), Http(guarded.http_url, token("reader"))
    administrator = Http(guarded.http_url, token("boss"))
    expired = Http(guarded.http_url, token("boss", exp=int(time.time()) - 1))  # noqa: TID251 - JWT
    forged = Http(guarded.http_url, jwt.encode({"sub": "boss"}, SECRET[::-1], algorithm="HS256"))
    assert [anonymous("GET", path)[0] for path in ("/healthz", "/readyz")] == [200] * 2
    assert [client("GET", "/metrics")[0] for client in (anonymous, reader, administrator)] == [
        401,
        403,
        200,
    ]
    for unauthorized in (anonymous, expired, forged):
        assert unauthorized("GET", "/onewriter/v1/topics")[0] == 401
        assert unauthorized("GET", f"{ADMIN}/tenants")[0] == 401
    assert anonymous("GET", f"{ADMIN}/tenants", None, Authorization="Basic x")[0] == 401
    assert reader("GET", f"{OWN}/payments")[0] == 200
    assert reader("POST", f"{OWN}/payments/fence")[0] == 403
    assert reader("PUT", f"{ADMIN}/persistent/public/default/x")[0] == 403
    assert administrator("PUT", f"{ADMIN}/persistent/public/default/x")[0] == 204
    assert administrator("POST", f"{OWN}/payments/fence")[0] == 200


def test_status_shows_claims_and_partitions(guarded: LocalBrokers, raw: RawClients) -> None:
    client = raw(guarded.address(), token=token("writer"))
    producers = [client.ask_producer(f"payments-partition-{n}") for n in range(3)]
    with pytest.raises(RefusedByBroker) as refused:
        producers[0].ready()
    assert refused.value.code is ServerError.NOT_ALLOWED_ERROR  # Shared is not among its modes
    group = [client.ask_producer(f"payments-partition-{n}", EXCLUSIVE + 1) for n in range(3)]
    for producer in group:
        producer.ready()
    shown = Http(guarded.http_url, token("reader"))("GET", f"{OWN}/payments")[1]
    assert shown["partitions"] == 3
    assert shown["declared"] is True
    assert shown["epoch"] == max(each["epoch"] for each in shown["slots"])
    assert {each["partition"] for each in shown["slots"]} == {0, 1, 2}
    holder = shown["holders"][0]
    assert (holder["claim"], holder["subject"]) == ("primary", "writer")


def test_a_transition_is_one_line_of_the_log_with_both_holders(
    broker: LocalBrokers, topic: str, raw: RawClients
) -> None:
    first = raw(broker.address())
    first.producer(topic, EXCLUSIVE, name="before")
    waiter = raw(broker.address()).waiter(topic, name="after")
    first.close()
    waiter.ready()
    line = broker.wait_for_event(
        "topic.transition",
        lambda event: str(event["topic"]).endswith(f"/{topic}") and event["holder"] == "after",
    )
    assert (line["old_holder"], line["cause"]) == ("before", "ConnectionLost")
    assert line["old_epoch"] < line["epoch"] == waiter.epoch  # type: ignore[operator]  # numbers
    assert json.dumps(line["leaderless_ms"]).isdecimal()
