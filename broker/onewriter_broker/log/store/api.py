"""The log store as the broker sees it: guarded writes, plain reads.

A topic's log is a sequence of *blocks*; a block holds *entries* (one SEND each); block ids are
positions, ``<ledger>-<first entry>``. The fence is the store's own rule that a position at or
below the last one is refused: once the marker ``<ledger>-0`` stands, nothing older enters.

That rule holds inside one dataset. So every write carries a Binding and is refused as a whole
when the store's dataset (its ``master_replid``) or the bucket's owner is not the one bound to.
docs/log-format.md describes keys and fields; docs/adr/0002 the protocol and why it is safe.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from onewriter_core.errors import Unavailable
from onewriter_core.ids import Position, TopicName
from onewriter_core.log_format.field_names import FLOOR_PREFIX, GUARDIAN_PREFIX

if TYPE_CHECKING:
    from onewriter_broker.log.store.compacted import CompactedStore
    from onewriter_broker.log.store.staged_parts import StagedStore


class Outcome(enum.Enum):
    """What the store answered to one guarded write. Undecided is an exception instead."""

    DONE = "done"
    REFENCE = "refence"
    """Not the dataset that was bound to: read the anchor before doing anything else."""
    FENCED = "fenced"
    """A newer ledger, token or owner is there. Nothing was written, now or by an earlier attempt."""
    LOST = "lost"
    """The bucket, the log or its state is missing although it must exist. Nothing was written."""
    UNKNOWN = "unknown"
    """Only for appends: this writer is deposed, and whether an earlier attempt stored this block
    is unknown for good. A retry cannot help: close the producer's connection without an answer."""
    STALE = "stale"
    """Only for guarded appends: what the guard names is over; for the first block of an atomic publish:
    its app has published this version, or a later one. The block is not in the log."""
    AHEAD = "ahead"
    """Only for guarded appends: the store does not know of what the guard names, or not yet (it has
    to be read again after a failover). The block is not in the log; it may be sent again."""
    HELD = "held"
    """Only for appends: an earlier block of the same log and call was rejected by its
    guard. This one is not in the log either; it may be sent again, at another position."""


class BrokenKey(Unavailable):
    """A key of the store holds what no broker wrote there; the message names it and says what.

    Definite: of what was asked nothing was written, now. It concerns the logs of that key alone, and
    stays so until a person repairs the key (docs/operations.md).
    """


class Durability(enum.Enum):
    """What an acknowledgement promises (docs/operations.md); ordered from weak to strong."""

    NONE = "None"
    LOCAL = "Local"
    REPLICATED = "Replicated"
    ALL_REPLICAS = "AllReplicas"


@dataclass(frozen=True, slots=True)
class Binding:
    """The right to write to one bucket, as the anchor granted it.

    ``replid`` is the dataset that counts, ``generation`` the number of its registration,
    ``owner`` this broker's incarnation, ``version`` the anchor record's version that said so. It
    stays what it was while the bucket is held, however often the record changes meanwhile: it
    orders bindings, so that a late stamp never replaces a newer one, and distinguishes two ownerships of
    one broker, so that calls of the first are rejected under the second.
    """

    bucket: int
    replid: str
    generation: int
    owner: str
    version: int

    def token(self, ledger: int) -> str:
        """What a log's state holds while this binding writes to it under ``ledger``."""
        return f"{ledger}:{self.owner}"


