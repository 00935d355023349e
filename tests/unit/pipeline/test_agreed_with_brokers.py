"""The sizes that the pipeline chooses are within the limits of brokers."""

from __future__ import annotations

from onewriter_broker.http.onewriter import publish_body
from onewriter_broker.topic.publish.staging import PART_BYTES_MAX
from onewriter_core import publish_rights
from onewriter_core.log_format.limits import PUBLISH_ENTRY_BYTES_MAX, PUBLISH_VERSION_MAX
from onewriter_core.log_format.staged_rows import FRAME, FRAME_BYTES_MAX, FRAME_ROWS_MAX, MAGIC
from onewriter_pipeline.publish import parts


def test_broker_accepts_the_largest_packed_part() -> None:
    assert parts.FRAME_ROWS <= FRAME_ROWS_MAX
    last = FRAME.size + FRAME_BYTES_MAX
    assert len(MAGIC) + parts.PART_BYTES + last <= PART_BYTES_MAX


def test_largest_row_with_key_and_app_fits_into_an_entry() -> None:
    most = parts.ROW_AND_KEY_BYTES_MAX + parts.ENTRY_HEAD_BYTES + publish_rights.APP_LENGTH_MAX
    assert most <= PUBLISH_ENTRY_BYTES_MAX


def test_versions_of_a_publish_have_the_digits_that_brokers_read() -> None:
    assert publish_body.NUMBER.fullmatch(str(PUBLISH_VERSION_MAX - 1))
    assert not publish_body.NUMBER.fullmatch(str(PUBLISH_VERSION_MAX))
