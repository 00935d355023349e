"""Brokers with their anchor and their clients' identities in a real API server, and without it.

They are processes of this machine. The API server, its objects, rights and tokens are real.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import commands
from tests.cluster.accounts import Pod, broker_account, delete_pod, make_pod, pod_token
from tests.cluster.control_plane import WAIT_SECONDS, ControlPlane
from tests.cluster.plugin import CRDS
from tests.integration.http_calls import Http
from tests.integration.raw import EXCLUSIVE, RawClient, RawProducer, RefusedByBroker, eventually
from tests.servers import StoreServer, running_server

from onewriter_core.errors import ServerError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.processes import LocalBrokers

Json = dict[str, Any]

PATIENT: Json = {"pingIntervalSeconds": 20}
"""A holder that gets no processor time for a while keeps its topic, because few tests are about that."""

DEFINITION = "bucketanchors.onewriter.dev"
DESIRED = "/onewriter/v1/desired"
TOPIC = "persistent://shop/default/orders"
STATUS = "/onewriter/v1/topics/shop/default/orders"
WAIT = 2


def topic(**spec: Any) -> Json:
    return {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ExclusiveTopic",
        "metadata": {"name": "orders", "namespace": "shop"},
        "spec": {"access": {"requireClaim": True}} | spec,
    }


def claim(name: str, subject: Json) -> Json:
    return {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ProducerClaim",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "topicRef": {"name": "orders"},
            "subject": subject,
            "allow": ["lead", "takeover"],
        },
    }


BY_ACCOUNT = claim("writers", {"serviceAccountName": "writer"})


class Lab:
    """Brokers beside one API server, in its namespace ``shop``. The test itself acts as the operator."""

    def __init__(
        self, cluster: ControlPlane, store: StoreServer, directory: Path, *, brokers: int = 1
    ) -> None:
        self.cluster = cluster
        self.directory = directory
        account = broker_account(cluster, "shop", directory / "account")
        self.operator = make_pod(cluster, "shop", "operator")
        self.operator_token = pod_token(cluster, "shop", self.operator)
        self.store = store
        self.settings: dict[str, object] = {
            "anchor": "kubernetes",
            "kubernetes_url": account.url,
            "kubernetes_ca_file": account.ca_file,
            "kubernetes_token_file": account.token_file,
            "kubernetes_namespace": "shop",
            "token_review": True,
            "authentication_required": True,
            "require_declared": True,
            "admin_subjects": "system:serviceaccount:shop:operator",
        }
        self.brokers = LocalBrokers(
            directory / "brokers",
            brokers=brokers,
            redis_url=store.url,
            supervised=False,
            settings=self.settings,
        )
        self.connections = contextlib.ExitStack()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a command in a broker's pod."""
        settings = self.settings | {"redis_url": self.store.url}
        return {f"ONEWRITER_{name.upper()}": str(value) for name, value in settings.items()}

    @property
    def http(self) -> Http:
        return Http(self.brokers.http_url, self.operator_token)

    def push(
        self,
        *claims: Json,
        pods: Json | None = None,
        number: int = 0,
        detection: Json = PATIENT,
    ) -> None:
        topics = [topic(detection=detection)]
        body = {"revision": "r", "topics": topics, "claims": claims, "pods": pods or {}}
        http = Http(self.brokers.http_urls[number], self.operator_token)
        code, answer = http.patiently("PUT", DESIRED, body)
        assert code == 200, answer

    def is_ready(self, number: int = 0) -> bool:
        with contextlib.suppress(OSError):
            return Http(self.brokers.http_urls[number])("GET", "/readyz")[0] == 200
        return False

    def connect(self, token: str, number: int = 0) -> RawClient:
        client = RawClient(self.brokers.address(number), token=token)
        return self.connections.enter_context(client)

    def writer(self, pod: Pod) -> RawClient:
        client = self.connect(pod_token(self.cluster, "shop", pod))
        client.lookup(TOPIC)
        return client

    def adopts(self, reason: str) -> str:
        """Run the documented command of a person, as in a broker's pod; return its output.

        Repeats it while its result is unknown, because a slow API server did not answer.
        """
        program = "from onewriter_broker.verbs.adopt import adopt; adopt()"
        outputs: list[str] = []

        def is_done() -> bool:
            done = commands.run(
                [sys.executable, "-c", program, "--all", "--force", "--reason", reason],
                environment=os.environ | self.environment,
                seconds=WAIT_SECONDS,
            )
            outputs.append(done.stdout)
            return done.returncode == 0

        eventually(is_done, WAIT_SECONDS)
        return "".join(outputs)

    def waits(self, words: str) -> bool:
        """Whether the first broker reports that it waits for its buckets, with these words."""
        with contextlib.suppress(OSError):
            code, found = Http(self.brokers.http_url)("GET", "/readyz")
            return code == 503 and words in str(found["buckets"]["waiting"].get("0"))
        return False

    def status(self) -> Json:
        code, found = self.http.patiently("GET", STATUS)
        assert code == 200, found
        assert isinstance(found, dict)
        return found


