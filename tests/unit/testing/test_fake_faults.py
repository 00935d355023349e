"""The faults that a simulation asks the fake store for, and what it does to the servers."""

from __future__ import annotations

import pytest
from tests.conformance.log_store_worlds import BUCKETS, Writer, topics_of_bucket
from tests.stamps import stamp_anew

from onewriter_broker.log.store.api import Binding, Outcome
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Undecided
from onewriter_core.ids import EARLIEST
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

(TOPIC,) = topics_of_bucket(0, 1)


async def started() -> tuple[FakeServer, FakeLogStore, Writer]:
    server = FakeServer()
    store = FakeLogStore(server.resolve, buckets=BUCKETS, commit_timeout_seconds=0)
    binding = Binding(0, server.primary.replid, 1, "broker-a", 1)
    await stamp_anew(store, binding)
    own = Writer(store, binding, 5)
    await own.fence(TOPIC)
    return server, store, own


async def stored(store: FakeLogStore) -> list[str]:
    return [str(b.position) for b in await store.read_blocks(TOPIC, EARLIEST, count=100)]


@pytest.mark.parametrize("fault", ["fail_before", "fail_after"])
async def test_an_undecided_call_may_or_may_not_have_happened_and_its_retry_is_done(
    fault: str,
) -> None:
    _, store, own = await started()
    append = own.appending(TOPIC, b"1")
    setattr(store.faults, fault, 1)
    with pytest.raises(Undecided):
        await store.append([append])
    happened = await stored(store)
    assert happened == (["5-0", "5-1"] if fault == "fail_after" else ["5-0"])
    assert await store.append([append]) == [Outcome.DONE]
    assert await stored(store) == ["5-0", "5-1"]


async def test_the_hook_may_change_the_world_around_a_call() -> None:
    server, store, own = await started()
    moments = []

    async def hook(call: str, moment: str) -> None:
        moments.append((call, moment))
        if moment == "before" and len(moments) == 1:
            server.restart(server.primary)

    store.faults.hook = hook
    with pytest.raises(Undecided):
        await store.append([own.appending(TOPIC, b"1")])
    assert await store.append([own.appending(TOPIC, b"1")]) == [Outcome.REFENCE]
    assert moments == [("append", "before"), ("append", "before"), ("append", "after")]


async def test_a_store_stays_with_a_deposed_primary_until_that_drops_it() -> None:
    server, store, own = await started()
    old = server.primary
    replica = server.add_replica("node-1")
    server.promote(replica)
    assert await store.append([own.appending(TOPIC, b"on a dead branch")]) == [Outcome.DONE]
    server.demote(old, replica)
    assert (await store.observe([0])).previous_replid == own.binding.replid
    assert await stored(store) == ["5-0"]
    assert old.replid == replica.replid


async def test_a_snapshot_restart_goes_back_to_the_snapshot_and_names_its_dataset() -> None:
    server, store, own = await started()
    server.save(server.primary)
    await own.append(TOPIC, b"1")
    server.restart(server.primary, from_snapshot=True)
    assert (await store.observe([])).previous_replid == own.binding.replid
    assert await stored(store) == ["5-0"]


async def test_everysec_never_promises_local_durability() -> None:
    server = FakeServer(syncs_always=False)
    store = FakeLogStore(server.resolve, buckets=BUCKETS, commit_timeout_seconds=0)
    await stamp_anew(store, Binding(0, server.primary.replid, 1, "broker-a", 1))
    assert not await store.commit(Durability.LOCAL)


async def test_a_cut_off_store_reaches_nothing_and_an_unknown_primary_is_none() -> None:
    server, store, _ = await started()
    store.faults.is_cut_off = True
    with pytest.raises(Undecided):
        await store.observe([])
    store.faults.is_cut_off = False
    assert (await store.observe([])).is_primary
    nowhere = FakeLogStore(lambda: None)
    with pytest.raises(Undecided):
        await nowhere.observe([])
    replica = server.add_replica("node-1")
    misled = FakeLogStore(lambda: replica)
    with pytest.raises(Undecided, match="not a primary"):
        await misled.observe([])


async def test_a_dataset_may_change_its_identity_and_nothing_else() -> None:
    server, store, own = await started()
    server.renew_identity(server.primary)
    seen = await store.observe([0])
    assert (seen.previous_replid, seen.units[0].generation) == ("", 1)
    assert await store.append([own.appending(TOPIC, b"1")]) == [Outcome.REFENCE]
