"""Events in any order: every promise of tests/topic_invariants.py holds.

Hypothesis plays broker, store, administrators and misbehaving clients against the real ``step``: unknown
registrations, wrong partitions, invented epochs, late answers, closed topics.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.topic_invariants import check, check_step, places

from onewriter_core.ids import Identity
from onewriter_core.topic.effects import Effect, Grant
from onewriter_core.topic.events import (
    ClockTicked,
    DatasetChanged,
    Event,
    FenceRefused,
    FenceRequested,
    FenceStored,
    HandoverRequested,
    LedgerFull,
    LoadsChanged,
    PartitionsAdded,
    PolicyChanged,
    ProducerGone,
    ProducerRequested,
    Unloaded,
)
from onewriter_core.topic.machine import next_deadline, step
from onewriter_core.topic.model import (
    AccessMode,
    Fencing,
    FencingFormerDataset,
    ImpossibleStep,
    Partition,
    PromotionPolicy,
    Request,
    Reserved,
    Tenure,
    Topic,
    TransitionCause,
    Vacant,
    partitioned,
)

PEOPLE = [
    ("alice", Identity("alice", "pod-1")),
    ("bob", Identity("bob", "pod-2")),
    ("carol", Identity()),
]
"""Names and identities. carol's identity is anonymous."""

HOSTS = ["one", "two", "three"]
CAUSES = [TransitionCause.CLOSED, TransitionCause.CONNECTION_LOST, TransitionCause.SILENT]


