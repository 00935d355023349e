"""The image of Spark omits only files that exist and that jobs do not need."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

SPARK = Path(pyspark.__file__).parent
IMAGE = Path(__file__).resolve().parents[3] / "pipeline" / "image"
PATTERNS = [
    pattern
    for line in (IMAGE / "left_out.txt").read_text().splitlines()
    for pattern in line.partition("#")[0].split()
]
NEEDED = (
    "spark-core_*",
    "spark-sql_*",
    "spark-catalyst_*",
    "spark-streaming_*",
    "spark-kubernetes_*",
    "kubernetes-client-*",
    "hive-storage-api-*",
    "netty-transport-native-epoll-*",
    "rocksdbjni-*",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_of_removed_files_match_files_of_spark(pattern: str) -> None:
    assert list(SPARK.glob(pattern))


@pytest.mark.parametrize("needed", NEEDED)
def test_files_that_jobs_need_stay_in_the_image(needed: str) -> None:
    left_out = {path for pattern in PATTERNS for path in SPARK.glob(pattern)}
    kept = set((SPARK / "jars").glob(needed)) - left_out
    assert kept
