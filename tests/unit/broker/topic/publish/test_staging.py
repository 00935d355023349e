"""Staged parts: their content, what a broker accepts, and that a lost part never counts as empty."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contents import stored_in
from tests.unit.broker.ticks import Others

from onewriter_broker.log.store.redis.staged_parts import RedisStagedStore
from onewriter_broker.log.store.staged_parts import CHUNK_BYTES, Damaged, decode_part
from onewriter_broker.log.topic_log.atomic_publish import TooLarge
from onewriter_broker.topic.publish import staged_rows, staging
from onewriter_broker.topic.publish.staging import (
    MissingPart,
    StagedPartRef,
    Staging,
    StagingLimits,
)
from onewriter_core.errors import ProtocolError, Refused, ServerError
from onewriter_core.ids import TopicName, bucket_of
from onewriter_core.log_format.limits import PUBLISH_BYTES_MAX, PUBLISH_ENTRIES_MAX
from onewriter_core.log_format.staged_rows import FRAME_BYTES_MAX, FRAME_ROWS_MAX, MAGIC
from onewriter_core.wire.messages import (
    build_batch,
    entry_checksum_ok,
    entry_payload,
    iterate_batch,
    parse_metadata,
)
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

TOPIC = TopicName.parse("orders")
BUCKET = bucket_of(TOPIC, 64)
OTHER = TopicName.parse("others")
KEY = "app/1/0/1"


def frame(*contents: bytes, key: str = "", rows: int | None = None) -> bytes:
    metadata = [
        pb.SingleMessageMetadata(partition_key=key) if key else pb.SingleMessageMetadata()
        for _ in contents
    ]
    messages = build_batch(zip(metadata, contents, strict=True))
    count = len(contents) if rows is None else rows
    return (4 + len(messages)).to_bytes(4, "little") + count.to_bytes(4, "little") + messages


def body(*frames: bytes) -> bytes:
    return MAGIC + b"".join(frames)


class World:
    def __init__(self, limits: StagingLimits = StagingLimits()) -> None:
        self.server = FakeServer()
        self.store = FakeLogStore(self.server.resolve)
        self.wall_ms = 1_000
        self.staging = Staging(
            self.store,
            lambda name: bucket_of(name, 64),
            lambda: [BUCKET],
            lambda: self.wall_ms,
            limits=limits,
        )

    @property
    def kept(self) -> dict[str, str]:
        return dict(stored_in(self.server.primary).staged_parts.get(BUCKET, {}))

    @property
    def chunks(self) -> int:
        return stored_in(self.server.primary).staged_chunks


# --- rows


async def test_frames_become_entries_that_clients_read() -> None:
    packed = body(frame(b"one", b"two"), frame(b"three", key="k"))
    assert await staged_rows.check(packed) == 3
    made = [each async for each in staged_rows.entries(packed, "app", 7, 1234)]
    (first, one), (second, other) = made
    assert (first.num_messages, second.num_messages) == (2, 1)
    assert (first.sequence_id, second.sequence_id) == (7, 7)
    for entry in (one, other):
        assert entry_checksum_ok(entry)
        metadata = parse_metadata(entry)
        assert (metadata.producer_name, metadata.sequence_id) == ("app", 7)
        assert metadata.publish_time == 1234
    assert parse_metadata(other).partition_key == "k"
    assert not parse_metadata(one).HasField("partition_key")
    assert [bytes(content) for _, content in iterate_batch(entry_payload(one), 2)] == [
        b"one",
        b"two",
    ]


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"OWR0",
        body(frame(b"a"))[:-1],
        body(frame(b"a")) + b"x",
        body(frame(b"a", rows=2)),
        body(frame(b"a", b"b", rows=1)),
        body(frame(b"a", rows=0)),
        body(frame(b"a", rows=FRAME_ROWS_MAX + 1)),
        body(frame(b"a" * FRAME_BYTES_MAX)),
        body((3).to_bytes(4, "little") + (1).to_bytes(4, "little")),
        body((8).to_bytes(4, "little") + (1).to_bytes(4, "little") + b"\0\0\0\0"),
        body((9).to_bytes(4, "little") + (1).to_bytes(4, "little") + b"\0\0\0\x01\xff"),
    ],
    ids=lambda packed: packed[:20].hex() or "nothing",
)
async def test_parts_that_clients_could_not_read_are_refused(packed: bytes) -> None:
    with pytest.raises(ProtocolError):
        await staged_rows.check(packed)


def framed(*metadata: bytes) -> bytes:
    """A part of one frame: messages without content that have this metadata."""
    messages = b"".join(len(each).to_bytes(4, "big") + each for each in metadata)
    return body(
        (4 + len(messages)).to_bytes(4, "little") + len(metadata).to_bytes(4, "little") + messages
    )


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("before", "behind"),
    [(b"", b""), (b"\x20\x01", b""), (b"", b"\x20\x01"), (b"\x0a\x06\x0a\x01k\x12\x01v", b"")],
    ids=["nothing else", "more in front", "more behind", "a property"],
)
@pytest.mark.parametrize(
    ("text", "is_taken"),
    [(b"\xff", False), (b"k\xc3", False), (b"\xed\xa0\x80", False), ("kü漢".encode(), True)],
    ids=["no UTF-8", "cut short", "half of a pair", "UTF-8"],
)
@pytest.mark.parametrize("where", ["key", "long key", "property's name", "property's value"])
async def test_texts_are_utf_8(
    where: str, text: bytes, before: bytes, behind: bytes, rows: int, *, is_taken: bool
) -> None:
    """Python's clients fail on other texts, and so would the broker, which copies a key."""

    def field(tag: bytes, content: bytes) -> bytes:
        size = len(content)
        return (
            tag + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + content
        )

    key, value = b"\x12", b"\x0a"
    match where:
        case "key":
            given = field(key, text)
        case "long key":
            given = field(key, b"k" * 200 + text)
        case "property's name":
            given = field(value, field(value, text) + field(key, b"v"))
        case _:
            given = field(value, field(value, b"k") + field(key, text))
    packed = framed(*[b"\x18\x00"] * (rows - 1), before + given + b"\x18\x00" + behind)
    if is_taken:
        assert await staged_rows.check(packed) == rows
        assert len([each async for each in staged_rows.entries(packed, "app", 1, 1)]) == 1
    else:
        with pytest.raises(ProtocolError, match="is not UTF-8"):
            await staged_rows.check(packed)


