"""The state of one topic: frozen values that only look things up.

Each partition has its own epoch and its own ownership. A topic without partitions has a single one, with the
number WHOLE. A *producer group* asks for one partition or, if it is a partitioned producer, for all partitions.
It gets all of them or none.
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
"""Producer groups that may wait for one topic."""

HELD_BACK_MAX = 4_096
"""Requests of partitioned producers that may wait for their partition 0."""

REFUSED_GROUPS_MAX = 256
"""Rejected partitioned producers whose remaining requests are still expected, newest last."""

DEPOSED_MAX = 16
"""Deposed identities that a partition remembers, newest last."""

SERVE_SECONDS_MAX = 3.0
"""Upper limit of ``serve_seconds``: how long a holder may serve after its last assurance that it holds the topic."""

DEFERRED_MAX = 256
"""Requests that may wait for a pending fence."""


class ImpossibleStep(AssertionError):
    """The caller broke the rules of the machine. This is a bug in the caller; no peer can cause it."""


class AccessMode(enum.IntEnum):
    """The access mode of a producer (PIP-68; numbers as in CommandProducer)."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class TransitionCause(enum.Enum):
    """Why a writer stopped writing: the cause of the next transition."""

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
    """The purpose of a fence. It is also the kind of the fence's audit record."""

    GRANT = "grant"
    SHARE = "share"
    RESUME = "resume"
    ROLL = "roll"
    REFENCE = "refence"
    DEPOSE = "fence"


@dataclass(frozen=True, slots=True)
class Request:
    """One PRODUCER command that the session decoded and admitted.

    ``registration`` names this producer on this connection. It is never used again. ``alone``: the producer
    competes for this partition only, not for the topic. ``producer_name`` is the client's, or generated.
    ``priority`` is already capped by the claim. ``topic_epoch`` is the epoch that a reconnecting producer sends,
    None at creation. ``reconnects`` is CommandProducer.epoch. ``if_epoch``: the takeover is valid only if it
    deposes the holder of this epoch.
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
    admitted_by: str = ""
    address: str = ""
    may_take_over: bool = True
    if_epoch: int | None = None
    host: str = ""
    serve_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Member:
    """One producer of a group: its partition and its registration."""

    partition: int
    registration: str
    reconnects: int = 0


@dataclass(frozen=True, slots=True)
class ProducerGroup:
    """What holds partitions, waits for them or is about to get them.

    A group is a single producer, or a partitioned producer with one member per partition. ``group_id`` is
    unique. ``partitions`` are the partitions that the group wants, ``members`` the producers that have connected.
    ``is_partitioned``: the group wants all partitions, also those that are added later. ``arrival`` increases
    with each group of a topic, so two groups never tie.
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
    admitted_by: str
    address: str
    host: str = ""
    """The unit over which the Balanced policy spreads topics: the producer's node or its substitute."""
    serve_seconds: float = 0.0
    """Seconds after its last assurance for which the holder may act for the topic; 0: it only writes."""

    def without(self, registration: str) -> ProducerGroup:
        for member in self.members:
            if member.registration == registration:
                break
        else:
            return self  # the usual case in a long queue
        return replace(
            self, members=tuple(m for m in self.members if m.registration != registration)
        )

    def has_member(self, partition: int) -> bool:
        return any(m.partition == partition for m in self.members)


