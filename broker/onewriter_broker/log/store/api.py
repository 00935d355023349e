"""The interface of the log store: guarded writes, plain reads.

A topic's log is a sequence of *blocks*; a block holds *entries* (one SEND each); block ids are
positions, ``<ledger>-<first entry>``. The fence is the store's own rule that it rejects a position
at or below the last one: once the marker ``<ledger>-0`` is stored, the store accepts nothing older.

The rule is valid within one dataset. So every write carries a Binding, and the store rejects the
whole write if its dataset (its ``master_replid``) or the bucket's owner is not that of the binding.
docs/log-format.md describes keys and fields; docs/adr/0002 the protocol and why it is safe.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from onewriter_core.api.topic import Durability
from onewriter_core.errors import Unavailable
from onewriter_core.ids import Position, TopicName
from onewriter_core.log_format.field_names import FLOOR_PREFIX, GUARDIAN_PREFIX

if TYPE_CHECKING:
    from onewriter_broker.log.store.compacted import CompactedStore
    from onewriter_broker.log.store.staged_parts import StagedStore


class Outcome(enum.Enum):
    """The store's answer to one guarded write. Undecided is an exception instead."""

    DONE = "done"
    REFENCE = "refence"
    """The dataset is not that of the binding: read the anchor before you do anything else."""
    FENCED = "fenced"
    """The store has a newer ledger, token or owner. No attempt has written anything."""
    LOST = "lost"
    """The bucket, the log or its state is missing although it must exist. Nothing was written."""
    UNKNOWN = "unknown"
    """Only for appends: this writer is deposed, and whether an earlier attempt stored this block
    will stay unknown. A retry cannot help: close the producer's connection without an answer."""
    STALE = "stale"
    """Only for guarded appends: the guard's epoch or generation is over; for the first block of an atomic
    publish: its app has published this version, or a later one. The block is not in the log. For ``swap_state``: the
    field does not have the expected value. Nothing was written."""
    AHEAD = "ahead"
    """Only for guarded appends: the store does not know the guard's epoch or generation (perhaps not
    yet, after a failover). The block is not in the log; it may be sent again."""
    HELD = "held"
    """Only for appends: an earlier block of the same log and call was rejected by its
    guard. This one is not in the log either; it may be sent again, at another position."""


class BrokenKey(Unavailable):
    """A key of the store has a value that no broker wrote; the message names the key and the value.

    The result is definite: the call wrote nothing. Only the logs of this key are affected, until an
    administrator repairs the key (docs/operations.md).
    """


@dataclass(frozen=True, slots=True)
class Binding:
    """The right to write to one bucket, as the anchor granted it.

    ``replid`` is the registered dataset, ``generation`` the number of its registration, ``owner``
    this broker's incarnation, ``version`` the version of the anchor record that granted the right.
    The version does not change while the bucket is held, even if the record changes. It orders
    bindings, so that a late stamp never replaces a newer one. It also distinguishes two ownerships
    of one broker, so that the store rejects calls of the first one during the second one.
    """

    bucket: int
    replid: str
    generation: int
    owner: str
    version: int

    def token(self, ledger: int) -> str:
        """The token in a log's state while this binding writes to the log under ``ledger``."""
        return f"{ledger}:{self.owner}"


