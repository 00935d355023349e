"""Facts and records to findings, by Spark SQL."""

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
"""Findings that are told; the result says when there were more."""

_PREFIX: Final = "onewriter_audit_"
_STANDS: Final = "stands"
_PRINTS: Final = "prints"
_NAMES: Final = re.compile(rf"\b(FROM|JOIN) ({'|'.join((*NAMES, _STANDS, _PRINTS))})\b")
"""Where queries name the views, which have a longer name in the session."""

_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For many queries over few rows: compiling them would take longer than running them."""


@contextmanager
def small(spark: SparkSession) -> Iterator[SparkSession]:
    """A session beside another one, for an audit: with views and settings of its own."""
    own = spark.newSession()
    for name, value in _SETTINGS.items():
        own.conf.set(name, value)
    with active(spark), active(own):
        yield own


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One predicate does not hold at one place of a log. ``where``: positions and audit records."""

    log: str
    predicate: str
    where: tuple[str, ...]
    sentence: str


class Judge:
    """Judges what was observed: ``observed`` are all facts but prints, which are judged where they are.

    Close it: its views are the session's.
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
        """What does not hold, sorted; one more than FINDINGS_MAX at most."""
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
        """A query; the views that it names are made, unless they are there."""
        for _, name in _NAMES.findall(query):
            if name not in self._made:
                self._view(name, self._frame(name))
        return self._spark.sql(_NAMES.sub(rf"\1 {_PREFIX}\2", query))

    def _frame(self, name: str) -> DataFrame:
        if name == _STANDS:
            return self._sql(STANDS).coalesce(1)
        table = self._tables[name]  # PySpark wants one chunk, even of nothing
        return self._spark.createDataFrame(
            table if len(table) else table.schema.empty_table()
        ).coalesce(1)

    def _view(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(_PREFIX + name)
        self._made.append(name)