class AnyTopic(RuleBasedStateMachine):
    """One topic in a world that follows only the rules of the shell: events that it cannot send do not occur."""

    def __init__(self) -> None:
        super().__init__()
        self.topic = Topic(partitioned(0))
        self.now = 100.0
        self.ledger = 50
        self.registrations = 0
        self.granted: list[tuple[Request, int]] = []
        self.requests: dict[str, Request] = {}

    @initialize(
        count=st.sampled_from([0, 0, 2, 3]),
        policy=st.sampled_from(PromotionPolicy),
        past=st.sampled_from(["new", "left", "moved here"]),
    )
    def begin(self, count: int, policy: PromotionPolicy, past: str) -> None:
        partitions = partitioned(count)
        tenure = Tenure(7, *PEOPLE[0])
        if past == "left":
            partitions = tuple(
                replace(s, epoch=7, ledger=9, ownership=Vacant(tenure)) for s in partitions
            )
        elif past == "moved here":
            reserved = Reserved(tenure, self.now + 3)
            partitions = tuple(
                replace(s, epoch=7, ledger=9, ownership=reserved) for s in partitions
            )
        self.topic = Topic(partitions, policy)
        check(self.topic)

    def event(self, what: Event) -> tuple[Effect, ...]:
        before = self.topic
        after, effects = step(before, what)
        check(after)
        check_step(before, what, after, effects)
        assert step(before, what) == (after, effects)
        self.topic = after
        for effect in effects:
            event(f"{type(what).__name__} -> {type(effect).__name__}")
            if isinstance(effect, Grant) and effect.epoch is not None:
                self.granted.append((self.requests[effect.registration], effect.epoch))
        return effects

    def asks(self, request: Request) -> tuple[Effect, ...]:
        self.registrations += 1
        request = replace(request, registration=f"r{self.registrations}")
        self.requests[request.registration] = request
        return self.event(ProducerRequested(request, self.now))

    @rule(
        who=st.sampled_from(PEOPLE),
        mode=st.sampled_from(AccessMode),
        partition=st.integers(-1, 3),
        alone=st.booleans(),
        name_given=st.booleans(),
        priority=st.integers(-1, 2),
        may_take_over=st.booleans(),
        names_epoch=st.sampled_from([None, None, "present", "past"]),
        host=st.sampled_from(HOSTS),
        serve_seconds=st.sampled_from([0.0, 0.0, 1.0, 3.0]),
    )
    def somebody_asks(
        self,
        who: tuple[str, Identity],
        mode: AccessMode,
        partition: int,
        alone: bool,
        name_given: bool,
        priority: int,
        may_take_over: bool,
        names_epoch: str | None,
        host: str,
        serve_seconds: float,
    ) -> None:
        name, identity = who
        if_epoch = {None: None, "present": self.topic.epoch, "past": self.topic.epoch - 1}
        self.asks(
            Request(
                "",
                connection=f"connection of {name}",
                producer_name=name if name_given else f"{name}-{self.registrations}",
                mode=mode,
                partition=partition,
                alone=alone,
                name_given=name_given,
                identity=identity,
                priority=priority,
                may_take_over=may_take_over,
                if_epoch=if_epoch[names_epoch],
                host=host,
                serve_seconds=serve_seconds,
            )
        )

    @rule(
        who=st.sampled_from(PEOPLE),
        shuffle=st.permutations([0, 1, 2]),
        mode=st.sampled_from(AccessMode),
    )
    def a_partitioned_client_asks_for_all_at_once(
        self, who: tuple[str, Identity], shuffle: list[int], mode: AccessMode
    ) -> None:
        name, identity = who
        for partition in shuffle:
            self.asks(
                Request("", f"connection of {name}", name, mode, partition, identity=identity)
            )

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), later=st.integers(-1, 2), ahead=st.sampled_from([0, 0, 0, 1, -1]))
    def somebody_comes_back(self, data: st.DataObject, later: int, ahead: int) -> None:
        request, epoch = data.draw(st.sampled_from(self.granted[-6:]))
        self.asks(
            replace(
                request,
                reconnects=max(request.reconnects + later, 0),
                topic_epoch=epoch + ahead,
            )
        )

    @rule(data=st.data(), cause=st.sampled_from(CAUSES))
    def somebody_goes(self, data: st.DataObject, cause: TransitionCause) -> None:
        known = [*places(self.topic), "r1", "nobody"]
        who = data.draw(st.sampled_from(known))
        self.event(ProducerGone(who, cause, self.now))
        assert who not in places(self.topic)

    @rule(
        seconds=st.sampled_from([0.0, 0.5, 2.0, 4.0]),
        late_seconds=st.sampled_from([0.0, 0.0, 1.0, 3.0]),
    )
    def time_passes(self, seconds: float, late_seconds: float = 0.0) -> None:
        self.now += seconds
        self.event(ClockTicked(self.now, self.now + late_seconds))
        deadline = next_deadline(self.topic)
        assert deadline is None or deadline > self.now

    @precondition(lambda self: self.is_fencing)
    @rule(jump=st.integers(1, 3), assured_ago=st.sampled_from([None, 0.0, 0.5, 2.0, math.inf]))
    def the_fence_is_stored(self, jump: int, assured_ago: float | None) -> None:
        assert self.topic.pending_fence is not None
        self.ledger += jump
        assured_at = None if assured_ago is None else self.now - assured_ago
        self.event(FenceStored(self.topic.pending_fence.number, self.ledger, self.now, assured_at))

    @property
    def is_fencing(self) -> bool:
        """Return whether an answer of the store is outstanding."""
        return isinstance(self.topic.phase, Fencing | FencingFormerDataset)

    def the_fence_is_decided(self) -> None:
        """The fence is stored, and no former holder serves any more."""
        if self.is_fencing:
            self.the_fence_is_stored(1, None)
        self.time_passes(4.0)

    @precondition(lambda self: self.is_fencing)
    @rule()
    def the_fence_is_refused(self) -> None:
        assert self.topic.pending_fence is not None
        self.event(FenceRefused(self.topic.pending_fence.number, "no ledger left", self.now))

    @rule(past=st.booleans())
    def a_fence_nobody_asked_for_is_loud(self, past: bool) -> None:
        number = (
            self.topic.fences_started
            if past and self.topic.pending_fence is None
            else self.topic.fences_started + 1
        )
        for answer in (
            FenceStored(number, self.ledger + 1, self.now),
            FenceRefused(number, "", self.now),
        ):
            if self.topic.is_closed:
                assert step(self.topic, answer) == (self.topic, ())
            else:
                with pytest.raises(ImpossibleStep):
                    step(self.topic, answer)

    @precondition(lambda self: self.topic.pending_fence is not None)
    @rule()
    def a_ledger_of_the_past_is_loud(self) -> None:
        assert self.topic.pending_fence is not None
        partitions = [
            s for s in self.topic.partitions if s.number in self.topic.pending_fence.partitions
        ]
        newest = max(max(partition.ledger, partition.epoch) for partition in partitions)
        with pytest.raises(ImpossibleStep):
            step(self.topic, FenceStored(self.topic.pending_fence.number, newest, self.now))

    @rule(to=st.sampled_from(["", "bob", "nobody"]))
    def an_administrator_hands_over(self, to: str) -> None:
        self.event(HandoverRequested("admin-1", to, self.now))

    @rule(if_epoch=st.sampled_from([None, "present", "past"]))
    def an_administrator_fences(self, if_epoch: str | None) -> None:
        named = {None: None, "present": self.topic.epoch, "past": self.topic.epoch - 1}
        self.event(FenceRequested("admin-2", named[if_epoch], self.now))

    @rule(partition=st.integers(-1, 3))
    def a_ledger_is_full(self, partition: int) -> None:
        self.event(LedgerFull(partition, self.now))

    @rule(grants_known=st.booleans())
    def the_store_fails_over(self, grants_known: bool) -> None:
        self.event(DatasetChanged(grants_known, self.now))

    @precondition(
        lambda self: self.topic.partitions[0].number == 0 and len(self.topic.partitions) < 4
    )
    @rule()
    def partitions_are_added(self) -> None:
        self.event(PartitionsAdded((Partition(len(self.topic.partitions)),), self.now))

    @rule(policy=st.sampled_from(PromotionPolicy))
    def the_policy_changes(self, policy: PromotionPolicy) -> None:
        self.event(PolicyChanged(policy, self.now))

    @rule(loads=st.dictionaries(st.sampled_from(HOSTS), st.integers(0, 2)))
    def hosts_lead_other_topics(self, loads: dict[str, int]) -> None:
        self.event(LoadsChanged(tuple(loads.items()), self.now))

    @precondition(lambda self: self.registrations > 12)
    @rule()
    def the_broker_lets_it_go(self) -> None:
        self.event(Unloaded("the bucket moves", self.now))
        assert self.topic.is_closed
        assert not places(self.topic)

    def teardown(self) -> None:
        """Heal: every fence is stored and every producer leaves. Then the topic has no producers left."""
        while self.topic.pending_fence is not None:
            self.the_fence_is_decided()
        self.time_passes(10.0)
        while (
            left := next(iter(places(self.topic)), None)
        ) is not None or self.topic.pending_fence:
            if left is not None:
                self.event(ProducerGone(left, TransitionCause.CLOSED, self.now))
            if self.topic.pending_fence is not None:
                self.the_fence_is_decided()


AnyTopic.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAnyTopic = AnyTopic.TestCase
