"""Histories for the checkers: written through a real LogStore, with the broker's own fields.

A TopicHistory is a minimal broker: one bucket, one topic, real fences and blocks, and the entries that its producers
are told to send. The tests define how mutants change the stored bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.stamps import fence_once, stamp_anew

from onewriter_broker.log.store.api import Append, Binding, FencedLog, LogStore, Marker, Outcome
from onewriter_broker.log.store.api import Fence as StoreFence
from onewriter_broker.log.topic_log.atomic_publish import Entries, Publish
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.log.topic_log.pending_blocks import PendingEntry
from onewriter_broker.topic.history.tenures import (
    audit_fields,
    group_fields,
    marker_fields,
    state_fields,
)
from onewriter_broker.topic.registry.catalog import CatalogEntry
from onewriter_core.ids import Identity, Position, TopicName, bucket_of
from onewriter_core.log_format.limits import BLOCK_ENTRIES_MAX
from onewriter_core.publishers import (
    CAPABILITY,
    HELD,
    PUBLISHER,
    Publisher,
    encode_publisher,
    publisher_of,
)
from onewriter_core.topic.effects import NEW_EPOCH, Fence
from onewriter_core.topic.model import (
    WHOLE,
    AccessMode,
    Held,
    Member,
    Partition,
    ProducerGroup,
    PromotionPolicy,
    Purpose,
    Tenure,
    TransitionCause,
    Vacant,
)
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Send

BUCKETS = 4
TOPIC = TopicName.parse("orders")


def no_subscription() -> Position | None:
    """The position of the slowest durable subscription of a topic without subscriptions."""
    return None


class StoredOnly:
    """A sender of entries that are stored: any other result fails the test."""

    def stored(self, entries: Sequence[PendingEntry], first: Position, size: int) -> None:
        return

    def unknown(self, size: int) -> None:
        raise AssertionError

    def refused(self, size: int) -> None:
        raise AssertionError


def waiter(name: str, *, priority: int = 0, arrival: int = 0) -> ProducerGroup:
    """A producer that waits for the whole topic."""
    return ProducerGroup(
        group_id=f"group-{name}-{arrival}",
        partitions=(WHOLE,),
        members=(Member(WHOLE, f"registration-{name}-{arrival}"),),
        is_partitioned=False,
        producer_name=name,
        name_given=True,
        identity=Identity(f"account-{name}"),
        mode=AccessMode.WAIT_FOR_EXCLUSIVE,
        connection=f"connection-{name}",
        priority=priority,
        arrival=arrival,
        admitted_by="",
        address="192.0.2.1:1",
    )


def entry(
    producer: str, sequence_id: int, *, chunk: int | None = None, time_ms: int = 0, batch: int = 0
) -> bytes:
    """An entry as a client sends it; ``chunk`` of three, or a batch of so many."""
    metadata = pb.MessageMetadata(
        producer_name=producer,
        sequence_id=sequence_id,
        publish_time=time_ms or 1_700_000_000_000 + sequence_id,
    )
    if chunk is not None:
        metadata.uuid = f"{producer}-{sequence_id}"
        metadata.chunk_id = chunk
        metadata.num_chunks_from_msg = 3
        metadata.total_chunk_msg_size = 30
    if batch:
        metadata.num_messages_in_batch = batch
        metadata.highest_sequence_id = sequence_id + batch - 1
    return build_entry(metadata, b"value %d" % sequence_id)


@dataclass
class TopicHistory:
    """One topic and its log. ``ledger`` counts up; ``clock_ms`` is advanced by every step."""

    store: LogStore
    binding: Binding
    topic: TopicName = TOPIC
    ledger: int = 0
    clock_ms: int = 1_700_000_000_000
    policy: PromotionPolicy = PromotionPolicy.PRIORITY
    partitions: dict[int, Partition] = field(default_factory=dict)
    logs: dict[int, TopicLog] = field(default_factory=dict)
    claims: int = 0

    @classmethod
    async def begin(
        cls,
        store: LogStore,
        *,
        topic: TopicName = TOPIC,
        partitions: int = 0,
        owner: str = "broker-a",
        version: int = 1,
        ledger: int = 4,
    ) -> TopicHistory:
        bucket = bucket_of(topic, BUCKETS)
        replid = (await store.observe([bucket])).replid
        binding = Binding(bucket, replid, 1, owner, version)
        assert await stamp_anew(store, binding) is Outcome.DONE
        history = cls(store, binding, topic, ledger)
        numbers = tuple(range(partitions)) or (WHOLE,)
        for number in numbers:
            name = topic if number == WHOLE else topic.with_partition(number)
            history.partitions[number] = Partition(number)
            history.logs[number] = TopicLog(name, store)
        entry = CatalogEntry(partitions=partitions, log_numbers=numbers)
        assert await store.set_catalog(binding, {str(topic): entry.encode()}) is Outcome.DONE
        return history

    @property
    def log(self) -> TopicLog:
        """The only log of a topic without partitions."""
        return self.logs[WHOLE]

    async def fence(
        self,
        purpose: Purpose,
        group: ProducerGroup | None = None,
        *,
        left: ProducerGroup | None = None,
        cause: TransitionCause = TransitionCause.NONE,
        partitions: Sequence[int] = (),
        loads: tuple[int, int] = (0, 0),
    ) -> int:
        """Open the next ledger for these partitions, or all, as the machine would ask for it."""
        numbers = tuple(partitions) or tuple(self.partitions)
        self.ledger += 1
        self.claims += 1
        self.clock_ms += 10
        begins_epoch = purpose in {Purpose.GRANT, Purpose.DEPOSE}
        tenures: list[tuple[int, Tenure | None]] = []
        for number in numbers:
            ownership = self.partitions[number].ownership
            tenure = ownership.tenure if isinstance(ownership, Held | Vacant) else None
            if purpose is Purpose.GRANT:
                assert group is not None
                tenure = Tenure(NEW_EPOCH, group.producer_name, group.identity)
            elif purpose in {Purpose.DEPOSE, Purpose.SHARE}:
                tenure = None
            tenures.append((number, tenure))
        effect = Fence(
            self.claims,
            purpose,
            numbers,
            group,
            cause,
            (),
            tuple(tenures),
            tuple((number, ()) for number in numbers),
            left,
            self.policy,
            *loads,
        )
        parts = tuple(
            FencedLog(
                self.logs[number].name,
                not self.logs[number].exists,
                marker_fields(effect, number, self.ledger, self.clock_ms),
                state_fields(effect, self.partitions[number], self.ledger, self.clock_ms),
            )
            for number in numbers
        )
        audit = audit_fields(
            effect,
            str(self.topic),
            self.ledger,
            self.partitions[numbers[0]],
            self.binding.owner,
            {number: self.logs[number].summary() for number in numbers},
            self.clock_ms,
        )
        outcome = await fence_once(self.store, StoreFence(self.binding, self.ledger, parts, audit))
        assert outcome is Outcome.DONE
        for number, part in zip(numbers, parts, strict=True):
            topic_log = self.logs[number]
            topic_log.open(self.ledger, self.binding, 0.0)
            topic_log._state.update(part.state)
            topic_log.marker_committed(Marker(Position(self.ledger, 0), part.marker))
            topic_log._is_writable = True
            partition = self.partitions[number]
            tenure = dict(tenures)[number]
            if purpose is Purpose.GRANT and tenure is not None:
                tenure = replace(tenure, epoch=self.ledger)
            self.partitions[number] = replace(
                partition,
                epoch=self.ledger if begins_epoch else partition.epoch,
                ledger=self.ledger,
                ownership=Vacant() if tenure is None else Held(tenure, "group"),
            )
        return self.ledger

    async def publish(self, *entries: bytes, partition: int = WHOLE) -> Position:
        """Append one block of these entries; the position of its last one."""
        topic_log = self.logs[partition]
        self.clock_ms += 10
        for one in entries:
            topic_log.accept((StoredOnly(), Send(0, 0), memoryview(one)))
        pending = topic_log.next_block(self.clock_ms)
        assert pending is not None
        append = Append(self.binding, topic_log.name, pending.token, pending.block)
        assert await self.store.append([append]) == [Outcome.DONE]
        topic_log.block_committed(pending)
        return pending.block.last

    async def publish_as_whole(
        self, publisher: Publisher, version: int, *, app: str = "app", is_recorded: bool = True
    ) -> None:
        """An atomic publish of two blocks under the epoch that leads, as a broker stores it.

        By the holder itself, or with a capability of its. ``is_recorded``: the broker's audit says so.
        """
        self.clock_ms += 10
        ownership = self.partitions[WHOLE].ownership
        assert isinstance(ownership, Held)
        holder = ownership.tenure.identity
        if is_recorded:
            reported = {"subject": publisher.subject, "podUID": publisher.pod_uid}
            await self.audit(
                kind=PUBLISHER,
                log=str(self.topic),
                epoch=str(ownership.tenure.epoch),
                app=app,
                right=HELD if publisher_of(holder) == publisher else CAPABILITY,
                holder=str(holder),
                **{name: value for name, value in reported.items() if value},
            )
        sends = [Send(0, version)] * (BLOCK_ENTRIES_MAX + 1)
        content = entry(app, version)
        publish = Publish(
            *(app, version, Entries((send, content) for send in sends), lambda: True, None),
            encode_publisher(publisher),
        )
        while not publish.is_formed:
            pending = publish.form(self.log, self.clock_ms)
            append = Append(
                *(self.binding, self.topic, pending.token, pending.block), opens=pending.opens
            )
            assert await self.store.append([append]) == [Outcome.DONE]

    async def audit(self, **fields: str) -> None:
        """A record that belongs to no fence."""
        record = {"topic": str(self.topic), "broker": self.binding.owner, "t": str(self.clock_ms)}
        assert await self.store.write_audit(self.binding, record | fields) is Outcome.DONE

    async def resumed(self, group: ProducerGroup) -> None:
        """The holder came back under the epoch it had."""
        await self.audit(
            kind="resume",
            epoch=str(self.partitions[WHOLE].epoch),
            ledger=str(self.ledger),
            cause=TransitionCause.CONNECTION_LOST.value,
            **group_fields(group),
        )


async def a_long_history(store: LogStore) -> TopicHistory:
    """Alice, Bob after her, a roll, an administrator, Shared producers, and Carol at the end.

    Ledgers: 5 Alice, 6 Alice after a roll, 7 Bob, 8 fenced, 9 Shared, 10 Carol.
    """
    history = await TopicHistory.begin(store)
    alice, bob = waiter("alice", arrival=1), waiter("bob", priority=5, arrival=3)
    carol = waiter("carol", arrival=2)
    await history.fence(Purpose.GRANT, alice)
    await history.publish(entry("alice", 0), entry("alice", 1))
    await history.publish(entry("alice", 2, batch=3), entry("alice", 5))
    await history.publish(entry("alice", 6))
    await history.resumed(alice)
    await history.fence(Purpose.ROLL)
    await history.publish(*(entry("alice", 7, chunk=chunk) for chunk in range(3)))
    await history.publish(entry("alice", 8))
    await history.fence(Purpose.GRANT, bob, left=carol)
    await history.publish(entry("bob", 0))
    await history.publish(entry("bob", 1), entry("bob", 2))
    await history.fence(Purpose.DEPOSE, cause=TransitionCause.FENCED)
    await history.fence(Purpose.SHARE)
    await history.publish(entry("x", 0), entry("y", 0), entry("x", 1))
    await history.publish(entry("x", 0, time_ms=1_700_000_900_000))  # another producer of that name
    await history.fence(Purpose.GRANT, carol)
    await history.publish(entry("carol", 0))
    await history.publish(*(entry("carol", 1, chunk=chunk) for chunk in range(3)))
    await history.publish(entry("carol", 2))
    return history


ALICE, BOB = Publisher("account-alice"), Publisher("account-bob")
SPARK = Publisher("spark", "pod-1")
"""It bears a capability."""


async def a_history_with_publishers(store: LogStore) -> TopicHistory:
    """Alice and Spark publish under epoch 5, in ledgers 5 and 6; Bob and Spark under epoch 7."""
    history = await TopicHistory.begin(store)
    await history.fence(Purpose.GRANT, waiter("alice", arrival=1))
    await history.publish_as_whole(ALICE, 1)
    await history.publish_as_whole(SPARK, 2)
    await history.fence(Purpose.ROLL)
    await history.publish_as_whole(ALICE, 3, is_recorded=False)  # it was, under this epoch
    await history.publish_as_whole(ALICE, 1, app="other")
    await history.fence(Purpose.GRANT, waiter("bob", arrival=2))
    await history.publish_as_whole(BOB, 4)
    await history.publish_as_whole(SPARK, 5)
    return history
