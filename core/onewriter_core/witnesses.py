"""Witnesses: what the state of a log remembers of the rows that a pipeline copied to a table. Pure.

A process that can write the files of a table can also write the digests that the table keeps of its rows. A witness has
the same digests outside the table, in the state of the log. It only grows: a chain of hashes covers all records in
their order, and a record that was added cannot be changed. The broker stores witnesses (``extended``); the pipeline
computes the same chain from the table, and compares.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final

from onewriter_core.ids import EARLIEST, NUMBER_MAX, Position

RECENT_MAX: Final = 16
"""Records that a witness keeps one by one. Earlier ones are in its chain only."""

TABLES_MAX: Final = 4
"""Tables of which the state of one log keeps a witness."""

RECORDS_PER_POST_MAX: Final = 500
"""Records in one request, and audit records in one request."""

_TABLE: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}")
_CHAIN: Final = re.compile(r"[0-9a-f]{32}")
_DIGEST: Final = re.compile(r"[0-9a-f]{16}")
_AUDIT_ID: Final = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")
_POSITION: Final = re.compile(r"([0-9]{1,19}):([0-9]{1,19})")
_HASH_BYTES: Final = 16
_EPOCH: Final = 3
"""Place of the epoch among the fields of a record: the only field that may be null."""


class InvalidWitness(ValueError):
    """A witness, or a request to store one, that is not in the format of docs/http.md."""


class ContradictsWitness(ValueError):
    """A request that does not continue the witness that is stored. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class WitnessRecord:
    """Entries [first, end) of a ledger that were copied together: one row of the table ``segments``.

    ``rows``, ``digest``: of the rows that were written. ``epoch``: of the ledger's holder; None: it had no exclusive
    holder. ``holder``: hash of the holder's fields. ``row``: hash of all columns of the row of ``segments``.
    """

    ledger: int
    first: int
    end: int
    epoch: int | None
    entries: int
    messages: int
    rows: int
    bytes: int
    digest: str
    holder: str
    row: str

    @property
    def begins(self) -> Position:
        """The position of its first entry."""
        return Position(self.ledger, self.first)

    @property
    def ends(self) -> Position:
        """The position after its last entry."""
        return Position(self.ledger, self.end)


@dataclass(frozen=True, slots=True)
class RecordChain:
    """The number of some records, and a hash over all of them in their order."""

    count: int = 0
    hash: str = "0" * (2 * _HASH_BYTES)

    def extended(self, records: Iterable[WitnessRecord]) -> RecordChain:
        """The chain with more records at its end."""
        count, last = self.count, bytes.fromhex(self.hash)
        for record in records:
            text = json.dumps(astuple(record), separators=(",", ":"))
            last = hashlib.blake2b(last + text.encode(), digest_size=_HASH_BYTES).digest()
            count += 1
        return RecordChain(count, last.hex())


CopiedRecord = tuple[str, str]
"""An audit record that was copied: its id, and the hash of all of its fields (``hash_of``)."""


@dataclass(frozen=True, slots=True)
class AuditChain:
    """The number of some audit records about a topic, the id of the last one, and a hash over all in their order."""

    count: int = 0
    last: str = ""
    hash: str = "0" * (2 * _HASH_BYTES)

    def extended(self, records: Iterable[CopiedRecord]) -> AuditChain:
        """The chain with more records at its end."""
        count, last, chain = self.count, self.last, bytes.fromhex(self.hash)
        for last, record in records:
            chain = hashlib.blake2b(
                chain + f"{last}:{record}".encode(), digest_size=_HASH_BYTES
            ).digest()
            count += 1
        return AuditChain(count, last, chain.hex())

    def document(self) -> dict[str, Any]:
        """The chain as JSON."""
        return {"count": self.count, "last": self.last, "hash": self.hash}


