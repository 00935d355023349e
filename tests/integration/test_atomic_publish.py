"""Atomic publishes with real brokers: what consumers see, who is authorized, and brokers that die during a
publish.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pulsar
import pyarrow as pa
import pytest
import redis
from click.testing import CliRunner
from pulsar import ProducerAccessMode as Mode
from tests.integration.bare_brokers import bare_broker
from tests.integration.conftest import StockClients
from tests.integration.forked_brokers import BUCKETS, forked_brokers
from tests.integration.http_calls import OWN, Http
from tests.integration.leaders import granted, program
from tests.servers import running_server

import onewriter.sync
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.verify.cli import verify_command
from onewriter_core.ids import TopicName
from onewriter_core.log_format.staged_rows import MAGIC
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.errors import Conflict, Invalid, MissingPart, PipelineError
from onewriter_pipeline.lead.requests import Grant
from onewriter_pipeline.publish.staging import Part, Publication, Staging
from onewriter_testing.processes import LocalBrokers

APP = "0f3a-query"
ROWS = 10_000
"""Rows of a publish that is cut short: with 1,000 bytes each they fill some 40 blocks."""


def rows(first: int, count: int, size: int = 0) -> pa.RecordBatch:
    """Return numbered rows, as executors have them."""
    values = [str(number).ljust(size, ".").encode() for number in range(first, first + count)]
    return pa.record_batch(
        {
            "value": pa.array(values, pa.binary()),
            "__key": pa.array([f"key-{number % 7}" for number in range(count)]),
            "__eventTime": pa.array([1_700_000_000_000 + n for n in range(count)]),
        }
    )


@contextlib.contextmanager
def staging(
    url: str, topic: str, version: int, *, app: str = APP, grant: Grant | None = None
) -> Iterator[Staging]:
    """Stage rows of a topic under a grant; without a grant a driver leads the topic meanwhile."""
    with contextlib.ExitStack() as stack:
        led = grant or stack.enter_context(granted(url, topic, app))
        yield stack.enter_context(Staging(Access(url), topic, app, version, led))


def publish(
    url: str, topic: str, version: int, *batches: pa.RecordBatch, grant: Grant | None = None
) -> Publication:
    with staging(url, topic, version, grant=grant) as opened:
        return opened.publish(staged(opened, *batches))


def staged(opened: Staging, *batches: pa.RecordBatch) -> list[Part]:
    return [
        part
        for number, batch in enumerate(batches)
        for part in opened.stage(number, number + 100, [batch])
    ]


class Reader:
    """A stock consumer that reads from the beginning."""

    def __init__(self, client: Any, topic: str) -> None:
        self._reader = client.create_reader(topic, pulsar.MessageId.earliest)

    def all(self) -> list[pulsar.Message]:
        found = []
        while self._reader.has_message_available():
            found.append(self._reader.read_next(timeout_millis=60_000))
        return found

    def numbers(self) -> list[int]:
        return [number_of(message) for message in self.all()]


def number_of(message: Any) -> int:
    return int(message.data().decode().rstrip("."))


def holder(client: Any, topic: str) -> Any:
    return client.create_producer(topic, access_mode=Mode.ExclusiveWithFencing)


def epoch_of(brokers: LocalBrokers, topic: str) -> int:
    status, answer = Http(brokers.http_url)("GET", f"{OWN}/{topic}")
    assert status == 200
    return int(answer["epoch"])


# --- what is published


def test_rows_are_read_once_in_order_with_all_they_had(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    client = stock(broker.service_url)
    found = publish(broker.http_url, topic, 7, rows(0, 1500), rows(1500, 0), rows(1500, 3))
    assert (found.is_duplicate, found.rows) == (False, 1503)
    assert found.first is not None
    assert found.last is not None
    assert found.last.entry - found.first.entry == 2
    messages = Reader(client, topic).all()
    assert [number_of(message) for message in messages] == list(range(1503))
    assert messages[8].partition_key() == "key-1"
    assert messages[8].event_timestamp() == 1_700_000_000_008
    assert {message.producer_name() for message in messages} == {APP}


def test_a_version_is_published_once_for_any_number_of_requests(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    assert not publish(broker.http_url, topic, 3, rows(0, 10)).is_duplicate
    assert publish(broker.http_url, topic, 3, rows(0, 10)).is_duplicate
    assert not publish(broker.http_url, topic, 4, rows(10, 10)).is_duplicate
    assert Reader(stock(broker.service_url), topic).numbers() == list(range(20))


def test_crossing_publishes_of_one_version_leave_one(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    with granted(broker.http_url, topic, APP) as grant:
        with staging(broker.http_url, topic, 1, grant=grant) as opened:
            parts = staged(opened, rows(0, 20_000, 100))

        def one(_number: int) -> Publication:
            with staging(broker.http_url, topic, 1, grant=grant) as own:
                return own.publish(parts)

        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(one, range(6)))
    assert sum(not each.is_duplicate for each in found) == 1
    assert Reader(stock(broker.service_url), topic).numbers() == list(range(20_000))


def test_an_attempt_that_failed_is_no_part_of_it(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    with staging(broker.http_url, topic, 1) as opened:
        opened.stage(0, 1, [rows(500, 10)])
        parts = opened.stage(0, 2, [rows(0, 10)])
        opened.stage(0, 3, [rows(600, 10)])
        assert not opened.publish(parts).is_duplicate
    assert Reader(stock(broker.service_url), topic).numbers() == list(range(10))


def test_no_rows_are_published_without_a_trace(broker: LocalBrokers, topic: str) -> None:
    found = publish(broker.http_url, topic, 1, rows(0, 0))
    assert found == Publication(False, None, None, 0)


# --- under an epoch


def test_a_publish_keeps_its_place_among_the_messages_of_the_holder(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    client = stock(broker.service_url)
    with (
        onewriter.sync.Client(broker.service_url) as sdk,
        sdk.lead(topic, announce=False) as leadership,
    ):
        leadership.send(b"1000")
        grant = Grant(leadership.epoch, leadership.capability(APP))
        assert not publish(broker.http_url, topic, 1, rows(0, 100), grant=grant).is_duplicate
        leadership.send(b"2000")
        assert Reader(client, topic).numbers() == [1000, *range(100), 2000]
        assert epoch_of(broker, topic) == leadership.epoch


def test_a_zombie_publishes_nothing(broker: LocalBrokers, topic: str, stock: StockClients) -> None:
    client = stock(broker.service_url)
    with (
        program(broker.service_url, topic, APP) as old,
        staging(broker.http_url, topic, 1, grant=old) as zombie,
    ):
        parts = staged(zombie, rows(0, 100))
        with program(broker.service_url, topic, APP) as new:
            assert new.epoch > old.epoch
            with pytest.raises(PipelineError, match=f"epoch {old.epoch}"):
                zombie.publish(parts)
            never = Grant(new.epoch + 1, new.capability)
            with (
                staging(broker.http_url, topic, 1, grant=never) as early,
                pytest.raises(PipelineError),
            ):
                early.publish(parts)
            assert not publish(broker.http_url, topic, 1, rows(7, 1), grant=new).is_duplicate
    assert Reader(client, topic).numbers() == [7]


def test_a_driver_leads_while_it_publishes_and_deposes_no_leader(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    client = stock(broker.service_url)
    producer = holder(client, topic)
    before = epoch_of(broker, topic)
    with pytest.raises(Conflict, match="another producer holds"):
        publish(broker.http_url, topic, 1, rows(0, 1))
    assert epoch_of(broker, topic) == before
    producer.close()
    assert not publish(broker.http_url, topic, 1, rows(0, 1)).is_duplicate
    producer = holder(client, topic)
    producer.send(b"9")
    assert Reader(client, topic).numbers() == [0, 9]


def test_without_an_epoch_nothing_is_published(broker: LocalBrokers, topic: str) -> None:
    with Staging(Access(broker.http_url), topic, APP, 1) as opened:
        parts = staged(opened, rows(0, 10))
        with pytest.raises(Invalid, match="no epoch of"):
            opened.publish(parts)


# --- what is refused


def test_missing_or_foreign_parts_never_count_as_empty(broker: LocalBrokers, topic: str) -> None:
    with staging(broker.http_url, topic, 1) as opened:
        (part,) = opened.stage(0, 1, [rows(0, 10)])
        with pytest.raises(MissingPart, match="other content"):
            opened.publish([replace(part, checksum="0" * 32)])
        opened.discard([part])
        opened.discard([part])
        with pytest.raises(MissingPart, match="is missing"):
            opened.publish([part])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"OWR2",
        MAGIC + b"\x08",
        MAGIC + b"\x04\0\0\0\1\0\0\0",
        MAGIC + b"\x08\0\0\0\1\0\0\0\0\0\0\0",
        MAGIC + b"\x0a\0\0\0\1\0\0\0\0\0\0\2\x18\x05",
        MAGIC + b"\x0b\0\0\0\1\0\0\0\0\0\0\2\x18\x00x",
        MAGIC + b"\xff\xff\xff\x7f\1\0\0\0",
        MAGIC + b"\x0a\0\0\0\2\0\0\0\0\0\0\2\x18\x00",
        MAGIC + b"\x0a\0\0\0\0\0\0\0\0\0\0\2\x18\x00",
        MAGIC + b"\x0e\0\0\0\1\0\0\0\0\0\0\6\x12\2\xff\xfe\x18\x00",
    ],
    ids=str,
)
def test_rows_that_no_client_could_read_are_refused(
    broker: LocalBrokers, topic: str, body: bytes
) -> None:
    http = Http(broker.http_url)
    status, answer = http("PUT", f"{OWN}/{topic}/staged/{APP}/1/0/1", body)
    assert status == 400, answer


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("staged/a%20b/1/0/1", 400),
        ("staged/app/-1/0/1", 400),
        ("staged/app/01/0/1", 400),
        ("staged/app/9999999999999999/0/1", 400),
        (f"staged/app/1/{'p' * 65}/1", 400),
    ],
)
def test_names_are_checked(broker: LocalBrokers, topic: str, path: str, status: int) -> None:
    assert Http(broker.http_url)("PUT", f"{OWN}/{topic}/{path}", MAGIC)[0] == status


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {"epoch": 1},
        {"epoch": "1", "parts": []},
        {"epoch": 0, "parts": []},
        {"parts": [{"key": "app/1/0/1", "rows": 1, "bytes": 1}]},
        {"parts": [{"key": "other/1/0/1", "rows": 1, "bytes": 9, "checksum": "x"}]},
        {"parts": [{"key": "app/1/\ud800", "rows": 1, "bytes": 9, "checksum": "x"}]},
        {"parts": [{"key": "app/1/0/\ud800", "rows": 1, "bytes": 9, "checksum": "x"}]},
        {"parts": [{"key": "app/1/0", "rows": 1, "bytes": 9, "checksum": "x"}]},
        {"parts": [{"key": "app/1/0/1/2", "rows": 1, "bytes": 9, "checksum": "x"}]},
        {"parts": [{"key": "app/x/0/1", "rows": 1, "bytes": 9, "checksum": "x"}]},
        {"parts": [{"key": "app/1/0/1", "rows": True, "bytes": 9, "checksum": "x"}]},
        {"parts": 2 * [{"key": "app/1/0/1", "rows": 1, "bytes": 9, "checksum": "x"}]},
    ],
    ids=json.dumps,
)
def test_bodies_are_checked(broker: LocalBrokers, topic: str, body: object) -> None:
    http = Http(broker.http_url)
    assert http("POST", f"{OWN}/{topic}/staged/app/1/publish", body)[0] == 400
    assert not broker.events("topic.failed"), "it is no matter to anybody else"


def test_a_partitioned_topic_is_published_to_by_the_partition(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    http = Http(broker.http_url)
    assert http("PUT", f"/admin/v2/persistent/public/default/{topic}/partitions", 2)[0] == 204
    with (
        granted(broker.http_url, topic, APP) as grant,
        pytest.raises(Invalid, match="partitions"),
    ):
        publish(broker.http_url, topic, 1, rows(0, 1), grant=grant)
    for number in range(2):
        name = f"{topic}-partition-{number}"
        assert not publish(broker.http_url, name, 1, rows(number, 1)).is_duplicate
        assert Reader(stock(broker.service_url), name).numbers() == [number]


def test_an_administrator_may_have_an_app_forgotten(broker: LocalBrokers, topic: str) -> None:
    http = Http(broker.http_url)
    path = f"{OWN}/{topic}/published/{quote(APP)}"
    publish(broker.http_url, topic, 5, rows(0, 1))
    assert http("DELETE", path) == (200, {"app": APP, "version": 5})
    assert http("DELETE", path)[0] == 404
    assert not publish(broker.http_url, topic, 1, rows(1, 1)).is_duplicate


def test_producers_may_publish_and_only_administrators_forget_apps(
    topic: str,
) -> None:
    with forked_brokers(settings={"admin_subjects": "root"}) as brokers:
        http = Http(brokers.http_url)
        assert not publish(brokers.http_url, topic, 1, rows(0, 1)).is_duplicate
        assert http("DELETE", f"{OWN}/{topic}/staged/{APP}/1") == (200, {"dropped": 0})
        assert http("DELETE", f"{OWN}/{topic}/published/{quote(APP)}")[0] == 403
        assert http("POST", f"{OWN}/{topic}/fence", {})[0] == 403


def test_a_subject_without_a_claim_stages_and_publishes_nothing() -> None:
    manifest = (
        "apiVersion: onewriter.dev/v1alpha1\nkind: ExclusiveTopic\nmetadata: {name: closed}\n"
        "spec: {access: {requireClaim: true}}\n"
    )
    with forked_brokers(manifests=manifest) as brokers:
        http = Http(brokers.http_url)
        path = f"{OWN}/closed/staged/{APP}/1"
        assert http("PUT", f"{path}/0/1", MAGIC)[0] == 403
        assert http("POST", f"{path}/publish", {"epoch": 1, "parts": []})[0] == 403
        assert http("DELETE", path) == (200, {"dropped": 0})  # on one machine all users administer


# --- brokers that die


class Scenario:
    """A broker on the test's store that is killed while it publishes."""

    def __init__(self, brokers: LocalBrokers, store_url: str, topic: str, number: int = 0) -> None:
        self.brokers = brokers
        self._number = number
        self.topic = topic
        self._keys = Keys(BUCKETS)
        self._name = TopicName.parse(topic)
        self._store = redis.Redis.from_url(store_url, protocol=2)

    def state(self, field: str) -> bytes | None:
        found: Any = self._store.hget(self._keys.state(self._name), field)
        return found if isinstance(found, bytes) else None

    def note(self, field: str, value: str) -> None:
        self._store.hset(self._keys.state(self._name), field, value)

    def stored(self) -> int:
        found: Any = self._store.xlen(self._keys.log(self._name))
        return int(found)

    def has_more_than(self, blocks: int) -> Callable[[], bool]:
        return lambda: self.stored() > blocks

    def kill_when(self, condition: Callable[[], bool], answer: Future[Publication]) -> bool:
        """Kill the broker as soon as the condition holds; False: the publish had ended before."""
        while not condition():
            if answer.done():
                return False
            time.sleep(0.0005)
        self.brokers.kill(self._number)
        return True


