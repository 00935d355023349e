"""The state of one topic: frozen values, no behaviour beyond looking things up.

A topic has *partitions*: one per partition, or a single partition for a topic that has none. Every partition has
its own epoch and its own ownership. A *group* asks for one partition or, as a partitioned producer,
for all of them at once; it gets all it asked for or nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import assert_never

from onewriter_core.errors import ServerError
from onewriter_core.ids import Identity

WHOLE = -1
"""The partition number of a topic that has no partitions."""

WAITERS_MAX = 10_000
"""Contenders that may wait for one topic."""

HELD_BACK_MAX = 4_096
"""Requests of partitioned producers that may wait for their partition 0."""

REFUSED_GROUPS_MAX = 256
"""Refused partitioned producers whose remaining requests are expected, newest last."""

DEPOSED_MAX = 16
"""Deposed identities remembered per partition, newest last."""

SERVE_SECONDS_MAX = 3.0
"""How long a holder may ask to go on serving after it was last assured that it holds the topic."""

DEFERRED_MAX = 256
"""Requests that may wait for a pending fence."""


class ImpossibleStep(AssertionError):
    """The machine was driven against its rules: a bug in the shell, never a peer's doing."""


class AccessMode(enum.IntEnum):
    """How a producer wants the topic (PIP-68; numbers as in CommandProducer)."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class Departure(enum.Enum):
    """Why a writer no longer writes; the cause of the transition that follows."""

    NONE = "Initial"
    CLOSED = "Released"
    CONNECTION_LOST = "ConnectionLost"
    SILENT = "Silent"
    PROGRESS_DEADLINE = "ProgressDeadline"
    TAKEN_OVER = "TakenOver"
    HANDED_OVER = "Handover"
    FENCED = "FencedByAdministrator"
    MOVED = "BrokerChanged"
    GRANT_LOST = "GrantLost"


class Purpose(enum.Enum):
    """What a fence is for; also the kind of its audit record."""

    GRANT = "grant"
    SHARE = "share"
    RESUME = "resume"
    ROLL = "roll"
    REFENCE = "refence"
    DEPOSE = "fence"


@dataclass(frozen=True, slots=True)
class Request:
    """One PRODUCER command, as the session understood and admitted it.

    ``registration`` names this producer on this connection, uniquely for ever. ``alone``: compete
    for this one partition, not for the topic. ``producer_name`` is the client's, or invented.
    ``priority`` is already capped by the claim. ``topic_epoch`` is what a reconnecting producer
    carries, None at creation; ``reconnects`` is CommandProducer.epoch. ``if_epoch`` makes a
    takeover conditional on the epoch it deposes.
    """

    registration: str
    connection: str
    producer_name: str
    mode: AccessMode
    partition: int = WHOLE
    alone: bool = False
    name_given: bool = False
    identity: Identity = Identity()
    priority: int = 0
    topic_epoch: int | None = None
    reconnects: int = 0
    claim: str = ""
    address: str = ""
    may_take_over: bool = True
    if_epoch: int | None = None
    host: str = ""
    serve_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Member:
    """One producer of a group: the partition it stands for and its registration."""

    partition: int
    registration: str
    reconnects: int = 0


@dataclass(frozen=True, slots=True)
class ProducerGroup:
    """Somebody who holds, is fencing or waits for partitions: one producer, or a partitioned one's group.

    ``group_id`` is unique. ``partitions`` are what it wants, ``members`` the producers that have arrived;
    ``is_partitioned``: it wants all partitions, also those added later.
    ``arrival`` counts up per topic, so two groups never tie.
    """

    group_id: str
    partitions: tuple[int, ...]
    members: tuple[Member, ...]
    is_partitioned: bool
    producer_name: str
    name_given: bool
    identity: Identity
    mode: AccessMode
    connection: str
    priority: int
    arrival: int
    claim: str
    address: str
    host: str = ""
    """What topics are spread over by the Balanced policy: its node, or what stands in for that."""
    serve_seconds: float = 0.0
    """As holder it acts in the topic's name for so long after it was assured; 0: only by writing."""

    def without(self, registration: str) -> ProducerGroup:
        for member in self.members:
            if member.registration == registration:
                break
        else:
            return self  # most of a long queue, whenever one of it leaves
        return replace(
            self, members=tuple(m for m in self.members if m.registration != registration)
        )

    def has_member(self, partition: int) -> bool:
        return any(m.partition == partition for m in self.members)


@dataclass(frozen=True, slots=True)
class Tenure:
    """A grant that stands in the marker: who may resume it without a new epoch.

    ``claim`` is what admitted the holder, for people: a claim edited since ends nobody's tenure.
    """

    epoch: int
    producer_name: str
    identity: Identity
    claim: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Vacant:
    """Nobody writes. Whoever held the tenure may still resume it."""

    tenure: Tenure | None = None


@dataclass(frozen=True, slots=True)
class Reserved:
    """The bucket changed brokers: the tenure's holder has until ``until`` to come back first."""

    tenure: Tenure
    until: float


@dataclass(frozen=True, slots=True)
class Shared:
    """Shared producers write; no tenure can be resumed."""

    producers: tuple[SharedProducer, ...]


@dataclass(frozen=True, slots=True)
class SharedProducer:
    """One connected producer of mode Shared."""

    registration: str
    producer_name: str
    identity: Identity
    reconnects: int


