"""The installation's key: created once, read by every broker, also while the store is unavailable for a time."""

from __future__ import annotations

import pytest

from onewriter_broker.auth.registrations import KEY_SETTING, Registrations
from onewriter_core.errors import Unavailable
from onewriter_core.ids import Identity, TopicName
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

ORDERS = TopicName.parse("orders")
WRITER = Identity("writer", "uid-1")


async def test_all_brokers_of_an_installation_compute_the_same_registration() -> None:
    server = FakeServer()
    one, other = (Registrations(FakeLogStore(server.resolve)) for _ in range(2))
    assert one.of(ORDERS, 7, WRITER) is None
    await one.wait_for_key()
    await other.wait_for_key()
    assert one.of(ORDERS, 7, WRITER) == other.of(ORDERS, 7, WRITER) is not None


async def test_two_installations_have_different_keys() -> None:
    one, other = (Registrations(FakeLogStore(FakeServer().resolve)) for _ in range(2))
    await one.wait_for_key()
    await other.wait_for_key()
    assert one.of(ORDERS, 7, WRITER) != other.of(ORDERS, 7, WRITER)


async def test_the_key_is_learned_once_the_store_answers() -> None:
    store = FakeLogStore(FakeServer().resolve)
    store.faults.fail_before = 2
    registrations = Registrations(store)
    await registrations.wait_for_key()
    assert registrations.of(ORDERS, 7, WRITER)


async def test_a_key_that_a_failover_lost_is_written_again_or_replaced_by_the_one_there() -> None:
    store = FakeLogStore(FakeServer().resolve)
    registrations = Registrations(store)
    await registrations.wait_for_key()
    before = registrations.of(ORDERS, 7, WRITER)
    await store.set_settings({}, [KEY_SETTING])
    await registrations.refresh()
    assert registrations.of(ORDERS, 7, WRITER) == before
    await store.set_settings({KEY_SETTING: "another broker's"})
    await registrations.refresh()
    assert registrations.of(ORDERS, 7, WRITER) != before


async def test_an_empty_key_in_the_store_is_not_used() -> None:
    store = FakeLogStore(FakeServer().resolve)
    await store.set_settings({KEY_SETTING: ""})
    registrations = Registrations(store)
    for _ in range(2):  # wait_for_key pauses after an error, and asks again
        with pytest.raises(Unavailable, match="empty installation-key"):
            await registrations.refresh()
    assert registrations.of(ORDERS, 7, WRITER) is None
    await store.set_settings({}, [KEY_SETTING])
    await registrations.wait_for_key()
    assert registrations.of(ORDERS, 7, WRITER)