@dataclass(frozen=True, slots=True)
class Witness:
    """What was copied of one log to one table.

    ``version``: the number of the table's newest commit then. ``rows``: of all records. ``adopted``: the end of the
    records that were read from the table, because nothing witnessed their copy; EARLIEST: there are none.
    ``recent``: the newest records, oldest first. ``audit``: the audit records about the topic that were copied.
    """

    table: str
    version: int
    chain: RecordChain = RecordChain()
    rows: int = 0
    adopted: Position = EARLIEST
    recent: tuple[WitnessRecord, ...] = ()
    audit: AuditChain = AuditChain()

    @property
    def end(self) -> Position:
        """Everything before it was copied, or was lost before."""
        return self.recent[-1].ends if self.recent else EARLIEST

    def document(self) -> dict[str, Any]:
        """The witness as JSON, as the state of a log and HTTP answers have it."""
        return {
            "table": self.table,
            "version": self.version,
            "count": self.chain.count,
            "chain": self.chain.hash,
            "rows": self.rows,
            "adopted": _shown(self.adopted),
            "recent": [list(astuple(each)) for each in self.recent],
            "audit": self.audit.document(),
        }

    @classmethod
    def of(cls, document: object) -> Witness:
        """The inverse of ``document``. Raises InvalidWitness."""
        fields = _fields(document)
        return cls(
            table_of(fields),
            _number(fields, "version"),
            RecordChain(_number(fields, "count"), _text(fields, "chain", _CHAIN)),
            _number(fields, "rows"),
            _position(fields, "adopted"),
            _records(fields, "recent", RECENT_MAX),
            _audit_chain(fields),
        )


@dataclass(frozen=True, slots=True)
class WitnessPost:
    """A request to add records to the witness of a table.

    ``after``: the chain that the records continue. ``is_adopted``: the records were read from the table.
    ``audit_after``, ``audit``: likewise for audit records about the topic.
    """

    table: str
    version: int
    after: RecordChain = RecordChain()
    records: tuple[WitnessRecord, ...] = field(default=())
    is_adopted: bool = False
    audit_after: AuditChain = AuditChain()
    audit: tuple[CopiedRecord, ...] = ()

    def document(self) -> dict[str, Any]:
        """The request's body."""
        audit = self.audit_after.document() | {"records": [list(each) for each in self.audit]}
        return {
            "table": self.table,
            "version": self.version,
            "count": self.after.count,
            "chain": self.after.hash,
            "adopted": self.is_adopted,
            "records": [list(astuple(each)) for each in self.records],
            **({"audit": audit} if self.audit else {}),
        }

    @classmethod
    def of(cls, document: object) -> WitnessPost:
        """The inverse of ``document``. Raises InvalidWitness."""
        fields = _fields(document)
        is_adopted = fields.get("adopted", False)
        if not isinstance(is_adopted, bool):
            raise InvalidWitness("adopted is true or false")
        return cls(
            table_of(fields),
            _number(fields, "version"),
            RecordChain(_number(fields, "count"), _text(fields, "chain", _CHAIN)),
            _records(fields, "records", RECORDS_PER_POST_MAX),
            is_adopted,
            _audit_chain(fields),
            _copied_records(fields),
        )


def extended(stored: Witness | None, post: WitnessPost) -> Witness:
    """The stored witness with the records of a request. A repeated request changes nothing.

    Raises ContradictsWitness if the request does not continue what is stored, or if its records do not follow each
    other, and InvalidWitness if the witness would count more rows than a number of a witness may be.
    """
    known = stored or Witness(post.table, 0)
    known = replace(known, audit=_extended_audit(known, post))
    after = post.after.extended(post.records)
    if known.chain == after:
        return replace(known, version=max(known.version, post.version))
    if known.chain != post.after:
        raise ContradictsWitness(
            f"the witness of table {post.table} has {known.chain.count} records with the hash"
            f" {known.chain.hash}, and the request continues {post.after.count} records with the hash"
            f" {post.after.hash}"
        )
    if post.version < known.version:
        raise ContradictsWitness(
            f"the witness of table {post.table} is of commit {known.version}, and the request of"
            f" commit {post.version}"
        )
    end = known.end
    for record in post.records:
        if record.begins < end or record.end < record.first:
            raise ContradictsWitness(
                f"the record {record.begins} to {record.ends} begins before {end}, which is witnessed"
            )
        end = record.ends
    rows = known.rows + sum(record.rows for record in post.records)
    if rows > NUMBER_MAX:
        raise InvalidWitness(
            f"the witness of table {post.table} would count {rows} rows, and {NUMBER_MAX} is the limit"
        )
    return Witness(
        post.table,
        post.version,
        after,
        rows,
        end if post.is_adopted else known.adopted,
        (*known.recent, *post.records)[-RECENT_MAX:],
        known.audit,
    )