@dataclass(frozen=True, slots=True)
class Unit:
    """A bucket's own record in the store; all zero when the bucket was never stamped here.

    ``birthmark`` stands where the first stamp is still to come (LogStore.bear), else it is empty.
    ``format`` is the version of the log format that the bucket was last stamped with (docs/log-format.md).
    """

    generation: int = 0
    owner: str = ""
    version: int = 0
    last_ledger: int = 0
    birthmark: str = ""
    format: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at the store's primary, taken over the connection that will write.

    ``previous_replid`` is the dataset this one was promoted or restarted from; empty when unknown.
    ``replicas`` is the number of connected replicas. ``memory_bytes_used`` and
    ``memory_bytes_max`` (0: no limit) let the broker push back before the store refuses.
    """

    replid: str
    previous_replid: str
    is_primary: bool
    replicas: int
    units: Mapping[int, Unit]
    memory_bytes_used: int = 0
    memory_bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class FencedLog:
    """One log's part in a fence.

    ``create`` allows the log not to exist yet: only for a log that the catalog says is new, or
    after its loss was reported. ``marker`` becomes the marker block's fields, to which the store
    adds ``owner`` and ``gen``; ``state`` is set in the log's state together with the new token
    (``tok``) and ``ledger``. Using one of these names, or ``k`` in a marker, is a ValueError.
    """

    topic: TopicName
    create: bool
    marker: Mapping[str, str]
    state: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Fence:
    """Open ``ledger`` for all ``logs`` of one bucket at once, all or none, and audit it."""

    binding: Binding
    ledger: int
    logs: tuple[FencedLog, ...]
    audit: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive entries of one log, stored as one unit.

    ``lengths`` are the entries' sizes in bytes, ``payload`` the entries one after the other,
    ``counts`` the messages in each entry (None: one each), ``time_ms`` the owner's wall clock,
    ``chain`` the hash over this block and, through it, all before it in the ledger.
    """

    position: Position
    lengths: Sequence[int]
    payload: bytes
    counts: Sequence[int] | None
    time_ms: int
    chain: bytes
    publish: str = field(default="", kw_only=True)
    """``<app>/<version>`` of the atomic publish that it is a part of; empty: of none."""
    commits: bool = field(default=False, kw_only=True)
    """It is the last block of that publish: with it all of them count, without it none."""
    by: str = field(default="", kw_only=True)
    """Who published it: compact JSON ``{"subject", "podUID"}``. Empty: the publisher was not authenticated."""

    @property
    def last(self) -> Position:
        """The position of the block's last entry."""
        return Position(self.position.ledger, self.position.entry + len(self.lengths) - 1)


@dataclass(frozen=True, slots=True)
class Marker:
    """The block that opens a ledger, at entry 0."""

    position: Position
    fields: Mapping[str, str]


StoredBlock = Block | Marker


class GuardKind(enum.Enum):
    """Where the store has the number that a guarded write depends on."""

    EPOCH = "epoch"
    """In the state of another log of the bucket: the tenure that may write there."""
    OWNERSHIP = "ownership"
    """In the bucket's table of ownerships: the generation of one of them."""
    FLOOR = "floor"
    """In the log's own state: the highest number of that name that has written here; the owner
    of the guarding topic checks which one is current."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What a write depends on: that ``name`` (a topic, an ownership) still has this ``number``."""

    kind: GuardKind
    name: str
    number: int

    @property
    def floor_field(self) -> str:
        """The state field of a floor."""
        return f"{FLOOR_PREFIX}{self.name}"

    @property
    def guardian_field(self) -> str:
        """The state field of the subject that was admitted first to write under a floor."""
        return f"{GUARDIAN_PREFIX}{self.name}"


@dataclass(frozen=True, slots=True)
class Append:
    """One block for one log, under the token that the log's fence left.

    ``never_sent`` is the caller's word that no earlier attempt of this block exists: a refusal is
    then always FENCED. It must be False on every retry after Undecided, where a refusal may have
    to be UNKNOWN. ``guard``: append only while that holds, and raise its floor with the append.
    """

    binding: Binding
    topic: TopicName
    token: str
    block: Block
    never_sent: bool = False
    guard: Guard | None = None
    opens: Sequence[Position] = ()
    """Of the first block of an atomic publish: where all its blocks are to stand, itself included.
    What is there of them goes when the log is fenced before the one that commits."""
    owner: str = ""
    """Of a block of an atomic publish: the subject to which its app is bound with it. STALE if the app
    is bound to another subject. Empty: the binding is neither compared nor set."""


@dataclass(frozen=True, slots=True)
class EpochStatus:
    """What a log's state says of its tenures, at a moment at which the asker certainly served it.

    ``epoch`` is the highest topic epoch ever granted; ``leads`` that of the tenure which may write,
    or come back and write: 0 when there is none.
    """

    epoch: int
    leads: int


@dataclass(frozen=True, slots=True)
class OwnedRecord:
    """The record of an ownership: the highest generation ever granted, and JSON that says of whom."""

    generation: int
    owner: str


