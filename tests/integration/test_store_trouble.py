"""The store is unavailable, slow or full: writers are delayed, and lose nothing."""

from __future__ import annotations

import socket
import time

import pytest
import redis.exceptions
from tests.integration.bare_brokers import bare_broker, settle
from tests.integration.conftest import RawClients
from tests.integration.continuous_writer import ContinuousWriter
from tests.integration.raw import RawClient, RefusedByBroker, eventually
from tests.servers import StoreServer, running_server

from onewriter_broker.store_watch import INTERVAL_SECONDS
from onewriter_core.errors import ServerError

pytestmark = pytest.mark.timeout(360)

MEMORY_MAX = 24 * 1024 * 1024
"""Bytes of a store that is filled."""


def down(server: StoreServer) -> None:
    server.kill()
    time.sleep(5.0)
    server.start()


def frozen(server: StoreServer) -> None:
    server.pause()
    time.sleep(3.0)
    server.resume()


def slow(server: StoreServer) -> None:
    server.command("CLIENT", "PAUSE", 2000, "ALL")
    time.sleep(2.0)


def full(server: StoreServer) -> None:
    server.command("CONFIG", "SET", "maxmemory", "1")
    time.sleep(1.5)
    server.command("CONFIG", "SET", "maxmemory", "0")


def without_replicas(server: StoreServer) -> None:
    server.command("CONFIG", "SET", "min-replicas-to-write", "1")
    time.sleep(1.5)
    server.command("CONFIG", "SET", "min-replicas-to-write", "0")


def read_only(server: StoreServer) -> None:
    server.command("REPLICAOF", "127.0.0.1", "1")
    time.sleep(1.5)
    server.command("REPLICAOF", "NO", "ONE")


def busy(server: StoreServer) -> None:
    server.command("CONFIG", "SET", "lua-time-limit", "50")
    with socket.socket(socket.AF_UNIX) as endless:
        endless.connect(str(server.path))
        endless.sendall(b'EVAL "while true do end" 0\r\n')  # its answer is not waited for
        eventually(lambda: is_busy(server), what="the script does not run")
        time.sleep(1.5)
        server.command("SCRIPT", "KILL")


def is_busy(server: StoreServer) -> bool:
    """Whether a script runs for longer than the server's limit."""
    try:
        server.command("PING")
    except redis.exceptions.ResponseError as refused:
        return "BUSY" in str(refused)
    return False


def test_trouble_holds_the_writer_up_and_loses_nothing(topic: str) -> None:
    """One fault after the other, with one writer."""
    with (
        running_server() as server,
        bare_broker(server.url) as brokers,
        ContinuousWriter(topic, brokers) as writer,
    ):
        writer.has_acked(50)
        process_id = brokers.pid()
        for trouble in (down, frozen, slow, full, without_replicas, read_only, busy):
            trouble(server)
            writer.has_acked(200)
        assert settle(writer, [brokers], server.url) == 0
        assert len(writer.epochs) == 1, "the holder lost its turn"
        assert brokers.pid() == process_id
        assert not brokers.events("entries.lost")


def test_a_store_near_its_limit_pushes_back_before_it_refuses(topic: str, raw: RawClients) -> None:
    with (
        running_server(maxmemory=str(MEMORY_MAX)) as server,
        bare_broker(
            server.url, settings={"store_timeout_seconds": 30.0, "undeclared_store_share": 0}
        ) as brokers,
        ContinuousWriter(topic, brokers) as writer,
    ):
        writer.has_acked(50)
        client = raw(brokers.address())
        filler = client.producer(f"{topic}-filler")
        filled = 0
        while not brokers.events("store.nearly_full"):
            # Slowly towards the end, because the broker checks the store only from time to time.
            is_filling = memory_used(server) < 0.8 * MEMORY_MAX
            filler.publish(bytes(100_000 if is_filling else 10_000))
            time.sleep(0 if is_filling else INTERVAL_SECONDS / 20)  # ten checks before it is full
            filled += 1
            assert filled < 2_000, "it never was nearly full"
        eventually(lambda: is_refused(client, f"{topic}-new"), what="a new producer was let in")
        time.sleep(2.0)
        assert memory_used(server) < MEMORY_MAX
        writer.has_acked(1)  # slowly, but not never
        assert not brokers.events("append.undecided"), "the store had to refuse"
        server.command("CONFIG", "SET", "maxmemory", "0")
        brokers.wait_for_event("store.has_room")
        client.producer(f"{topic}-new")
        writer.has_acked(200)
        assert settle(writer, [brokers], server.url) == 0
        assert len(writer.epochs) == 1


def memory_used(server: StoreServer) -> int:
    return int(server.information("memory")["used_memory"])


def is_refused(client: RawClient, topic: str) -> bool:
    try:
        client.producer(topic).close()
    except RefusedByBroker as refused:
        return refused.code is ServerError.SERVICE_NOT_READY
    return False
