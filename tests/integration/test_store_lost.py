"""Readiness while the store fails: for all brokers, for one of them, and for one that starts meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import RawClients
from tests.integration.following import at_owner, placed, topic_of
from tests.integration.forked_brokers import BUCKETS, ForkedBrokers
from tests.integration.http_calls import Http
from tests.integration.raw import EXCLUSIVE, RefusedByBroker, eventually
from tests.integration.store_links import drop_connections
from tests.servers import StoreServer, running_server

from onewriter_core.errors import ServerError


class Link:
    """One broker's way to the store, which a test can cut and heal."""

    def __init__(self, path: Path, server: StoreServer) -> None:
        self._path = path
        self._server = server
        self.url = f"unix://{path}"
        self.heal()

    def heal(self) -> None:
        self._path.symlink_to(self._server.path)

    def cut(self) -> None:
        """Lead nowhere, and close the present connections: those of other brokers are opened again."""
        self._path.unlink()
        drop_connections(self._server)


class LinkedBrokers(ForkedBrokers):
    """Two brokers with a way to the store of their own each."""

    def __init__(self, folder: Path, server: StoreServer) -> None:
        self.links = [Link(folder / f"s{number}", server) for number in range(2)]
        super().__init__(
            folder,
            brokers=2,
            redis_url=self.links[0].url,
            supervised=False,
            settings={"buckets": BUCKETS, "store_timeout_seconds": 1.0},
        )

    def _bare_command(self, number: int) -> list[str]:
        self._redis_url = self.links[number].url
        return super()._bare_command(number)

    def readiness(self, number: int) -> tuple[int, dict[str, Any]]:
        status, answer = Http(self.http_urls[number])("GET", "/readyz")
        return status, answer

    def access(self, number: int) -> str:
        return str(self.readiness(number)[1]["store"]["access"])


@pytest.fixture
def linked(socket_folder: Path) -> Iterator[LinkedBrokers]:
    with running_server() as server:
        brokers = LinkedBrokers(socket_folder, server)
        try:
            brokers.start()
            yield brokers
        except BaseException as error:
            error.add_note(f"the brokers' log ends with:\n{brokers.log_end()}")
            raise
        finally:
            brokers.stop()


def test_a_store_that_is_gone_leaves_all_brokers_ready_and_a_broker_that_starts_unready(
    linked: LinkedBrokers, raw: RawClients
) -> None:
    topic = topic_of(linked, 0, "kept")
    placed(linked, topic)
    holder = at_owner(linked, raw, topic).producer(topic, EXCLUSIVE)
    holder.publish(b"before")
    for link in linked.links:
        link.cut()
    for number in range(2):
        eventually(lambda n=number: linked.access(n) == "LostByAll")  # type: ignore[misc]
        status, answer = linked.readiness(number)
        assert (status, answer["ready"], answer["problems"]) == (200, True, [])
        assert answer["store"] == {"reachable": False, "access": "LostByAll"}

    # A client gets an error on which it retries, and keeps its connection.
    newcomer = raw(linked.address(0))
    with pytest.raises(RefusedByBroker) as refused:
        newcomer.producer("never-seen", EXCLUSIVE)
    assert refused.value.code is ServerError.SERVICE_NOT_READY

    # A broker that starts meanwhile does not become ready: a rolling update stops at it.
    linked.kill(1)
    linked.restart(1, wait=False)
    linked.wait_for_event("store.waiting")
    with contextlib.suppress(OSError):
        assert linked.readiness(1)[0] == 503
    eventually(lambda: linked.access(0) == "LostByAll")
    assert linked.readiness(0)[0] == 200, "the silence of a broker that starts shows nothing"

    linked.kill(1)
    for link in linked.links:
        link.heal()
    linked.restart(1)
    assert linked.readiness(0)[0] == 200
    holder.publish(b"after")


def test_a_broker_that_lost_the_store_alone_is_not_ready(
    linked: LinkedBrokers, raw: RawClients
) -> None:
    topic = topic_of(linked, 1, "moves")
    placed(linked, topic)
    linked.links[1].cut()
    eventually(lambda: linked.access(1) == "LostAlone")
    status, answer = linked.readiness(1)
    assert (status, answer["ready"]) == (503, False)
    assert "the store does not answer" in answer["problems"]
    assert answer["store"] == {"reachable": False, "access": "LostAlone"}
    assert linked.readiness(0)[0] == 200
    eventually(lambda: linked.owner_of(topic, through=0) == 0)
    at_owner(linked, raw, topic).producer(topic, EXCLUSIVE).publish(b"at the other one")

    linked.links[1].heal()
    eventually(lambda: linked.readiness(1)[0] == 200)
