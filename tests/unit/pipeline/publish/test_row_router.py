"""The log of a row depends only on the row, and on the app and version of its batch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onewriter_core.ids import TopicName
from onewriter_pipeline.binaries import binaries
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.publish.hashing import (
    JAVA,
    MURMUR,
    java_string_hash,
    murmur3_32,
    partitions_of,
)
from onewriter_pipeline.publish.router import Router

LISTED = "persistent://public/default/"


def java_one_by_one(text: str) -> int:
    """``String.hashCode`` according to its documentation."""
    found = 0
    units = text.encode("utf-16-le")
    for at in range(0, len(units), 2):
        found = (31 * found + int.from_bytes(units[at : at + 2], "little")) % 2**32
    return found


def murmur_one_by_one(data: bytes) -> int:
    """MurmurHash3 with 32 bits and seed 0, byte by byte."""
    mask, found = 2**32 - 1, 0

    def scrambled(word: int) -> int:
        word = word * 0xCC9E2D51 & mask
        return ((word << 15 | word >> 17) & mask) * 0x1B873593 & mask

    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        found ^= scrambled(int.from_bytes(data[at : at + 4], "little"))
        found = ((found << 13 | found >> 19) & mask) * 5 + 0xE6546B64 & mask
    found ^= scrambled(int.from_bytes(data[whole:], "little"))
    found ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        found = (found ^ found >> shift) * factor & mask
    return found


# ------------------------------------------------------------ hashes


@pytest.mark.parametrize(
    ("text", "java", "murmur"),
    [
        ("", 0, 0),
        ("hello", 99162322, 0x248BFA47),
        ("hello, world", -640608884 % 2**32, 0x149BBB7F),
        ("The quick brown fox jumps over the lazy dog", -609428141 % 2**32, 0x2E4FF723),
    ],
)
def test_hashes_equal_known_values(text: str, java: int, murmur: int) -> None:
    key = binaries(pa.array([text]))
    assert (int(java_string_hash(key)[0]), int(murmur3_32(key)[0])) == (java, murmur)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=30), st.none()), max_size=20), st.integers(0, 3))
def test_hashes_of_any_keys_equal_the_reference(keys: list[str | None], front: int) -> None:
    found = binaries(pa.array(keys, pa.string()).slice(front))
    listed = [key or "" for key in keys[front:]]
    assert java_string_hash(found).tolist() == list(map(java_one_by_one, listed))
    assert murmur3_32(found).tolist() == [murmur_one_by_one(key.encode()) for key in listed]


def test_sign_of_a_hash_is_dropped() -> None:
    key = binaries(pa.array(["The quick brown fox jumps over the lazy dog"]))
    assert int(java_string_hash(key)[0]) >= 2**31
    assert partitions_of(key, np.array([7]), JAVA).tolist() == [(-609428141 & 0x7FFFFFFF) % 7]


# ------------------------------------------------------------ routes


def router(topic: str = "", partitions: dict[str, int] | None = None, **more: Any) -> Router:
    counts = partitions or {}
    named: dict[str, Any] = {"app": "job", "version": 1, "scheme": JAVA} | more
    return Router(topic, **named, partitions=lambda name: counts.get(name.local, 0))


def routed(of: Router, *batches: pa.RecordBatch) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for batch in batches:
        for log, rows in of.route(batch):
            assert rows.schema.names == [name for name in batch.schema.names if name != "__topic"]
            found.setdefault(log.removeprefix(LISTED), []).extend(
                map(int, rows["value"].to_pylist())
            )
    return found


def batch(count: int, **columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"value": [b"%d" % number for number in range(count)]} | columns)


def test_rows_and_batches_stay_in_order() -> None:
    names = itertools.cycle(["a", "b", "public/default/a", "other/ns/c"])
    rows = batch(9, __topic=[next(names) for _ in range(9)])
    assert routed(router(), rows, rows.slice(0, 2)) == {
        "a": [0, 2, 4, 6, 8, 0],
        "b": [1, 5, 1],
        "persistent://other/ns/c": [3, 7],
    }


def test_named_topic_receives_all_rows() -> None:
    assert routed(router("a"), batch(3), batch(2, __topic=["b", None])) == {"a": [0, 1, 2, 0, 1]}


@pytest.mark.parametrize("scheme", [JAVA, MURMUR])
def test_keys_choose_partitions_and_rows_without_a_key_share_one(scheme: str) -> None:
    keys = [f"key-{number % 5}" if number % 3 else None for number in range(60)]
    rows = batch(60, __key=pa.array(keys))
    found = routed(router("t", {"t": 4}, scheme=scheme), rows)
    chosen = partitions_of(binaries(pa.array(keys)), np.full(60, 4), scheme)
    for number, key in enumerate(keys):
        if key is not None:
            assert number in found[f"t-partition-{chosen[number]}"]
    (shared,) = [log for log, numbers in found.items() if 0 in numbers]
    assert set(range(0, 60, 3)) <= set(found[shared])
    halves = routed(router("t", {"t": 4}, scheme=scheme), rows.slice(30), rows.slice(0, 30))
    assert {log: sorted(numbers) for log, numbers in halves.items()} == {
        log: sorted(numbers) for log, numbers in found.items()
    }, "whatever task has which rows"


def test_rows_without_a_key_change_partition_from_batch_to_batch() -> None:
    logs = [list(routed(router("t", {"t": 4}, version=each), batch(5))) for each in range(40)]
    assert all(len(each) == 1 for each in logs)
    assert len({log for (log,) in logs}) == 4


def test_binary_keys_are_hashed_in_their_written_form() -> None:
    rows = batch(2, __key=pa.array([b"\xff\x00", b"/wA="], pa.binary()))
    assert len(routed(router("t", {"t": 50}), rows)) == 1


def test_rows_can_name_a_partition() -> None:
    names = ["t-partition-1", "t", "t-partition-1"]
    keys = ["a", "b", "c"]  # Java's hash of the second one is even
    found = routed(router("", {"t": 2}), batch(3, __topic=names, __key=keys))
    assert found == {"t-partition-0": [1], "t-partition-1": [0, 2]}
    assert routed(router("t-partition-1"), batch(2)) == {"t-partition-1": [0, 1]}


def test_partitions_of_each_topic_are_requested_once() -> None:
    requests = []

    def partitions(name: TopicName) -> int:
        requests.append(str(name))
        return 0

    of = Router("", "job", 1, JAVA, partitions)
    for _ in range(3):
        routed(of, batch(4, __topic=["a", "b", "a", "b"]))
    assert requests == [f"{LISTED}a", f"{LISTED}b"]


# ------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"__topic": ["a", None]}, "a row names no topic"),
        ({"__topic": pa.nulls(2)}, "a row names no topic"),
        ({}, "a row names no topic"),
        ({"__topic": [1, 2]}, "__topic is a string, not int64"),
        ({"__topic": ["a", "non-persistent://public/default/b"]}, "not a persistent topic"),
        ({"__topic": ["a", ""]}, "not a topic name"),
    ],
    ids=["one of two", "nulls", "no column", "numbers", "not persistent", "empty"],
)
def test_invalid_topics_are_refused_by_name(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        routed(router(), batch(2, **columns))


@pytest.mark.parametrize("at_once", [True, False])
def test_too_many_topics_are_refused(*, at_once: bool) -> None:
    rows = batch(4, __topic=["a", "b", "c", "d"])
    of = router(topics_max=3)
    with pytest.raises(Invalid, match="more than 3 topics"):
        routed(of, *([rows] if at_once else [rows.slice(each, 1) for each in range(4)]))


def test_former_module_name_still_offers_the_choice_of_a_partition() -> None:
    from onewriter_pipeline.publish import hashing
    from onewriter_pipeline.publishing import hashing as former

    assert former.partition_of is hashing.partition_of
    assert former.partitions_of is hashing.partitions_of
