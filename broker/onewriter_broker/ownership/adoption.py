"""Decides whether a bucket's record and a dataset match. Pure functions of the fencing protocol.

The anchor's record names the registered dataset. A store that was promoted, restarted, emptied or
exchanged shows another identity (``master_replid``); ``judge`` distinguishes a descendant of the
registered dataset from a foreign one, and ``acquired`` returns the record for the compare-and-set. acquisition.py
performs the steps around them (anchor, node, compare-and-set, stamp) in order.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from onewriter_broker.anchor.api import PAST_REPLIDS_MAX, Addresses, Record
from onewriter_broker.log.store.api import Observation, Unit
from onewriter_core.ids import NUMBER_MAX
from onewriter_core.log_format.limits import FORMAT_VERSION

LEDGERS_PER_BLOCK = 64
"""Ledgers reserved by one compare-and-set."""


class Reason(enum.Enum):
    """The reason for which a bucket is not acquired with the present dataset."""

    NOT_PRIMARY = "not-primary"
    ANCHOR_BEHIND = "anchor-behind"
    PAST_DATASET = "past-dataset"
    EMPTY_DATASET = "empty-dataset"
    UNREGISTERED_DATA = "unregistered-data"
    FOREIGN_DATASET = "foreign-dataset"
    NUMBERS_EXHAUSTED = "numbers-exhausted"
    UNKNOWN_FORMAT = "unknown-format"


@dataclass(frozen=True, slots=True)
class SameDataset:
    """The registered dataset itself."""


@dataclass(frozen=True, slots=True)
class FirstRegistration:
    """Neither the anchor nor the dataset has a record of the bucket yet."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """A descendant of the registered dataset.

    ``grants_known``: it provably carries every grant that was ever answered. If not, no producer
    resumes by an epoch that was granted before (Record.known_since). ``is_older``: it is a copy that an
    administrator restored, so entries of any durability may be missing.
    """

    grants_known: bool
    is_older: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """The bucket stays unserved. ``text`` gives the reason and the remedy."""

    reason: Reason
    text: str

    @property
    def is_transient(self) -> bool:
        """Whether a retry may soon give another result, so that no alarm is necessary yet."""
        return self.reason in {Reason.NOT_PRIMARY, Reason.ANCHOR_BEHIND}


Verdict = SameDataset | FirstRegistration | Adopt | Refuse

_FORCE = "`onewriter adopt --force` accepts the present data; missing messages stay missing"


def judge(
    record: Record,
    bucket: int,
    node: Observation,
    *,
    records_every_grant: bool,
    single_node: bool,
    sharded: bool = False,
    remembered: int | None = None,
) -> Verdict:
    """Whether ``record`` and the dataset that ``node`` shows belong together.

    ``record`` must have been read before the node was observed. ``records_every_grant`` is the
    anchor's property. ``single_node``: exactly one store is configured, so that (without replicas)
    no second branch of the dataset can exist. ``sharded``: the store is a cluster, in which a bucket may
    move to another primary and back. ``remembered``: the last granted ledger in the memory
    of the bucket's continuing owner; None for other brokers.
    """
    unit = node.units.get(bucket, Unit())
    if not node.is_primary:
        return Refuse(Reason.NOT_PRIMARY, "the store that this broker reaches is not a primary")
    if unit.format > FORMAT_VERSION:
        return Refuse(
            Reason.UNKNOWN_FORMAT,
            f"bucket {bucket} is stored in log format {unit.format}, and this broker supports formats up to"
            f" {FORMAT_VERSION}: start a broker of the version that wrote it",
        )
    if max(record.ledger_high_water, unit.last_ledger) > NUMBER_MAX - LEDGERS_PER_BLOCK:
        return Refuse(Reason.NUMBERS_EXHAUSTED, f"bucket {bucket} has used up its ledger numbers")
    if record.generation == 0:
        if unit.generation == 0:
            return FirstRegistration()
        return Refuse(
            Reason.UNREGISTERED_DATA,
            f"the store already holds bucket {bucket}, registered with an anchor that is not this"
            f" one: point the broker at the anchor that belongs to it, or {_FORCE}",
        )
    if unit.generation > record.generation:
        return Refuse(
            Reason.ANCHOR_BEHIND,
            f"the store holds bucket {bucket} in registration {unit.generation}, the anchor knows"
            f" only {record.generation}: was the anchor restored from a backup? {_FORCE}",
        )
    # On every anchor ``last_ledger`` is written before the first thing of a bucket is acknowledged
    # (HeldBucket.record_use). While it is 0, the dataset has nothing that could be missing: its
    # first owner ended before the first stamp, or never served a topic.
    last_known = max(record.last_ledger, remembered or 0)
    if unit.generation == 0 and last_known != 0:
        return Refuse(
            Reason.EMPTY_DATASET,
            f"the store holds nothing of bucket {bucket}, although it was in use: bring the data"
            f" back, or {_FORCE}",
        )
    if node.replid == record.replid:
        return SameDataset()
    names_registration = unit.generation == record.generation
    is_back = sharded and names_registration  # its hash slot moved to another primary, and back
    if node.replid in record.past_replids and not is_back:
        return Refuse(
            Reason.PAST_DATASET,
            f"the store shows an earlier dataset of bucket {bucket}, which was replaced: an old"
            f" primary? Connect to the present one, or {_FORCE}",
        )
    # The server itself forgets its former identity when it restarts, or when its first replica connects.
    was_registered = node.previous_replid == record.replid or unit.note == note_of(record)
    is_descendant = was_registered or names_registration
    if is_descendant or (single_node and node.replicas == 0):
        is_reliable = records_every_grant or record.clean
        last_granted = last_known if is_reliable else remembered
        is_known = last_granted is not None and unit.last_ledger >= last_granted
        is_older = is_restored(record) and not is_known
        return Adopt(grants_known=is_known, is_older=is_older)
    return Refuse(
        Reason.FOREIGN_DATASET,
        f"the store's dataset does not descend from the one registered for bucket {bucket}:"
        f" connect to the right one, or {_FORCE}",
    )


def restored(record: Record) -> Record:
    """The record of ``adopt --restored``: the next dataset is a copy that lacks what was written since.

    It has no owner, and names a ledger as granted that no dataset has. So every copy of the data is recognised as older
    (``is_restored``), also by brokers of an earlier release, which then let no earlier epoch resume.
    """
    high_water = record.ledger_high_water + LEDGERS_PER_BLOCK
    return replace(
        record,
        owner="",
        addresses=Addresses(),
        ledger_high_water=high_water,
        last_ledger=high_water,
        clean=True,
    )


def is_restored(record: Record) -> bool:
    """Whether this is a record that ``restored`` returned.

    No owner releases a bucket after it has granted its last reserved ledger: it reserves others before.
    """
    return record.clean and 0 < record.ledger_high_water == record.last_ledger


def is_moved(record: Record, node: Observation) -> bool:
    """Whether an adopted dataset is another one than a promotion of the registered one: its process restarted, or
    the hash slot moved.

    Its replicas may not have the bucket's present record yet.
    """
    return record.generation > 0 and record.replid not in {node.replid, node.previous_replid}


def note_of(record: Record) -> str:
    """The note that a dataset has which was about to be registered with ``record`` (Unit.note).

    It names the generation, because a dataset may be registered twice under the same identity. A copy from before
    the second registration has only the first note.
    """
    return f"{record.replid}/{record.generation}"


def needs_note(record: Record, bucket: int, node: Observation) -> bool:
    """Whether a dataset that is registered with ``record`` would be taken for a foreign one if it changed its identity
    before its stamp.
    """
    unit = node.units.get(bucket, Unit())
    return unit.generation != record.generation and unit.note != note_of(record)


def incomplete_since(record: Record, *, single_node: bool) -> int:
    """The newest registration of a dataset that may lack acknowledged entries; 0: there is none.

    A single node without copies has all of them, unless an administrator forced the adoption of another dataset, or the
    end of its file is missing. Both registrations are in ``known_since``.
    """
    if record.generation == 1:
        return 0
    return record.known_since if single_node else record.generation


def acquired(
    record: Record,
    bucket: int,
    node: Observation,
    verdict: SameDataset | FirstRegistration | Adopt,
    *,
    owner: str,
    addresses: Addresses,
) -> Record:
    """The record with which ``owner`` acquires the bucket and reserves its first block of ledgers."""
    unit = node.units.get(bucket, Unit())
    taken = replace(
        record,
        owner=owner,
        addresses=addresses,
        # Also above the ledgers in the store: an anchor restored from a backup is older.
        ledger_high_water=max(record.ledger_high_water, unit.last_ledger) + LEDGERS_PER_BLOCK,
        # A grant that the former owner did not record in time.
        last_ledger=max(record.last_ledger, unit.last_ledger),
        clean=False,
    )
    match verdict:
        case SameDataset():
            return taken
        case FirstRegistration() | Adopt(grants_known=True):
            return _registered(taken, node.replid, record.generation + 1)
        case Adopt():
            registered = _registered(taken, node.replid, record.generation + 1)
            return replace(
                registered,
                known_since=registered.generation,
                last_ledger=unit.last_ledger,  # the loss is noted; from here on the present data counts
            )


def forced(record: Record, bucket: int, node: Observation, *, owner: str) -> Record:
    """The record of ``adopt --force``: the node's dataset becomes the registered one.

    It starts a new registration in which no earlier epoch can resume, above every number in the
    anchor or the store.
    """
    unit = node.units.get(bucket, Unit())
    generation = max(record.generation, unit.generation) + 1
    return replace(
        _registered(record, node.replid, generation),
        owner=owner,
        addresses=Addresses(),
        ledger_high_water=max(record.ledger_high_water, unit.last_ledger),
        last_ledger=unit.last_ledger,
        clean=True,
        known_since=generation,
    )


def _registered(record: Record, replid: str, generation: int) -> Record:
    """Register the dataset ``replid``."""
    past = record.past_replids
    if record.replid and record.replid != replid:
        past = (*past, record.replid)[-PAST_REPLIDS_MAX:]
    return replace(
        record,
        generation=generation,
        replid=replid,
        past_replids=tuple(known for known in past if known != replid),
    )
