"""A store that stops during an atomic publish: what is reported, and what is stored in the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import pytest
import redis
import urllib3
from tests.integration.bare_brokers import bare_broker
from tests.integration.conftest import StockClients
from tests.integration.http_calls import OWN, Http
from tests.integration.leaders import granted, shown
from tests.integration.test_atomic_publish import (
    APP,
    Reader,
    Scenario,
    holder,
    publish,
    rows,
    staged,
    staging,
)
from tests.servers import StoreServer, running_server

import onewriter.sync
from onewriter_broker.topic.publish.staging import TOPIC_MEMORY_BYTES
from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.errors import Trimmed
from onewriter_pipeline.lead.requests import Grant
from onewriter_pipeline.publish.staging import Staging

STANDSTILL_SECONDS = 1.0
ROWS, ROW_BYTES = 40_000, 1_000
ANSWER_SECONDS_MAX = 120.0

ATTEMPTS_MAX = 10
"""Attempts: on a busy machine a test may read the store too late."""

STOPS: dict[str, Callable[[Scenario, int], bool]] = {
    "with its first block": lambda scenario, before: scenario.state("open") is not None,
    "in the middle": lambda scenario, before: scenario.stored() > before + 60,
    "with its last block": lambda scenario, before: scenario.state(f"txn:{APP}") == b"2",
}


@pytest.mark.parametrize(
    "stop",  # the first and the last block have their own answers
    [pytest.param(stop, marks=[pytest.mark.full] * (stop == "in the middle")) for stop in STOPS],
)
def test_a_store_that_stops_in_a_publish_blocks_no_caller_forever_and_each_row_is_stored_once(
    stop: str, topic: str, stock: StockClients
) -> None:
    settings = {"publish_standstill_seconds": STANDSTILL_SECONDS}
    with running_server() as server, bare_broker(server.url, settings=settings) as brokers:
        client = stock(brokers.service_url)
        publish(brokers.http_url, topic, 1, rows(0, 5))
        scenario = Scenario(brokers, server.url, topic)
        for version in range(2, 2 + ATTEMPTS_MAX):
            first = 5 + (version - 2) * ROWS
            status = stopped_publish(scenario, server, version, first, STOPS[stop])
            if status == 503 or stop != "with its first block":
                break  # otherwise the test stopped the store too late: nearly all was stored
        else:
            pytest.fail("the store was never stopped in time")
        publish(brokers.http_url, topic, version + 1, rows(first + ROWS, 5))
        assert Reader(client, topic).numbers() == list(range(first + ROWS + 5))
        assert scenario.state("open") is None


def stopped_publish(
    scenario: Scenario,
    server: StoreServer,
    version: int,
    first: int,
    is_time: Callable[[Scenario, int], bool],
) -> int:
    """Publish rows, stop the store at that time, ask again afterwards; return the first answer's status."""
    url, topic = scenario.brokers.http_url, scenario.topic
    with granted(url, topic, APP) as grant, staging(url, topic, version, grant=grant) as opened:
        return _stopped(scenario, server, (opened, grant), version, first, is_time)


def _stopped(
    scenario: Scenario,
    server: StoreServer,
    under: tuple[Staging, Grant],
    version: int,
    first: int,
    is_time: Callable[[Scenario, int], bool],
) -> int:
    url, topic = scenario.brokers.http_url, scenario.topic
    opened, grant = under
    parts = staged(opened, rows(first, ROWS, ROW_BYTES))
    assert sum(part.bytes for part in parts) > TOPIC_MEMORY_BYTES, "it is a large one"
    body = {"epoch": grant.epoch, "parts": [asdict(part) for part in parts]}
    before = scenario.stored()

    def ask() -> urllib3.BaseHTTPResponse:
        path = f"{url}{OWN}/{topic}/staged/{APP}/{version}/publish"
        seconds = ANSWER_SECONDS_MAX
        return urllib3.request(
            "POST", path, json=body, headers=grant.headers(), retries=False, timeout=seconds
        )

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        while not is_time(scenario, before) and not asking.done():
            time.sleep(0.0005)
        server.pause()
        try:
            answer = asking.result(timeout=ANSWER_SECONDS_MAX)
        finally:
            server.resume()
    assert answer.status in {200, 503, 504}, answer.json()
    if answer.status == 503:
        assert "nothing was published" in answer.json()["reason"]
        assert int(answer.headers["Retry-After"]) > 0
    again = opened.publish(parts)
    assert again.is_duplicate or answer.status != 200
    assert not (again.is_duplicate and answer.status == 503)
    return answer.status


