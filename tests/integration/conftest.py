"""Fixtures for tests with real brokers and real clients."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from bench.machine import LabUnavailable
from bench.pulsar_lab import PulsarStandalone
from tests.integration.forked_brokers import forked_brokers
from tests.integration.offloading import EXCLUSIVE, Fill
from tests.integration.raw import RawClient
from tests.servers import running_server
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling, Scheduling

from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_testing.processes import RUNNING, LocalBrokers

ROUNDS = int(os.environ.get("ONEWRITER_ROUNDS", "2"))
"""How often a campaign repeats its round: about ten times in CI, hundreds of times in a soak."""

os.environ.setdefault("ONEWRITER_FROZEN_AFTER_SECONDS", "30")
os.environ.setdefault("ONEWRITER_SILENT_AFTER_SECONDS", "30")
# On a slow machine a broker or a client may get no processor time for a while. A test of silence sets
# its own limit.

ATTENTIVE = {"silent_after_seconds": 5.0}
"""Settings for tests of a silent client: all other clients in them have this time to answer."""

StockClients = Callable[..., Any]
RawClients = Callable[..., RawClient]

SECONDS_MAX = 120
"""Time limit for a stock client while brokers die during the test: a broker may be slow to start."""

_topics = itertools.count(1)


FILES_WITH_PULSAR = (
    "test_sdk_lead.py",
    "test_sdk_consumer_pulsar.py",
    "test_shared_state_pulsar.py",
)
"""The files that request ``standalone``. One worker gets them all, so that Pulsar starts once."""


LONG_FILES = (
    "test_cluster_campaign.py",
    "test_broker_loss.py",
    "test_sidecar.py",
    "test_publish_standstill.py",
    "test_store_trouble.py",
    "test_desired_state.py",
    "test_store_failures.py",
    "test_pressure.py",
    "test_compaction_memory.py",
    "test_shared_state.py",
    "test_documented_programs.py",
    "test_atomic_publish.py",
    "test_tls_serving.py",
    "test_examples.py",
    "test_sdk_transactions.py",
    "test_own_failures.py",
    "test_lead_command.py",
    "test_sdk_chunking.py",
    "test_http_readers.py",
    "test_broker_command.py",
    "test_map_command.py",
    "test_http_bulk.py",
    "test_watch.py",
    "test_store_lost.py",
    "test_compaction_failures.py",
    "test_manifests_up.py",
    "test_store_durability.py",
    "test_anchor_away.py",
    "test_checks_replicated.py",
    "test_example_uptime_checkers.py",
    "test_resends.py",
    "test_valkey_script.py",
    "test_verbs.py",
    "test_own_dropping.py",
    "test_testing_fixture.py",
    "test_serving_alone.py",
    "test_guard_sidecar.py",
    "test_example_compacted_leader.py",
    "test_token_refresh.py",
)
"""Files with few but long tests. They begin first, so that no worker has to run one of them at the end."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On workers, put the long files first, and then those with many tests."""
    if hasattr(config, "workerinput"):
        tests = Counter(item.path.name for item in items)
        long = {name: place for place, name in enumerate(LONG_FILES)}
        items.sort(key=lambda item: (long.get(item.path.name, len(long)), -tests[item.path.name]))


class ByFile(LoadFileScheduling):  # type: ignore[misc]  # the package has no types
    """Keeps the tests of a file on one worker, and all tests that need a real Pulsar."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "pulsar" if file.endswith(FILES_WITH_PULSAR) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # the order of the items counts
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the log of the running brokers to the report of a failed test."""
    report = yield
    if report.failed:
        for brokers in RUNNING:
            report.sections.append(("end of the brokers' log", brokers.log_end()))
    return report


@pytest.fixture(scope="session")
def broker() -> Iterator[LocalBrokers]:
    """One broker with its Valkey, shared by all tests that do not damage it."""
    with forked_brokers() as brokers:
        yield brokers


@pytest.fixture(scope="module")
def attentive() -> Iterator[LocalBrokers]:
    """A broker that soon detects silent clients."""
    with forked_brokers(settings=ATTENTIVE) as brokers:
        yield brokers


@pytest.fixture(scope="module")
def pair() -> Iterator[LocalBrokers]:
    """Two brokers that no test damages."""
    with forked_brokers(brokers=2) as brokers:
        yield brokers


@pytest.fixture(scope="module")
def mortal() -> Iterator[LocalBrokers]:
    """A broker without a supervisor, to be killed and started as often as needed."""
    with running_server() as store, forked_brokers(redis_url=store.url) as brokers:
        yield brokers


@pytest.fixture(scope="module")
def mortal_pair() -> Iterator[LocalBrokers]:
    """Two brokers without a supervisor, to be killed, frozen and started as often as needed."""
    with running_server() as store, forked_brokers(brokers=2, redis_url=store.url) as brokers:
        yield brokers


@pytest.fixture(scope="session")
def standalone() -> Iterator[PulsarStandalone]:
    """A real Apache Pulsar, for comparison with its behaviour. It takes half a minute to start."""
    try:
        with PulsarStandalone() as started:
            yield started
    except LabUnavailable as missing:
        pytest.fail(str(missing))


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"story-{next(_topics)}"


@pytest.fixture
def stock() -> Iterator[StockClients]:
    """Makes stock Pulsar clients: ``stock(url, **options)``. They are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(url: str, **options: Any) -> Any:
            options.setdefault("operation_timeout_seconds", SECONDS_MAX)
            quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
            client = pulsar.Client(url, logger=quiet, **options)
            client.create_producer = functools.partial(
                client.create_producer, send_timeout_millis=1000 * SECONDS_MAX
            )
            stack.callback(_close, client)
            return client

        yield make


@pytest.fixture
def raw() -> Iterator[RawClients]:
    """Makes raw clients: ``raw(address, **options)``. They are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(address: tuple[str, int], **options: Any) -> RawClient:
            return stack.enter_context(RawClient(address, **options))

        yield make


@pytest.fixture
def fill(broker: LocalBrokers, stock: StockClients) -> Fill:
    """See Fill."""
    client = stock(broker.service_url)

    def send(topic: str, values: Iterable[bytes], **options: Any) -> None:
        options = {"batching_enabled": False, "block_if_queue_full": True} | EXCLUSIVE | options
        # A batch ends when it is full or with the last message, never after a time.
        options.setdefault("batching_max_publish_delay_ms", 60_000)
        producer = client.create_producer(topic, **options)
        for value in values:
            producer.send_async(value, None)
        producer.flush()
        producer.close()

    return send


@pytest.fixture
def access(broker: LocalBrokers) -> Access:
    """The pipeline's access to the shared broker."""
    return Access(broker.http_url)


@pytest.fixture
def pipeline(broker: LocalBrokers) -> Iterator[Broker]:
    """The pipeline's client of the shared broker."""
    with Broker(Access(broker.http_url)) as client:
        yield client


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder whose name is short enough for the path of a unix socket."""
    with tempfile.TemporaryDirectory(prefix="ow-") as name:
        yield Path(name)


def _close(client: Any) -> None:
    with contextlib.suppress(pulsar.PulsarException):  # the test has closed it already
        client.close()