CUTS: dict[str, Callable[[Scenario, int], bool]] = {
    "before its first block": lambda scenario, before: True,
    "with its first block": lambda scenario, before: scenario.state("open") is not None,
    "in the middle": lambda scenario, before: scenario.stored() > before + 15,
    "towards its end": lambda scenario, before: scenario.stored() > before + 35,
    "with its last block": lambda scenario, before: scenario.state(f"txn:{APP}") == b"2",
}
# tests/conformance/test_log_store_publishes.py cuts a publish short at each block.
FULL_CUTS = {"before its first block", "with its first block", "towards its end"}


@pytest.mark.parametrize(
    "cut", [pytest.param(cut, marks=[pytest.mark.full] * (cut in FULL_CUTS)) for cut in CUTS]
)
def test_a_broker_dies_in_it_and_all_rows_are_there_once(
    cut: str, topic: str, stock: StockClients
) -> None:
    with running_server() as server, bare_broker(server.url) as brokers:
        client = stock(brokers.service_url)
        publish(brokers.http_url, topic, 1, rows(0, 5))
        scenario = Scenario(brokers, server.url, topic)
        with staging(brokers.http_url, topic, 2) as opened, ThreadPoolExecutor(1) as pool:
            parts, before = staged(opened, rows(5, ROWS, 1000)), scenario.stored()
            answer = pool.submit(opened.publish, parts)
            if scenario.kill_when(lambda: CUTS[cut](scenario, before), answer):
                brokers.restart(0)
            found = answer.result(timeout=120)
        assert found.rows == ROWS
        publish(brokers.http_url, topic, 3, rows(ROWS + 5, 5))
        assert Reader(client, topic).numbers() == list(range(ROWS + 10))
        assert scenario.state("open") is None
        checked = CliRunner().invoke(
            verify_command, [topic, "--redis-url", server.url, "--buckets", str(BUCKETS)]
        )
        assert checked.exit_code == 0, checked.output