def test_the_holder_continues_after_an_abandoned_publish(topic: str, stock: StockClients) -> None:
    settings = {"publish_standstill_seconds": STANDSTILL_SECONDS}
    with (
        running_server() as server,
        bare_broker(server.url, settings=settings) as brokers,
        contextlib.ExitStack() as stack,
    ):
        client = stock(brokers.service_url)
        sdk = stack.enter_context(onewriter.sync.Client(brokers.service_url))
        producer = stack.enter_context(sdk.lead(topic, announce=False))
        producer.send(b"1000000")
        scenario = Scenario(brokers, server.url, topic)
        grant = Grant(producer.epoch, producer.capability(APP))
        opened = stack.enter_context(staging(brokers.http_url, topic, 1, grant=grant))
        parts = staged(opened, rows(0, ROWS, ROW_BYTES))
        before = scenario.stored()
        with ThreadPoolExecutor(2) as pool:
            asking = pool.submit(opened.publish, parts)
            while not scenario.stored() > before + 30 and not asking.done():
                time.sleep(0.0005)
            server.pause()
            try:
                sending = pool.submit(producer.send, b"2000000")
                time.sleep(2 * STANDSTILL_SECONDS)
            finally:
                server.resume()
            sending.result(timeout=ANSWER_SECONDS_MAX)
            asking.result(timeout=ANSWER_SECONDS_MAX)
        producer.send(b"3000000")
        found = Reader(client, topic).numbers()
        assert sorted(found) == [*range(ROWS), 1_000_000, 2_000_000, 3_000_000]
        assert [n for n in found if n < ROWS] == list(range(ROWS)), "one behind the other"
        at = found.index(0)
        assert found[at : at + ROWS] == list(range(ROWS)), "nothing between"
        assert int(scenario.state("epoch") or b"0") == producer.epoch


def test_a_write_with_an_unknown_result_is_not_reported_as_failed(
    topic: str, stock: StockClients
) -> None:
    settings = {"publish_standstill_seconds": STANDSTILL_SECONDS}
    with (
        running_server() as server,
        bare_broker(server.url, settings=settings) as brokers,
        contextlib.ExitStack() as stack,
    ):
        http, pipeline = Http(brokers.http_url), Broker(Access(brokers.http_url))
        publish(brokers.http_url, topic, 1, rows(0, 5))
        scenario = Scenario(brokers, server.url, topic)
        sdk = stack.enter_context(onewriter.sync.Client(brokers.service_url))
        producer = stack.enter_context(sdk.lead(topic, announce=False))
        producer.send(b"1000000")
        had_read = pipeline.segments(topic).end
        epoch = producer.epoch
        grant = Grant(epoch, producer.capability(APP))
        # The first publish under an epoch also records its publisher in the audit.
        publish(brokers.http_url, topic, 2, rows(5, 5), grant=grant)
        with staging(brokers.http_url, topic, 3, grant=grant) as opened:
            parts = [asdict(part) for part in staged(opened, rows(10, 5))]
        proof = shown(grant)
        store = redis.Redis.from_url(server.url, protocol=2)
        path, known = f"{OWN}/{topic}/staged/{APP}/3/publish", f"{OWN}/{topic}/published/{APP}"
        store.client_pause(600_000, all=False)
        try:
            for by in (epoch, epoch, epoch + 1):
                status, answer = http("POST", path, {"epoch": by, "parts": parts}, **proof)
                assert (status, "unknown yet" in answer["reason"]) == (504, True)
            assert http("DELETE", known)[0] == 503
        finally:
            store.client_unpause()
        status, answer = http("POST", path, {"epoch": epoch + 1, "parts": parts}, **proof)
        assert (status, answer["outcome"], answer["held"]) == (200, "duplicate", 3)
        later = http("POST", path.replace("/3/", "/4/"), {"epoch": epoch + 1, "parts": []}, **proof)
        assert later[0] in {403, 409}
        producer.handover()
        producer = holder(stock(brokers.service_url), topic)
        producer.send(b"2000000")
        held = pipeline.segments(topic)
        pipeline.trim(topic, Position(held.ledger, 0), epoch=held.epoch)
        with pytest.raises(Trimmed):
            list(pipeline.frames(topic, had_read))
        assert http("DELETE", known) == (200, {"app": APP, "version": 3})
        assert scenario.state(f"txn:{APP}") is None
        scenario.note(f"txn:{APP}", "7")  # another broker's: this one does not have it in memory
        assert http("DELETE", known) == (200, {"app": APP, "version": 7})
        assert scenario.state(f"txn:{APP}") is None
        assert http("DELETE", known)[0] == 404
