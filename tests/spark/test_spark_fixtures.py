"""Spark reads and audits tables that earlier releases wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.compatibility.test_fixtures import NAMES, unpacked

from onewriter_pipeline.audit.audit import Audit
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.read.selection import Selection
from onewriter_pipeline.schema import FORMATS
from onewriter_pipeline.tables.tables import Tables
from onewriter_testing.processes import LocalBrokers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_table_of_an_earlier_release_is_read_and_audited(
    spark: SparkSession, broker: LocalBrokers, tmp_path: Path, name: str, kind: str
) -> None:
    expected = unpacked(name, tmp_path)["tables"][kind]
    table = str(tmp_path / "tables" / kind)
    options = {"admin.url": broker.http_url, "topic": "tenures", "tier": "cold", "table": table}
    found = spark.read.format("onewriter").options(**options, **{"table.format": kind}).load()
    ordered = found.orderBy("__ledgerId", "__entryId", "__batchIndex").collect()
    assert [bytes(row["value"]).decode() for row in ordered] == expected
    selection = Selection(topics=("tenures",))
    (report,) = Audit(Access(broker.http_url), selection, Tables(table, kind=kind)).run(
        spark, "table"
    )
    assert report.findings == []
    assert report.topics[0]["messages"] == len(expected)