@dataclass(frozen=True, slots=True)
class Unit:
    """A bucket's own record in the store; all zero if the bucket was never stamped here.

    ``birthmark`` is set only until the first stamp (LogStore.write_birthmark).
    ``format`` is the version of the log format that the bucket was last stamped with (docs/log-format.md).
    ``note`` is the registration that a broker was about to record (LogStore.note_replid): ``<replid>/<generation>``.
    ``lacks`` is the newest registration of a dataset that is not the newest one: it was restored from a copy, or its adoption
    was forced, so it may lack acknowledged entries of any durability. 0: none.
    """

    generation: int = 0
    owner: str = ""
    version: int = 0
    last_ledger: int = 0
    birthmark: str = ""
    format: int = 0
    note: str = ""
    lacks: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of the store's primary, read over the connection that will write.

    ``previous_replid`` is the dataset before the last promotion or restart; empty if unknown.
    ``replicas`` is the number of connected replicas. ``memory_bytes_used`` and
    ``memory_bytes_max`` (0: no limit) let the broker apply back-pressure before the store refuses writes.
    """

    replid: str
    previous_replid: str
    is_primary: bool
    replicas: int
    units: Mapping[int, Unit]
    memory_bytes_used: int = 0
    memory_bytes_max: int = 0
    replication_lag_bytes: int = 0
    """How many bytes the slowest connected replica is behind."""
    sync_seconds: float = 0.0
    """Time for which the server has written and synced its append-only file since it started; ``observe_shards`` only."""
    faults: tuple[str, ...] = ()
    """What the server reports as failed: its append-only file or a rewrite of it; ``observe_shards`` only."""


UNWRITTEN: Final = "the append-only file could not be written"
"""The fault with which a server refuses every write."""


@dataclass(frozen=True, slots=True)
class ShardState:
    """One primary of the store, with the buckets that it serves (None: all).

    ``address`` is empty if the store has only one primary. ``seen`` is None if the primary did not answer;
    ``problem`` says why.
    """

    address: str
    buckets: frozenset[int] | None
    seen: Observation | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ShardBeats:
    """The last heartbeat of each broker on one shard, by incarnation. ``buckets``: those of the shard (None: all)."""

    buckets: frozenset[int] | None
    beats: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FencedLog:
    """One log's part in a fence.

    ``create``: the log may be missing. Set it only for a log that is new according to the catalog, or
    after its loss was reported. ``marker`` contains the fields of the marker block; the store adds
    ``owner`` and ``gen``. ``state`` is set in the log's state together with the new token (``tok``)
    and ``ledger``. Using one of these names, or ``k`` in a marker, is a ValueError.
    """

    topic: TopicName
    create: bool
    marker: Mapping[str, str]
    state: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Fence:
    """Open ``ledger`` for all ``logs`` of one bucket, all or none, and write the audit record."""

    binding: Binding
    ledger: int
    logs: tuple[FencedLog, ...]
    audit: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive entries of one log, stored as one unit.

    ``lengths`` are the entries' sizes in bytes, ``payload`` the concatenated entries,
    ``counts`` the messages in each entry (None: one each), ``time_ms`` the owner's wall clock,
    ``chain`` the hash over this block and all previous blocks of the ledger.
    """

    position: Position
    lengths: Sequence[int]
    payload: bytes
    counts: Sequence[int] | None
    time_ms: int
    chain: bytes
    publish: str = field(default="", kw_only=True)
    """``<app>/<version>`` of the atomic publish that the block belongs to; empty if none."""
    commits: bool = field(default=False, kw_only=True)
    """Whether it is the last block of that publish, which commits all of them."""
    by: str = field(default="", kw_only=True)
    """The publisher as compact JSON ``{"subject", "podUID"}``; empty if it was not authenticated."""

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
    """The place in the store of the number that a guarded write depends on."""

    EPOCH = "epoch"
    """The state of another log of the bucket: the tenure that may write there."""
    OWNERSHIP = "ownership"
    """The bucket's table of ownerships: the generation of one of them."""
    FLOOR = "floor"
    """The log's own state: the highest number of that name that has written to this log. The owner
    of the guarding topic checks which number is current."""


@dataclass(frozen=True, slots=True)
class Guard:
    """The condition of a write: ``name`` (a topic or an ownership) still has this ``number``."""

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
    """One block for one log, under the token that the log's fence wrote.

    ``never_sent``: the caller guarantees that no earlier attempt of this block exists; a rejection is
    then always FENCED. It must be False on every retry after Undecided, because a rejection may then
    be UNKNOWN. ``guard``: append only while the guard is current, and raise its floor with the append.
    """

    binding: Binding
    topic: TopicName
    token: str
    block: Block
    never_sent: bool = False
    guard: Guard | None = None
    opens: Sequence[Position] = ()
    """For the first block of an atomic publish: the positions of all its blocks, including itself. A fence
    before the committing block removes those that are stored."""
    owner: str = ""
    """For a block of an atomic publish: the subject to which the block binds its app. STALE if the app is
    bound to another subject. Empty: the binding is neither compared nor set."""


@dataclass(frozen=True, slots=True)
class EpochStatus:
    """The epochs in a log's state, at a time at which the caller certainly served the log.

    ``epoch`` is the highest topic epoch ever granted. ``leads`` is the epoch of the tenure that may
    write, or resume and write; 0 if there is none.
    """

    epoch: int
    leads: int