def test_consumers_see_all_of_a_publish_or_nothing(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    client = stock(broker.service_url)
    publish(broker.http_url, topic, 1, rows(0, 5))
    reader = Reader(client, topic)
    assert reader.numbers() == list(range(5))
    requests, answer = threading.Event(), []

    def check() -> None:
        while not requests.is_set():
            answer.append(len(reader.all()))
        answer.append(len(reader.all()))

    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(check)
        publish(broker.http_url, topic, 2, rows(5, 20_000, 1000))
        requests.set()
        polling.result(timeout=120)
    seen = [count for count in answer if count]
    assert sum(seen) == 20_000
    assert seen == [20_000], "has_message_available ended in the middle of it"


def test_another_broker_takes_over_in_the_middle(topic: str, stock: StockClients) -> None:
    with running_server() as server, bare_broker(server.url, brokers=2) as brokers:
        client = stock(brokers.service_url)
        addresses = ",".join(brokers.http_urls)
        publish(addresses, topic, 1, rows(0, 5))
        owner = brokers.owner_of(topic)
        scenario = Scenario(brokers, server.url, topic, owner)
        rows_before = 5

        def dies_in_the_middle(version: int) -> bool:
            """Return whether the broker was killed before the end of the publish."""
            with staging(addresses, topic, version) as opened, ThreadPoolExecutor(1) as pool:
                parts, before = staged(opened, rows(rows_before, ROWS, 1000)), scenario.stored()
                answer = pool.submit(opened.publish, parts)
                is_killed = scenario.kill_when(scenario.has_more_than(before + 10), answer)
                assert answer.result(timeout=120).rows == ROWS
            return is_killed

        for version in itertools.count(2):  # tries again if the publish ended before the kill
            is_killed = dies_in_the_middle(version)
            rows_before += ROWS
            if is_killed:
                break
        assert brokers.owner_of(topic, through=1 - owner) == 1 - owner
        assert Reader(client, topic).numbers() == list(range(rows_before))