@dataclass(frozen=True, slots=True)
class Tenure:
    """A grant as the log's marker stores it: its holder may resume without a new epoch.

    ``admitted_by`` is the ProducerClaim that admitted the holder. It is informative: editing the claim ends no tenure.
    """

    epoch: int
    producer_name: str
    identity: Identity
    admitted_by: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a writer's right to write.

    ``at``: when the writer left or was found dead, or when a fence stopped it. ``heard_at``: its last sign of life;
    None: unknown.
    """

    at: float
    heard_at: float | None = None


@dataclass(frozen=True, slots=True)
class Absence:
    """How the last writer of a partition left, for the record of the next transition.

    ``since``: since when there is no writer; None: there never was one, or it is unknown. ``ending``: the end of the last
    writer's right; None: likewise. ``is_recalled``: another broker recorded the cause. The writer may have returned to
    it since, and have left no record of that.
    """

    cause: TransitionCause = TransitionCause.NONE
    since: float | None = None
    ending: Ending | None = None
    is_recalled: bool = False

    def seconds(self, now: float) -> float | None:
        """How long there has been no writer. None: unknown, or there never was one."""
        return None if self.since is None else now - self.since

    def outage(self, grant: float) -> Outage | None:
        """The outage if a producer gets its grant at that time. None: unknown, or there never was a writer."""
        if self.ending is None:
            return None
        at, heard_at = self.ending.at, self.ending.heard_at
        detection = None if heard_at is None else max(0.0, at - heard_at)
        return Outage(detection, max(0.0, grant - at))


@dataclass(frozen=True, slots=True)
class Vacant:
    """No producer writes. The holder of the tenure, if there is one, may resume it."""

    tenure: Tenure | None = None
    absence: Absence = Absence()


@dataclass(frozen=True, slots=True)
class Reserved:
    """The bucket moved to this broker. Until ``until`` only the tenure's holder is granted the partition."""

    tenure: Tenure
    until: float
    absence: Absence = Absence()


@dataclass(frozen=True, slots=True)
class Shared:
    """Shared producers write. No tenure can be resumed."""

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
    """One exclusive producer writes. ``group_id`` names its group among the topic's holders.

    ``may_be_lost``: the store failed over and may have forgotten the grant. The holder is then deposed.
    """

    tenure: Tenure
    group_id: str
    may_be_lost: bool = False


Ownership = Vacant | Reserved | Shared | Held


@dataclass(frozen=True, slots=True)
class Outage:
    """The time in which no producer could write before a grant, in seconds.

    ``detection_seconds``: from the former writer's last sign of life to the end of its right; None: unknown.
    ``handover_seconds``: from then to the grant.
    """

    detection_seconds: float | None
    handover_seconds: float

    @property
    def seconds(self) -> float | None:
        """The whole outage. None: unknown."""
        if self.detection_seconds is None:
            return None
        return self.detection_seconds + self.handover_seconds


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition and its ownership.

    ``epoch`` is the highest topic epoch ever granted here. ``ledger`` is the newest ledger that this broker
    fenced. ``is_open``: this broker fenced it in the present dataset and may append. ``deposed`` lists identities
    that lost a tenure without leaving. ``serve_seconds``: the last holder may act for the topic for this time after
    its last assurance; 0: it may not, or it left by itself.
    """

    number: int
    epoch: int = 0
    ledger: int = 0
    is_open: bool = False
    ownership: Ownership = Vacant()
    deposed: tuple[Identity, ...] = ()
    serve_seconds: float = 0.0

    @property
    def absence(self) -> Absence | None:
        """How the last writer left. None: there is a writer."""
        match self.ownership:
            case Vacant(_, absence) | Reserved(_, _, absence):
                return absence
            case Shared() | Held():
                return None
            case _:
                assert_never(self.ownership)


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
    cause: TransitionCause = TransitionCause.NONE
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
"""The phase of a topic. It selects the column of the transition table."""

FencePhase = Fencing | FencingFormerDataset | Draining


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A request of a partitioned producer that waits for the request of partition 0."""

    request: Request
    until: float


@dataclass(frozen=True, slots=True)
class RefusedGroup:
    """A partitioned producer that was rejected or fenced out. Its remaining requests get the same answer.

    ``missing`` are the partitions that it has not asked for yet. Each is answered once. ``producer_name`` is
    empty if the client did not choose one.
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
    """The order in which waiters are promoted. ``waiters.py`` defines each order."""

    FIFO = "Fifo"
    PRIORITY = "Priority"
    BALANCED = "Balanced"


Loads = tuple[tuple[str, int], ...]
"""The number of topics that each host leads. A host that is not listed leads none."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The whole state of one topic."""

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
    """Topics that the waiters' hosts lead besides this one, as last reported. Balanced uses them."""

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
        """The partition with that number, None if there is none."""
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
    """New partitions of a topic; ``partitions`` 0: a single one, for a topic without partitions."""
    if partitions == 0:
        return (Partition(WHOLE),)
    return tuple(Partition(number) for number in range(partitions))