@dataclass(frozen=True, slots=True)
class OwnedRecord:
    """The record of an ownership: the highest generation ever granted, and its owner as JSON."""

    generation: int
    owner: str


@dataclass(frozen=True, slots=True)
class OwnWrite:
    """Set these records of ownerships in one bucket, all or none.

    ``records`` by their names (``onewriter_core.own.names.own_field``). The write opens ``ledger``
    like a fence, so that the grant in the anchor covers this write; 0 if the write contains no grant.
    ``audits`` are written once, even if the write is repeated. Without records nothing is written:
    the answer proves that the caller owns the bucket.
    """

    binding: Binding
    ledger: int = 0
    records: Mapping[str, OwnedRecord] = field(default_factory=dict)
    audits: Sequence[Mapping[str, str]] = ()
    settles: bool = False
    """Without records: note that from this registration of the dataset on the records show what was
    granted. Only then do they guard writes."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Without records: the records to drop, with their generations, atomically with the change of the floors."""
    floors: Mapping[str, int] = field(default_factory=dict)
    """Floors to raise and floors to remove, by their names (``onewriter_core.own.floors``)."""
    floors_removed: Sequence[str] = ()


class LogStore(Protocol):
    """Guarded writes and reads of a store with one primary, or of a cluster with several (``is_sharded``).

    In a cluster, a call concerns one bucket; what is said of the order and of the dataset holds for each bucket.

    Every write raises Undecided if the store gave no definite answer (down, busy, full, too few
    replicas, timed out): the caller retries exactly the same write, with the same bytes and positions.
    The store executes writes in the order of the calls. It executes a write without an answer before
    the later ones or never. Reads raise Undecided in the same cases; they may overtake writes.

    A key with a value that no broker wrote (another type, an invalid number) raises BrokenKey, also
    for reads; for appends it is the answer of that log's blocks.

    Guarded writes answer REFENCE if the dataset, its registration or the owner's newer binding is not
    that of the write, LOST if the bucket has no record here, FENCED if another owner is stamped.

    Recovery reads name the dataset (``replid``) that they must come from: a read from another dataset
    raises Undecided, as a write to it answers REFENCE.
    """

    @property
    def compacted(self) -> CompactedStore:
        """The compacted views of logs."""
        ...

    @property
    def staged(self) -> StagedStore:
        """The staged parts of atomic publishes."""
        ...

    @property
    def is_sharded(self) -> bool:
        """Whether buckets are spread over several primaries, so that a call must not name several of them."""
        ...

    async def observe(self, buckets: Sequence[int]) -> Observation:
        """Read the state of the current primary; in a cluster, of the primary that serves these buckets."""
        ...

    async def observe_shards(self) -> Sequence[ShardState]:
        """Read the state of every primary. Raises Undecided if the primaries are not known."""
        ...

    async def write_birthmark(self, bucket: int, birthmark: str) -> None:
        """Write a birthmark for a bucket without a record, before a broker may stamp it.

        Each call needs a different birthmark: a late call, executed after the dataset was emptied,
        must not write the birthmark that a late stamp carries.
        """
        ...

    async def note_replid(
        self, bucket: int, replid: str, observed: int, registered: int, *, lacks: bool = False
    ) -> Outcome:
        """Note in the bucket's record that the dataset has this identity, before the anchor registers it.

        ``registered`` is the generation that the registration is about to get. ``lacks``: note it as ``Unit.lacks``, too.
        REFENCE: the dataset has another identity, or the bucket's record has another generation than ``observed``.
        """
        ...

    async def replicate(self, bucket: int) -> bool:
        """Write to the bucket's record, and wait until every replica of its primary has it; False: not yet."""
        ...

    async def stamp(self, binding: Binding, *, birthmark: str = "") -> Outcome:
        """Make the bucket's record name this binding's generation, owner and version.

        With ``birthmark`` the bucket may have no record here yet, if the store still has that
        birthmark: the one read before the binding's compare-and-set, when nothing could be missing.
        REFENCE: another dataset, or a newer generation. FENCED: a newer version was stamped. LOST: the
        record is missing, so the dataset was emptied.
        """
        ...

    async def fence(self, fences: Sequence[Fence]) -> list[Outcome | BrokenKey]:
        """Write the markers of all fences, in one call; one answer each, in order.

        After DONE, the store accepts nothing below ``ledger`` in the logs of this fence. A fence opens all
        its logs or none, and another answer than DONE concerns no other fence. The fences of a bucket are
        executed in their order. A retry after Undecided that finds its own markers and tokens answers DONE. A fence
        removes an atomic publish that was not committed; the marker's field ``aborted`` names it.
        """
        ...

    async def append(self, appends: Sequence[Append]) -> list[Outcome | BrokenKey]:
        """Append blocks, in one call; one answer each, in order.

        If one block of a log fails, no later block of the same log in this call is appended. A block
        that an earlier attempt stored answers DONE. REFENCE, LOST and BrokenKey say nothing about
        earlier attempts.

        After the first block of an atomic publish a log accepts only the blocks of that publish, until
        the committing block is stored; other blocks answer REFENCE.

        Only blocks that were never sent answer STALE, AHEAD or HELD: their positions are free again. A
        block that was sent before and is not in the log answers REFENCE instead.
        """
        ...

    async def append_together(self, appends: Sequence[Append]) -> list[Outcome | BrokenKey]:
        """Append blocks of several logs of one bucket, one each: all DONE, or none is appended.

        Answers like ``append``. HELD: this block could have been appended, but another could not.
        """
        ...

    async def commit(self, durability: Durability, *, replid: str = "") -> bool:
        """Wait until this connection's writes have the durability; False: not yet, retry.

        Covers every append, fence and stamp that was answered DONE before this call; ``replid``
        names the dataset of these writes. Raises Undecided if the connection that carried them was
        lost or has since written to another dataset: the caller sends the same writes again, whose
        answers show whether they are in this dataset, and commits again.
        """
        ...

    async def check(
        self, binding: Binding, topic: TopicName, token: str, *, marks: bool = False
    ) -> EpochStatus | Outcome:
        """Prove that the log has this token under this binding; an Outcome if it has not.

        ``marks``: also write something, so that ``commit`` covers the proof.
        """
        ...

    async def own(self, write: OwnWrite) -> Outcome:
        """Set records of ownerships. Raises BrokenKey if a record would lower a generation.

        A retry after Undecided is harmless if nothing else wrote to these records in between.
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

        Only a fence writes ``tok`` and ``ledger``: naming them is a ValueError.
        """
        ...

    async def swap_state(
        self,
        binding: Binding,
        topic: TopicName,
        token: str,
        field: str,
        expected: str | None,
        value: str | None,
    ) -> Outcome:
        """Set one field of a log's state under its token if it has the expected value. None: the field is missing.

        A call that is executed late, after a later one, therefore overwrites nothing. STALE: the field has another
        value. DONE: it has ``value``, perhaps since an earlier attempt.
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

        Drops most of these blocks or all, at most 1000 in one call, and never the current marker. The
        noted position of a farther cut stays.
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
        """Change the bucket's catalog (topic name to JSON); without changes it proves the binding."""
        ...

    async def read_state(self, topic: TopicName, *, replid: str = "") -> dict[str, str]:
        """A log's whole state; empty if there is none."""
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

        ``reverse`` returns the highest positions first. A block may begin before ``start`` and contain
        it: callers read the previous block with ``reverse``.
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
        """Publish one broker's heartbeat on every shard (membership is a hint; safety never depends on it).

        Raises Undecided if no shard answers.
        """
        ...

    async def members(self) -> Sequence[ShardBeats]:
        """The last heartbeat of each broker on each shard that answers."""
        ...

    async def forget_member(self, member: str) -> None:
        """Drop a broker's heartbeat."""
        ...

    async def read_settings(self) -> dict[str, str]:
        """Cluster-wide settings: tenants, namespaces, clusters as key to JSON."""
        ...

    async def set_settings(self, fields: Mapping[str, str], remove: Sequence[str] = ()) -> None:
        """Change cluster-wide settings. They are configuration and not fenced."""
        ...

    async def settle_setting(self, name: str, value: str) -> str:
        """Create a cluster-wide setting unless it exists; returns the stored value.

        If several brokers create it, the first value applies to all.
        """
        ...

    async def close(self) -> None:
        """Close connections; pending writes end with Undecided."""
        ...
