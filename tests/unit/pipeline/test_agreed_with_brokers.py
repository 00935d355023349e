"""Constants and formats that both pipelines and brokers define must be equal.

The two packages do not import each other, and most limits are enforced by brokers only. These tests detect a change
on one side.
"""

from __future__ import annotations

import pytest

from onewriter_broker.http.onewriter import packed, publish_body
from onewriter_broker.http.onewriter import staging as http_staging
from onewriter_broker.log.store import blocks as log_blocks
from onewriter_broker.log.store.api import Block
from onewriter_broker.log.topic_log import atomic_publish
from onewriter_broker.topic.publish import staged_rows
from onewriter_broker.topic.publish.staging import PART_BYTES_MAX
from onewriter_core import publish_rights
from onewriter_core.ids import Position
from onewriter_pipeline.audit import observer
from onewriter_pipeline.brokers import frames
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.publish import messages, parts, staging, transfer


def test_broker_accepts_the_largest_packed_part() -> None:
    assert parts.MAGIC == staged_rows.MAGIC
    assert parts._FRAME.format == staged_rows._FRAME.format
    assert parts.PART_FRAMES == staged_rows.PART_FRAMES_MAX
    assert parts.ROW_FRAME_BYTES_MAX == staged_rows.FRAME_BYTES_MAX
    assert parts.FRAME_ROWS <= staged_rows.FRAME_ROWS_MAX
    assert (messages._KEY_TAG, messages._SIZE_TAG) == (staged_rows._KEY_TAG, staged_rows._SIZE_TAG)
    last = parts._FRAME.size + parts.ROW_FRAME_BYTES_MAX
    assert len(parts.MAGIC) + parts.PART_BYTES + last <= PART_BYTES_MAX


def test_largest_row_with_key_and_app_fits_into_an_entry() -> None:
    most = parts.ROW_AND_KEY_BYTES_MAX + parts.ENTRY_HEAD_BYTES + publish_rights.APP_LENGTH_MAX
    assert most <= atomic_publish.ENTRY_BYTES_MAX


def test_publish_limits_equal_those_of_the_broker() -> None:
    assert transfer.PUBLISH_BYTES_MAX == atomic_publish.PUBLISH_BYTES_MAX
    assert transfer.PUBLISH_ENTRIES_MAX == atomic_publish.PUBLISH_ENTRIES_MAX
    assert staging.VERSION_MAX == http_staging.VERSION_MAX
    assert publish_body.NUMBER.fullmatch(str(staging.VERSION_MAX - 1))
    assert not publish_body.NUMBER.fullmatch(str(staging.VERSION_MAX))


@pytest.mark.parametrize(
    "app",
    ["a", "a" * 200, "a" * 201, "", "A.z_0:9-", "a/b", "a b", "ä", "a\n", "a+b", "a@b", "1"],
)
def test_names_of_apps_are_valid_on_both_sides_or_on_none(app: str) -> None:
    if publish_rights.is_app(app):
        staging.check_app(app)
    else:
        with pytest.raises(Invalid):
            staging.check_app(app)


def test_stream_of_blocks_has_the_same_constants() -> None:
    assert frames.HEAD == packed.HEAD
    kinds = (frames._BLOCK, frames._MARKER, frames._END, frames._ERROR)
    assert kinds == (packed.BLOCK, packed.MARKER, packed.END, packed.ERROR)
    flags = (frames._HAS_COUNTS, frames._IS_ATOMIC, frames._ENDS_PUBLISH, frames._NO_PAYLOAD)
    assert flags == (
        packed.HAS_COUNTS,
        packed.IS_ATOMIC,
        packed.ENDS_PUBLISH,
        packed.NO_PAYLOAD,
    )


def test_hash_chains_of_blocks_are_equal() -> None:
    block = Block(Position(7, 3), [2, 3], b"abcde", None, 1, log_blocks.CHAIN_START)
    (frame,) = frames.Frames().feed(packed.HEAD + packed.pack([block]))
    assert isinstance(frame, frames.BlockFrame)
    assert observer._CHAIN_START == log_blocks.CHAIN_START
    for previous in (log_blocks.CHAIN_START, b"p" * log_blocks.CHAIN_BYTES):
        expected = log_blocks.chain(previous, block.position, block.lengths, block.payload)
        assert observer.chained(previous, frame) == expected
