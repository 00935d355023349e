"""The findings of an audit: violations of predicates, and notes on what was not checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

PREDICATES: Final = {
    "S1": "ledgers and epochs rise along the log, one epoch per ledger",
    "S2": "one holder per epoch, one broker per ledger, nothing granted twice",
    "S3": "each fence in the audit is above all before it",
    "S4": "a fence is final: marker first, nothing older behind it, every fence audited",
    "S5": "nothing acknowledged is missing: no hole in a ledger, no tail cut off",
    "S6": "each producer's entries stand in its order, none twice, no chunk missing",
    "S7": "every entry is what was written: the chain of hashes holds",
    "S11": "the waiter promoted was the first by the topic's policy",
    "S12": "no fence forgotten: the state knows the highest epoch and ledger",
    "S15": "an atomic publish is whole, by whom the audit says, and no version of an app stands twice",
}
"""The predicates that the stored log and audit can show, each with the part of it that they show."""

NOT_DETECTED: Final = (
    "removed newest blocks of a log, until the next fence",
    "changed entries whose hashes, and those of all later blocks of their ledger, were computed again",
    "changes that also change the audit records accordingly",
)
"""Changes of stored logs that no check can find. Every report says so."""


@dataclass(frozen=True, slots=True)
class AuditLimits:
    """How much of a log one check keeps in memory and lists."""

    violations_max: int = 100
    """Violations that are listed per log; further ones are counted."""
    audit_records_max: int = 100_000
    """Records of one bucket that are checked; a note says if there were more."""
    remembered_entries_max: int = 200_000
    """Entries of all producers of a log that later entries are compared with. The entries of the producer that was
    silent for the longest time are dropped first."""


DEFAULT_LIMITS: Final = AuditLimits()


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One predicate does not hold at one place of a log.

    ``log`` is the full topic name of the log. ``where`` names the places: positions (``7-12``), audit records
    (``audit 1700000000000-0``) or ``state``.
    """

    log: str
    predicate: str
    where: tuple[str, ...]
    sentence: str


@dataclass(slots=True)
class Findings:
    """Violations and notes of one log, in the order in which they were found; both bounded.

    ``further`` counts violations beyond the limit. Equal notes are kept once.
    """

    violations: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    further: int = 0
    limits: AuditLimits = DEFAULT_LIMITS

    @property
    def holds(self) -> bool:
        """Whether no checked predicate is violated."""
        return not self.violations

    def add(self, violations: Iterable[Finding]) -> None:
        """Add violations, up to the bound."""
        for violation in violations:
            if len(self.violations) < self.limits.violations_max:
                self.violations.append(violation)
            else:
                self.further += 1

    def note(self, note: str) -> None:
        """Add a note, unless there is an equal one."""
        if note not in self.notes:
            self.notes.append(note)
