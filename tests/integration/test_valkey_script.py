"""The store's start script with a real server: its users, a change of passwords, its check."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.exceptions
from tests.cluster.pki import Authority
from tests.integration.raw import eventually
from tests.servers import SERVER_PROGRAMS
from tests.unit.kube.installation_configurations import configured

from onewriter_operator.installation import valkey_configuration
from onewriter_testing.ports import free_ports

SECONDS_MAX = 120.0


class Store:
    """The server of one directory, run as its pod does."""

    def __init__(self, directory: Path, kind: str = "valkey", *, has_tls: bool = False) -> None:
        self.port = free_ports(1)
        self.certificates = directory / "certificates"
        self.passwords = directory / "passwords"
        self.directory = directory
        more = {"store": {"tls": {"secretName": "store"}}, "valkey": {"image": "other"}}
        document = valkey_configuration.config_map(configured(more if has_tls else None))
        assert document is not None
        files = document["data"]
        self.configuration = directory / "configuration"
        for each in (self.passwords, self.configuration, directory / "state", directory / "data"):
            each.mkdir()
        text = files["valkey.conf"].replace("/data", str(directory / "data"))
        text = text.replace("/run/valkey", str(directory / "state"))
        text = text.replace(valkey_configuration.TLS_DIRECTORY, str(self.certificates))
        files["valkey.conf"] = text.replace("port 6379", f"port {self.port}")
        for name, content in files.items():
            (self.configuration / name).write_text(content)
        self.programs = programs = directory / "programs"
        programs.mkdir()
        (programs / "valkey-server").symlink_to(SERVER_PROGRAMS[kind])
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "ONEWRITER_VALKEY_CONFIGURATION": str(self.configuration),
            "ONEWRITER_VALKEY_PASSWORDS": str(self.passwords),
            "ONEWRITER_VALKEY_STATE": str(directory / "state"),
            "ONEWRITER_VALKEY_PORT": str(self.port),
            "ONEWRITER_VALKEY_LOOK_SECONDS": "0.1",
            "ONEWRITER_VALKEY_TLS": str(self.certificates) if has_tls else "",
        }

    def script(self, word: str) -> list[str]:
        return ["sh", str(self.configuration / "valkey.sh"), word]

    def passes_check(self) -> bool:
        done = subprocess.run(
            self.script("check"), env=self.environment, capture_output=True, check=False
        )
        return done.returncode == 0

    def end(self) -> str:
        """Return why the script does not start the server."""
        done = subprocess.run(
            self.script("run"), env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        return done.stderr

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
    assert "there is no password" in store.end()


# ------------------------------------------------------------ TLS

NEEDS_REDIS = pytest.mark.skipif(
    "redis7" not in SERVER_PROGRAMS, reason="Debian's Redis, which has TLS, is not installed"
)


def authority(store: Store) -> Authority:
    found = Authority(store.certificates)
    found.server("tls", ["localhost"])
    return found


def encrypted(store: Store, password: str, trusted: Path) -> redis.Redis:
    return redis.Redis(
        "localhost",
        store.port,
        username="onewriter",
        password=password,
        ssl=True,
        ssl_ca_certs=str(trusted),
    )


def peer(store: Store, trusted: Path) -> str:
    """Return the certificate that the server presents to a client that trusts this authority."""
    context = ssl.create_default_context(cafile=str(trusted))
    with (
        socket.create_connection(("127.0.0.1", store.port), SECONDS_MAX) as connection,
        context.wrap_socket(connection, server_hostname="localhost") as client,
    ):
        found = client.getpeercert(binary_form=True)
    assert found is not None
    return ssl.DER_cert_to_PEM_cert(found)


@NEEDS_REDIS
@pytest.mark.timeout(600)
@pytest.mark.full
@pytest.mark.parametrize("client", ["python3", "valkey-cli"])
def test_a_store_with_tls_serves_nothing_else_and_follows_its_certificate(
    tmp_path: Path, client: str
) -> None:
    store = Store(tmp_path, "redis7", has_tls=True)
    store.write("password", "first")
    if client == "valkey-cli":
        (store.programs / client).symlink_to("/usr/bin/redis-cli")
    first = authority(store)
    with store.running():
        with pytest.raises(redis.exceptions.ConnectionError):
            store.connected("first").ping()
        before = peer(store, first.certificate)
        with encrypted(store, "first", first.certificate) as broker:
            assert broker.exists("ow:probe") == 0
            store.write("password", "second")
            eventually(lambda: accepted(encrypted(store, "second", first.certificate)))
            (store.certificates / "tls.crt").write_text("no certificate")
            eventually(lambda: "the former one stays" in (tmp_path / "log").read_text())
            assert peer(store, first.certificate) == before
            authority(store)  # of another authority
            eventually(lambda: "was renewed" in (tmp_path / "log").read_text())
            assert peer(store, store.certificates / "ca.crt") != before
        assert store.passes_check()


def test_a_server_without_tls_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path, has_tls=True)
    store.write("password", "first")
    store.certificates.mkdir()
    assert "the Secret has no tls.crt" in store.end()
    authority(store)
    assert "is built without TLS: name another image in valkey.image" in store.end()
