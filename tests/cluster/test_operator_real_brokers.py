"""The operator with real brokers and stock clients; compares the fake broker's answers with the real ones."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner
from tests.cluster.control_plane import ControlPlane
from tests.cluster.operators import OperatorProcess, running, wait_until
from tests.cluster.worlds import World
from tests.integration.following import placed
from tests.servers import running_server
from tests.unit.kube.fake_broker import ThreadedBroker, producer_group, status, transition

from onewriter_broker.verbs.adopt import adopt as adopt_command
from onewriter_testing.processes import LocalBrokers, running_brokers

Json = dict[str, Any]

STAGES_MAX = 16
"""The maximum number of tests that use a stage."""

EXCLUSIVE = pulsar.ProducerAccessMode.Exclusive

ANSWER_SECONDS = 120
"""Time limit of every request to a client or a broker: a machine may be slow."""

PATIENT_BROKERS = {
    "frozen_after_seconds": 60,
    "silent_after_seconds": 60,
    "resume_window_seconds": 30,
}
"""A client that gets no processor time for a while keeps its topic: no test here is about that."""

OPEN_TOPIC: Json = {
    "access": {"requireClaim": False},
    "detection": {"pingIntervalSeconds": 20},
}
"""A topic that all clients may write to. Its holder may be slow, too."""


class Stage:
    """An operator between a real API server and real brokers."""

    def __init__(self, world: World, brokers: LocalBrokers) -> None:
        self.world = world
        self.brokers = brokers

    def writer(self, client: pulsar.Client, name: str) -> pulsar.Producer:
        """Return the only producer, once the topic is available: it may be reserved for another's return."""

        def created() -> pulsar.Producer | None:
            try:
                return client.create_producer(
                    self.world.name("orders"),
                    producer_name=name,
                    access_mode=EXCLUSIVE,
                    send_timeout_millis=ANSWER_SECONDS * 1_000,
                )
            except (pulsar.ProducerFenced, pulsar.ProducerBusy):
                return None

        found: pulsar.Producer = wait_until(created)
        return found

    def client(self) -> pulsar.Client:
        return pulsar.Client(self.brokers.service_url, operation_timeout_seconds=ANSWER_SECONDS)


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalBrokers]:
    settings = {"allow_undeclared": "public/default", **PATIENT_BROKERS}
    with running_brokers(brokers=2, settings=settings) as found:
        yield found


@pytest.fixture(scope="module")
def stages(
    api_server: ControlPlane, brokers: LocalBrokers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Iterator[Stage]]:
    """A namespace with its topics for each test, and one operator for all."""
    names = [f"stage-{uuid.uuid4().hex[:10]}" for _ in range(STAGES_MAX)]
    for name in names:
        api_server.make_namespace(name)
    urls = dict(zip(brokers.names, brokers.http_urls, strict=True))
    directory = tmp_path_factory.mktemp("operator")
    options = {"namespaces": names}
    # Topics that clients create belong to the tenant public. Here any namespace may adopt them.
    allowed = [{"namespace": name, "tenants": ["public"]} for name in names]
    configuration = {"tenancy": {"allow": allowed}}
    operator = OperatorProcess(
        directory, api_server, names[0], urls, options=options, configuration=configuration
    )
    with running(operator):
        yield (
            Stage(World(api_server, name, None, operator), brokers)  # type: ignore[arg-type]
            for name in names
        )


@pytest.fixture
def stage(stages: Iterator[Stage]) -> Stage:
    return next(stages)


def test_a_topic_from_its_manifest_to_its_status(stage: Stage) -> None:
    world = stage.world
    world.topic(**OPEN_TOPIC)
    world.until("Ready", "True/Ready")
    world.until("WriterActive", "False/Vacant")
    client = stage.client()
    try:
        producer = stage.writer(client, "one")
        producer.send(b"x")
        world.until("WriterActive", "True/Held")
        first = world.status()
        assert first["epoch"] >= 1
        assert first["holder"]["producerName"] == "one"
        assert first["transitions"][0]["producerName"] == "one"
        producer.close()
        world.until("WriterActive", "False/Vacant")
        again = stage.writer(client, "two")
        wait_until(lambda: world.status().get("holder", {}).get("producerName") == "two")
        second = world.status()
        assert second["epoch"] > first["epoch"]
        assert second["transitions"][0]["cause"] == "Released"
        again.close()
    finally:
        client.close()


