"""The contract of LogStore when the dataset changes during operation: restarts, failovers, losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.log_store_worlds import (
    WORLD_KINDS,
    PairWorld,
    ServerWorld,
    World,
    Writer,
    open_pair_world,
    topics_of_bucket,
    writer,
)
from tests.servers import SERVER_KINDS, running_server
from tests.stamps import stamp_anew

from onewriter_broker.log.store.api import BrokenKey, LogStore, Outcome
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Undecided
from onewriter_core.ids import EARLIEST, Position

TOPIC, OTHER = topics_of_bucket(0, 2)


@pytest.fixture(params=WORLD_KINDS)
def pair(request: pytest.FixtureRequest) -> Iterator[PairWorld]:
    with open_pair_world(request.param) as opened:
        yield opened


async def positions(store: LogStore) -> list[str]:
    return [str(b.position) for b in await store.read_blocks(TOPIC, EARLIEST, count=1000)]


async def committed(store: LogStore, durability: Durability, *, replid: str = "") -> bool:
    """Commit like a broker, which repeats the call after the answer "not yet"."""
    for _ in range(50):
        if await store.commit(durability, replid=replid):
            return True
    return False


async def every_write(stale: Writer) -> list[Outcome | BrokenKey]:
    """Return the answers to each guarded write of a writer."""
    store, binding, token = stale.store, stale.binding, stale.token
    (appended,) = await store.append([stale.appending(TOPIC, b"stale")])
    return [
        await store.stamp(binding),
        await Writer(store, binding, stale.ledger + 1).fence(TOPIC),
        appended,
        await store.set_state(binding, TOPIC, token, {"cursor": "5-1"}),
        await store.trim(binding, TOPIC, token, Position(5, 2), {}),
        await store.write_audit(binding, {"event": "stale"}),
        await store.set_catalog(binding, {"topic": "{}"}),
    ]


async def test_a_restart_makes_every_binding_stale(world: World, store: LogStore) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    await own.append(TOPIC, b"1")
    world.restart()
    fresh = world.open()
    own.store = fresh
    assert await every_write(own) == [Outcome.REFENCE] * 7
    assert await positions(fresh) == ["5-0", "5-1"]
    seen = await fresh.observe([0])
    assert seen.replid == world.replid() != own.binding.replid
    # Only the generation can show that this is the registered dataset's continuation.
    assert seen.previous_replid == ""
    assert seen.units[0].generation == 1
    await fresh.close()


@pytest.mark.parametrize("kind", SERVER_KINDS)
async def test_a_primary_forgets_its_identity_when_its_first_replica_connects(
    kind: str, tmp_path: Path
) -> None:
    """Only the note in the bucket's record shows which dataset it was."""
    with (
        running_server(kind, listens_on_tcp=True) as primary,
        running_server(kind, listens_on_tcp=True) as replica,
    ):
        store = ServerWorld(tmp_path, primary, None).open()
        registered = (await store.observe([0])).replid
        assert await store.note_replid(0, registered, 0, 1) is Outcome.DONE
        replica.follow(primary)
        seen = await store.observe([0])
        assert seen.replid != registered
        assert seen.previous_replid == ""
        assert seen.units[0].note == f"{registered}/1"
        assert await store.note_replid(0, registered, 0, 1) is Outcome.REFENCE
        await store.close()


async def test_a_marker_that_a_torn_file_forgot_lets_no_old_writer_in(
    world: World, store: LogStore
) -> None:
    old = await writer(world, store)
    await old.fence(TOPIC)
    await old.append(TOPIC, b"1")
    mark = world.mark()
    successor = await writer(world, store, owner="broker-b", version=2, ledger=6)
    await successor.fence(TOPIC)
    world.restart(keep=mark)
    fresh = world.open()
    assert await positions(fresh) == ["5-0", "5-1"]
    assert (await fresh.observe([0])).units[0].owner == "broker-a"
    # Owner, token and position all match again. Only the dataset's identity causes the refusal.
    old.store = fresh
    assert await every_write(old) == [Outcome.REFENCE] * 7
    assert await positions(fresh) == ["5-0", "5-1"]
    await fresh.close()


async def test_a_store_connects_again_by_itself(world: World, store: LogStore) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    world.go_away()
    lost = own.appending(TOPIC, b"1")
    for _ in range(2):
        with pytest.raises(Undecided):
            await store.append([lost])
        with pytest.raises(Undecided):
            await store.read_state(TOPIC)
    world.come_back()
    seen = await store.observe([0])
    assert seen.is_primary
    assert await store.read_state(TOPIC) != {}


async def test_an_emptied_dataset_is_lost_not_free(world: World, store: LogStore) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    await own.append(TOPIC, b"1")
    world.flush_all()
    assert (await store.observe([0])).replid == own.binding.replid
    assert await every_write(own) == [Outcome.LOST] * 7
    assert (await store.observe([0])).units[0].generation == 0
    assert await positions(store) == []
    # Even after a new stamp, a log that must exist counts as lost until its loss was reported.
    assert await stamp_anew(store, own.binding) is Outcome.DONE
    later = Writer(store, own.binding, 7)
    assert await later.fence(TOPIC, create=False) is Outcome.LOST
    assert await store.append([own.appending(TOPIC, b"2")]) == [Outcome.LOST]
    assert await later.fence(TOPIC, create=True) is Outcome.DONE
    assert await positions(store) == ["7-0"]


