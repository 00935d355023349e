"""What an acknowledgement promises, and which topics are refused because the store cannot promise it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest
from tests.integration.bare_brokers import bare_broker, declared, settle
from tests.integration.conftest import RawClients
from tests.integration.continuous_writer import ContinuousWriter
from tests.integration.following import follow
from tests.integration.raw import EXCLUSIVE, RefusedByBroker
from tests.servers import running_pair, running_server

from onewriter_core.errors import ServerError
from onewriter_testing.processes import LocalBrokers

pytestmark = pytest.mark.timeout(360)


def test_only_replicated_topics_wait_for_the_replica(topic: str) -> None:
    manifests = declared((topic, "Replicated"), (f"{topic}-local", "Local"))
    with (
        running_pair() as (primary, replica),
        bare_broker(primary.url, manifests=manifests) as brokers,
        ContinuousWriter(topic, brokers) as careful,
        ContinuousWriter(f"{topic}-local", brokers) as local,
    ):
        careful.has_acked(50)
        local.has_acked(50)
        replica.pause()
        local.has_acked(50)  # by a broker that has processed all earlier requests
        stopped_at = careful.at_rest()
        local.has_acked(200)
        time.sleep(0.5)
        assert len(careful.acked) == stopped_at, "acknowledged what no replica has"
        replica.resume()
        careful.has_acked(50)
        assert settle(careful, [brokers], primary.url) == 0
        assert settle(local, [brokers], primary.url) == 0
        assert len(careful.epochs) == 1


def test_a_topic_with_a_durability_that_the_store_lacks_is_refused_alone(
    topic: str, raw: RawClients
) -> None:
    manifests = declared((topic, "Replicated"), (f"{topic}-local", "Local"))
    with running_server() as server, bare_broker(server.url, manifests=manifests) as brokers:
        client = raw(brokers.address())
        with pytest.raises(RefusedByBroker, match="Replicated") as refused:
            client.producer(topic, EXCLUSIVE)
        assert refused.value.code is ServerError.NOT_ALLOWED_ERROR
        client.producer(f"{topic}-local", EXCLUSIVE).publish(b"1")
        answer = brokers.wait_for_event("topic.refused")
        assert str(answer["topic"]).endswith(topic)
        assert "can promise Local at most" in str(answer["reason"])


def test_a_topic_is_served_once_the_store_has_its_durability(topic: str, raw: RawClients) -> None:
    with (
        running_server(listens_on_tcp=True) as primary,
        running_server(listens_on_tcp=True) as replica,
        bare_broker(primary.url, manifests=declared((topic, "Replicated"))) as brokers,
    ):
        client = raw(brokers.address())
        with pytest.raises(RefusedByBroker, match="Replicated"):
            client.producer(topic, EXCLUSIVE)
        replica.follow(primary)  # the first one: the dataset gets another identity
        brokers.wait_for_event("store.promises")
        follow(brokers, raw, topic, EXCLUSIVE).publish(b"1")


def test_a_store_weaker_than_the_minimum_is_refused() -> None:
    settings = {"minimum_durability": "Replicated"}
    with running_server() as server, tempfile.TemporaryDirectory(prefix="ow-") as folder:
        brokers = LocalBrokers(
            Path(folder), redis_url=server.url, supervised=False, settings=settings
        )
        brokers.start(wait=False)
        assert brokers.wait_ended() == 2
        (answer,) = brokers.events("broker.refused")
        assert "at most durability Local" in str(answer["reason"])
        brokers.stop()
