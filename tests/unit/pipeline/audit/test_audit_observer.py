"""Facts from blocks: runs, writers, falling numbers, missing chunks, hashes, publishes. Without a JVM."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.broker.verify.histories import entry

from onewriter_core.ids import Position
from onewriter_pipeline.audit import facts
from onewriter_pipeline.audit.observer import ORDINALS, Observer, chained, names_of
from onewriter_pipeline.brokers.frames import BlockFrame, MarkerFrame

LOG = "persistent://public/default/orders"
START = bytes(16)


def block(
    ledger: int, first: int, *entries: bytes, previous: bytes = START, **more: Any
) -> BlockFrame:
    lengths = np.array([len(each) for each in entries], "<u4")
    payload = memoryview(b"".join(entries))
    publish, ends = more.get("publish", ""), bool(more.get("ends"))
    plain = BlockFrame(Position(ledger, first), 1, lengths, None, publish, START, payload, ends)
    return replace(plain, chain=chained(previous, plain))


def marker(ledger: int, producer: str = "") -> MarkerFrame:
    fields = {"owner": "b", "t": "5", "mode": "shared"}
    if producer:
        fields |= {"mode": "exclusive", "epoch": str(ledger), "producer": producer}
    return MarkerFrame(ledger, fields)


def observed(observer: Observer, *frames: BlockFrame | MarkerFrame) -> list[dict[str, Any]]:
    batches: list[pa.RecordBatch] = []
    for frame in frames:
        if isinstance(frame, MarkerFrame):
            observer.marker(frame)
        else:
            batches += observer.block(frame)
    batches += observer.due()
    assert all(batch.schema == facts.FACTS for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row["ordinal"])


def of(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == kind]


def test_runs_end_at_holes_ledgers_and_markers_and_keep_their_order() -> None:
    rows = observed(
        Observer(LOG, 2, {}),
        marker(5, "a"),
        block(5, 1, entry("a", 0), entry("a", 1)),
        block(5, 3, entry("a", 2)),
        block(5, 7, entry("a", 3)),
        marker(6, "a"),
        block(6, 1, entry("a", 4)),
    )
    spans = [(row["kind"], row["ledger"], row["first"], row["last"]) for row in rows]
    order = [each for each in spans if each[0] in {facts.RUN, facts.MARKER}]
    assert order == [
        *(("marker", 5, 0, 0), ("run", 5, 1, 3), ("run", 5, 7, 7)),
        *(("marker", 6, 0, 0), ("run", 6, 1, 1)),
    ]
    assert all(row["ordinal"] > 2 * ORDINALS for row in rows)
    assert of(rows, facts.CHECKSUM) == []


def test_writers_are_distinguished_and_falling_numbers_reported() -> None:
    rows = observed(
        Observer(LOG, 0, {5: True}),
        block(5, 1, entry("a", 4), entry("bb", 1), entry("a", 3), entry("bb", 2), entry("a", 9)),
    )
    writers = {row["producer"]: row for row in of(rows, facts.WRITER)}
    assert (writers["a"]["sequence"], writers["a"]["last_sequence"]) == (4, 9)
    assert (writers["bb"]["first"], writers["bb"]["last"], writers["bb"]["entries"]) == (2, 4, 2)
    (fall,) = of(rows, facts.FALL)
    assert (fall["producer"], fall["first"], fall["last"]) == ("a", 1, 3)
    assert (fall["sequence"], fall["last_sequence"]) == (3, 4)


def test_client_that_restarts_its_numbers_does_not_fall() -> None:
    again = entry("a", 0, time_ms=1_800_000_000_000)
    rows = observed(Observer(LOG, 0, {5: True}), block(5, 1, entry("a", 4), again))
    assert of(rows, facts.FALL) == []


@pytest.mark.parametrize(("chunks", "torn"), [((0, 1, 2), 0), ((0, 2), 1), ((0, 1), 0)])
def test_chunk_needs_its_predecessor(chunks: tuple[int, ...], torn: int) -> None:
    sent = [entry("a", 1, chunk=number) for number in chunks]
    assert len(of(observed(Observer(LOG, 0, {5: True}), block(5, 1, *sent)), facts.TORN)) == torn


def test_checksums_distinguish_entries_of_shared_ledgers() -> None:
    frames = block(5, 1, entry("a", 1), entry("a", 1), entry("b", 1), entry("c", 1))
    assert of(observed(Observer(LOG, 0, {}), frames), facts.CHECKSUM) == []
    rows = of(observed(Observer(LOG, 0, {}, {"a", "b"}), frames), facts.CHECKSUM)
    checksums = [row["checksum"] for row in rows]
    assert [row["producer"] for row in rows] == ["a", "a", "b"]
    assert checksums[0] == checksums[1] != checksums[2]
    assert of(observed(Observer(LOG, 0, {5: True}, {"a"}), frames), facts.CHECKSUM) == []


def spreads(*sent: bytes, exclusive: bool = False) -> list[tuple[Any, ...]]:
    rows = observed(Observer(LOG, 0, {5: exclusive}), block(5, 1, *sent))
    names = ("kind", "producer", "sequence", "last_sequence", "entries")
    kinds = {facts.SPREAD, facts.UNORDERED}
    return sorted(tuple(row[name] for name in names) for row in rows if row["kind"] in kinds)


def test_numbers_of_shared_ledgers_rise_or_not() -> None:
    sent = [entry("a", 4), entry("b", 7), entry("a", 3), entry("b", 9), entry("a", 5)]
    assert spreads(*sent) == [("spread", "b", 7, 9, 2), ("unordered", "a", 3, 5, 3)]
    assert spreads(entry("a", 4), entry("a", 4)) == [("unordered", "a", 4, 4, 2)]
    chunks = [entry("a", 1, chunk=number) for number in (0, 1)]
    assert spreads(*chunks) == [("spread", "a", 1, 1, 2)]
    assert spreads(*sent, exclusive=True) == []


def test_hash_chain_begins_at_a_marker_or_at_the_previous_block() -> None:
    first = block(5, 1, entry("a", 0))
    second = block(5, 2, entry("a", 1), previous=first.chain)
    other = block(5, 2, entry("a", 1))
    fine = observed(Observer(LOG, 0, {}), marker(5), first, second)
    assert of(fine, facts.FAULT) == []
    seeded = Observer(LOG, 0, {})
    seeded.seed(first)
    (fault,) = of(observed(seeded, other), facts.FAULT)
    assert (fault["predicate"], fault["place"]) == ("S7", "5-2,5-2")
    assert (
        of(observed(Observer(LOG, 0, {}), other), facts.FAULT) == []
    )  # the previous block is unknown


def test_incomplete_publishes_are_reported() -> None:
    part = block(5, 1, entry("app", 7), publish="app/7")
    last = block(5, 2, entry("app", 7), previous=part.chain, publish="app/7", ends=True)
    rows = observed(Observer(LOG, 0, {}), part, last)
    (publish,) = of(rows, facts.PUBLISH)
    assert (publish["producer"], publish["sequence"], publish["first"]) == ("app", 7, 1)
    assert of(rows, facts.FAULT) == of(rows, facts.WRITER) == []
    plain = block(5, 2, entry("a", 0), previous=part.chain)
    (fault,) = of(observed(Observer(LOG, 0, {}), part, plain), facts.FAULT)
    assert (fault["predicate"], fault["place"]) == ("S15", "5-1,5-2")
    seeded = Observer(LOG, 1, {})
    seeded.seed(part)
    assert of(observed(seeded, last), facts.PUBLISH)[0]["first"] == 1


@pytest.mark.parametrize(
    "foreign", [entry("carol", 7), entry("app", 6), entry("apq", 7), b"nonsense"]
)
def test_foreign_entries_within_a_publish_are_reported(foreign: bytes) -> None:
    own = entry("app", 7)
    part = block(5, 1, own, own, foreign, own, publish="app/7", ends=True)
    (fault,) = of(observed(Observer(LOG, 0, {}), part), facts.FAULT)
    assert (fault["predicate"], fault["place"]) == ("S15", "5-3")
    assert fault["sentence"] == "an entry among those of publish app/7 is not its own"


def test_unreadable_entries_are_counted() -> None:
    rows = observed(
        Observer(LOG, 0, {}), block(5, 1, entry("a", 0), b"nonsense", b"more"), block(5, 4, b"")
    )
    (unread,) = of(rows, facts.UNREAD)
    assert (unread["log"], unread["entries"], len(of(rows, facts.RUN))) == (LOG, 3, 1)
    own = block(5, 1, b"nonsense", publish="app/7", ends=True)  # the publish has this foreign entry
    assert of(observed(Observer(LOG, 0, {}), own), facts.UNREAD) == []


def test_names_of_equal_and_different_lengths() -> None:
    data = b"abcdabxyab"
    starts, stops = np.array([0, 2, 4, 6, 8, 0]), np.array([2, 4, 6, 8, 10, 0])
    codes, names = names_of(data, starts, stops, np.arange(6))
    assert [names[code] for code in codes] == ["ab", "cd", "ab", "xy", "ab", ""]


def publishers(*frames: BlockFrame) -> list[tuple[Any, ...]]:
    rows = of(observed(Observer(LOG, 0, {}), *frames), facts.PUBLISHER)
    return [tuple(row[name] for name in ("first", "uuid", "subject")) for row in rows]


def published(first: int, version: int, by: str | None, app: str = "app") -> BlockFrame:
    part = block(5, first, entry(app, version), publish=f"{app}/{version}", ends=True)
    return replace(part, by=by)


def test_publisher_is_recorded_when_it_changes() -> None:
    alice, spark = '{"subject":"alice"}', '{"subject":"spark","podUID":"p"}'
    frames = [
        *(published(1, 1, alice), published(2, 2, alice), published(3, 3, spark)),
        *(published(4, 1, spark, "other"), published(5, 4, "")),
    ]
    assert publishers(*frames) == [
        (1, "app/1", alice),
        (3, "app/3", spark),
        (4, "other/1", spark),
        (5, "app/4", ""),
    ]


def test_unknown_publisher_differs_from_an_anonymous_one() -> None:
    assert publishers(published(1, 1, None)) == []