def test_a_person_fences_by_annotation(stage: Stage) -> None:
    world = stage.world
    world.topic(**OPEN_TOPIC)
    world.until("Ready", "True/Ready")
    client = stage.client()
    try:
        producer = stage.writer(client, "one")
        world.until("WriterActive", "True/Held")
        epoch = world.status()["epoch"]
        world.annotate(f"onewriter.dev/fence={epoch}")
        # The operator reports this also while it cannot reach a broker yet, and asks again.
        wait_until(
            lambda: any("done" in each["note"] for each in world.events("FencedByOrder")),
            explain=lambda: (world.events("FencedByOrder"), world.status()),
        )
        wait_until(lambda: "FencedByAdministrator" in json.dumps(world.status()))
        with pytest.raises(pulsar.PulsarException):
            producer.send(b"late")
    finally:
        client.close()


def test_a_topic_that_clients_made_is_adopted_with_its_epoch(stage: Stage) -> None:
    world = stage.world
    topic = f"persistent://public/default/{world.namespace}"
    client = stage.client()
    try:
        client.create_producer(topic, access_mode=EXCLUSIVE).close()
        world.topic(topic=topic, **OPEN_TOPIC)
        world.until("PolicyApplied", "True/Adopted")
        assert world.status()["epoch"] >= 1
    finally:
        client.close()


def test_a_claim_is_required_until_it_is_not(stage: Stage) -> None:
    world = stage.world
    world.topic()
    world.until("Ready", "True/Ready")
    client = stage.client()
    try:
        with pytest.raises(pulsar.AuthorizationError):
            client.create_producer(world.name("orders"), access_mode=EXCLUSIVE)
        world.topic(**OPEN_TOPIC)
        wait_until(lambda: world.status()["observedGeneration"] == 2)
        world.until("PolicyApplied", "True/Applied")
        client.create_producer(world.name("orders"), access_mode=EXCLUSIVE).close()
    finally:
        client.close()


def test_the_log_goes_with_its_object(stage: Stage) -> None:
    world = stage.world
    world.topic(**OPEN_TOPIC, deletionPolicy="Delete")
    world.until("Ready", "True/Ready")
    client = stage.client()
    try:
        producer = client.create_producer(world.name("orders"), access_mode=EXCLUSIVE)
        producer.send(b"x")
        producer.close()
        wait_until(lambda: world.status().get("epoch"))
        epoch = world.status()["epoch"]
        world.delete("xt")
        world.topic(**OPEN_TOPIC)
        world.until("Ready", "True/Ready")
        reader = client.create_reader(world.name("orders"), pulsar.MessageId.earliest)
        assert not reader.has_message_available()
        reader.close()
        client.create_producer(world.name("orders"), access_mode=EXCLUSIVE).close()
        wait_until(lambda: world.status().get("epoch", 0) > epoch)  # it survived the deletion
    finally:
        client.close()


def test_a_log_with_entries_stays_if_only_an_empty_one_may_go(stage: Stage) -> None:
    world = stage.world
    world.topic(**OPEN_TOPIC, deletionPolicy="DeleteIfEmpty")
    world.until("Ready", "True/Ready")
    client = stage.client()
    try:
        producer = client.create_producer(world.name("orders"), access_mode=EXCLUSIVE)
        producer.send(b"kept")
        producer.close()
        # The next writer's ledger has no entry, so the earlier ledger counts.
        client.create_producer(world.name("orders"), access_mode=EXCLUSIVE).close()
        world.delete("xt")
        world.topic(**OPEN_TOPIC)
        world.until("Ready", "True/Ready")
        reader = client.create_reader(world.name("orders"), pulsar.MessageId.earliest)
        assert reader.read_next(ANSWER_SECONDS * 1_000).data() == b"kept"
        reader.close()
    finally:
        client.close()


def test_a_broker_that_dies_is_bridged(stage: Stage) -> None:
    world = stage.world
    world.topic(**OPEN_TOPIC)
    world.until("Ready", "True/Ready")
    client = stage.client()
    try:
        producer = stage.writer(client, "one")
        world.until("WriterActive", "True/Held")
        epoch = world.status()["epoch"]
        stage.brokers.kill(stage.brokers.owner_of(world.name("orders")))
        producer.send(b"after")

        def is_back() -> bool:
            """The status may be the earlier one, or an intermediate one."""
            found = world.status()
            holder = found.get("holder") or {}
            return found["epoch"] >= epoch and holder.get("producerName") == "one"

        stage.brokers.wait_ready()
        world.noticed()
        wait_until(is_back, explain=world.status)
        world.until("WriterActive", "True/Held")
        assert is_back()
    finally:
        client.close()


