"""Constants and formats that both pipelines and brokers define must be equal.

The two packages do not import each other, and most limits are enforced by brokers only. These tests detect a change
on one side.
"""

from __future__ import annotations

import pytest

from onewriter_broker.http.onewriter import publish_body
from onewriter_broker.http.onewriter import staging as http_staging
from onewriter_broker.topic.publish import staged_rows
from onewriter_broker.topic.publish.staging import PART_BYTES_MAX
from onewriter_core import publish_rights
from onewriter_core.log_format.limits import PUBLISH_ENTRY_BYTES_MAX
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.publish import messages, parts, staging


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
    assert most <= PUBLISH_ENTRY_BYTES_MAX


def test_versions_of_a_publish_have_the_limit_of_the_broker() -> None:
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
