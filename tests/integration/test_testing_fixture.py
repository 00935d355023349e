"""``onewriter.testing``, the starting point for tests of applications."""

from __future__ import annotations

import sys

import pytest
from tests.integration.conftest import StockClients

from onewriter.testing import running_brokers
from onewriter_core.errors import ConfigurationError


def test_an_applications_test_gets_a_real_broker(stock: StockClients) -> None:
    with running_brokers() as brokers:
        producer = stock(brokers.service_url).create_producer("orders")
        producer.send(b"first")
        killed = brokers.kill()
        producer.send(b"second")
        assert brokers.pid() != killed
        assert "broker.listening" in brokers.log()


def test_without_the_broker_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onewriter_testing.processes", None)
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[broker,embedded,testing\]'"):
        running_brokers()