SINGLES = st.builds(
    pb.SingleMessageMetadata,
    payload_size=st.sampled_from([0, 1, 127, 128, 129, 16_383, 16_384, 20_000]),
    partition_key=st.sampled_from(["", "k", "k" * 127, "k" * 128]),
    event_time=st.integers(1, 300),
    null_value=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(
    SINGLES,
    st.sets(st.sampled_from(["partition_key", "event_time", "null_value"])),
    st.sampled_from([-1, 0, 0, 1]),
    st.integers(0, 2),
    st.binary(max_size=3),
)
def test_messages_are_judged_as_protobuf_reads_them(
    metadata: pb.SingleMessageMetadata, without: set[str], longer: int, cut: int, more: bytes
) -> None:
    """A complete message, or one whose metadata, content or size is incomplete."""
    for name in without:
        metadata.ClearField(name)  # type: ignore[arg-type]
    head = metadata.SerializeToString() + more
    content = bytes(max(0, metadata.payload_size + longer))
    messages = len(head).to_bytes(4, "big") + head + content
    messages = messages[: len(messages) - cut]
    packed = body(len(messages + b"1234").to_bytes(4, "little") + bytes([1, 0, 0, 0]) + messages)

    def is_read() -> bool:
        try:
            list(iterate_batch(messages, 1))
        except ProtocolError:
            return False
        return True

    def is_taken() -> bool:
        try:
            asyncio.run(staged_rows.check(packed))
        except ProtocolError:
            return False
        return True

    assert is_taken() == is_read()


PROPERTY = b"\x0a\x07\x0a\x02\xc3\xa9\x12\x01b"


@pytest.mark.parametrize(
    ("packed", "least"),
    [
        (body(*[frame(*[b"row"] * 1000)] * 10), 5),
        (framed(*[b"\x18\x00"] * 10_000), 5),
        (framed(*[PROPERTY + b"\x18\x00"] * 10_000), 20),
        (framed(PROPERTY * 100_000 + b"\x18\x00"), 20),
    ],
    ids=["many frames", "plain rows", "rows with properties", "one row with very many"],
)
async def test_writing_rows_lets_other_tasks_run(packed: bytes, least: int) -> None:
    with Others() as others:
        await staged_rows.check(packed)
    assert others.ticks >= least


async def test_slow_entries_let_other_tasks_run() -> None:
    packed = body(*[frame(b"row")] * 33, *[framed(PROPERTY * 100_000 + b"\x18\x00")[4:]] * 10)
    with Others() as others:
        made = [each async for each in staged_rows.entries(packed, "app", 1, 1)]
    assert (len(made), others.ticks) == (43, 2 + 10)


# --- parts


async def test_a_part_is_kept_replaced_and_dropped_whole() -> None:
    world = World()
    large = body(*[frame(b"x" * 500_000) for _ in range(5)])
    first = await world.staging.keep(TOPIC, KEY, large)
    assert (first.rows, first.bytes) == (5, len(large))
    assert world.chunks == -(-len(large) // CHUNK_BYTES)
    assert await world.staging.load(TOPIC, first) == large
    second = await world.staging.keep(TOPIC, KEY, body(frame(b"small")))
    assert (len(world.kept), world.chunks) == (1, 1)
    with pytest.raises(MissingPart):
        await world.staging.load(TOPIC, first)
    assert await world.staging.load(TOPIC, second) == body(frame(b"small"))
    other = await world.staging.keep(TOPIC, "app/10/0/1", body(frame(b"other")))
    assert await world.staging.drop(TOPIC, "app/1/") == 1
    assert await world.staging.drop(TOPIC, "app/1/") == 0
    assert await world.staging.load(TOPIC, other) == body(frame(b"other"))
    assert world.chunks == 1


async def test_parts_are_dropped_by_their_names_and_no_others() -> None:
    world = World()
    keys = ["app/1/0/0-a", "app/1/0/0-ab", "app/1/0/0-b"]
    kept = [await world.staging.keep(TOPIC, key, body(frame(b"row"))) for key in keys]
    assert await world.staging.drop_parts(TOPIC, [keys[0], "app/1/9/9"]) == 1
    with pytest.raises(MissingPart):
        await world.staging.load(TOPIC, kept[0])
    for part in kept[1:]:
        await world.staging.load(TOPIC, part)


@pytest.mark.parametrize(
    "change", [{"rows": 2}, {"bytes": 4}, {"checksum": "0"}, {"key": "app/1/0/2"}], ids=str
)
async def test_another_part_is_not_confused_with_the_requested_one(
    change: dict[str, object],
) -> None:
    world = World()
    kept = await world.staging.keep(TOPIC, KEY, body(frame(b"row")))
    with pytest.raises(MissingPart):
        await world.staging.load(TOPIC, kept._replace(**change))  # type: ignore[arg-type]


async def test_expired_parts_are_dropped() -> None:
    world = World()
    kept = await world.staging.keep(TOPIC, KEY, body(frame(b"row")))
    world.wall_ms += int(staging.STAGED_SECONDS * 1000) + 1
    await world.staging.keep(TOPIC, "app/2/0/1", body(frame(b"row")))
    assert len(world.kept) == world.chunks == 1
    with pytest.raises(MissingPart):
        await world.staging.load(TOPIC, kept)


async def test_a_part_that_was_never_finished_expires_too(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    async def fails(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(RedisStagedStore, "write", fails)
        with pytest.raises(RuntimeError):
            await world.staging.keep(TOPIC, KEY, body(frame(b"row")))
    assert len(world.kept) == 1
    world.wall_ms += int(staging.STAGED_SECONDS * 1000) + 1
    await world.staging.drop(TOPIC, "nothing")
    assert world.kept == {}


def room_for(count: int, part: bytes, bound: str) -> StagingLimits:
    if bound == "bytes":
        return StagingLimits(bytes_max=count * len(part))
    return StagingLimits(parts_max=count)


@pytest.mark.parametrize("bound", ["bytes", "parts"])
async def test_a_bucket_takes_only_so_much(bound: str) -> None:
    part = body(frame(b"x" * 1000))
    world = World(room_for(2, part, bound))
    await world.staging.keep(TOPIC, KEY, part)
    await world.staging.keep(TOPIC, KEY, part)
    await world.staging.keep(TOPIC, "app/10/1/1", part)
    with pytest.raises(Refused, match=r"others fill the topic's bucket.*coalesce") as refused:
        await world.staging.keep(TOPIC, "app/1/2/1", part)
    assert refused.value.code is ServerError.TOO_MANY_REQUESTS
    assert len(world.kept) == 2


@pytest.mark.parametrize("bound", ["bytes", "parts"])
async def test_a_version_that_fills_a_bucket_alone_waits_for_nothing(bound: str) -> None:
    """As with 200 tasks of 26 partitions each: no room becomes free for their parts."""
    part = body(frame(b"x" * 1000))
    world = World(room_for(2, part, bound))
    for partition in range(2):
        await world.staging.keep(TOPIC.with_partition(partition), "app/1/0.0/1-a", part)
    with pytest.raises(TooLarge, match=r"app/1 has 2 parts of .*fewer tasks.*coalesce"):
        await world.staging.keep(TOPIC.with_partition(2), "app/1/1.0/2-b", part)
    assert len(world.kept) == 2


@pytest.mark.parametrize("bound", ["bytes", "parts"])
async def test_a_namespace_leaves_space_in_its_bucket_to_others(bound: str) -> None:
    part = body(frame(b"x" * 1000))
    most = 10
    world = World(room_for(most, part, bound))

    async def filled(namespace: str) -> int:
        """The number of parts that it gets, each of another app, until the broker refuses one."""
        name = in_bucket(namespace)
        for count in range(2 * most):
            try:
                await world.staging.keep(name, f"app-{count}/1/0/1", part)
            except Refused:
                return count
        raise AssertionError

    assert await filled("greedy") == most
    assert await filled("calm") == 5
    assert await filled("late") >= 2
    assert await world.staging.drop(in_bucket("greedy"), "") == most
    assert await filled("calm") >= 8


def in_bucket(namespace: str) -> TopicName:
    names = (TopicName.parse(f"public/{namespace}/t-{number}") for number in range(10_000))
    return next(name for name in names if bucket_of(name, 64) == BUCKET)


async def test_staged_parts_are_listed_by_topic() -> None:
    world = World()
    part = body(frame(b"row"))
    odd = TopicName.parse("persistent://public/default/with|bar")
    world.staging = Staging(world.store, lambda _: BUCKET, lambda: [BUCKET], lambda: world.wall_ms)
    await world.staging.keep(TOPIC.with_partition(1), KEY, part)
    await world.staging.keep(TOPIC.with_partition(2), KEY, part)
    await world.staging.keep(odd, KEY, part)
    assert world.staging.sizes() == {TOPIC: 2 * len(part), odd: len(part)}
    await world.staging.keep(odd, KEY, body(frame(b"longer row")))
    assert world.staging.sizes()[odd] == len(body(frame(b"longer row")))
    await world.staging.drop(odd, "app/")
    assert world.staging.sizes()[odd] == 0
    elsewhere = Staging(world.store, lambda _: BUCKET, lambda: [BUCKET], lambda: world.wall_ms)
    assert elsewhere.sizes() == {}
    await elsewhere.drop(TOPIC, "nothing")
    assert elsewhere.sizes() == {TOPIC: 2 * len(part)}


@pytest.mark.looptime
async def test_a_broker_learns_what_was_staged_before_it_took_a_bucket() -> None:
    world = World()
    part = body(frame(b"row"))
    await world.staging.keep(TOPIC, KEY, part)
    held: list[int] = []
    later = Staging(world.store, lambda _: BUCKET, lambda: held, lambda: world.wall_ms)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(later.run())
        await asyncio.sleep(2 * staging.POLL_SECONDS + 1)
        assert later.sizes() == {}
        held.append(BUCKET)
        await asyncio.sleep(staging.POLL_SECONDS)
        assert later.sizes() == {TOPIC: len(part)}
        held.clear()
        await asyncio.sleep(staging.POLL_SECONDS)
        assert later._sizes == {}
        running.cancel()


def test_publishes_share_the_memory_for_them() -> None:
    world = World()
    half = [StagedPartRef(KEY, 1, PUBLISH_BYTES_MAX // 2, "")]
    with ExitStack() as stack:
        stack.enter_context(world.staging.loading(TOPIC, half))
        stack.enter_context(world.staging.loading(TOPIC, half))
        with pytest.raises(Refused, match="retry later"):
            stack.enter_context(world.staging.loading(TOPIC, half))
        with pytest.raises(TooLarge, match="as a whole"):
            stack.enter_context(world.staging.loading(TOPIC, 3 * half))
    with world.staging.loading(TOPIC, half + half):
        pass


def test_the_largest_publish_of_the_most_entries_fits() -> None:
    world = World()
    parts = [StagedPartRef(KEY, 10 * PUBLISH_ENTRIES_MAX, PUBLISH_BYTES_MAX, "")]
    with ExitStack() as stack:
        stack.enter_context(world.staging.loading(TOPIC, parts))
        with pytest.raises(Refused, match="retry later"):
            stack.enter_context(world.staging.loading(OTHER, parts))


def test_topics_with_endless_publishes_leave_space_to_others() -> None:
    world = World()
    all_of_it = [StagedPartRef(KEY, 1, PUBLISH_BYTES_MAX, "")]
    small = [StagedPartRef(KEY, 1, staging.TOPIC_MEMORY_BYTES // 2, "")]
    with ExitStack() as stack:
        stack.enter_context(world.staging.loading(TOPIC, all_of_it))
        for _ in range(100):  # the maximum for this topic
            with suppress(Refused):
                stack.enter_context(world.staging.loading(TOPIC, small))
        with pytest.raises(Refused, match="retry later"):
            stack.enter_context(world.staging.loading(TOPIC, small))
        with world.staging.loading(OTHER, small):
            pass


async def test_the_frames_of_a_part_are_limited() -> None:
    one = frame(b"row")
    assert await staged_rows.check(body(one, one, one), frames_max=3) == 3
    with pytest.raises(ProtocolError, match="at most 3 frames"):
        await staged_rows.check(body(one, one, one, one), frames_max=3)


async def test_counting_many_frames_lets_other_tasks_run() -> None:
    packed = body(*[frame(b"row")] * 100)
    with Others() as others:
        assert await staged_rows.count(packed, frames_per_tick=1) == 100
    assert others.ticks >= 100


@pytest.mark.parametrize("text", ["", "[]", "[1, 2, 3]", "{}", '["x", 1, "c", 2]'])
def test_a_record_that_describes_no_part_is_damaged(text: str) -> None:
    with pytest.raises(Damaged):
        decode_part(text)
