"""What an audit knows besides the contents of logs: the records of their buckets, and their states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from onewriter_core.audit.findings import AuditLimits, Finding
from onewriter_core.audit.grants import BucketAudit, check_audit
from onewriter_core.audit.logs import StoredState
from onewriter_core.ids import NUMBER_MAX

EVERY_RECORD: Final = AuditLimits(audit_records_max=NUMBER_MAX)


@dataclass(slots=True)
class AuditRecords:
    """The audits of buckets, the bucket of each log, and the states of logs, as far as they are known.

    ``findings`` are the violations that the records show by themselves.
    """

    audits: dict[int, BucketAudit] = field(default_factory=dict)
    buckets: dict[str, int] = field(default_factory=dict)
    states: dict[str, StoredState] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add(self, bucket: int, records: Iterable[Mapping[str, Any]]) -> None:
        """Check and collect the next records of a bucket, oldest first."""
        audit = self._audit(bucket)
        told = ((str(record.get("id", "?")), record) for record in records)
        self.findings += check_audit(told, audit)

    def of(self, log: str) -> BucketAudit:
        """The audit of a log's bucket; an empty one if the bucket is not known."""
        return self._audit(self.buckets.get(log, -1))

    @property
    def records(self) -> int:
        """The number of records."""
        return sum(audit.records for audit in self.audits.values())

    def notes(self) -> Iterable[str]:
        """What was not checked, and how many records cannot be read."""
        for bucket, audit in sorted(self.audits.items()):
            for note in audit.notes:
                yield f"bucket {bucket}: {note}"
            if audit.unreadable > 1:
                yield f"bucket {bucket}: {audit.unreadable} audit records cannot be read"

    def _audit(self, bucket: int) -> BucketAudit:
        return self.audits.setdefault(bucket, BucketAudit(limits=EVERY_RECORD))
