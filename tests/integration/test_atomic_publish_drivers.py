"""Drivers that publish concurrently, or start again under an old name, with a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.integration.conftest import StockClients
from tests.integration.http_calls import OWN, Http
from tests.integration.leaders import granted
from tests.integration.test_atomic_publish import APP, Reader, publish, rows, staging

from onewriter_pipeline.errors import Conflict
from onewriter_testing.processes import LocalBrokers


def test_a_version_below_the_last_one_is_refused_with_the_one_that_is_held(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    publish(broker.http_url, topic, 3, rows(0, 10))
    for _ in range(2):
        with pytest.raises(Conflict, match=r"version 2 of .* has version 3 of it already"):
            publish(broker.http_url, topic, 2, rows(50, 10))
    with pytest.raises(
        Conflict, match="has version 3"
    ):  # a stream that started again and has no rows yet
        publish(broker.http_url, topic, 0)
    assert publish(broker.http_url, topic, 3, rows(0, 10)).is_duplicate
    assert Reader(stock(broker.service_url), topic).numbers() == list(range(10))


def test_drivers_that_count_attempts_alike_do_not_touch_each_others_parts(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    with (
        granted(broker.http_url, topic, APP) as grant,
        staging(broker.http_url, topic, 1, grant=grant) as one,
        staging(broker.http_url, topic, 1, grant=grant) as other,
    ):
        first = one.stage(0, 0, [rows(0, 10)])
        second = other.stage(0, 0, [rows(0, 10)])
        other.discard(second)
        assert not one.publish(first).is_duplicate
        assert other.publish(second).is_duplicate
    assert Reader(stock(broker.service_url), topic).numbers() == list(range(10))


def test_rows_that_end_in_an_error_leave_nothing_staged(broker: LocalBrokers, topic: str) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        for number in range(20):
            yield rows(number * 1000, 1000, size=1000)  # a part is full before all are read
        raise RuntimeError("the last row")

    with (
        staging(broker.http_url, topic, 1) as opened,
        pytest.raises(RuntimeError, match="the last row"),
    ):
        opened.stage(0, 0, broken())
    _, answer = Http(broker.http_url)("DELETE", f"{OWN}/{topic}/staged/{APP}/1")
    assert answer == {"dropped": 0}
