"""Declarations change while topics are in use: pushed over HTTP, or in files with SIGHUP."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from tests.integration.conftest import RawClients
from tests.integration.following import placed
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import OWN, PERSISTENT, Http
from tests.integration.raw import EXCLUSIVE, SHARED, RefusedByBroker, eventually

from onewriter_core.errors import ServerError
from onewriter_testing.processes import LocalBrokers, running_brokers

DESIRED = "/onewriter/v1/desired"
SECRET = "a secret of at least thirty-two bytes"  # noqa: S105 - a test's
Json = dict[str, Any]


def topic(name: str, **spec: Any) -> Json:
    return {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ExclusiveTopic",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"access": {"requireClaim": False}} | spec,
    }


def claim(name: str, for_topic: str, **spec: Any) -> Json:
    return {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ProducerClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"topicRef": {"name": for_topic}, "subject": {"tokenSubject": "writer"}} | spec,
    }


@pytest.fixture(scope="module")
def reported() -> Iterator[LocalBrokers]:
    """A broker that receives its desired state over HTTP."""
    with forked_brokers() as brokers:
        yield brokers


class Pusher:
    """Pushes complete states. Each has another revision."""

    def __init__(self, http: Http) -> None:
        self.http = http
        self.pushes = 0

    def __call__(self, topics: list[Json], claims: list[Json] | None = None, **more: Any) -> Any:
        self.pushes += 1
        body = {"revision": f"r{self.pushes}", "topics": topics, "claims": claims or []} | more
        return self.http("PUT", DESIRED, body)


@pytest.fixture
def push(reported: LocalBrokers) -> Pusher:
    return Pusher(Http(reported.http_url))


def status_of(http: Http, name: str) -> Json:
    code, found = http("GET", f"{OWN}/{name}")
    assert code == 200, found
    assert isinstance(found, dict)
    return found


def test_a_pushed_topic_exists_immediately(
    reported: LocalBrokers, push: Pusher, raw: RawClients
) -> None:
    code, answer = push([topic("new", access={"modes": ["Exclusive"], "requireClaim": False})])
    assert (code, answer["topics"], answer["warnings"]) == (200, 1, [])
    client = raw(reported.address())
    with pytest.raises(RefusedByBroker) as found:
        client.producer("new", SHARED)
    assert found.value.code is ServerError.NOT_ALLOWED_ERROR
    client.producer("new", EXCLUSIVE).publish(b"fine")
    assert push.http("GET", DESIRED)[1] == {
        "revision": answer["revision"],
        "topics": 1,
        "claims": 0,
        "known": True,
    }


def test_an_invalid_push_reports_why_and_changes_nothing(push: Pusher) -> None:
    push([topic("kept", partitions=2)])
    before = push.http("GET", DESIRED)[1]
    code, answer = push([topic("kept"), topic("wrong", partitions="many"), topic("odd", typo=1)])
    assert code == 400
    assert any("ExclusiveTopic default/wrong, spec.partitions" in each for each in answer["errors"])
    assert any("ExclusiveTopic default/odd, spec.typo" in each for each in answer["errors"])
    assert push.http("PUT", DESIRED, b"{")[0] == 400
    assert push.http("GET", DESIRED)[1] == before


def test_a_claim_for_no_topic_is_a_warning(push: Pusher) -> None:
    code, answer = push([], [claim("early", "not-yet")])
    assert code == 200
    assert "waits for it" in answer["warnings"][0]


def test_waiters_are_put_in_another_order(
    reported: LocalBrokers, push: Pusher, raw: RawClients
) -> None:
    push([topic("line", promotion={"policy": "Fifo"})])
    client = raw(reported.address())
    holder = client.producer("line", EXCLUSIVE)
    for name, priority in (("first", "1"), ("second", "9")):
        client.waiter("line", name=name, properties={"onewriter.queue-priority": priority})

    def line() -> list[str]:
        return [each["producerName"] for each in status_of(push.http, "line")["waiters"]]

    assert line() == ["first", "second"]
    push([topic("line", promotion={"policy": "Priority"})])
    assert line() == ["second", "first"]
    push([topic("line", promotion={"policy": "Fifo"})])
    assert line() == ["first", "second"]
    holder.publish(b"nobody noticed")


def test_waiters_are_balanced_from_now_on(
    reported: LocalBrokers, push: Pusher, raw: RawClients
) -> None:
    push([topic("spread"), topic("other")])
    client = raw(reported.address())
    busy, idle = {"onewriter.host": "busy"}, {"onewriter.host": "idle"}
    client.producer("other", EXCLUSIVE, properties=busy)
    holder = client.producer("spread", EXCLUSIVE)
    client.waiter("spread", name="first", properties=busy)
    second = client.waiter("spread", name="second", properties=idle)

    def line() -> list[str]:
        return [each["producerName"] for each in status_of(push.http, "spread")["waiters"]]

    assert line() == ["first", "second"]
    push([topic("spread", promotion={"policy": "Balanced"}), topic("other")])
    assert line() == ["second", "first"]
    holder.close()
    second.ready_at_last()
    code, found = push.http("GET", f"{OWN}/spread/history")
    assert code == 200
    grant = [record for record in found["records"] if record["kind"] == "grant"][-1]
    assert (grant["policy"], grant["host"], int(grant["load"])) == ("Balanced", "idle", 0)
    assert (grant["nextWaiter"]["host"], grant["nextWaiter"]["load"]) == ("busy", 1)


def test_a_topic_that_is_used_gets_partitions(
    reported: LocalBrokers, push: Pusher, raw: RawClients
) -> None:
    push([topic("wide", partitions=2)])
    client = raw(reported.address())
    client.producer("wide-partition-1", EXCLUSIVE).publish(b"there")
    with pytest.raises(RefusedByBroker):
        client.producer("wide-partition-3", EXCLUSIVE)
    push([topic("wide", partitions=4)])
    assert client.partitions("wide") == 4
    eventually(lambda: len(status_of(push.http, "wide")["slots"]) == 4)
    client.producer("wide-partition-3", EXCLUSIVE).publish(b"there too")


def test_a_topic_that_is_there_without_partitions_gets_none(
    reported: LocalBrokers, push: Pusher, raw: RawClients
) -> None:
    """Its messages would be unreachable, and a replayed batch would be published twice."""
    push([])
    client = raw(reported.address())
    producer = client.producer("single", EXCLUSIVE)
    producer.publish(b"kept")
    for _ in range(2):
        push([topic("single", partitions=3, detection={"pingIntervalSeconds": 60})])
        assert client.partitions("single") == 0
        found = status_of(push.http, "single")
        assert (found["partitions"], found["undivided"], len(found["slots"])) == (0, True, 1)
        name = found["name"]
        answer = push.http("POST", "/onewriter/v1/topics", {"topics": [name]})[1]["topics"][name]
        assert (answer["declared"], answer["undivided"]) == (True, True)
        assert push.http("PUT", f"{PERSISTENT}/single/unload")[0] == 204
    for method in ("PUT", "POST"):
        assert push.http(method, f"{PERSISTENT}/single/partitions", 3)[0] == 409
    stored = push.http("GET", f"{OWN}/single/segments")[1]["segments"]
    assert sum(each["entries"] for each in stored) == 1
    assert push.http("DELETE", f"{PERSISTENT}/single?force=true")[0] == 204
    assert client.partitions("single") == 3
    raw(reported.address()).producer("single-partition-2", EXCLUSIVE).publish(b"new")
    assert not status_of(push.http, "single")["undivided"]


def test_a_holder_is_watched_more_closely(
    reported: LocalBrokers, push: Pusher, raw: RawClients
) -> None:
    """Under a patient declaration a frozen client remains. A stricter one, pushed meanwhile, finds it silent."""
    patient = {"pingIntervalSeconds": 60, "pingFailures": 3}
    push([topic("watched", detection=patient)])
    frozen, other = raw(reported.address()), raw(reported.address())
    frozen.producer("watched", EXCLUSIVE)
    waiter = other.waiter("watched")
    frozen.freeze()
    push([topic("watched", detection={"pingIntervalSeconds": 1, "pingFailures": 5})])
    waiter.ready_at_last()
    assert status_of(push.http, "watched")["transitions"][-1]["cause"] == "Silent"


def test_durability_is_shown_and_counts_from_the_next_ledger(
    reported: LocalBrokers, push: Pusher, raw: RawClients
) -> None:
    push([topic("safe", durability="Local")])
    holder = raw(reported.address()).producer("safe", EXCLUSIVE)
    assert status_of(push.http, "safe")["durability"] == "Local"
    push([topic("safe", durability="None")])
    holder.close()
    raw(reported.address()).producer("safe", EXCLUSIVE).publish(b"x")
    assert status_of(push.http, "safe")["durability"] == "None"


def test_retention_takes_effect_immediately(
    reported: LocalBrokers, push: Pusher, raw: RawClients
) -> None:
    push([topic("short")])
    client = raw(reported.address())
    for number in range(3):  # each in a ledger of its own
        producer = client.producer("short", EXCLUSIVE, name=f"p{number}")
        for _ in range(20):
            producer.publish(b"x" * 100)
        producer.close()
    last = client.producer("short", EXCLUSIVE)
    internal = "/admin/v2/persistent/public/default/short/internalStats"
    before = push.http("GET", internal)[1]
    push([topic("short", retention={"maxEntries": 5})])
    reported.wait_for_event("retention.trimmed", lambda event: "short" in str(event["topic"]))
    last.publish(b"on it goes")
    assert before != push.http("GET", internal)[1]


def test_a_restarted_broker_continues_with_its_desired_state(raw: RawClients) -> None:
    with forked_brokers() as brokers:
        http = Http(brokers.http_url)
        _, answer = Pusher(http)([topic("kept", partitions=3)])
        brokers.kill()
        brokers.restart(0)
        assert http("GET", DESIRED)[1]["revision"] == answer["revision"]
        assert raw(brokers.address()).partitions("kept") == 3


def test_an_unreadable_state_file_is_reported_and_ignored() -> None:
    with forked_brokers() as brokers:
        http = Http(brokers.http_url)
        Pusher(http)([topic("kept")])
        (kept,) = (brokers.data_directory / "desired").glob("*.json")
        kept.write_text("{")
        brokers.kill()
        brokers.restart(0)
        brokers.wait_for_event("desired.unreadable")
        assert http("GET", DESIRED)[1]["revision"] is None


def test_an_edited_claim_applies_to_the_next_producer(tmp_path: Path, raw: RawClients) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    token = jwt.encode({"sub": "writer"}, SECRET, algorithm="HS256")
    settings = {"token_secret_file": str(secret), "admin_subjects": "writer"}
    with forked_brokers(settings=settings) as brokers:
        push = Pusher(Http(brokers.http_url, token))
        guarded = topic("guarded", access={"requireClaim": True})
        push([guarded], [claim("writers", "guarded", priority=5)])
        client = raw(brokers.address(), token=token)
        holder = client.producer("guarded", EXCLUSIVE)
        requests = {"onewriter.queue-priority": "9"}
        client.waiter("guarded", name="before", properties=requests)
        push([guarded], [claim("writers", "guarded", priority=7)])
        client.waiter("guarded", name="after", properties=requests)
        waiters = status_of(push.http, "guarded")["waiters"]
        assert [(each["producerName"], each["priority"]) for each in waiters] == [
            ("after", 7),
            ("before", 5),
        ]
        push([guarded], [])
        holder.publish(b"a writer goes on")
        with pytest.raises(RefusedByBroker) as found:
            client.producer("guarded", EXCLUSIVE)
        assert found.value.code is ServerError.AUTHORIZATION_ERROR


MANIFEST = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {{name: filed}}
spec: {{partitions: {partitions}, access: {{requireClaim: false}}}}
"""


