"""Mistakes and accidents in reads of the pipeline: each gives one clear sentence, and has no effect."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from tests.integration.conftest import RawClients
from tests.integration.forked_brokers import BUCKETS, forked_brokers
from tests.integration.raw import EXCLUSIVE, FENCING
from tests.integration.test_http_own_api import guarded, token
from tests.servers import running_server

from onewriter_broker.log.store.keys import Keys
from onewriter_core.ids import TopicName
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.errors import Away, Damaged, Invalid, NotAllowed, PipelineError
from onewriter_pipeline.schema import MESSAGE_COLUMNS, column_types
from onewriter_testing.processes import LocalBrokers
from pyspark_onewriter.options import read_options, stream_options
from pyspark_onewriter.source import TopicReader
from pyspark_onewriter.stream import TopicStreamReader

__all__ = ["guarded"]

TYPES = {
    name: kind.replace(" ", "").lower()
    for name, kind in column_types().items()
    if name in MESSAGE_COLUMNS
}
SECRET = "a-token-that-nobody-may-see"  # noqa: S105 - not a real one


def batch(**options: Any) -> int:
    """Read with spark.read's reader; return the number of rows."""
    reader = TopicReader(read_options(given(options)))
    return sum(rows.num_rows for task in reader.partitions() for rows in reader.read(task))


def stream(**options: Any) -> object:
    """Begin a stream."""
    reader = TopicStreamReader(
        stream_options(given({"startingOffsets": "earliest"} | options), TYPES)
    )
    limit = reader.getDefaultReadLimit()
    return reader.latestOffset(reader.latestOffset(reader.initialOffset(), limit), limit)


def given(options: dict[str, Any]) -> dict[str, str]:
    names = {"url": "admin.url", "token": "authToken", "ca": "tls.caFile"}
    return {names.get(name, name): str(value) for name, value in options.items()}


READS = pytest.mark.parametrize("read", [batch, stream])


@READS
def test_a_wrong_token(guarded: LocalBrokers, raw: RawClients, read: Any) -> None:
    raw(guarded.address(), token=token("writer")).producer("plain", EXCLUSIVE).publish(b"x")
    for wrong in (SECRET, token("reader")[:-3] + "abc", ""):
        with pytest.raises(
            NotAllowed, match=r"^the brokers refuse the token \(401\): "
        ) as reported:
            read(url=guarded.http_url, topic="plain", token=wrong)
        assert not wrong or wrong not in str(reported.value)
    assert read(url=guarded.http_url, topic="plain", token=token("reader"))


@READS
def test_a_token_file_that_is_not_there(broker: LocalBrokers, topic: str, read: Any) -> None:
    with pytest.raises(Invalid, match="the token file /nowhere/token cannot be read"):
        read(url=broker.http_url, topic=topic, authTokenFile="/nowhere/token")


@READS
def test_a_corrupt_block_is_named(raw: RawClients, read: Any) -> None:
    with (
        running_server() as store,
        forked_brokers(redis_url=store.url, settings={"tail_bytes_per_log": 1}) as brokers,
    ):
        producer = raw(brokers.address()).producer("damaged", EXCLUSIVE)
        for number in range(5):
            producer.publish(b"%d" % number)
        with Broker(Access(brokers.http_url)) as client:
            ledger = client.segments("damaged").ledger
        key = Keys(BUCKETS).of(TopicName.parse("damaged"))[0]
        with redis.Redis.from_url(store.url, protocol=2) as direct:
            direct.xadd(key, {"who": "somebody"}, id=f"{ledger}-6")
        raw(brokers.address()).producer("damaged", FENCING).publish(b"later")
        with pytest.raises(Damaged, match=f"the log is damaged: .*{ledger}-6"):
            read(url=brokers.http_url, topic="damaged")


@READS
def test_a_topic_that_no_broker_has(broker: LocalBrokers, topic: str, read: Any) -> None:
    with pytest.raises(PipelineError, match=f"{topic}-none does not exist"):
        read(url=broker.http_url, topic=f"{topic}-none")
    with pytest.raises(PipelineError, match="not a topic name"):
        read(url=broker.http_url, topic="a/b")


def test_a_server_that_is_not_a_broker_is_reported(broker: LocalBrokers) -> None:
    url = broker.service_url.replace("pulsar://", "http://")  # the port of Pulsar's protocol
    with (
        Broker(Access(url, patience_seconds=0.1)) as client,
        pytest.raises(Away, match=r"127\.0\.0\.1:\d+ closed the connection"),
    ):
        client.segments("orders")
