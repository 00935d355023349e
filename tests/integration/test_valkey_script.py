"""The store's start script with a real server: its users, a change of passwords, its check."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.exceptions
from tests.integration.raw import eventually
from tests.servers import SERVER_PROGRAMS
from tests.unit.kube.installation_configurations import configured

from onewriter_operator.installation import valkey_configuration
from onewriter_testing.ports import free_ports

SECONDS_MAX = 120.0


class Store:
    """The server of one directory, run as its pod does."""

    def __init__(self, directory: Path) -> None:
        self.port = free_ports(1)
        self.passwords = directory / "passwords"
        self.directory = directory
        document = valkey_configuration.config_map(configured())
        assert document is not None
        files = document["data"]
        self.configuration = directory / "configuration"
        for each in (self.passwords, self.configuration, directory / "state", directory / "data"):
            each.mkdir()
        text = files["valkey.conf"].replace("/data", str(directory / "data"))
        text = text.replace("/run/valkey", str(directory / "state"))
        files["valkey.conf"] = text.replace("port 6379", f"port {self.port}")
        for name, content in files.items():
            (self.configuration / name).write_text(content)
        programs = directory / "programs"
        programs.mkdir()
        (programs / "valkey-server").symlink_to(SERVER_PROGRAMS["valkey"])
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "ONEWRITER_VALKEY_CONFIGURATION": str(self.configuration),
            "ONEWRITER_VALKEY_PASSWORDS": str(self.passwords),
            "ONEWRITER_VALKEY_STATE": str(directory / "state"),
            "ONEWRITER_VALKEY_PORT": str(self.port),
            "ONEWRITER_VALKEY_LOOK_SECONDS": "0.1",
        }

    def script(self, word: str) -> list[str]:
        return ["sh", str(self.configuration / "valkey.sh"), word]

    def passes_check(self) -> bool:
        done = subprocess.run(
            self.script("check"), env=self.environment, capture_output=True, check=False
        )
        return done.returncode == 0

    def write(self, name: str, text: str) -> None:
        (self.passwords / name).write_text(text)

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        with (self.directory / "log").open("wb") as log:
            process = subprocess.Popen(
                self.script("run"), env=self.environment, stdout=log, stderr=log
            )
        try:
            eventually(self.passes_check)
            yield process
        finally:
            process.terminate()
            assert process.wait(SECONDS_MAX) == 0
            eventually(lambda: not self.followers())

    def followers(self) -> list[str]:
        """Return the processes that still run the script."""
        found = []
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                words = each.read_bytes().decode(errors="replace").split("\0")
                if str(self.configuration / "valkey.sh") in words:
                    found.append(each.parent.name)
        return found

    def connected(self, password: str, user: str = "onewriter") -> redis.Redis:
        return redis.Redis(port=self.port, username=user, password=password)


def accepted(connection: redis.Redis) -> bool:
    try:
        return bool(connection.exists("ow:probe") in {0, 1})
    except redis.exceptions.AuthenticationError:
        return False
    finally:
        connection.close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path)
    found.write("password", "first")
    return found


def test_only_those_who_are_named_may_connect(store: Store) -> None:
    with store.running():
        assert accepted(store.connected("first"))
        assert not accepted(store.connected("second"))
        with redis.Redis(port=store.port) as anonymous, pytest.raises(redis.exceptions.RedisError):
            anonymous.ping()
        with store.connected("first") as broker:
            broker.xadd("ow:probe", {"a": "b"})
            with pytest.raises(redis.exceptions.NoPermissionError):
                broker.delete("ow:probe")


def test_brokers_stay_connected_while_the_password_changes(store: Store) -> None:
    with store.running(), store.connected("first") as connected:
        assert accepted(connected)
        store.write("previous-password", "first")
        store.write("password", "second")
        eventually(lambda: accepted(store.connected("second")))
        assert accepted(store.connected("first"))
        (store.passwords / "previous-password").unlink()
        eventually(lambda: not accepted(store.connected("first")))
        assert accepted(store.connected("second"))


def test_a_password_that_vanished_changes_nothing(store: Store) -> None:
    with store.running():
        (store.passwords / "password").unlink()
        time.sleep(1.0)  # ten checks
        assert accepted(store.connected("first"))


def test_data_survives_a_restart(store: Store) -> None:
    with store.running(), store.connected("first") as broker:
        written: Any = broker.xadd("ow:probe", {"a": "b"})
    assert not store.passes_check()
    with store.running(), store.connected("first") as broker:
        assert broker.xrange("ow:probe") == [(written, {b"a": b"b"})]


def test_without_a_password_it_does_not_start(store: Store) -> None:
    (store.passwords / "password").unlink()
    done = subprocess.run(
        store.script("run"), env=store.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "there is no password" in done.stderr