@contextlib.contextmanager
def running_lab(cluster: ControlPlane, directory: Path, *, brokers: int = 1) -> Iterator[Lab]:
    with running_server() as store:
        lab = Lab(cluster, store, directory, brokers=brokers)
        try:
            lab.brokers.start()
            yield lab
        finally:
            lab.connections.close()
            lab.brokers.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server for this module only, because its tests stop it."""
    with ControlPlane(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.establish(*CRDS)
        cluster.make_namespace("shop")
        yield cluster


@pytest.fixture
def cluster(shared: ControlPlane) -> ControlPlane:
    """The API server, running, without any anchor or pod."""
    if not shared.is_ready():
        shared.start_api()
    everything = ("bucketanchors,pods", "--all", "--force", "--grace-period=0")
    shared.kubectl("delete", *everything, namespace="shop")
    return shared


@pytest.fixture
def lab(cluster: ControlPlane, tmp_path: Path) -> Iterator[Lab]:
    with running_lab(cluster, tmp_path / "lab") as lab:
        yield lab


def refusal(ask: Callable[[], RawProducer]) -> RefusedByBroker:
    with pytest.raises(RefusedByBroker) as found:
        ask()
    return found.value


def promoted(waiter: RawProducer) -> int:
    """Wait until the producer may write; return its epoch."""
    request_id = waiter.command.request_id
    found = waiter.client.expect(
        pb.CommandProducerSuccess, lambda c: c.request_id == request_id and c.producer_ready
    )
    return found.topic_epoch


def test_claims_admit_their_writers_and_the_status_shows_them(lab: Lab) -> None:
    """From a broker without any object to pods that wait, take over, and end."""
    eventually(lambda: Http(lab.brokers.http_url)("GET", "/healthz")[0] == 200, WAIT_SECONDS)
    assert not lab.is_ready()
    first, second = (make_pod(lab.cluster, "shop") for _ in range(2))
    early = lab.connect(pod_token(lab.cluster, "shop", first))
    assert ServerError(early.lookup(TOPIC).error) is ServerError.METADATA_ERROR
    untold = refusal(lambda: early.producer(TOPIC, EXCLUSIVE))
    assert (untold.code, "not received the desired state" in untold.text) == (
        ServerError.SERVICE_NOT_READY,
        True,
    )

    lab.push(BY_ACCOUNT)
    eventually(lab.is_ready, WAIT_SECONDS)
    early.lookup(TOPIC)
    holder = early.producer(TOPIC, EXCLUSIVE, name="w1")
    holder.publish(b"one")
    lab.writer(second).waiter(TOPIC, name="w2")
    shown = lab.status()
    (held,), (waits,) = shown["holders"], shown["waiters"]
    subject = "system:serviceaccount:shop:writer"
    for person, pod in ((held, first), (waits, second)):
        assert (person["subject"], person["podUID"], person["pod"], person["claim"]) == (
            subject,
            pod.uid,
            pod.name,
            "writers",
        )

    unauthorized = make_pod(lab.cluster, "shop", "stranger")
    no = refusal(lambda: lab.writer(unauthorized).producer(TOPIC, WAIT))
    assert no.code is ServerError.AUTHORIZATION_ERROR
    foreign = pod_token(lab.cluster, "shop", first, audience="somebody-else")
    for token in (foreign, "nonsense", ""):
        with pytest.raises(RefusedByBroker) as found:
            lab.connect(token)
        assert found.value.code is ServerError.AUTHENTICATION_ERROR
    code, _ = Http(lab.brokers.http_url, pod_token(lab.cluster, "shop", first))(
        "PUT", DESIRED, {"revision": "mine"}
    )
    assert code == 403

    lab.push(BY_ACCOUNT, detection={"pingIntervalSeconds": 2})
    early.freeze()
    eventually(lambda: lab.status()["transitions"][-1]["cause"] == "Silent")
    last = lab.status()["transitions"][-1]
    assert (last["previous"]["podUID"], last["previous"]["pod"], last["previous"]["claim"]) == (
        first.uid,
        first.name,
        "writers",
    )
    assert (last["holder"]["podUID"], last["holder"]["pod"]) == (second.uid, second.name)


def test_a_pod_selector_admits_the_selected_pods(lab: Lab) -> None:
    chosen, other = (make_pod(lab.cluster, "shop") for _ in range(2))
    by_label = claim("labelled", {"podSelector": {"matchLabels": {"app": "writer"}}})
    lab.push(by_label, pods={"shop/labelled": [chosen.uid]})
    eventually(lab.is_ready, WAIT_SECONDS)
    lab.writer(chosen).producer(TOPIC, EXCLUSIVE).close()
    later = lab.writer(other)
    not_yet = refusal(lambda: later.producer(TOPIC, EXCLUSIVE))
    assert not_yet.code is ServerError.SERVICE_NOT_READY, "the operator may not have said so yet"
    lab.push(by_label, pods={"shop/labelled": [chosen.uid, other.uid]})
    later.producer(TOPIC, EXCLUSIVE)
    assert lab.status()["holder"]["claim"] == "labelled"


def test_without_the_api_server_writing_and_taking_over_continue(lab: Lab) -> None:
    pods = [make_pod(lab.cluster, "shop") for _ in range(4)]
    lab.push(BY_ACCOUNT)
    eventually(lab.is_ready, WAIT_SECONDS)
    tokens = [pod_token(lab.cluster, "shop", pod) for pod in pods]
    first = lab.writer(pods[0])
    holder = first.producer(TOPIC, EXCLUSIVE, name="w0")
    waiters = [lab.writer(pod).waiter(TOPIC, name=f"w{n}") for n, pod in enumerate(pods[1:3], 1)]
    lab.brokers.wait_for_event("desired.changed")
    lab.cluster.stop_api()

    holder.publish(b"writing goes on")
    first.close()
    epoch = promoted(waiters[0])
    waiters[0].publish(b"so does the takeover by a waiter that is connected")

    # Its connection breaks: the same pod may resume its epoch, and only this one.
    again = lab.connect(tokens[1])
    again.lookup(TOPIC)
    for attempt in (
        lambda: again.producer(TOPIC, WAIT, name="new"),
        lambda: lab.connect(tokens[3]).producer(TOPIC, WAIT, name="w3"),
    ):
        answered = refusal(attempt)
        assert answered.code is ServerError.SERVICE_NOT_READY
        assert "cannot be verified" in answered.text
    intruder = refusal(
        lambda: lab.connect(tokens[3]).producer(TOPIC, EXCLUSIVE, name="w1", epoch=epoch)
    )
    assert intruder.code is ServerError.PRODUCER_FENCED, (
        "another pod is not the writer that returns"
    )
    back = again.producer(TOPIC, EXCLUSIVE, name="w1", epoch=epoch, reconnects=1)
    assert back.epoch == epoch
    back.publish(b"resumed")
    assert Http(lab.brokers.http_url, tokens[3])("GET", STATUS)[0] == 503

    lab.cluster.start_api()

    def waits() -> bool:
        with contextlib.suppress(RefusedByBroker):
            lab.connect(tokens[3]).waiter(TOPIC, name="w3")
            return True
        return False

    eventually(waits, WAIT_SECONDS)
    back.publish(b"written without an interruption")


def test_a_broker_that_starts_without_the_api_server_waits_and_reports_why(lab: Lab) -> None:
    pod = make_pod(lab.cluster, "shop")
    lab.push(BY_ACCOUNT)
    eventually(lab.is_ready, WAIT_SECONDS)
    lab.writer(pod).producer(TOPIC, EXCLUSIVE).publish(b"before")
    token = pod_token(lab.cluster, "shop", pod)
    lab.cluster.stop_api()
    lab.brokers.kill()
    lab.brokers.restart(0, wait=False)

    eventually(lambda: lab.waits("API server"), WAIT_SECONDS)
    lab.cluster.start_api()
    eventually(lab.is_ready, WAIT_SECONDS)
    client = lab.connect(token)
    eventually(lambda: bool(client.lookup(TOPIC).broker_service_url))
    client.ask_producer(TOPIC, WAIT).ready_at_last()


def test_an_emptied_store_is_refused_until_a_person_adopts_it(lab: Lab) -> None:
    lab.push(BY_ACCOUNT)
    eventually(lab.is_ready, WAIT_SECONDS)
    pod = make_pod(lab.cluster, "shop")
    before = lab.writer(pod).producer(TOPIC, EXCLUSIVE)
    before.publish(b"will be lost")
    lab.brokers.stop()
    lab.store.command("FLUSHALL")
    lab.brokers.start(wait=False)
    lab.brokers.wait_for_event("bucket.waiting", seconds=WAIT_SECONDS)

    assert "1 of 64 buckets adopted" in lab.adopts("the disk died")
    eventually(lab.is_ready, WAIT_SECONDS)
    client = lab.connect(pod_token(lab.cluster, "shop", pod))
    eventually(lambda: bool(client.lookup(TOPIC).broker_service_url))
    after = client.producer(TOPIC, EXCLUSIVE)
    assert after.epoch is not None
    assert before.epoch is not None
    assert after.epoch > before.epoch


# ------------------------------------------------------------ the anchor is deleted

ANOTHER = "registered with an anchor that is not this one"


def entries(lab: Lab) -> int:
    """The number of stored entries, over all ledgers."""
    code, found = lab.http.patiently("GET", f"{STATUS}/segments?after=0:0")
    assert code == 200, found
    return sum(int(each["entries"]) for each in found["segments"])


@pytest.mark.parametrize("deleted", ["the object", "the definition"])
def test_a_deleted_anchor_stops_no_writer_and_its_data_is_adopted_by_a_person(
    lab: Lab, deleted: str
) -> None:
    lab.push(BY_ACCOUNT)
    eventually(lab.is_ready, WAIT_SECONDS)
    pod = make_pod(lab.cluster, "shop")
    before = lab.writer(pod).producer(TOPIC, EXCLUSIVE)
    before.publish(b"with the anchor")
    what = ("bucketanchor", "shard-0") if deleted == "the object" else ("crd", DEFINITION)
    try:
        lab.cluster.kubectl("delete", *what, namespace="shop")
        before.publish(b"without it")
        lab.brokers.stop()
        lab.brokers.start(wait=False)
        if deleted == "the definition":
            eventually(lambda: lab.waits("CustomResourceDefinitions"), WAIT_SECONDS)
    finally:
        lab.cluster.establish(*CRDS)
    eventually(lambda: lab.waits(ANOTHER), WAIT_SECONDS)
    assert lab.cluster.names("bucketanchor", namespace="shop") == [], (
        "no broker has registered the store again"
    )

    assert "buckets adopted" in lab.adopts("the anchor was deleted")
    eventually(lab.is_ready, WAIT_SECONDS)
    assert entries(lab) == 2
    client = lab.connect(pod_token(lab.cluster, "shop", pod))
    eventually(lambda: bool(client.lookup(TOPIC).broker_service_url))
    after = client.producer(TOPIC, EXCLUSIVE)
    assert after.epoch is not None
    assert before.epoch is not None
    assert after.epoch > before.epoch
    after.publish(b"again")
    assert entries(lab) == 3


def test_a_deleted_anchor_is_restored_from_a_backup(lab: Lab) -> None:
    """The backup is as new as the store's data, so the holder keeps its epoch."""
    lab.push(BY_ACCOUNT)
    eventually(lab.is_ready, WAIT_SECONDS)
    pod = make_pod(lab.cluster, "shop")
    before = lab.writer(pod).producer(TOPIC, EXCLUSIVE, name="w")
    before.publish(b"kept")
    lab.brokers.stop()
    backup = lab.cluster.get("bucketanchor", "shard-0", namespace="shop")
    lab.cluster.kubectl("delete", "bucketanchor", "shard-0", namespace="shop")
    lab.brokers.start(wait=False)
    eventually(lambda: lab.waits(ANOTHER), WAIT_SECONDS)
    for name in ("uid", "resourceVersion", "managedFields", "creationTimestamp", "generation"):
        backup["metadata"].pop(name, None)
    lab.cluster.kubectl("create", "-f", "-", stdin=json.dumps(backup), namespace="shop")
    eventually(lab.is_ready, WAIT_SECONDS)
    client = lab.connect(pod_token(lab.cluster, "shop", pod))
    eventually(lambda: bool(client.lookup(TOPIC).broker_service_url))
    after = client.producer(TOPIC, EXCLUSIVE, name="w", epoch=before.epoch, reconnects=1)
    assert after.epoch == before.epoch
    assert entries(lab) == 1


