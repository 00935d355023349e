"""Facts and records to findings, by Spark SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from onewriter_pipeline.auditing.checks import CHECKS, LOGS, PRINTS, VIEWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FINDINGS_MAX: Final = 10_000
"""Findings that are told; the result says when there were more."""

_PREFIX: Final = "onewriter_audit_"
_NAMES: Final = re.compile(
    rf"\b(FROM|JOIN) ({'|'.join(('facts', 'records', 'logs', 'prints', 'timeline', 'load', *VIEWS))})\b"
)
"""Where queries name the views, which have a longer name in the session."""


_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For many queries over few rows: compiling them would take longer than running them."""


def small(spark: SparkSession) -> SparkSession:
    """A session beside another one, for an audit: with views and settings of its own."""
    own = spark.newSession()
    for name, value in _SETTINGS.items():
        own.conf.set(name, value)
    return own


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One predicate does not hold at one place of a log. ``where``: positions and audit records."""

    log: str
    predicate: str
    where: tuple[str, ...]
    sentence: str


class Judge:
    """Makes views of what was observed and judges them. Close it: its views are the session's."""

    def __init__(
        self, spark: SparkSession, records: pa.Table, logs: Iterable[dict[str, object]]
    ) -> None:
        self._spark = spark
        self._made: list[str] = []
        self._local("records", records)
        self._local("logs", pa.Table.from_pylist(list(logs), LOGS))

    def observed(self, few: pa.Table, prints: DataFrame | None) -> None:
        """Facts but prints, and prints, where there are any."""
        self._local("facts", few)
        for name, query in VIEWS.items():
            self.view(name, self.sql(query).coalesce(1))
        if prints is not None:
            self.view("prints", prints)

    def view(self, name: str, frame: DataFrame) -> None:
        """Make a view of that name."""
        frame.createOrReplaceTempView(_PREFIX + name)
        self._made.append(_PREFIX + name)

    def sql(self, query: str) -> DataFrame:
        """A query over the views."""
        return self._spark.sql(_NAMES.sub(rf"\1 {_PREFIX}\2", query))

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Its rows."""
        return [row.asDict(recursive=True) for row in self.sql(query).collect()]

    def findings(self) -> list[Finding]:
        """What does not hold, sorted; one more than FINDINGS_MAX at most."""
        queries = [self.sql(query) for query in CHECKS]
        if _PREFIX + "prints" in self._made:
            queries.append(self.sql(PRINTS))
        found = queries[0]
        for query in queries[1:]:
            found = found.unionAll(query)
        rows = found.limit(FINDINGS_MAX + 1).collect()
        return sorted(
            Finding(row.log, row.predicate, tuple(row.place.split(",")), row.sentence)
            for row in rows
        )

    def close(self) -> None:
        """Drop the views."""
        for name in self._made:
            self._spark.catalog.dropTempView(name)

    def _local(self, name: str, table: pa.Table) -> None:
        self.view(name, self._spark.createDataFrame(table).coalesce(1))
