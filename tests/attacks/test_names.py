"""Names that are too long or contain control characters are harmless, also if they are stored already."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from tests.attacks.guarded import address_of
from tests.integration.conftest import RawClients
from tests.integration.http_calls import Http
from tests.integration.raw import RawClient, full
from tests.integration.raw_connection import RefusedByBroker

from onewriter_core.errors import Refused
from onewriter_core.ids import TOPIC_NAME_LENGTH_MAX, InvalidTopicName, TopicName
from onewriter_core.own.names import canonical
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.in_process import InProcessBroker, in_process_broker

PREFIX = "persistent://public/default/"
LONGEST = "l" * (TOPIC_NAME_LENGTH_MAX - len(PREFIX))
CONTROLS = ["\x1b[31mred", "bell\x07", "two\nlines", "c1\x9b", "del\x7f", "turned\u202e", "\u2066"]


def store(broker: InProcessBroker, text: str) -> None:
    """Have a topic stored under a name that is not accepted any more."""
    broker._do(broker._broker.topics.serve(TopicName.parse(text, is_stored=True)))


def topics_over_wire(client: RawClient) -> list[str]:
    request_id = client.next_request_id()
    command = pb.CommandGetTopicsOfNamespace(request_id=request_id, namespace="public/default")
    client.say(command)
    return list(client.answer(pb.CommandGetTopicsOfNamespaceResponse, request_id).topics)


@pytest.mark.parametrize("name", ["p" * 500, "é" * 256, LONGEST + "x", PREFIX + LONGEST + "x"])
def test_a_name_that_is_too_long_when_it_is_full_is_refused(raw: RawClients, name: str) -> None:
    with in_process_broker() as broker:
        client = raw(address_of(broker))
        command = pb.CommandProducer(topic=name, producer_id=1, request_id=client.next_request_id())
        client.say(command)
        with pytest.raises(RefusedByBroker, match="INVALID_TOPIC_NAME"):
            client.answer(pb.CommandProducerSuccess, command.request_id)
        client.producer(LONGEST).publish(b"the longest name")
        assert topics_over_wire(client) == [PREFIX + LONGEST]


def test_a_stored_name_that_is_too_long_is_left_out_of_lists_and_can_be_deleted(
    raw: RawClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = "p" * 500
    with in_process_broker() as broker:
        http, client = Http(broker.http_url), raw(address_of(broker))
        client.producer("healthy").publish(b"x")
        store(broker, poison)
        assert topics_over_wire(client) == [full("healthy")]
        status, listed = http("GET", "/onewriter/v1/topics")
        assert status == 200
        assert poison not in str(listed)
        assert "healthy" in str(listed)
        assert http("GET", "/admin/v2/persistent/public/default")[0] == 200
        path = f"/admin/v2/persistent/public/default/{poison}?force=true"
        assert http("DELETE", path)[0] == 204
        assert not broker._broker.topics.loaded.get(PREFIX + poison)
        topics_over_wire(client)  # the connection lives


@pytest.mark.parametrize(
    "name", ["p" * 500, "é" * 300, "old-partition-0", "p" * 500 + "-partition-7"]
)
def test_a_namespace_with_a_stored_name_that_is_not_accepted_any_more_is_deleted_as_a_whole(
    raw: RawClients, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = "/admin/v2/namespaces/public/team"
    full_name = f"persistent://public/team/{name}"
    with in_process_broker() as broker:
        http = Http(broker.http_url)
        assert http("PUT", path)[0] == 204
        raw(address_of(broker)).producer("persistent://public/team/healthy").publish(b"x")
        with monkeypatch.context() as patched:
            patched.setattr("onewriter_broker.topic.registry.catalog._check_new", lambda _: None)
            broker._do(broker._broker.topics.serve(TopicName.parse_stored(full_name)))
        status, answer = http("DELETE", path)
        assert status == 409
        assert "non empty" in answer["reason"]
        assert http("DELETE", f"{path}?force=true")[0] == 204
        stored = broker._do(broker._broker.topics.list("public/team", with_long_names=True))
        assert not stored
        assert not [key for key in broker._broker.topics.loaded if "/team/" in key]
        assert http("GET", path)[0] == 404


def test_a_namespace_that_only_has_a_stored_name_that_is_too_long_is_not_empty(
    raw: RawClients,
) -> None:
    path = "/admin/v2/namespaces/public/team"
    with in_process_broker() as broker:
        http = Http(broker.http_url)
        assert http("PUT", path)[0] == 204
        store(broker, f"persistent://public/team/{'p' * 500}")
        assert http("DELETE", path)[0] == 409


@pytest.mark.parametrize("control", CONTROLS)
def test_new_names_with_control_characters_are_refused(raw: RawClients, control: str) -> None:
    with in_process_broker() as broker:
        client = raw(address_of(broker))
        with pytest.raises(RefusedByBroker, match="control characters"):
            client.producer(control)
        with pytest.raises(RefusedByBroker, match="control characters"):
            client.producer("topic", name=control)
        with pytest.raises(RefusedByBroker, match="control characters"):
            client.subscribe("topic", control)
        with pytest.raises(RefusedByBroker, match="control characters"):
            client.subscribe(control)
        with pytest.raises(Refused, match="control characters"):
            canonical(control)
        status, _ = Http(broker.http_url)(
            "PUT", f"/admin/v2/persistent/public/default/{quote(control, safe='')}"
        )
        assert status >= 400
        client.producer("topic").publish(b"served")
        assert topics_over_wire(client) == [full("topic")]


def test_a_stored_name_with_control_characters_is_served_and_shown_escaped(
    raw: RawClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "old\x1b[31m"
    with in_process_broker() as broker:
        client = raw(address_of(broker))
        with monkeypatch.context() as patched:
            patched.setattr("onewriter_broker.topic.registry.catalog.is_printable", lambda _: True)
            patched.setattr("onewriter_broker.dispatch.api.is_printable", lambda _: True)
            client.subscribe(name, "old\x07", permits=0).close()
        client.producer(name, pb.EXCLUSIVE).publish(b"kept")
        consumer = client.subscribe(name, "old\x07")
        assert consumer.contents(1) == [b"kept"]
        status, page = Http(broker.http_url)("GET", "/metrics")
        assert status == 200
        assert "\x1b" not in str(page)
        assert "\\\\x1b" not in str(page)


@pytest.mark.parametrize("name", ["orders-partition-0-partition-1", "a-partition-1-partition-0"])
def test_no_new_topic_has_the_name_of_a_partition(raw: RawClients, name: str) -> None:
    """Lists name topics by text: it would be shown, measured and deleted as a partition of another one."""
    with in_process_broker() as broker:
        client = raw(address_of(broker))
        client.producer("orders").publish(b"x")
        with pytest.raises(RefusedByBroker, match="INVALID_TOPIC_NAME"):
            client.producer(name)
        assert topics_over_wire(client) == [full("orders")]


@pytest.mark.parametrize("name", ["public\n/default/x", "public/default\n/x"])
def test_a_line_break_ends_no_tenant_or_namespace(name: str) -> None:
    with pytest.raises(InvalidTopicName):
        TopicName.parse(f"persistent://{name}")


def test_a_line_break_after_a_partition_is_part_of_the_name() -> None:
    text = f"{PREFIX}orders-partition-0\n"
    assert str(TopicName.parse(text)) == text
