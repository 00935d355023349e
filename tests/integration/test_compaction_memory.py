"""A log that must be compacted before retention may trim it, in a store that is almost full.

Only the trim would free memory, so the compaction must be possible, or state why it is not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.conftest import StockClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import PERSISTENT, Http
from tests.integration.raw import eventually
from tests.integration.test_compaction_failures import holds, read
from tests.integration.test_desired_state import hang_up
from tests.servers import StoreServer, running_server

from onewriter_testing.processes import LocalBrokers

MESSAGE_BYTES = 4_000
MESSAGES = 4_000

MANIFEST = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {{name: kept, namespace: default}}
spec:
  topic: persistent://public/default/kept
  access: {{modes: [Shared], requireClaim: false}}
  retention: {{{retention}}}
  compaction: {{enabled: true, thresholdBytes: 1000000000}}
"""


@pytest.fixture
def valkey() -> Iterator[StoreServer]:
    with running_server("valkey") as server:
        yield server


@pytest.fixture
def brokers(valkey: StoreServer) -> Iterator[LocalBrokers]:
    with forked_brokers(redis_url=valkey.url, manifests=MANIFEST.format(retention="")) as running:
        yield running


def fill(producer: Any, keys: int) -> dict[str, bytes]:
    """Send to this number of keys in turn; return the newest value of each."""
    state: dict[str, bytes] = {}
    for number in range(MESSAGES):
        key, value = f"key-{number % keys}", b"%d" % number + bytes(MESSAGE_BYTES)
        producer.send_async(value, lambda *_: None, partition_key=key)
        state[key] = value
    producer.flush()
    return state


def nearly_filled(valkey: StoreServer, brokers: LocalBrokers) -> int:
    """Let the store's use exceed nine tenths of its limit; return the limit in bytes."""
    limit = 0

    def is_full() -> bool:  # its use falls for a moment, as buffers of the filling are freed
        nonlocal limit
        limit = int(valkey.information("memory")["used_memory"] / 0.92)
        valkey.command("CONFIG", "SET", "maxmemory", limit)
        time.sleep(1)
        return brokers.events("store.nearly_full") != []

    eventually(is_full)
    return limit


def bounded(brokers: LocalBrokers) -> None:
    """From now on retention requires trimming nearly all of the log, once its ledger was rolled."""
    file = brokers.directory / "manifests.yaml"
    file.write_text(MANIFEST.format(retention="maxBytes: 2000000"))
    hang_up(brokers)


def held_back(brokers: LocalBrokers) -> bool:
    return "onewriter_retention_held_back 1.0" in Http(brokers.http_url)("GET", "/metrics")[1]


def test_retention_frees_a_store_that_is_nearly_full(
    brokers: LocalBrokers, valkey: StoreServer, stock: StockClients
) -> None:
    client = stock(brokers.service_url)
    producer = client.create_producer("kept", batching_enabled=False, block_if_queue_full=True)
    state = fill(producer, keys=20)
    nearly_filled(valkey, brokers)
    bounded(brokers)
    producer.send(b"behind it", partition_key="key-0")
    brokers.wait_for_event("compaction.done")
    brokers.wait_for_event("store.has_room")
    brokers.wait_for_event("retention.trimmed")
    assert read(client, "kept") == state | {"key-0": b"behind it"}
    producer.send(b"goes on", partition_key="key-1")
    assert holds(valkey, "kept")


def test_a_view_that_does_not_fit_is_reported_and_no_key_is_lost(
    brokers: LocalBrokers, valkey: StoreServer, stock: StockClients
) -> None:
    client = stock(brokers.service_url)
    producer = client.create_producer("kept", batching_enabled=False, block_if_queue_full=True)
    state = fill(producer, keys=MESSAGES)
    limit = nearly_filled(valkey, brokers)
    bounded(brokers)
    producer.send(b"behind it", partition_key="key-0")
    failed = brokers.wait_for_event("compaction.failed")
    assert "give it more memory" in str(failed["reason"])
    answer = Http(brokers.http_url)("GET", f"{PERSISTENT}/kept/compaction")[1]
    assert answer["status"] == "ERROR"
    assert "Retention waits for it" in answer["lastError"]
    assert held_back(brokers)
    assert brokers.events("retention.trimmed") == []

    valkey.command("CONFIG", "SET", "maxmemory", 3 * limit)  # an operator's reaction
    brokers.wait_for_event("compaction.done")
    eventually(lambda: brokers.events("retention.trimmed") != [])
    eventually(lambda: not held_back(brokers))
    assert read(client, "kept") == state | {"key-0": b"behind it"}
    assert holds(valkey, "kept")
