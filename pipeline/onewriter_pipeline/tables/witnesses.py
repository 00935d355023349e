"""Records what was copied to a table in the state of its logs, and computes the same records from the table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from onewriter_core.witnesses import (
    RECORDS_PER_POST_MAX,
    TABLES_MAX,
    AuditChain,
    CopiedRecord,
    RecordChain,
    Witness,
    WitnessPost,
    WitnessRecord,
    audit_order,
    hash_of,
)
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.names import position_of
from onewriter_pipeline.brokers.segments import Segments
from onewriter_pipeline.errors import Conflict, Contradicted, NotAllowed
from onewriter_pipeline.tables.layout import SegmentRow
from onewriter_pipeline.tables.table import State, Table
from onewriter_pipeline.tables.tables import Tables

CopiedAudit = tuple[str, str]
"""The id of an audit record, and the record as JSON."""

HOLDER_BYTES: Final = 8
"""Size of the hash of a holder."""


def record_of(row: SegmentRow) -> WitnessRecord:
    """The record of a row of ``segments``."""
    holder = (row.epoch, row.producer, row.subject, row.cause, row.mode)
    return WitnessRecord(
        ledger=row.ledger,
        first=row.first,
        end=row.end,
        epoch=row.epoch,
        entries=row.entries,
        messages=row.messages,
        rows=row.rows,
        bytes=row.bytes,
        digest=row.digest,
        holder=hash_of(holder, HOLDER_BYTES),
        row=hash_of(row.as_list()),
    )


def records_of(log: str, rows: Iterable[SegmentRow]) -> list[WitnessRecord]:
    """The records of a log, in the order in which they were copied."""
    own = [row for row in rows if row.topic == log]
    return list(map(record_of, sorted(own, key=_order)))


def _order(row: SegmentRow) -> tuple[int, int, int, int]:
    return row.batch, row.ledger, row.first, row.end


@dataclass(slots=True)
class WitnessWriter:
    """Adds what is copied to the witnesses of one table; see ``add`` and ``catch_up``.

    ``notes``: why there are no witnesses. An offload continues without them; the next one, or a trim, adds them.
    """

    broker: Broker
    tables: Tables
    messages: Table
    known: dict[str, Witness | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    is_off: bool = False

    def begin(self, held: Segments, state: State) -> None:
        """Note the witnesses of a log. Raises Contradicted if the table lacks commits that were witnessed."""
        if held.witnesses is None:
            self._stop("the brokers have an earlier release, which stores no witnesses")
            return
        table = self.messages.identity()
        witness = next((each for each in held.witnesses if each.table == table), None)
        if witness is None and len(held.witnesses) >= TABLES_MAX:
            self._stop(f"{held.log} has witnesses of {TABLES_MAX} other tables already")
            return
        self.known[held.log] = witness
        if witness is not None and (state.batch is None or state.batch < witness.version):
            raise Contradicted(lacks_commits(held.log, witness, state))

    def add(self, log: str, before: str | None, rows: Sequence[SegmentRow], version: int) -> None:
        """Add rows that were just committed as ``version``. ``before``: the table's end of the log before that.

        Raises Contradicted.
        """
        if self.is_off or log not in self.known:
            return
        witness = self.known[log]
        end = None if witness is None else witness.end
        if (None if before is None else position_of(before)) != end:
            self._adopt(log, version)  # an earlier commit was not witnessed
            return
        self._post(log, records_of(log, rows), version, is_adopted=False)

    def catch_up(self) -> None:
        """Add everything that the table has and its witnesses lack, as the table has it. Raises Contradicted."""
        state = self.messages.state()
        for log, witness in list(self.known.items()):
            offset = state.offsets.get(log)
            if offset is None or state.batch is None or self.is_off:
                continue
            if witness is None or witness.end != position_of(offset):
                self._adopt(log, state.batch)

    def add_audit(self, copied: Mapping[str, Sequence[CopiedAudit]]) -> None:
        """Add the audit records that were copied, to the witnesses of logs of which something was copied.

        ``copied``: the audit records about each log that the table has, in order. Raises Contradicted.
        """
        for log, witness in list(self.known.items()):
            found = copied.get(log, ())
            if witness is None or self.is_off or _is_witnessed(witness, found):
                continue
            records = audit_hashes(json.loads(text) for _, text in found)
            wrong = unlike_audit(log, witness, records)
            if wrong is not None:
                raise Contradicted(wrong.sentence)
            self._post_audit(log, witness, records[witness.audit.count :])

    def _post_audit(self, log: str, witness: Witness, records: Sequence[CopiedRecord]) -> None:
        for start in range(0, len(records), RECORDS_PER_POST_MAX):
            part = tuple(records[start : start + RECORDS_PER_POST_MAX])
            post = WitnessPost(
                witness.table, witness.version, witness.chain,
                audit_after=witness.audit, audit=part,
            )  # fmt: skip
            wanted = witness.audit.extended(part)
            found = self._sent(log, post)
            if found is None or found.audit != wanted:
                return  # a broker of an earlier release does not witness audit records
            witness = found

    def _adopt(self, log: str, version: int) -> None:
        records = records_of(log, self.tables.segments([log]))
        witness = self.known[log]
        if witness is not None:
            wrong = next(iter(unlike(log, witness, records)), None)
            if wrong is not None:
                raise Contradicted(wrong.sentence)
            records = records[witness.chain.count :]
        self._post(log, records, version, is_adopted=True)

    def _post(
        self, log: str, records: Sequence[WitnessRecord], version: int, *, is_adopted: bool
    ) -> None:
        for start in range(0, len(records), RECORDS_PER_POST_MAX):
            part = tuple(records[start : start + RECORDS_PER_POST_MAX])
            witness = self.known[log]
            table = self.messages.identity()
            post = WitnessPost(table, version, records=part, is_adopted=is_adopted)
            if witness is not None:
                post = replace(post, after=witness.chain)
            if self._sent(log, post) is None:
                return

    def _sent(self, log: str, post: WitnessPost) -> Witness | None:
        """Send a request, and return the witness; None: the pipeline must not add to witnesses."""
        try:
            found = self.known[log] = self.broker.add_to_witness(log, post)
        except NotAllowed as error:
            self._stop(f"{error} (it needs the right to trim)")
            return None
        except Conflict as error:
            raise Contradicted(f"{log}: the brokers refuse the witness: {error}") from error
        return found

    def _stop(self, why: str) -> None:
        self.is_off = True
        self.notes.append(f"no witness of the copy was stored: {why}")


@dataclass(frozen=True, slots=True)
class Unlike:
    """Where a table differs from a witness, and how."""

    predicate: str
    where: tuple[str, ...]
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def unlike_witness(held: Segments, rows: Sequence[SegmentRow], messages: Table) -> list[Unlike]:
    """Where a table differs from the witness in the state of a log; nothing if there is no witness.

    ``rows``: the rows of ``segments``.
    """
    table, state = messages.identity(), messages.state()
    witness = next((each for each in held.witnesses or () if each.table == table), None)
    if witness is None:
        return []
    found = list(unlike(held.log, witness, records_of(held.log, rows)))
    if state.batch is None or state.batch < witness.version:
        where = (str(witness.end),)
        found.insert(0, Unlike("S5", where, lacks_commits(held.log, witness, state)))
    return found


def lacks_commits(log: str, witness: Witness, state: State) -> str:
    """The sentence about a table whose newest commits are gone."""
    has = "no commit" if state.batch is None else f"commit {state.batch}"
    return (
        f"{log}: {has} is the newest of the table, and commit {witness.version} was witnessed: newer"
        " commits were removed, or an older copy of the table was restored"
    )


_FIELDS: Final[dict[str, Callable[[WitnessRecord], object]]] = {
    "epoch": lambda each: each.epoch,
    "entries": lambda each: each.entries,
    "messages": lambda each: each.messages,
    "rows": lambda each: each.rows,
    "bytes": lambda each: each.bytes,
    "digest of the rows": lambda each: each.digest,
    "holder": lambda each: each.holder,
}


def unlike(log: str, witness: Witness, records: Sequence[WitnessRecord]) -> Iterator[Unlike]:
    """Where the records of a table differ from a witness: each recent one, and the chain of all."""
    count = witness.chain.count
    if len(records) < count:
        text = f"{log}: {count} parts were copied to the table, and it has {len(records)}"
        yield Unlike("S5", (str(witness.end),), text)
        return
    start = count - len(witness.recent)
    is_explained = False
    for known, found in zip(witness.recent, records[start:], strict=False):
        if known == found:
            continue
        is_explained = True
        names = [name for name, value in _FIELDS.items() if value(known) != value(found)]
        here = f"{known.begins!s} to {known.ends.previous!s}"
        if (known.ledger, known.first, known.end) != (found.ledger, found.first, found.end):
            text = f"the table has {found.begins!s} to {found.ends.previous!s} instead"
        else:
            text = f"the table has another {', '.join(names) or 'description'} of them"
        yield Unlike(
            "S7", (str(known.begins),), f"{log}: {here} were copied, and {text}, as witnessed"
        )
    if not is_explained and _chain_of(records, count) != witness.chain:
        text = (
            f"{log}: the table's description of what was copied before {witness.end!s} is not"
            " the one that was witnessed"
        )
        yield Unlike("S7", (str(witness.end),), text)


def _chain_of(records: Sequence[WitnessRecord], count: int) -> RecordChain:
    return RecordChain().extended(records[:count])


def _is_witnessed(witness: Witness, records: Sequence[CopiedAudit]) -> bool:
    """Whether there is nothing new. ``verify`` compares the contents of all records."""
    last = records[-1][0] if records else ""
    return (len(records), last) == (witness.audit.count, witness.audit.last)


def audit_hashes(records: Iterable[Mapping[str, Any]]) -> list[CopiedRecord]:
    """Audit records as a witness has them."""
    return [(str(record["id"]), hash_of(record)) for record in records]


def unlike_audit(log: str, witness: Witness, records: Sequence[CopiedRecord]) -> Unlike | None:
    """Where the audit records about a log differ from those that were witnessed; None: nowhere."""
    known = witness.audit
    if AuditChain().extended(records[: known.count]) == known:
        return None
    begin = f"{log}: {known.count} audit records up to {known.last} were copied, and the table has"
    count = sum(audit_order(each) <= audit_order(known.last) for each, _ in records)
    text = (
        f"{begin} {count} of them" if count < known.count else f"{begin} other ones, as witnessed"
    )
    return Unlike("S4", (f"audit {known.last}",), text)