def test_a_durability_that_the_store_does_not_provide_is_not_shown_as_given(stage: Stage) -> None:
    world = stage.world
    world.topic(**OPEN_TOPIC, durability="Replicated")
    world.until("Serving", "False/RefusedByBroker")
    world.until("Ready", "False/RefusedByBroker")
    assert "durability" not in world.status()
    world.topic(**OPEN_TOPIC, durability="Local")
    world.until("Ready", "True/Ready")
    assert world.status()["durability"] == "Local"


def test_topics_of_a_store_that_lost_its_data_are_not_ready_until_a_person_decides(
    api_server: ControlPlane, tmp_path: Path
) -> None:
    name = f"emptied-{uuid.uuid4().hex[:10]}"
    api_server.make_namespace(name)
    settings = {"buckets": 64, **PATIENT_BROKERS}
    with running_server() as store, running_brokers(redis_url=store.url, settings=settings) as own:
        urls = dict(zip(own.names, own.http_urls, strict=True))
        operator = OperatorProcess(tmp_path, api_server, name, urls)
        with running(operator):
            world = World(api_server, name, None, operator)  # type: ignore[arg-type]
            world.topic(**OPEN_TOPIC)
            world.until("Ready", "True/Ready")
            client = pulsar.Client(own.service_url, operation_timeout_seconds=ANSWER_SECONDS)
            try:
                Stage(world, own).writer(client, "one").send(b"acknowledged")
                world.until("WriterActive", "True/Held")
            finally:
                client.close()
            store.kill()
            shutil.rmtree(store.folder / "appendonlydir")  # as when its volume is lost
            store.start()
            world.until("Serving", "False/BucketWaiting")
            world.until("Ready", "False/BucketWaiting")
            adopted = CliRunner().invoke(
                adopt_command,
                [
                    *("--force", "--all", "--reason", "the volume is lost"),
                    *("--redis-url", store.url, "--data-dir", str(own.data_directory)),
                ],
            )
            assert adopted.exit_code == 0, adopted.output
            world.until("Ready", "True/Ready")


# ------------------------------------------------------------ comparison of the fake and the real broker


def connection(url: str) -> http.client.HTTPConnection:
    parts = urllib.parse.urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS)


def call(method: str, url: str, body: object = None) -> tuple[int, Json]:
    """Send a request; return its status and JSON. Redirects are not followed."""
    link = connection(url)
    try:
        link.request(method, urllib.parse.urlsplit(url).path, json.dumps(body) if body else None)
        answer = link.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text.startswith(b"{") else {}
    finally:
        link.close()


def first_lines(url: str) -> list[Json]:
    """Return the lines of a broker's stream up to the one that ends the initial state."""
    link = connection(url)
    found: list[Json] = []
    try:
        link.request("GET", "/onewriter/v1/watch")
        answer = link.getresponse()
        while not found or found[-1]["type"] != "SYNCED":
            found.append(json.loads(answer.readline()))
    finally:
        link.close()
    return found


