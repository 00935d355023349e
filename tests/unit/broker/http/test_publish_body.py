"""Bodies of publishes: what is accepted, what is refused and why, and that other tasks can run."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.ticks import Others

from onewriter_broker.http.onewriter.publish_body import PARTS_MAX, PARTS_PER_TICK, Body, read_body
from onewriter_broker.http.site import Refusal
from onewriter_broker.topic.publish.staging import PART_BYTES_MAX, StagedPartRef
from onewriter_core.ids import NUMBER_MAX

PREFIX = "app/"
NOT_AS_ANSWERED = "as staging answered"
WRONG_EPOCHS: list[object] = [True, 1.5, "1", [], {}]


def part(number: int = 0, **changes: object) -> dict[str, object]:
    made: dict[str, object] = {"key": f"app/12/p{number}/a-{number:032x}", "rows": number}
    return made | {"bytes": 1 + number, "checksum": f"{number:032x}"} | changes


def body(parts: object, **others: object) -> bytes:
    return json.dumps({"parts": parts} | others).encode()


def run(body: bytes) -> Body:
    """What is read of a body, with all its turns."""
    reading = read_body(body, PREFIX)
    while True:
        try:
            reading.send(None)
        except StopIteration as end:
            read: Body = end.value
            return read


KEYS = st.builds(
    "app/{}/{}/{}".format,
    st.integers(0, 10**15 - 1),
    st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('aü漢\\"\n'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab"), inner, max_size=4),
    max_leaves=10,
)
PARTS = st.builds(
    lambda key, rows, size, checksum, more: {
        "key": key,
        "rows": rows,
        "bytes": size,
        "checksum": checksum,
        "more": more,
    },
    KEYS,
    st.integers(0, NUMBER_MAX),
    st.integers(1, PART_BYTES_MAX),
    st.text("0123456789abcdef", max_size=32),
    VALUES,
)


@settings(deadline=None)
@given(
    st.lists(PARTS, max_size=5, unique_by=lambda each: str(each["key"])),
    st.none() | st.integers(1, NUMBER_MAX),
    VALUES,
    st.sampled_from([None, 2]),
)
def test_keys_from_staging_are_accepted_with_unknown_fields(
    parts: list[dict[str, Any]], epoch: int | None, more: object, indent: int | None
) -> None:
    requests = {"more": more, "epoch": epoch, "parts": parts}
    read = run(json.dumps(requests, indent=indent).encode())
    assert read.epoch == epoch
    names = ("key", "rows", "bytes", "checksum")
    assert read.parts == [StagedPartRef(*(each[name] for name in names)) for each in parts]


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 500),
    st.binary(max_size=3) | st.sampled_from([*b'{}[],:"\\0-1.e', b"NaN", b"null"]),
    st.integers(0, 30),
)
def test_whatever_is_damaged_is_read_or_refused(at: int, more: bytes | int, gone: int) -> None:
    whole = body([part(1), part(2)], epoch=3)
    more = more if isinstance(more, bytes) else bytes([more])
    with contextlib.suppress(Refusal):
        run(whole[:at] + more + whole[at + gone :])


@pytest.mark.parametrize("epoch", [0, -1, NUMBER_MAX + 1, 10**30])
def test_an_invalid_epoch_is_refused(epoch: object) -> None:
    with pytest.raises(Refusal, match="topic epoch"):
        run(body([], epoch=epoch))


@pytest.mark.parametrize(
    "asked",
    [
        b"",
        b" ",
        b"[]",
        b"7",
        b"null",
        b"{}",
        b'{"parts": []}x',
        b'{"parts": []',
        b'{"parts": [',
        b'{"parts": [{',
        b'{"parts": [], "more": NaN}',
        b'{"parts": [], "more": "\xff"}'[:-3],
        *(body([], epoch=wrong) for wrong in WRONG_EPOCHS),
        body([], epoch=[[]] * 100_000),
        body(None),
        body({}),
        body(""),
        body({"key": 1}),
        body([1]),
        body([None]),
        body([[]]),
        body([{}]),
        *(body([part() | {name: None}]) for name in part()),
        *(
            body([{name: value for name, value in part().items() if name != lacks}])
            for lacks in part()
        ),
        body([part(rows=-1)]),
        body([part(rows=1.5)]),
        body([part(rows=True)]),
        body([part(bytes=0)]),
        body([part(bytes=PART_BYTES_MAX + 1)]),
        body([part(key="app")]),
        body([part(key="app/1/2")]),
        body([part(key="app/1/2/3/4")]),
        body([part(key="app/01/a/b")]),
        body([part(key="app/1/a b/c")]),
        body([part(key="a b/1/a/c")]),
        body([part()]).replace(b'"rows": 0', b'"rows": ' + b"1" * 100_000),
        b'{"parts": [], "more": ' + b"[" * 100_000,
        b'{"parts": [], "more": ' + b'{"a":' * 100_000,
    ],
    ids=lambda asked: f"{len(asked)} {asked[:40]!r}",
)
def test_keys_that_staging_did_not_return_are_refused(asked: bytes) -> None:
    with pytest.raises(Refusal, match=NOT_AS_ANSWERED) as refused:
        run(asked)
    assert refused.value.status == 400


def test_parts_of_another_publish_are_refused() -> None:
    with pytest.raises(Refusal, match="begin with app/"):
        run(body([part(1), part(2, key="other/1/0/1")]))


def test_a_part_that_is_named_twice_is_refused() -> None:
    with pytest.raises(Refusal, match="named twice"):
        run(body([part(1), part(2), part(1)]))


def test_the_number_of_parts_is_limited() -> None:
    assert len(run(body([part(number) for number in range(PARTS_MAX)])).parts) == PARTS_MAX
    with pytest.raises(Refusal, match="at most") as refused:
        run(body([part(number) for number in range(PARTS_MAX + 1)]))
    assert refused.value.status == 413


async def test_checking_many_parts_lets_other_tasks_run() -> None:
    with Others() as others:
        await read_body(body([part(number) for number in range(PARTS_MAX)]), PREFIX)
    assert others.ticks >= PARTS_MAX / PARTS_PER_TICK