def _extended_audit(known: Witness, post: WitnessPost) -> AuditChain:
    """The audit records of a witness with those of a request. Raises ContradictsWitness."""
    after = post.audit_after.extended(post.audit)
    if not post.audit or known.audit == after:
        return known.audit
    if known.audit != post.audit_after:
        raise ContradictsWitness(
            f"the witness of table {post.table} has {known.audit.count} audit records with the hash"
            f" {known.audit.hash}, and the request continues {post.audit_after.count} with the hash"
            f" {post.audit_after.hash}"
        )
    ids = [known.audit.last, *(record_id for record_id, _ in post.audit)]
    for before, record_id in itertools.pairwise(ids):
        if before and audit_order(record_id) <= audit_order(before):
            raise ContradictsWitness(f"the audit record {record_id} is not after {before}")
    return after


def audit_order(record_id: str) -> tuple[int, int]:
    """The place of an audit record among those of its bucket, from its id."""
    time_ms, _, number = record_id.partition("-")
    return int(time_ms), int(number or 0)


def hash_of(values: Sequence[object] | Mapping[str, object], size_bytes: int = _HASH_BYTES) -> str:
    """A hash of some values that JSON can express."""
    text = json.dumps(values, separators=(",", ":"), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=size_bytes).hexdigest()


# ------------------------------------------------------------ reading JSON


def _fields(document: object) -> Mapping[str, object]:
    if not isinstance(document, dict):
        raise InvalidWitness("a witness is a JSON object")
    return document


def table_of(fields: Mapping[str, object]) -> str:
    """The id of a table in the field ``table``. Raises InvalidWitness."""
    return _text(fields, "table", _TABLE)


def _text(fields: Mapping[str, object], name: str, pattern: re.Pattern[str]) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidWitness(f"{name} is a text like {pattern.pattern}")
    return value


def _number(fields: Mapping[str, object], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise InvalidWitness(f"{name} is a whole number")
    return value


def _position(fields: Mapping[str, object], name: str) -> Position:
    value = fields.get(name)
    match = _POSITION.fullmatch(value) if isinstance(value, str) else None
    if match is None or max(map(int, match.groups())) > NUMBER_MAX:
        raise InvalidWitness(f"{name} is a position, LEDGER:ENTRY")
    return Position(int(match[1]), int(match[2]))


def _shown(position: Position) -> str:
    return f"{position.ledger}:{position.entry}"


def _records(
    fields: Mapping[str, object], name: str, records_max: int
) -> tuple[WitnessRecord, ...]:
    value = fields.get(name)
    if not isinstance(value, list) or len(value) > records_max:
        raise InvalidWitness(f"{name} is a list of at most {records_max} records")
    return tuple(_record(each) for each in value)


def _audit_chain(fields: Mapping[str, object]) -> AuditChain:
    """Brokers and pipelines that do not know it leave it out."""
    audit = fields.get("audit")
    if audit is None:
        return AuditChain()
    chain = _fields(audit)
    last = "" if chain.get("last") == "" else _text(chain, "last", _AUDIT_ID)
    return AuditChain(_number(chain, "count"), last, _text(chain, "hash", _CHAIN))


def _copied_records(fields: Mapping[str, object]) -> tuple[CopiedRecord, ...]:
    audit = fields.get("audit")
    value = _fields(audit).get("records") if audit is not None else []
    if not isinstance(value, list) or len(value) > RECORDS_PER_POST_MAX:
        raise InvalidWitness(f"audit.records is a list of at most {RECORDS_PER_POST_MAX} records")
    return tuple(_copied_record(each) for each in value)


def _copied_record(value: object) -> CopiedRecord:
    fields = value if isinstance(value, list) else []
    are_texts = len(fields) == 2 and all(isinstance(each, str) for each in fields)
    if not are_texts or not _AUDIT_ID.fullmatch(fields[0]) or not _CHAIN.fullmatch(fields[1]):
        raise InvalidWitness("an audit record is a list of its id and the hash of its fields")
    return fields[0], fields[1]


def _record(value: object) -> WitnessRecord:
    fields = value if isinstance(value, list) else []
    numbers, hashes = fields[:8], fields[8:]
    patterns = (_DIGEST, _DIGEST, _CHAIN)
    is_whole = len(numbers) == 8 and all(
        (each is None and number == _EPOCH) or (type(each) is int and 0 <= each <= NUMBER_MAX)
        for number, each in enumerate(numbers)
    )
    is_hashed = len(hashes) == len(patterns) and all(
        isinstance(each, str) and pattern.fullmatch(each)
        for each, pattern in zip(hashes, patterns, strict=True)
    )
    if not (is_whole and is_hashed):
        raise InvalidWitness("a record is a list of eight numbers and three hashes")
    return WitnessRecord(*fields)