@dataclass(frozen=True, slots=True)
class Held:
    """One exclusive producer writes; ``group_id`` names it among the topic's holders.

    ``may_be_lost``: the store failed over and may have forgotten the grant. The holder is then deposed.
    """

    tenure: Tenure
    group_id: str
    may_be_lost: bool = False


Ownership = Vacant | Reserved | Shared | Held


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition's ownership.

    ``epoch`` is the highest topic epoch ever granted here. ``ledger`` is the newest one fenced by
    this broker; ``is_open`` says that this broker fenced it in the present dataset. ``departure``
    and ``vacant_since`` tell how the last writer left, for the next transition's record. ``deposed``
    are identities that lost a tenure other than by leaving. ``serve_seconds``: for so long after it was
    assured for the last time the last holder may act in the topic's name; 0: not at all, or it left.
    """

    number: int
    epoch: int = 0
    ledger: int = 0
    is_open: bool = False
    ownership: Ownership = Vacant()
    departure: Departure = Departure.NONE
    vacant_since: float | None = None
    deposed: tuple[Identity, ...] = ()
    serve_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PendingFence:
    """The fence that the topic waits for: who gets what once it is stored.

    ``group`` asked for it. ``group`` is None if a roll, a re-fence, an administrator or Shared producers
    (``newcomers``) did. ``answers`` names the administrator's request.
    """

    number: int
    purpose: Purpose
    partitions: tuple[int, ...]
    group: ProducerGroup | None = None
    newcomers: tuple[SharedProducer, ...] = ()
    departure: Departure = Departure.NONE
    answers: str = ""


@dataclass(frozen=True, slots=True)
class Settled:
    """No fence is pending: every request is decided at once."""


@dataclass(frozen=True, slots=True)
class Fencing:
    """The store has been asked for the fence. Its result decides."""

    fence: PendingFence


@dataclass(frozen=True, slots=True)
class FencingFormerDataset:
    """The store failed over while the fence was on its way.

    The result still decides, but the ledger may belong to the former dataset: it opens no partition.
    """

    fence: PendingFence


@dataclass(frozen=True, slots=True)
class Draining:
    """The fence is stored under ``ledger``. The former holder may still serve until ``until``.

    The new writer gets its grant then. ``first`` is the fence's first partition before the fence.
    """

    fence: PendingFence
    ledger: int
    until: float
    first: Partition


@dataclass(frozen=True, slots=True)
class Closed:
    """This broker no longer serves the topic. No event changes it any more."""


Phase = Settled | Fencing | FencingFormerDataset | Draining | Closed
"""The state of a topic that selects the row's function in the transition table."""

FencePhase = Fencing | FencingFormerDataset | Draining


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A partitioned producer's request that waits for its partition 0."""

    request: Request
    until: float


@dataclass(frozen=True, slots=True)
class RefusedGroup:
    """A partitioned producer that was refused or fenced out: the rest of it gets the same answer.

    ``missing`` are the partitions that it has not asked for yet; each is answered once.
    ``producer_name`` is empty if the client gave none.
    """

    connection: str
    producer_name: str
    identity: Identity
    mode: AccessMode
    missing: tuple[int, ...]
    code: ServerError
    text: str
    until: float


class PromotionPolicy(enum.StrEnum):
    """In which order waiters are promoted; ``waiters.py`` has the order itself."""

    FIFO = "Fifo"
    PRIORITY = "Priority"
    BALANCED = "Balanced"


Loads = tuple[tuple[str, int], ...]
"""How many topics hosts lead; who is not named leads none."""


@dataclass(frozen=True, slots=True)
class Topic:
    """Everything the machine knows about one topic."""

    partitions: tuple[Partition, ...]
    policy: PromotionPolicy = PromotionPolicy.PRIORITY
    holders: tuple[ProducerGroup, ...] = ()
    queue: tuple[ProducerGroup, ...] = ()
    held_back: tuple[HeldBack, ...] = ()
    refused_groups: tuple[RefusedGroup, ...] = ()
    deferred: tuple[Request, ...] = ()
    phase: Phase = Settled()
    arrivals: int = 0
    fences_started: int = 0
    loads: Loads = ()
    """What the waiters' hosts lead besides this topic, as last told; Balanced chooses by it."""

    @property
    def pending_fence(self) -> PendingFence | None:
        """The fence that the topic waits for, None if there is none."""
        match self.phase:
            case Fencing(fence) | FencingFormerDataset(fence) | Draining(fence):
                return fence
            case Settled() | Closed():
                return None
            case _:
                assert_never(self.phase)

    @property
    def is_closed(self) -> bool:
        return isinstance(self.phase, Closed)

    def partition(self, number: int) -> Partition | None:
        """The partition of that number, None when there is none."""
        for partition in self.partitions:
            if partition.number == number:
                return partition
        return None

    @property
    def epoch(self) -> int:
        """The highest topic epoch over all partitions."""
        return max((partition.epoch for partition in self.partitions), default=0)

    def holder(self, group_id: str) -> ProducerGroup | None:
        for group in self.holders:
            if group.group_id == group_id:
                return group
        return None


def partitioned(partitions: int) -> tuple[Partition, ...]:
    """Fresh partitions for a topic with that many partitions; 0: one partition for the topic itself."""
    if partitions == 0:
        return (Partition(WHOLE),)
    return tuple(Partition(number) for number in range(partitions))
