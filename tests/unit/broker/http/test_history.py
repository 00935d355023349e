"""A topic's history from a bucket's audit stream, which it shares with other topics."""

from __future__ import annotations

from tests.stamps import stamp_anew

from onewriter_broker.http.onewriter import history
from onewriter_broker.http.onewriter.history import READ_RECORDS, following, newest, shown
from onewriter_broker.log.store.api import Binding
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

MINE, OTHER = "persistent://public/default/mine", "persistent://public/default/other"


async def stream(*topics: str) -> FakeLogStore:
    """A bucket whose audit stream has one record for each of these topics; "" is the bucket's."""
    store = FakeLogStore(FakeServer().resolve)
    replid = (await store.observe([0])).replid
    binding = Binding(0, replid, 1, "me", 1)
    await stamp_anew(store, binding)
    for number, topic in enumerate(topics):
        record = {"kind": "grant", "epoch": str(number), "t": str(number)}
        await store.write_audit(binding, record | ({"topic": topic} if topic else {}))
    return store


def epochs(page: history.Page) -> list[object]:
    return [record["epoch"] for record in page.records]


async def test_only_its_own_records_and_those_of_the_whole_bucket_oldest_first() -> None:
    store = await stream(MINE, OTHER, "", MINE)
    page = await newest(store, 0, MINE, 10)
    assert epochs(page) == [0, 2, 3]
    assert not page.is_cut


async def test_a_topics_history_contains_its_own_owners_only() -> None:
    store = await stream(MINE)
    binding = Binding(0, (await store.observe([0])).replid, 1, "me", 1)
    for resource in (MINE, OTHER, "a task"):
        await store.write_audit(binding, {"kind": "own", "resource": resource, "epoch": "9"})
    page = await newest(store, 0, MINE, 10)
    assert [record.get("resource", "") for record in page.records] == ["", MINE]


async def test_the_newest_are_shown_when_there_are_more() -> None:
    store = await stream(MINE, MINE, MINE)
    page = await newest(store, 0, MINE, 2)
    assert epochs(page) == [1, 2]
    assert page.is_cut


async def test_a_busy_neighbour_does_not_hide_a_quiet_topic() -> None:
    store = await stream(MINE, *([OTHER] * (READ_RECORDS * 2)))
    page = await newest(store, 0, MINE, 5)
    assert epochs(page) == [0]


async def test_a_reading_is_limited_and_reports_that() -> None:
    store = await stream(MINE, *([OTHER] * 10))
    page = await newest(store, 0, MINE, 5, read_records=2, scanned_max=4)
    assert (epochs(page), page.is_cut) == ([], True)


async def test_following_from_the_last_id_gives_everything_once() -> None:
    store = await stream(MINE, OTHER, MINE, MINE, OTHER, MINE)
    found, after = [], "0-0"
    while (page := await following(store, 0, MINE, after, 2)).records:
        found += epochs(page)
        assert page.next is not None
        after = page.next
    assert found == [0, 2, 3, 5]


async def test_the_outage_before_a_grant_is_reported_with_it() -> None:
    store = await stream()
    replid = (await store.observe([0])).replid
    binding = Binding(0, replid, 1, "me", 1)
    for ledger, gap in ((5, "41"), (7, "0")):
        reported = {"topic": MINE, "ledger": str(ledger), "epoch": str(ledger)}
        await store.write_audit(binding, reported | {"kind": "grant"})
        await store.write_audit(binding, reported | {"kind": "ready", "leaderlessMs": gap})
    page = await newest(store, 0, MINE, 10)
    shown_gaps = [(record["kind"], record["leaderlessMs"]) for record in page.records]
    assert shown_gaps == [("grant", 41), ("grant", 0)]
    first = await following(store, 0, MINE, "0-0", 1)
    assert [(r["kind"], r["leaderlessMs"]) for r in first.records] == [("grant", 41)]
    assert first.next is not None
    rest = await following(store, 0, MINE, first.next, 10)
    assert [(r["kind"], r["ledger"]) for r in rest.records] == [("grant", 7)]
    # Read before it was written, it stands alone.
    late = await following(store, 0, MINE, first.records[0]["id"], 10)
    assert [(r["kind"], r["ledger"]) for r in late.records] == [("ready", 5), ("grant", 7)]


def test_unreadable_fields_stay_unchanged() -> None:
    record = shown("1-0", {"epoch": "seven", "previous": "{", "t": "soon", "kind": "grant"})
    assert record == {"id": "1-0", "epoch": "seven", "previous": "{", "kind": "grant"}