def test_a_deleted_pod_does_not_come_back(lab: Lab) -> None:
    pod = make_pod(lab.cluster, "shop")
    lab.push(BY_ACCOUNT)
    eventually(lab.is_ready, WAIT_SECONDS)
    token = pod_token(lab.cluster, "shop", pod)
    delete_pod(lab.cluster, "shop", pod)

    def is_refused() -> bool:
        try:
            lab.connect(token).close()
        except RefusedByBroker as error:
            return error.code is ServerError.AUTHENTICATION_ERROR
        return False

    eventually(is_refused, WAIT_SECONDS)


def test_buckets_move_in_order_and_after_a_crash(cluster: ControlPlane, tmp_path: Path) -> None:
    """Two brokers share the buckets. At the end of each, all its buckets move to the other, in one object."""
    with running_lab(cluster, tmp_path / "lab", brokers=2) as lab:
        for number in range(2):
            lab.push(BY_ACCOUNT, number=number)

        def owners() -> set[str]:
            stored = cluster.get("bucketanchor", "shard-0", namespace="shop")
            return {record["owner"].partition("~")[0] for record in stored["buckets"]}

        def shares() -> list[int]:
            """Return the number of buckets of each broker, by its own count."""
            answers = [Http(url)("GET", "/readyz") for url in lab.brokers.http_urls]
            return [int(found["buckets"]["held"]) for _, found in answers]

        # Not while buckets move: other tests cover the buckets that are moving.
        eventually(lambda: sum(shares()) == 64 and all(shares()), WAIT_SECONDS)
        assert owners() == {"broker-0", "broker-1"}
        writer = lab.writer(make_pod(cluster, "shop"))
        target = lab.brokers.target_of(TOPIC)
        if target == 1:
            token = pod_token(cluster, "shop", make_pod(cluster, "shop"))
            writer = lab.connect(token, 1)
        producer = writer.producer(TOPIC, EXCLUSIVE, name="w")
        producer.publish(b"before")
        survivor = 1 - target
        beside = lab.connect(pod_token(cluster, "shop", make_pod(cluster, "shop")), survivor)
        cluster.stop_api()
        time.sleep(6)  # longer than a record answers look-ups whose anchor could be read again
        # On a slow machine the other broker may miss some heartbeats meanwhile.
        eventually(
            lambda: beside.lookup(TOPIC).broker_service_url == lab.brokers.service_urls[target],
            WAIT_SECONDS,
        )
        cluster.start_api()
        lab.brokers.kill(target)
        eventually(lambda: owners() == {f"broker-{survivor}"}, WAIT_SECONDS)
        successor = lab.connect(pod_token(cluster, "shop", make_pod(cluster, "shop")), survivor)
        successor.lookup(TOPIC)
        after = successor.ask_producer(TOPIC, WAIT, name="s")
        after.ready_at_last()
        after.publish(b"after")
        stored = cluster.get("bucketanchor", "shard-0", namespace="shop")
        assert stored["summary"]["buckets"] == 64
        lab.connections.close()
        lab.brokers.stop()
        stored = cluster.get("bucketanchor", "shard-0", namespace="shop")
        assert all(record["clean"] and not record["owner"] for record in stored["buckets"])