def hang_up(brokers: LocalBrokers) -> None:
    """Send SIGHUP to the supervisor, as an operator would."""
    os.kill(brokers._processes[0].pid, signal.SIGHUP)


def test_files_are_read_again_on_sighup(raw: RawClients) -> None:
    with running_brokers(manifests=MANIFEST.format(partitions=2), brokers=2) as brokers:
        placed(brokers, "filed")
        client = raw(brokers.address(brokers.owner_of("filed")))
        writer = client.producer("filed-partition-0", EXCLUSIVE)
        file = brokers.directory / "manifests.yaml"
        file.write_text(MANIFEST.format(partitions=5))
        hang_up(brokers)
        brokers.wait_for_event("desired.changed", count=2)
        assert client.partitions("filed") == 5
        for url in brokers.http_urls:
            assert Http(url)("GET", DESIRED)[1]["revision"] == "manifests"

        file.write_text(MANIFEST.format(partitions="lots"))
        hang_up(brokers)
        refused = brokers.wait_for_event("desired.refused", count=2)
        assert "spec.partitions" in str(refused["reason"])
        assert client.partitions("filed") == 5
        writer.publish(b"all the while")
        code, answer = Http(brokers.http_url)("PUT", DESIRED, {"revision": "r"})
        assert (code, "manifest files" in answer["reason"]) == (409, True)


def test_broken_files_do_not_keep_a_broker_from_coming_back(raw: RawClients) -> None:
    """The manifests become invalid, and later a broker dies: it continues with those that were read before."""
    with running_brokers(manifests=MANIFEST.format(partitions=2)) as brokers:
        (brokers.directory / "manifests.yaml").write_text(MANIFEST.format(partitions="lots"))
        process_id = brokers.kill()
        brokers.wait_for_event("child.started", lambda event: event["process_id"] != process_id)
        refused = brokers.wait_for_event("desired.refused")
        assert "spec.partitions" in str(refused["reason"])
        brokers.wait_ready()
        assert raw(brokers.address()).partitions("filed") == 2
