"""Bodies of publishes: read in steps, and taken for what Python's own reader takes them for."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.turns import Others

from onewriter_broker.http import publish_body
from onewriter_broker.http.publish_body import ALONE_BYTES, PARTS_MAX, PublishBodies, epoch_of
from onewriter_broker.http.site import Refusal
from onewriter_broker.topic.staging import PART_BYTES_MAX, Claimed
from onewriter_core.ids import NUMBER_MAX
from onewriter_core.topic.model import AccessMode

PREFIX = "app/"
KEY = re.compile(r"[\w.:-]{1,200}/(0|[1-9][0-9]{0,14})(/[\w.-]{1,64}){2}", re.ASCII)
MODES = {
    "exclusive": AccessMode.EXCLUSIVE,
    "exclusive-with-fencing": AccessMode.EXCLUSIVE_WITH_FENCING,
    "wait-for-exclusive": AccessMode.WAIT_FOR_EXCLUSIVE,
}
GENERIC = "the body is {epoch, parts: [{key, rows, bytes, checksum}]} as staging answered"


def part(number: int = 0, **changes: object) -> dict[str, object]:
    made: dict[str, object] = {"key": f"app/12/p{number}/a-{number:032x}", "rows": number}
    return made | {"bytes": 1 + number, "checksum": f"{number:032x}"} | changes


def body(parts: object, **others: object) -> bytes:
    return json.dumps({"epoch": 7, "parts": parts} | others).encode()


Outcome = tuple[object, ...]


def outcome(given: bytes) -> Outcome:
    """What is read of a body, or the refusal."""
    reading = PublishBodies().read(given, PREFIX)
    try:
        while True:
            reading.send(None)
    except StopIteration as end:
        return tuple(end.value)
    except Refusal as refusal:
        return refusal.status, refusal.reason


def expected(given: bytes) -> Outcome:
    """The same, by Python's own reader."""
    try:
        asked = json.loads(given)
        epoch, mode, parts = epoch_of(asked.get("epoch")), asked.get("mode"), asked["parts"]
        if not isinstance(parts, list):
            return 400, GENERIC
        if mode is not None and (mode not in MODES or epoch is not None):
            return 400, f"mode, without an epoch, is one of {', '.join(MODES)}"
        if len(parts) > PARTS_MAX:
            return 413, f"a publish has at most {PARTS_MAX} parts"
        claimed = [claim(each) for each in parts]
    except Refusal as refusal:
        return refusal.status, refusal.reason
    except (AttributeError, KeyError, TypeError, ValueError):
        return 400, GENERIC
    if any(not each.key.startswith(PREFIX) for each in claimed):
        return 400, f"the parts of this publish begin with {PREFIX}"
    if len({each.key for each in claimed}) != len(claimed):
        return 400, "a part is named twice"
    return epoch, AccessMode.EXCLUSIVE if mode is None else MODES[mode], claimed


def claim(given: Any) -> Claimed:
    key, rows, size, checksum = given["key"], given["rows"], given["bytes"], given["checksum"]
    numbers = type(rows) is int and type(size) is int and rows >= 0
    if not (
        KEY.fullmatch(key) and isinstance(checksum, str) and numbers and 0 < size <= PART_BYTES_MAX
    ):
        raise ValueError(given)
    return Claimed(key, rows, size, checksum)


