"""The contract of staged parts; the fake server and real ones keep it alike."""

from __future__ import annotations

from onewriter_broker.log.store.api import LogStore
from onewriter_broker.log.store.staged_parts import CHUNK_BYTES, StagedPart, decode_part

NAME = "persistent://public/default/orders|app/1/0/7"
PART = StagedPart(3, 2 * CHUNK_BYTES + 5, "abc", 1_700_000_000_000)


async def test_a_part_is_read_as_it_was_written_and_dropped_with_its_last_chunk(
    store: LogStore,
) -> None:
    staged = store.staged
    await staged.check_rights()
    assert await staged.noted(0) == {}
    chunks = [bytes([number]) * 10 for number in range(PART.chunks)]
    for number, chunk in enumerate(chunks):
        await staged.write(0, NAME, number, chunk)
    await staged.note(0, NAME, PART)
    assert {name: decode_part(text) for name, text in (await staged.noted(0)).items()} == {
        NAME: PART
    }
    assert [await staged.read(0, NAME, number) for number in range(PART.chunks)] == chunks
    assert await staged.noted(1) == {}
    assert await staged.read(0, f"{NAME}0", 0) is None
    for _ in range(2):
        await staged.drop(0, NAME, PART.chunks)
        assert await staged.noted(0) == {}
        assert await staged.read(0, NAME, 0) is None


async def test_a_part_can_be_replaced(store: LogStore) -> None:
    for content in (b"one", b"another"):
        await store.staged.write(0, NAME, 0, content)
        await store.staged.note(0, NAME, PART)
    assert await store.staged.read(0, NAME, 0) == b"another"
