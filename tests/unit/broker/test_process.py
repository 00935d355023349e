"""The settings of a broker's connection to its store."""

from __future__ import annotations

from pathlib import Path

from onewriter_broker.process import redis_settings
from onewriter_broker.settings import Settings


def test_a_wait_for_replicas_holds_the_other_buckets_of_a_primary_up_for_a_short_time_only(
    tmp_path: Path,
) -> None:
    """WAIT blocks the connection that all buckets of the primary share, so it is short and is repeated."""
    settings = Settings(data_dir=tmp_path, redis_url="redis+cluster://a:1,b:2", redis_replicas=1)
    assert 0 < redis_settings(settings).commit_timeout_seconds <= 0.1