# --- as Python's own reader


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 7, NUMBER_MAX, NUMBER_MAX + 1, 1e300, -0.0, float("nan")]),
    st.text(st.sampled_from('ab"\\/{}[],: \nü漢\ud800\0'), max_size=6),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text("ab", max_size=2), inner),
    max_leaves=20,
)
PARTS = st.builds(
    lambda number, changes, without: {
        name: value for name, value in part(number, **changes).items() if name not in without
    },
    st.integers(0, 4),
    st.dictionaries(
        st.sampled_from(["key", "rows", "bytes", "checksum", "more", "}"]), VALUES, max_size=1
    ),
    st.sets(st.sampled_from(["key", "rows", "bytes", "checksum"]), max_size=1),
)
MEMBERS: st.SearchStrategy[tuple[str, object]] = st.one_of(
    st.tuples(st.just("epoch"), st.sampled_from([1, None, 0, [], "7"]) | VALUES),
    st.tuples(st.just("mode"), st.sampled_from([None, "wait-for-exclusive", "none", [], {}])),
    st.tuples(st.just("parts"), st.lists(st.integers(0, 9).map(part), max_size=5)),
    st.tuples(st.just("parts"), st.lists(PARTS | VALUES, max_size=5) | VALUES),
    st.tuples(st.sampled_from(["more", "key", "rows"]), VALUES),
)
STYLES: list[dict[str, Any]] = [{}, {"separators": (",", ":")}, {"indent": "\t \r\n"}]


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Bodies whose members come in any order, also twice; damaged perhaps."""
    style = draw(st.sampled_from(STYLES)) | {"ensure_ascii": draw(st.booleans())}
    members = [
        f"{json.dumps(name)}: {json.dumps(value, **style)}"
        for name, value in draw(st.lists(MEMBERS, max_size=5))
    ]
    text = "{" + ", ".join(members) + "}"
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text)))
        more = draw(st.sampled_from(["", "", *'{}[],:" \\0-1.e\n\0', "\ufeff", "NaN", "01"]))
        text = text[:at] + more + text[at + draw(st.integers(0, 2)) :]
    made = text.encode(draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16"])), "surrogatepass")
    return draw(st.sampled_from([made, made, made, made[:-1], made + b"\xff", made + b" \n"]))


@settings(max_examples=500, deadline=None)
@given(bodies())
def test_bodies_are_read_as_pythons_own_reader_reads_them(given: bytes) -> None:
    assert outcome(given) == expected(given)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [*"[]{},:", "[]", "{}", '"', '"a"', '"\\"', "1", "01", "-", "1.5", "1e", "null", " "]
        )
        | st.just(","),
        max_size=30,
    )
)
def test_what_counts_for_nothing_is_json_all_the_same(tokens: list[str]) -> None:
    text = "".join(tokens)
    for shape in ('{"parts": [], "more": [%s]}', '{"parts": [], "more": %s}', '{"parts": [%s]}'):
        whole = (shape % text).encode()
        assert outcome(whole) == expected(whole)


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b" ",
        b"[]",
        b"7",
        b"{}",
        b'{"parts": []}x',
        b'{"parts": []}\0',
        b'{"parts": []',
        b'{"parts": [',
        b'{"parts": [{',
        body([part(1), part(2)])[:-1],
        body([part(1)]).replace(b"]", b",]"),
        body([part(1), part(1)]),
        body([part(1, key="other/1/0/1")]),
        body({}),
        body(""),
        body("words"),
        body({"key": 1}),
        body([part(1, checksum="}")]),
        body([part(1, checksum="x" * 5_000)]),
        body([part(1, more={"bytes": 0})]),
        body([part(1, rows="1" * 5_000)]).replace(b'"111', b"111").replace(b'111"', b"111"),
        body([part(number) for number in range(PARTS_MAX)]),
        body([part(number) for number in range(PARTS_MAX + 1)]),
        body([part(number) for number in range(PARTS_MAX + 1)])[:-2],
        body([[]] * (PARTS_MAX + 5)),
        body([[]] * (PARTS_MAX + 5))[:-2] + b",]}",
        body([], more=[1] * 3_000),
        body([], more=[1] * 3_000)[:-2] + b",]}",
        body([], more=[1, "a", None, [], {}, 1.5, "\\", {"a": [1, 2]}] * 500),
    ],
    ids=lambda given: f"{len(given)} {given[:30]!r}",
)
def test_a_body(given: bytes) -> None:
    assert outcome(given) == expected(given)


@pytest.mark.parametrize("begin", ["[", '{"a":'])
def test_what_is_nested_deeply_is_refused(begin: str) -> None:
    given = f'{{"parts": [], "more": {begin * 100_000}'.encode()
    assert outcome(given) == (400, GENERIC)


# --- turns


MANY = 100_000
BODIES = {
    "parts": body([part(number) for number in range(PARTS_MAX)]),
    "parts with more": body([part(number, more=[]) for number in range(PARTS_MAX)]),
    "too many parts": body([[]] * MANY),
    "plain values": body([], more=[1] * MANY),
    "other values": body([], more=[1.5] * MANY),
    "names": body([], more={f"{number:x}": 1 for number in range(MANY)}),
    "names in front": body([], **{f"{number:x}": 1 for number in range(MANY)}),
    "arrays in arrays": body([], more=[[[]]] * MANY),
    "parts of values": body([[1] * MANY]),
}


@pytest.mark.parametrize("kind", BODIES)
async def test_bodies_leave_turns_to_others(kind: str) -> None:
    with Others() as others, pytest.MonkeyPatch.context() as patched:
        patched.setattr(publish_body, "VALUES_PER_TURN", 200)
        try:
            await PublishBodies().read(BODIES[kind], PREFIX)
        except Refusal:
            assert kind in {"too many parts", "parts of values"}
    assert others.turns >= 40


async def begun(bodies: PublishBodies, given: bytes) -> asyncio.Task[object]:
    task: asyncio.Task[object] = asyncio.get_running_loop().create_task(bodies.read(given, PREFIX))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_large_bodies_are_read_one_after_the_other_and_small_ones_at_once() -> None:
    bodies, large = PublishBodies(), BODIES["parts"]
    small = body([part(number) for number in range(100)])
    assert len(small) <= ALONE_BYTES < len(large)
    first, second = await begun(bodies, large), await begun(bodies, large)
    assert len((await bodies.read(small, PREFIX)).parts) == 100
    assert not first.done()
    await first
    assert not second.done()
    await second


async def test_a_body_that_nobody_asks_for_any_more_holds_up_no_other() -> None:
    bodies, large = PublishBodies(), BODIES["parts"]
    first, second = await begun(bodies, large), await begun(bodies, large)
    third = await begun(bodies, large)
    for task in (second, first):
        task.cancel()
    assert len((await bodies.read(large, PREFIX)).parts) == PARTS_MAX
    await third
