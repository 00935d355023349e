"""Applies the checks to facts and audit records, with Spark SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from onewriter_pipeline.audit import facts
from onewriter_pipeline.audit.checks import CHECKS, LOGS, NAMES, PRINTS, STANDS, tables_of
from onewriter_pipeline.engine import active

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FINDINGS_MAX: Final = 10_000
"""Findings in a report. The report says if there are more."""

_PREFIX: Final = "onewriter_audit_"
_STANDS: Final = "stands"
_PRINTS: Final = "prints"
_NAMES: Final = re.compile(rf"\b(FROM|JOIN) ({'|'.join((*NAMES, _STANDS, _PRINTS))})\b")
"""Matches the names of views in queries. In the session, the views have a prefix."""

_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for many queries over few rows: compiling them would take longer than executing them."""


@contextmanager
def small(spark: SparkSession) -> Iterator[SparkSession]:
    """A second session for an audit, with its own views and settings."""
    own = spark.newSession()
    for name, value in _SETTINGS.items():
        own.conf.set(name, value)
    with active(spark), active(own):
        yield own


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A violated predicate at one place of a log. ``where``: positions and ids of audit records."""

    log: str
    predicate: str
    where: tuple[str, ...]
    sentence: str


class Judge:
    """Checks facts. ``observed`` are all facts except prints, which stay where Spark has them.

    Close it, because its views belong to the session.
    """

    def __init__(
        self,
        spark: SparkSession,
        records: pa.Table,
        logs: Iterable[Mapping[str, object]],
        observed: pa.Table,
        prints: DataFrame | None = None,
    ) -> None:
        self._spark = spark
        self._made: list[str] = []
        self._faults = observed.filter(pc.equal(observed["kind"], facts.FAULT))
        self._tables = tables_of(observed, records, pa.Table.from_pylist(list(logs), LOGS))
        self._prints = prints

    def findings(self) -> list[Finding]:
        """The violations, sorted; at most FINDINGS_MAX and one more."""
        queries = [each.query for each in CHECKS if all(map(self._has, each.needs))]
        if self._prints is not None:
            self._view(_PRINTS, self._prints)
            queries.append(PRINTS)
        found = [
            Finding(row["log"], row["predicate"], tuple(row["place"].split(",")), row["sentence"])
            for row in self._faults.slice(0, FINDINGS_MAX + 1).to_pylist()
        ]
        if queries:
            rows = self._sql(" UNION ALL ".join(f"({each})" for each in queries))
            found += [
                Finding(row.log, row.predicate, tuple(row.place.split(",")), row.sentence)
                for row in rows.limit(FINDINGS_MAX + 1).collect()
            ]
        return sorted(found)[: FINDINGS_MAX + 1]

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query over the tables."""
        return [row.asDict(recursive=True) for row in self._sql(query).collect()]

    def close(self) -> None:
        """Drop the views."""
        for name in self._made:
            self._spark.catalog.dropTempView(_PREFIX + name)

    def _has(self, name: str) -> bool:
        return len(self._tables[name]) > 0

    def _sql(self, query: str) -> DataFrame:
        """Run a query, and create the views that it names unless they exist."""
        for _, name in _NAMES.findall(query):
            if name not in self._made:
                self._view(name, self._frame(name))
        return self._spark.sql(_NAMES.sub(rf"\1 {_PREFIX}\2", query))

    def _frame(self, name: str) -> DataFrame:
        if name == _STANDS:
            return self._sql(STANDS).coalesce(1)
        table = self._tables[name]  # PySpark needs exactly one chunk, even of an empty table
        return self._spark.createDataFrame(
            table if len(table) else table.schema.empty_table()
        ).coalesce(1)

    def _view(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(_PREFIX + name)
        self._made.append(name)
