"""Topics that leave the memory of a real broker because no client uses them, and are loaded again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from tests.integration.conftest import RawClients
from tests.integration.following import at_owner, follow
from tests.integration.forked_brokers import BUCKETS, forked_brokers
from tests.integration.http_calls import ADMIN, OWN, Http, epoch_of
from tests.integration.raw import EXCLUSIVE, RawProducer, RefusedByBroker, contents_of, eventually
from tests.servers import running_server

from onewriter_broker.verify.cli import verify_command
from onewriter_core.errors import ServerError
from onewriter_core.wire.values import SendReceipt
from onewriter_testing.processes import LocalBrokers

NOWHERE = (2**64 - 1, 2**64 - 1)
"""The position in the receipt of a duplicate."""


@pytest.fixture(scope="module")
def urls() -> Iterator[tuple[LocalBrokers, str]]:
    """A broker that unloads a topic a second after its last client, and the URL of its store."""
    settings = {"unused_topic_seconds": 1.0, "silent_after_seconds": 600.0}
    with (
        running_server() as store,
        forked_brokers(redis_url=store.url, settings=settings) as brokers,
    ):
        yield brokers, store.url


@pytest.fixture
def forgetful(urls: tuple[LocalBrokers, str]) -> LocalBrokers:
    return urls[0]


def status_of(brokers: LocalBrokers, topic: str) -> dict[str, Any]:
    code, found = Http(brokers.http_url)("GET", f"{OWN}/{topic}")
    assert code == 200, found
    return dict(found)


def wait_unloaded(brokers: LocalBrokers, topic: str) -> None:
    eventually(lambda: not status_of(brokers, topic)["loaded"], what=f"{topic} leaves memory")


def receipt_of(producer: RawProducer, number: int) -> tuple[int, int]:
    producer.send(b"%d" % number, number)
    found = producer.client.expect(SendReceipt, lambda receipt: receipt.sequence_id == number)
    assert found.message_id is not None
    return tuple(found.message_id.position)  # type: ignore[return-value]  # two numbers


def test_a_topic_that_left_memory_keeps_its_epoch_its_messages_and_its_history(
    urls: tuple[LocalBrokers, str], forgetful: LocalBrokers, raw: RawClients, topic: str
) -> None:
    first = follow(forgetful, raw, topic, EXCLUSIVE, name="first")
    for number in range(3):
        first.publish(b"%d" % number)
    assert status_of(forgetful, topic)["loaded"]
    first.close()
    wait_unloaded(forgetful, topic)
    status = status_of(forgetful, topic)
    assert (status["state"], status["epoch"], status["holder"]) == ("Idle", epoch_of(first), None)
    code, listed = Http(forgetful.http_url)("GET", "/onewriter/v1/topics?limit=5000")
    assert code == 200
    assert topic in {each["name"].rpartition("/")[2] for each in listed["topics"]}

    second = follow(forgetful, raw, topic, EXCLUSIVE, name="second")
    assert epoch_of(second) > epoch_of(first)
    second.publish(b"3")
    with pytest.raises(RefusedByBroker) as refused:
        at_owner(forgetful, raw, topic).producer(
            topic, EXCLUSIVE, name="first", epoch=epoch_of(first), reconnects=1
        )
    assert refused.value.code is ServerError.PRODUCER_FENCED
    assert contents_of(forgetful.address(), topic) == [b"0", b"1", b"2", b"3"]

    code, history = Http(forgetful.http_url)("GET", f"{OWN}/{topic}/history")
    assert code == 200
    grants = [record for record in history["records"] if record.get("kind") == "grant"]
    epochs = sorted(int(grant["epoch"]) for grant in grants)
    assert epochs == [epoch_of(first), epoch_of(second)]
    assert "Released" in {grant["cause"] for grant in grants}
    second.close()
    words = ["--buckets", str(BUCKETS), topic, "--redis-url", urls[1]]
    result = CliRunner().invoke(verify_command, words)
    assert result.exit_code == 0, result.output


def test_a_holder_that_lost_its_connection_resumes_after_the_topic_left_memory(
    forgetful: LocalBrokers, raw: RawClients, topic: str
) -> None:
    first = follow(forgetful, raw, topic, EXCLUSIVE, name="first")
    stored = first.publish(b"0", 0)
    first.client.close()
    wait_unloaded(forgetful, topic)
    again = follow(
        forgetful, raw, topic, EXCLUSIVE, name="first", epoch=epoch_of(first), reconnects=1
    )
    assert epoch_of(again) == epoch_of(first)
    assert again.publish(b"0", 0).position == stored.position  # sent again, and stored once
    again.publish(b"1", 1)
    assert contents_of(forgetful.address(), topic) == [b"0", b"1"]


def test_deduplication_survives(forgetful: LocalBrokers, raw: RawClients, topic: str) -> None:
    path = f"{ADMIN}/persistent/public/default/{topic}/deduplicationEnabled"
    follow(forgetful, raw, topic, EXCLUSIVE, name="source").close()
    assert Http(forgetful.http_url)("POST", path, True)[0] == 204
    first = follow(forgetful, raw, topic, EXCLUSIVE, name="source")
    for number in range(3):
        first.publish(b"%d" % number, number)
    first.close()
    wait_unloaded(forgetful, topic)
    second = follow(forgetful, raw, topic, EXCLUSIVE, name="source")
    assert second.last_sequence_id == 2
    assert receipt_of(second, 2) == NOWHERE
    assert receipt_of(second, 3) != NOWHERE
    assert contents_of(forgetful.address(), topic) == [b"0", b"1", b"2", b"3"]


def test_a_topic_with_a_subscription_stays_in_memory(
    forgetful: LocalBrokers, raw: RawClients, topic: str
) -> None:
    beside = f"{topic}-beside"
    reader = at_owner(forgetful, raw, topic)
    reader.subscribe(topic).close()
    follow(forgetful, raw, beside, EXCLUSIVE).close()
    wait_unloaded(forgetful, beside)
    assert status_of(forgetful, topic)["loaded"]


def test_the_metrics_count_topics_in_memory_and_those_that_left_it(
    forgetful: LocalBrokers, raw: RawClients, topic: str
) -> None:
    follow(forgetful, raw, topic, EXCLUSIVE).close()
    wait_unloaded(forgetful, topic)
    code, text = Http(forgetful.http_url)("GET", "/metrics")
    assert code == 200
    found = re.search(r"^onewriter_topics_unloaded (\S+)$", text, re.MULTILINE)
    assert found is not None
    assert float(found[1]) >= 1