@dataclass(frozen=True, slots=True)
class OwnWrite:
    """Set these records of ownerships in one bucket, all or none.

    ``records`` by their names (``onewriter_core.own.names.own_field``). ``ledger`` counts as opened
    with it, as by a fence, so that the anchor's note of a grant covers this one; 0: no grant is in it.
    ``audits`` are written once, however often the write is repeated. Without records nothing is
    written: the answer proves that the bucket is the asker's.
    """

    binding: Binding
    ledger: int = 0
    records: Mapping[str, OwnedRecord] = field(default_factory=dict)
    audits: Sequence[Mapping[str, str]] = ()
    settles: bool = False
    """Without records: note that they are, from this registration of the dataset on, what was
    granted. Only then do they guard any write."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Without records: those to drop, with their generations, in the step that changes the floors."""
    floors: Mapping[str, int] = field(default_factory=dict)
    """Floors to raise, and to remove, by their names (``onewriter_core.own.floors``)."""
    floors_removed: Sequence[str] = ()


class LogStore(Protocol):
    """Guarded writes and reads of one shard.

    Every write raises Undecided when the store gave no definite answer (down, busy, full, too few
    replicas, timed out): the caller retries the very same write, same bytes, same positions.
    Writes are executed in the order of the calls, one that had no answer before the later ones or
    never. Reads raise Undecided likewise; they may overtake writes.

    A key that holds what no broker wrote (another type, a number that is none) raises BrokenKey,
    reads included; for appends it is the answer of that log's blocks.

    Guarded writes answer REFENCE when the dataset, its registration or the owner's own newer
    binding is not the bound one, LOST when the bucket has no record here, FENCED when another owner
    is stamped.

    Recovery reads name the dataset they must come from (``replid``): a read from any other raises
    Undecided, as a write to it would answer REFENCE.
    """

    @property
    def compacted(self) -> CompactedStore:
        """The compacted views of logs."""
        ...

    @property
    def staged(self) -> StagedStore:
        """What is to be published atomically."""
        ...

    async def observe(self, buckets: Sequence[int]) -> Observation:
        """Look at the primary that writes would go to now."""
        ...

    async def bear(self, bucket: int, birthmark: str) -> None:
        """Put a birthmark where a bucket has no record, before anybody may stamp it.

        It must be another one with every call: a call that is executed late, behind an emptying,
        must not leave the mark that a late stamp carries.
        """
        ...

    async def stamp(self, binding: Binding, *, birthmark: str = "") -> Outcome:
        """Make the bucket's record name this binding's generation, owner and version.

        ``birthmark`` allows the bucket to have no record here yet, if that mark still stands: the
        one seen before the binding's compare-and-set, where nothing can be missing. REFENCE:
        another dataset, or a newer generation; FENCED: a newer version was stamped; LOST: the
        record that must be here is not, so the dataset was emptied.
        """
        ...

    async def fence(self, fence: Fence) -> Outcome:
        """Write the markers: from DONE on nothing below ``fence.ledger`` enters these logs.

        A retry after Undecided that finds its own markers and tokens answers DONE. Of an atomic
        publish that was not committed nothing is left; the marker's field ``aborted`` names it.
        """
        ...

    async def append(self, appends: Sequence[Append]) -> list[Outcome | BrokenKey]:
        """Append blocks, in one call; one answer each, in order.

        When one block of a log fails, no later one of the same log in this call is appended. A
        block that an earlier attempt left in the log answers DONE. REFENCE, LOST and BrokenKey say
        nothing about earlier attempts.

        Behind the first block of an atomic publish a log takes nothing but the blocks of that
        publish, until the one that commits it is in: REFENCE.

        STALE, AHEAD and HELD are answered only to blocks that were never sent: their positions are
        free again. One that was sent before and is not there answers REFENCE instead.
        """
        ...

    async def append_together(self, appends: Sequence[Append]) -> list[Outcome | BrokenKey]:
        """Append blocks of several logs of one bucket, one each: all DONE, or none is appended.

        Answers as ``append`` does. HELD: this block could have been appended, another could not.
        """
        ...

    async def commit(self, durability: Durability, *, replid: str = "") -> bool:
        """Wait until this connection's writes are as durable as that; False: not yet, ask again.

        Covers every append, fence and stamp that was answered DONE before this call; ``replid``
        names the dataset they were made in. Raises Undecided when the connection that carried them
        is gone or has since written to another dataset: the caller sends the very same writes
        again, which say whether they are in this dataset, and commits again.
        """
        ...

    async def check(
        self, binding: Binding, topic: TopicName, token: str, *, marks: bool = False
    ) -> EpochStatus | Outcome:
        """Prove that the log carries this token under this binding; an Outcome: it does not.

        ``marks``: leave a write behind, so that ``commit`` covers the proof, too.
        """
        ...

    async def own(self, write: OwnWrite) -> Outcome:
        """Set records of ownerships. BrokenKey where one would lower a generation.

        A retry after Undecided, with nothing else written to these records between, is harmless.
        """
        ...

    async def set_state(
        self,
        binding: Binding,
        topic: TopicName,
        token: str,
        fields: Mapping[str, str],
        remove: Sequence[str] = (),
    ) -> Outcome:
        """Change fields of a log's state (cursors, snapshots) under its token.

        ``tok`` and ``ledger`` belong to the fence: naming them is a ValueError.
        """
        ...

    async def trim(
        self,
        binding: Binding,
        topic: TopicName,
        token: str,
        before: Position,
        fields: Mapping[str, str],
        remove: Sequence[str] = (),
    ) -> Outcome:
        """Drop blocks that end below ``before``, and set state fields, atomically.

        Drops at least most of them, at most 1000 in one call, and never the current marker. What
        is noted of a cut that was farther stays.
        """
        ...

    async def write_audit(self, binding: Binding, record: Mapping[str, str]) -> Outcome:
        """Add one record to the bucket's audit stream.

        Not idempotent: a retry after Undecided may write the record twice.
        """
        ...

    async def set_catalog(
        self,
        binding: Binding,
        fields: Mapping[str, str],
        remove: Sequence[str] = (),
    ) -> Outcome:
        """Change the bucket's catalog: topic name to JSON; nothing, to prove the binding."""
        ...

    async def read_state(self, topic: TopicName, *, replid: str = "") -> dict[str, str]:
        """A log's whole state; empty when there is none."""
        ...

    async def read_owned(self, bucket: int, *, replid: str = "") -> dict[str, OwnedRecord]:
        """A bucket's records of ownerships, by their names."""
        ...

    async def read_catalog(self, bucket: int, *, replid: str = "") -> dict[str, str]:
        """A bucket's whole catalog."""
        ...

    async def read_blocks(
        self,
        topic: TopicName,
        start: Position,
        end: Position | None = None,
        *,
        count: int,
        reverse: bool = False,
        replid: str = "",
    ) -> list[StoredBlock]:
        """Up to ``count`` blocks whose positions lie within [start, end]; None: to the log's end.

        ``reverse`` gives the highest positions first. A block may begin before ``start`` and hold
        it: callers look one block back with ``reverse``.
        """
        ...

    async def read_audit(
        self,
        bucket: int,
        *,
        after: str = "",
        count: int,
        reverse: bool = False,
    ) -> list[tuple[str, dict[str, str]]]:
        """Audit records as (id, fields), oldest first, or newest first with ``reverse``."""
        ...

    async def beat(self, member: str, value: str) -> None:
        """Publish one broker's heartbeat (membership is a hint; safety never depends on it)."""
        ...

    async def members(self) -> dict[str, str]:
        """All brokers' heartbeats as last published."""
        ...

    async def forget_member(self, member: str) -> None:
        """Drop a broker's heartbeat."""
        ...

    async def read_settings(self) -> dict[str, str]:
        """Cluster-wide settings: tenants, namespaces, clusters as key to JSON."""
        ...

    async def set_settings(self, fields: Mapping[str, str], remove: Sequence[str] = ()) -> None:
        """Change cluster-wide settings; not fenced, they are configuration."""
        ...

    async def settle_setting(self, name: str, value: str) -> str:
        """Create a cluster-wide setting unless it exists; returns the stored value.

        If several brokers create it, the first value counts for all.
        """
        ...

    async def close(self) -> None:
        """Release connections; pending writes end Undecided."""
        ...
