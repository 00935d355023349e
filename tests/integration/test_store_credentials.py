"""The store's user and password: from a file, with minimal rights, and rotated at run time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import RawClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.raw import EXCLUSIVE
from tests.servers import StoreServer, running_server

from onewriter_core.store_rights import broker_acl_rules
from onewriter_testing.processes import LocalBrokers

USER = "broker"
FIRST, SECOND = "password-1", "password-2"


@pytest.fixture
def guarded() -> Iterator[StoreServer]:
    """A store that only its users may access. The test itself uses the socket as admin."""
    with running_server(listens_on_tcp=True) as store:
        store.command("ACL", "SETUSER", USER, "on", f">{FIRST}", *broker_acl_rules().split())
        store.command("ACL", "SETUSER", "admin", "on", "nopass", "~*", "+@all")
        store.command("ACL", "SETUSER", "default", "off")
        yield store


def settings(password_file: Path) -> dict[str, object]:
    return {"redis_username": USER, "redis_password_file": str(password_file)}


def test_a_rotated_password_counts_from_the_next_connection_on(
    guarded: StoreServer, tmp_path: Path, raw: RawClients
) -> None:
    file = tmp_path / "password"
    file.write_text(f"{FIRST}\n")
    url = f"redis://127.0.0.1:{guarded.port}"
    with forked_brokers(redis_url=url, settings=settings(file)) as brokers:
        producer = raw(brokers.address()).producer("t", EXCLUSIVE)
        producer.publish(b"before")
        guarded.command("ACL", "SETUSER", USER, "resetpass", f">{SECOND}")
        producer.publish(b"who is in stays in")
        guarded.command("CLIENT", "KILL", "USER", USER)
        sent = producer.send(b"nobody can get in for a moment")
        file.write_text(SECOND)
        producer.receipt(sent)
        producer.publish(b"after")
        assert FIRST not in brokers.log()
        assert SECOND not in brokers.log()


def test_the_installation_waits_for_a_missing_password_and_reports_it(
    guarded: StoreServer, tmp_path: Path, raw: RawClients
) -> None:
    file = tmp_path / "password"
    url = f"redis://127.0.0.1:{guarded.port}"
    brokers = LocalBrokers(tmp_path / "brokers", redis_url=url, settings=settings(file))
    try:
        brokers.start(wait=False)
        waiting = brokers.wait_for_event("store.waiting")
        assert "password: No such file" in str(waiting["reason"])
        file.write_text("wrong")
        brokers.wait_for_event(
            "store.waiting", lambda event: "invalid username" in str(event["reason"])
        )
        file.write_text(FIRST)
        brokers.wait_ready()
        raw(brokers.address()).producer("t", EXCLUSIVE).publish(b"fine")
    finally:
        brokers.stop()