async def test_recovery_reads_come_from_the_named_dataset_or_not_at_all(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    await store.set_catalog(own.binding, {"a": "b"})
    here = own.binding.replid
    assert (await store.read_state(TOPIC, replid=here))["tok"] == own.token
    assert await store.read_catalog(0, replid=here) == {"a": "b"}
    assert len(await store.read_blocks(TOPIC, EARLIEST, count=10, replid=here)) == 1
    elsewhere = "f" * 40
    with pytest.raises(Undecided, match="dataset"):
        await store.read_state(TOPIC, replid=elsewhere)
    with pytest.raises(Undecided, match="dataset"):
        await store.read_catalog(0, replid=elsewhere)
    with pytest.raises(Undecided, match="dataset"):
        await store.read_blocks(TOPIC, EARLIEST, count=10, replid=elsewhere)


# --- a primary and a replica


async def test_a_promoted_replica_that_lags_lets_no_old_writer_in(pair: PairWorld) -> None:
    store = pair.open()
    old = await writer(pair, store)
    await old.fence(TOPIC)
    await old.append(TOPIC, b"1")
    assert await committed(store, Durability.REPLICATED, replid=old.binding.replid)
    pair.stop_replication()
    successor = await writer(pair, store, owner="broker-b", version=2, ledger=6)
    await successor.fence(TOPIC)
    await successor.append(TOPIC, b"2")
    registered = pair.replid()
    pair.fail_over()

    fresh = pair.open()
    seen = await fresh.observe([0])
    assert seen.previous_replid == registered, "a promotion names the dataset it continues"
    assert seen.units[0].owner == "broker-a", "the new owner's stamp did not arrive"
    old.store = successor.store = fresh
    assert await every_write(old) == [Outcome.REFENCE] * 7
    assert await every_write(successor) == [Outcome.REFENCE] * 7
    assert await positions(fresh) == ["5-0", "5-1"]

    # The old primary still runs and accepts writes that are bound to it. It is never registered again.
    on_stale = dataclasses.replace(successor.binding)
    assert await store.stamp(on_stale) is Outcome.DONE
    adopted = dataclasses.replace(successor.binding, replid=seen.replid, generation=2, version=3)
    assert await store.stamp(adopted) is Outcome.REFENCE
    assert await fresh.stamp(adopted) is Outcome.DONE
    assert await Writer(fresh, adopted, 7).fence(TOPIC, create=False) is Outcome.DONE
    assert await positions(fresh) == ["5-0", "5-1", "7-0"]
    await store.close()
    await fresh.close()


async def test_replicated_is_promised_only_when_a_replica_has_it(pair: PairWorld) -> None:
    store = pair.open()
    own = await writer(pair, store)
    await own.fence(TOPIC)
    await own.append(TOPIC, b"1")
    assert (await store.observe([])).replicas == 1
    assert await committed(store, Durability.REPLICATED)
    assert await committed(store, Durability.ALL_REPLICAS)
    pair.stop_replication()
    await own.append(TOPIC, b"2")
    assert not await store.commit(Durability.REPLICATED)
    assert not await store.commit(Durability.ALL_REPLICAS)
    assert await store.commit(Durability.LOCAL)
    await store.close()


async def test_a_new_connection_confirms_only_its_own_writes(pair: PairWorld) -> None:
    store = pair.open()
    own = await writer(pair, store)
    await own.fence(TOPIC)
    pair.pause_replica()
    append = await own.append(TOPIC, b"1")
    pair.drop_connections()
    await store.read_state(TOPIC)
    with pytest.raises(Undecided):
        await store.commit(Durability.REPLICATED)
    # Repeat the same append: it is stored, and this connection has written after it.
    assert await store.append([append]) == [Outcome.DONE]
    assert not await store.commit(Durability.REPLICATED)
    with pytest.raises(Undecided):
        await store.commit(Durability.REPLICATED, replid="f" * 40)
    pair.resume_replica()
    assert await committed(store, Durability.REPLICATED, replid=own.binding.replid)
    await store.close()


async def test_another_write_on_the_new_connection_does_not_make_it_vouch(
    pair: PairWorld,
) -> None:
    store = pair.open()
    own = await writer(pair, store)
    await own.fence(TOPIC)
    await own.append(TOPIC, b"1")
    pair.drop_connections()
    await store.read_state(TOPIC)
    assert await set_cursor(own) is Outcome.DONE
    with pytest.raises(Undecided):
        await store.commit(Durability.REPLICATED)
    await store.close()


async def test_a_repeated_fence_is_confirmed_like_the_first(pair: PairWorld) -> None:
    store = pair.open()
    own = await writer(pair, store)
    pair.pause_replica()
    await own.fence(TOPIC)
    pair.drop_connections()
    await store.read_state(TOPIC)
    assert await own.fence(TOPIC) is Outcome.DONE
    assert not await store.commit(Durability.REPLICATED)
    pair.resume_replica()
    assert await committed(store, Durability.REPLICATED)
    await store.close()


async def set_cursor(mine: Writer) -> Outcome:
    """A write that may be the first call to notice a dropped connection."""
    for _ in range(2):
        try:
            return await mine.store.set_state(mine.binding, TOPIC, mine.token, {"cursor": "5-1"})
        except Undecided:
            continue
    raise AssertionError("no connection")


async def test_local_is_promised_by_a_file_synced_on_every_write(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    assert await own.fence(TOPIC) is Outcome.DONE
    assert await store.commit(Durability.NONE)
    assert await store.commit(Durability.LOCAL, replid=own.binding.replid)
    assert not await store.commit(Durability.REPLICATED)
