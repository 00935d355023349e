"""Fixtures of the stories that are told with real brokers and real clients."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pulsar
import pytest
from tests.integration.raw import RawClient

from onewriter_broker.testing import RUNNING, LocalBrokers, running_brokers

ROUNDS = int(os.environ.get("ONEWRITER_ROUNDS", "10"))
"""How often a campaign's round is played: about ten times in CI, hundreds of times in a soak."""

os.environ.setdefault("ONEWRITER_FROZEN_AFTER_SECONDS", "30")
# On a slow machine a broker may get no processor for a while; who tests that says what he wants.

StockClients = Callable[..., Any]
RawClients = Callable[..., RawClient]

_topics = itertools.count(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what the brokers that ran beside it said."""
    report = yield
    if report.failed:
        for brokers in RUNNING:
            report.sections.append(("end of the brokers' log", brokers.log_end()))
    return report


@pytest.fixture(scope="session")
def broker() -> Iterator[LocalBrokers]:
    """One broker with its Valkey, shared by all stories that do not hurt it."""
    with running_brokers() as brokers:
        yield brokers


@pytest.fixture
def topic() -> str:
    """A topic that nobody has used."""
    return f"story-{next(_topics)}"


@pytest.fixture
def stock() -> Iterator[StockClients]:
    """Makes stock Pulsar clients: ``stock(url, **options)``; closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(url: str, **options: Any) -> Any:
            options.setdefault("operation_timeout_seconds", 60)
            quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
            client = pulsar.Client(url, logger=quiet, **options)
            stack.callback(_close, client)
            return client

        yield make


@pytest.fixture
def raw() -> Iterator[RawClients]:
    """Makes raw clients: ``raw(address, **options)``; closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(address: tuple[str, int], **options: Any) -> RawClient:
            return stack.enter_context(RawClient(address, **options))

        yield make


def _close(client: Any) -> None:
    with contextlib.suppress(pulsar.PulsarException):  # closed by the story already
        client.close()