def shape(value: Any) -> Any:
    """Return the structure of a value: names and kinds, without absent parts."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items() if each not in (None, [], {})}
    if isinstance(value, list):
        shapes = [shape(each) for each in value]
        if not all(isinstance(each, dict) for each in shapes):
            return shapes[:1]
        return [{name: each for one in shapes for name, each in one.items()}]
    return (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value)
    )


def is_within(small: Any, large: Any, path: str = "") -> list[str]:
    """Return the places where ``large`` lacks what ``small`` has."""
    if isinstance(small, dict):
        if not isinstance(large, dict):
            return [path]
        return [
            gap
            for name, each in small.items()
            for gap in (
                is_within(each, large[name], f"{path}.{name}")
                if name in large
                else [f"{path}.{name}"]
            )
        ]
    if isinstance(small, list):
        return is_within(small[0], large[0], f"{path}[]") if isinstance(large, list) else [path]
    return [] if small == large else [f"{path}: {small} is not {large}"]


def test_the_fake_broker_answers_like_the_real_one(brokers: LocalBrokers) -> None:
    name = f"persistent://public/default/contract-{time.time_ns()}"
    plain = name.removeprefix("persistent://")
    client = pulsar.Client(brokers.service_url, operation_timeout_seconds=ANSWER_SECONDS)
    try:
        first = client.create_producer(name, producer_name="one", access_mode=EXCLUSIVE)
        first.close()
        # An earlier test killed a broker, to which buckets may still be moving back.
        placed(brokers, name)
        second = client.create_producer(name, producer_name="two", access_mode=EXCLUSIVE)
        owner = brokers.target_of(name)
        real_url = brokers.http_urls[owner]
        with ThreadedBroker() as fake:
            writer = producer_group("two", epoch=2, since="2026-01-01T00:00:00.000Z")
            transitions = [transition(2, "Released", writer, producer_group("one", epoch=1))]
            fake.serve(name, status(2, holders=[writer], transitions=transitions))
            fake.do(lambda: fake.fake.report_buckets([0, 1], {}))
            fake.do(fake.fake.report_broker)
            fake.do(lambda: fake.fake.report_quotas({}))
            for path in (f"/onewriter/v1/topics/{plain}",):
                real, ours = call("GET", real_url + path), call("GET", fake.url + path)
                assert real[0] == ours[0] == 200
                assert is_within(shape(ours[1]), shape(real[1])) == []
            looked_up = [
                call("POST", f"{url}/onewriter/v1/topics", {"topics": [name]})[1]
                for url in (fake.url, real_url)
            ]
            assert looked_up[1]["topics"][name]["undivided"]
            assert is_within(*map(shape, looked_up)) == []
            for path, method, body, code in (
                ("/onewriter/v1/topics/public/default/none", "GET", None, 404),
                (f"/onewriter/v1/topics/{plain}/fence", "POST", {"ifEpoch": 999}, 412),
                ("/onewriter/v1/desired", "PUT", {"revision": "x", "topics": [{}]}, 400),
            ):
                real = call(method, real_url + path, body)
                ours = call(method, fake.url + path, body)
                assert real[0] == ours[0] == code, (path, real, ours)
            errors = [
                call("PUT", url + "/onewriter/v1/desired", {"revision": "x", "topics": [{}]})[1][
                    "errors"
                ]
                for url in (real_url, fake.url)
            ]
            assert errors[0] == errors[1]
            other = brokers.http_urls[1 - owner]
            assert call("POST", f"{other}/onewriter/v1/topics/{plain}/fence", {})[0] == 307
            real_lines, fake_lines = first_lines(real_url), first_lines(fake.url)
            for lines in (real_lines, fake_lines):
                assert {each["type"] for each in lines[:-4]} == {"TOPIC"}
                assert [each["type"] for each in lines[-4:-1]] == ["BROKER", "BUCKETS", "QUOTAS"]
            assert name in {each["topic"] for each in real_lines[:-4]}
            fake_lines[-4].pop("certificates")  # these brokers listen without TLS
            for real_line, fake_line in zip(real_lines[-4:-1], fake_lines[-4:-1], strict=True):
                assert is_within(shape(fake_line), shape(real_line)) == []
            assert set(real_lines[-1]) == set(fake_lines[-1])
        second.close()
    finally:
        client.close()


def test_a_refusal_names_the_object_as_the_operator_expects(brokers: LocalBrokers) -> None:
    bad = {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ExclusiveTopic",
        "metadata": {"name": "bad", "namespace": "shop"},
        "spec": {"partitions": -1},
    }
    code, answer = call(
        "PUT", f"{brokers.http_url}/onewriter/v1/desired", {"revision": "x", "topics": [bad]}
    )
    assert code == 400
    assert all(re.match("ExclusiveTopic shop/bad[,:]", each) for each in answer["errors"])


def test_entries_are_counted_as_the_operator_reads_them(brokers: LocalBrokers) -> None:
    name = f"persistent://public/default/counted-{time.time_ns()}"
    client = pulsar.Client(brokers.service_url, operation_timeout_seconds=ANSWER_SECONDS)
    try:
        producer = client.create_producer(name)
        for _ in range(3):
            producer.send(b"x")
        placed(brokers, name)
        url = brokers.http_urls[brokers.target_of(name)]
        plain = name.removeprefix("persistent://")
        code, answer = call("GET", f"{url}/admin/v2/persistent/{plain}/internalStats")
        assert code == 200
        assert answer["numberOfEntries"] == 3
    finally:
        client.close()
