"""``onewriter broker``, the program of a container: a supervisor, one broker, and an external store."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.http_calls import Http
from tests.integration.raw import EXCLUSIVE, RawClient, eventually
from tests.servers import StoreServer

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.log.store.keys import MEMBERS
from onewriter_broker.ownership.heartbeats import Beat
from onewriter_broker.ownership.member_observer import BEAT_SECONDS, MEMBERS_MAX
from onewriter_testing.ports import free_ports

END_SECONDS_MAX = 240.0
"""Time limit for the end of the program on a busy machine. Alone it takes two seconds."""

PROGRAM = """
import sys
from onewriter_broker.container import broker
from onewriter_core.errors import ConfigurationError
try:
    broker(standalone_mode=False)
except ConfigurationError as error:
    sys.exit(f"{error}")
"""
"""The command without its dispatcher, which finds it among the installed packages."""


class Container:
    """The command as the first process of a container: settings in the environment only."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.port = free_ports(2)
        self.http_port = self.port + 1
        self.log = directory / "log"
        self._message = directory / "termination-log"
        self._message.touch()
        chosen = {
            "PORT": str(self.port),
            "HTTP_PORT": str(self.http_port),
            "DATA_DIR": str(directory / "data"),
            "NAME": "onewriter-broker-0",
            "TERMINATION_MESSAGE_FILE": str(self._message),
            **settings,
        }
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ONEWRITER_")}
        environment |= {f"ONEWRITER_{name}": value for name, value in chosen.items()}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM], stdout=log, stderr=log, env=environment
            )

    @property
    def termination_message(self) -> str:
        """What Kubernetes would show of this container when it has ended."""
        return self._message.read_text()

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def http(self) -> Http:
        return Http(f"http://127.0.0.1:{self.http_port}")

    def is_ready(self) -> bool:
        if self.process.poll() is not None:
            pytest.fail(self.said)
        try:
            return self.http("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def children(self) -> list[int]:
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(text) for text in task.read_text().split()]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, as containers have it")
def test_a_broker_serves_is_restarted_and_stops_cleanly(
    valkey: StoreServer, tmp_path: Path
) -> None:
    container = Container(tmp_path, REDIS_URL=valkey.url)
    try:
        eventually(container.is_ready)
        (before,) = container.children()
        with RawClient(("127.0.0.1", container.port)) as client:
            client.lookup("t")  # waits for the bucket
            producer = client.producer("t", EXCLUSIVE, name="w")
            position = producer.publish(b"one")
        os.kill(before, signal.SIGKILL)
        eventually(lambda: container.children() not in ([], [before]))
        eventually(container.is_ready)
        with RawClient(("127.0.0.1", container.port)) as client:
            client.lookup("t")
            again = client.producer("t", EXCLUSIVE, name="w", epoch=producer.epoch)
            assert again.epoch == producer.epoch, "the store and the epoch are as they were"
            assert again.publish(b"two") != position
        container.process.send_signal(signal.SIGTERM)
        assert container.process.wait(END_SECONDS_MAX) == 0
        assert '"broker.stopping"' in container.said
    finally:
        container.end()


def test_a_broker_requires_a_store_and_names_the_wrong_setting(tmp_path: Path) -> None:
    for settings, words in (
        ({}, "ONEWRITER_REDIS_URL"),
        ({"REDIS_URL": "redis://x", "PORT": "many"}, "ONEWRITER_PORT: Input should be a valid"),
        ({"REDIS_URL": "redis://x", "ANCHOR": "zookeeper"}, "ONEWRITER_ANCHOR: "),
    ):
        container = Container(tmp_path, **settings)
        try:
            assert container.process.wait(END_SECONDS_MAX) != 0
            assert words in container.said
            assert "Traceback" not in container.said
            assert words in container.termination_message
        finally:
            container.end()


def test_a_broker_that_refuses_its_store_says_why_in_its_termination_message(
    valkey: StoreServer, tmp_path: Path
) -> None:
    container = Container(tmp_path, REDIS_URL=valkey.url, MINIMUM_DURABILITY="Replicated")
    try:
        assert container.process.wait(60) != 0
        assert container.termination_message.startswith("the store cannot be used: ")
        assert container.termination_message in container.said
    finally:
        container.end()


def test_a_broker_that_serves_removes_the_reason_of_an_earlier_end(
    valkey: StoreServer, tmp_path: Path
) -> None:
    container = Container(tmp_path, REDIS_URL=valkey.url)
    try:
        (tmp_path / "termination-log").write_text("the store does not answer")
        eventually(lambda: container.is_ready() and not container.termination_message)
    finally:
        container.end()


@contextlib.contextmanager
def beating(server: StoreServer, members: int) -> Iterator[None]:
    """Keep the heartbeats of other brokers alive in the store."""
    stop = threading.Event()

    def beat(counter: int) -> None:
        value = Beat(counter, Addresses("pulsar://h:1", "http://h:2")).encode()
        words = [word for n in range(members) for word in (f"broker-{n}~x", value)]
        server.command("HSET", MEMBERS, *words)

    def run() -> None:
        for counter in itertools.count(2):
            if stop.wait(BEAT_SECONDS):
                return
            beat(counter)

    beat(1)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_broker_that_is_one_too_many_ends_and_says_so(
    valkey: StoreServer, tmp_path: Path
) -> None:
    with beating(valkey, MEMBERS_MAX):
        container = Container(tmp_path, REDIS_URL=valkey.url, NAME="another")
        try:
            assert container.process.wait(60) != 0
            said = f"{MEMBERS_MAX} other brokers are alive, and at most {MEMBERS_MAX} work together"
            assert said in container.termination_message
            assert b"another" not in b"".join(valkey.command("HKEYS", MEMBERS))
        finally:
            container.end()


def test_outside_a_cluster_it_does_not_guess_an_api_server(
    valkey: StoreServer, tmp_path: Path
) -> None:
    container = Container(tmp_path, REDIS_URL=valkey.url, ANCHOR="kubernetes")
    try:
        assert container.process.wait(END_SECONDS_MAX) != 0
        assert "KUBERNETES_SERVICE_HOST" in container.said
    finally:
        container.end()


def test_the_first_process_is_small(valkey: StoreServer, tmp_path: Path) -> None:
    """It waits for months, so it loads no module that only a broker needs."""
    container = Container(tmp_path, REDIS_URL=valkey.url)
    try:
        eventually(container.is_ready)
        maps = Path(f"/proc/{container.process.pid}/maps").read_text()
        assert "uvloop" not in maps
        assert "_rust" not in maps, "cryptography is the broker's"
    finally:
        container.end()
