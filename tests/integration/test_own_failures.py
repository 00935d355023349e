"""Ownership of resources while a broker and its store die, freeze and are replaced."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import RawClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.owners import DeniedByBroker, ask_own, lost, own, own_anywhere
from tests.integration.raw import RawClient, eventually
from tests.integration.store_links import StoreLink, drop_connections
from tests.servers import StoreServer, running_pair, running_server

from onewriter_core.errors import ServerError
from onewriter_core.own.names import resource_bucket
from onewriter_core.own.table import LINEAGE_BITS
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.processes import LocalBrokers

pytestmark = pytest.mark.timeout(360)

_numbers = itertools.count()


@pytest.fixture
def resource() -> str:
    return f"task {next(_numbers)}"


def broker_of(brokers: LocalBrokers, client: RawClient) -> int:
    """Return the number of the broker to which a connection leads."""
    ports = [brokers.address(number)[1] for number in range(len(brokers.names))]
    return ports.index(client.socket.getpeername()[1])


@pytest.fixture
def patient() -> Iterator[LocalBrokers]:
    """Brokers that wait for the owners of a dead broker longer than any machine takes to restart."""
    with (
        running_server() as store,
        forked_brokers(
            brokers=2,
            redis_url=store.url,
            settings={"resume_window_seconds": 300.0},
        ) as brokers,
    ):
        yield brokers


def test_an_owner_continues_after_its_broker_died(
    patient: LocalBrokers, raw: RawClients, resource: str
) -> None:
    brokers = patient
    owner, generation = own_anywhere(brokers, raw, resource, nonce="mine", identity="one")
    dead = broker_of(brokers, owner)
    brokers.kill(dead)
    owner.wait_closed()
    with pytest.raises(DeniedByBroker) as found:
        own_anywhere(brokers, raw, resource, asked=1 - dead, identity="two")
    assert found.value.code is ServerError.PRODUCER_BUSY, "it is waited for"
    back, same = own_anywhere(
        brokers, raw, resource, generation, asked=1 - dead, nonce="mine", identity="one"
    )
    assert same == generation
    brokers.restart(dead)
    assert not back.has_received(pb.CommandOwnershipLost, lambda reported: not reported.is_moving)


def test_an_owner_that_died_with_its_broker_is_replaced_in_bounded_time(
    mortal_pair: LocalBrokers, raw: RawClients, resource: str
) -> None:
    owner, generation = own_anywhere(mortal_pair, raw, resource, nonce="mine", identity="one")
    dead = broker_of(mortal_pair, owner)
    mortal_pair.kill(dead)
    taken: list[int] = []

    def succeed() -> bool:
        with contextlib.suppress(DeniedByBroker):
            taken.append(
                own_anywhere(mortal_pair, raw, resource, asked=1 - dead, identity="two")[1]
            )
        return bool(taken)

    eventually(succeed)
    mortal_pair.restart(dead)
    assert taken == [generation + 1]
    with pytest.raises(DeniedByBroker) as found:
        own_anywhere(
            mortal_pair, raw, resource, generation, nonce="mine", identity="one", only_returns=True
        )
    assert found.value.current == generation + 1


def test_an_owner_is_sent_on_when_its_bucket_is_given_back(
    tmp_path: Path, raw: RawClients, resource: str
) -> None:
    """A second broker starts: half of the buckets move to it, and their owners with them."""
    with (
        running_server() as store,
        forked_brokers(redis_url=store.url) as first,
    ):
        client = raw(first.address())
        resources = [f"{resource}/{n}" for n in range(40)]
        for name in resources:
            own(client, name, nonce="mine")
        settings = {"name": "broker-b", "data_dir": first.data_directory}
        with forked_brokers(redis_url=store.url, settings=settings) as second:
            reported = lost(client)
            assert reported.is_moving
            assert not reported.HasField("current_generation")
            name = reported.resource.name
            taken: list[int] = []

            def resumed() -> bool:
                with contextlib.suppress(DeniedByBroker, AssertionError):
                    there = raw(second.address())
                    taken.append(own(there, name, 1, nonce="mine", only_returns=True))
                return bool(taken)

            eventually(resumed)
            assert taken == [1]


def test_a_zombie_broker_grants_nothing(
    mortal_pair: LocalBrokers, raw: RawClients, resource: str
) -> None:
    former, generation = own_anywhere(mortal_pair, raw, resource, nonce="mine", identity="one")
    old = broker_of(mortal_pair, former)
    rival = raw(mortal_pair.address(old))
    frozen = mortal_pair.freeze(old)
    try:
        request = ask_own(rival, [(resource, 9)], identity="rival")
        checked = ask_own(former, [(resource, generation)], nonce="mine", identity="one")

        living = raw(mortal_pair.address(1 - old))

        def moved() -> bool:
            with contextlib.suppress(DeniedByBroker, AssertionError):  # redirected to the zombie
                return own(living, resource, generation + 1, identity="two") > generation
            return False

        eventually(moved)
    finally:
        mortal_pair.thaw(frozen)
    for client, request_id in ((rival, request), (former, checked)):
        with contextlib.suppress(TimeoutError):  # it may be cut off, too
            (result,) = client.answer(pb.CommandOwnResponse, request_id).results
            assert not result.HasField("generation"), "a zombie has granted, or proved, something"
    _, current = own_anywhere(mortal_pair, raw, resource, 50, asked=1 - old, identity="three")
    assert current == 50


def fail_over(link: StoreLink, old: StoreServer, new: StoreServer) -> None:
    link.lead_to(new)
    drop_connections(old)


def test_a_broker_repeats_to_a_lagging_replica_what_it_dropped(
    socket_folder: Path, raw: RawClients, resource: str
) -> None:
    with running_pair() as (primary, replica):
        link = StoreLink(socket_folder, "primary", primary)
        with forked_brokers(redis_url=link.url) as brokers:
            owner = raw(brokers.address())
            assert own(owner, resource, nonce="mine", identity="one") == 1
            replica.promote()  # from here on it receives no more writes
            assert own(owner, resource, 7, nonce="mine", identity="one") == 7
            assert own(owner, resource + " new", nonce="mine") == 1
            fail_over(link, primary, replica)
            brokers.wait_for_event("bucket.dataset_changed", lambda _: True)
            assert own(owner, resource, 7, nonce="mine", identity="one", only_returns=True) == 7
            key = f"ow:{{b{resource_bucket(resource, brokers.buckets)}}}:own"

            def kept() -> bool:
                return bool(replica.command("HGET", key, f"group\x1f{resource}") == b"7")

            eventually(kept)
            other = raw(brokers.address())
            with pytest.raises(DeniedByBroker) as found:
                own(other, resource, 6, identity="two")
            assert found.value.current == 7
            assert own(other, resource, 8, identity="two") == 8
            assert own(other, resource + " new", 2, identity="two") == 2
            assert [lost(owner).current_generation for _ in range(3)] == [7, 8, 2]


def test_a_forgotten_generation_is_not_granted_again(
    socket_folder: Path, raw: RawClients, resource: str
) -> None:
    """Broker and primary die together; the replica never received the last grant."""
    with running_pair() as (primary, replica):
        link = StoreLink(socket_folder, "primary", primary)
        with forked_brokers(redis_url=link.url) as brokers:
            owner = raw(brokers.address())
            assert own(owner, resource, nonce="mine", identity="one") == 1
            replica.promote()
            deposer = raw(brokers.address())
            assert own(deposer, resource, 2, nonce="other", identity="two") == 2
            brokers.kill()
            fail_over(link, primary, replica)
            brokers.restart(0)
            with pytest.raises(DeniedByBroker):
                own(raw(brokers.address()), resource, 1, nonce="mine", only_returns=True)
            jumped = own(raw(brokers.address()), resource, 1, identity="one", nonce="mine")
            assert jumped > 1 << LINEAGE_BITS
            assert jumped % (1 << LINEAGE_BITS) == 1
            fresh = own(raw(brokers.address()), resource + " that nobody owned")
            assert fresh > 0
