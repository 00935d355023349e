"""Plays one round of the campaign on a cluster: writers, the fault of the plan, the repair, and the check.

Three topics have a writer each: a ``Replicated`` and a ``Local`` one of the same bucket, and a ``Replicated`` one of
another shard. After the repair another writer takes each topic over, so every round ends with a takeover.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from click.testing import CliRunner
from tests.integration.bare_brokers import declared
from tests.integration.cluster_checker import SILENT, UNRECORDED, Outcome, Reports, violations
from tests.integration.cluster_links import Route, both_ways
from tests.integration.cluster_plans import Fault, Plan, Role, Step
from tests.integration.continuous_writer import reported_losses, stored_topic
from tests.integration.following import placed
from tests.integration.linked_cluster import (
    BROKERS,
    KEYS,
    NODES,
    WRITER,
    LinkedCluster,
    World,
    broker_name,
    node_name,
    routes_to_store,
)
from tests.integration.raw import eventually
from tests.integration.recorded_writer import (
    PUBLISHING,
    SETTLED_SECONDS_MAX,
    STOPPING,
    WriterProcess,
    records_of,
)
from tests.servers import StoreServer
from tests.store_cluster import SHARDS, wait_until

from onewriter_broker.verbs.adopt import adopt as adopt_command
from onewriter_core.cluster_views import first_slot, slot_of
from onewriter_core.errors import OnewriterError
from onewriter_core.ids import Position, TopicName
from onewriter_testing.processes import LocalBrokers

ACKNOWLEDGED = 10
"""Receipts of each writer before the fault, and of the last writer after the repair."""

LOST = 10
"""Further messages that are acknowledged before data of a topic is lost."""

FAULT_SECONDS_MAX = 3.0
"""A fault without a promotion that it waits for lasts at most this long."""

STEP_SECONDS_MAX = 0.3
"""The fault occurs within this time after the begin of its step."""

REFUSED_SECONDS = 30.0
"""A bucket that no broker adopts is waited for this long before an administrator decides."""

REPORT_SECONDS = 1.0
"""Time between two checks whether losses are reported."""

TORN_BYTES_MAX = 4_096


class Topics:
    """The topics of a round."""

    def __init__(self, number: int) -> None:
        self.replicated = f"round-{number}-replicated"
        bucket = KEYS.bucket(TopicName.parse(self.replicated))
        names = (f"round-{number}-local-{n}" for n in itertools.count())
        self.local = next(n for n in names if KEYS.bucket(TopicName.parse(n)) == bucket)
        names = (f"round-{number}-other-{n}" for n in itertools.count())
        self.other = next(n for n in names if shard_of(n) != shard_of(self.replicated))

    @property
    def all(self) -> tuple[str, str, str]:
        return self.replicated, self.local, self.other


def shard_of(topic: str) -> int:
    """The shard that serves a topic."""
    slot = slot_of(KEYS.unit(KEYS.bucket(TopicName.parse(topic))))
    return next(n for n in range(SHARDS) if slot < first_slot(n + 1, SHARDS))


def manifests_of(numbers: Iterable[int]) -> str:
    """The manifests of the topics of some rounds."""
    topics = [Topics(number) for number in numbers]
    names = [name for each in topics for name in (each.replicated, each.other)]
    return declared(*((name, "Replicated") for name in names))


class Round:
    """One round in a world that is whole, and is whole again afterwards."""

    def __init__(self, world: World, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.topics = Topics(plan.number)
        self.has_promoted = False
        self.was_adopted_by_force = False
        self._world = world
        self._cluster = world.cluster
        self._brokers = world.brokers
        self._folder = folder
        self._chance: random.Random = plan.chance
        self._writers: list[WriterProcess] = []
        self._emptied: list[StoreServer] = []
        self._owner = 0

    def play(self) -> list[Outcome]:
        """Return the outcome of each topic."""
        self._folder.mkdir()
        (self._folder / PUBLISHING).touch()
        placed(self._brokers, *self.topics.all)
        self._owner = self._brokers.owner_of(self.topics.replicated)
        try:
            first = [self._write(topic, "first", cut=True) for topic in self.topics.all]
            for writer in first:
                writer.has_acknowledged(ACKNOWLEDGED)
            self._fail()
            self._repair()
            self._prove()
            self._take_over()
        finally:
            self._end_writers()
        return [self._outcome(topic) for topic in self.topics.all]

    # ------------------------------------------------------------ writers

    def _write(
        self, topic: str, name: str, *, fences: bool = False, cut: bool = False
    ) -> WriterProcess:
        """Start a writer. ``cut``: its connections can be cut."""
        direct = {self._brokers.address(n)[1]: self._brokers.address(n)[1] for n in range(BROKERS)}
        through = {self._brokers.address(n)[1]: self._world.writer_ports[n] for n in range(BROKERS)}
        writer = WriterProcess(topic, name, self._folder, through if cut else direct, fences=fences)
        self._writers.append(writer)
        return writer

    def _receipts(self, topic: str) -> int:
        """The receipts that all writers of a topic have recorded."""
        return sum(writer.receipts for writer in self._writers if writer.topic == topic)

    def _take_over(self) -> None:
        """Let another writer take each topic over, and wait for receipts of each topic."""
        last = [self._write(topic, "last", fences=True) for topic in self.topics.all]
        goals = {topic: self._receipts(topic) + ACKNOWLEDGED for topic in self.topics.all}

        def is_written() -> bool:
            return all(writer.has_ended or writer.receipts for writer in last) and all(
                self._receipts(topic) >= goal for topic, goal in goals.items()
            )

        if self.plan.is_second and self.plan.role in {Role.PRIMARY, Role.REPLICA, Role.OWNER}:
            try:
                eventually(is_written, REFUSED_SECONDS)
            except TimeoutError:
                self._adopt()
        eventually(is_written, SETTLED_SECONDS_MAX, what=f"too few receipts for {goals}")

    def _adopt(self) -> None:
        """Do what the documentation says about a dataset that is refused after a second failure."""
        refused = [str(event["reason"]) for event in self._brokers.events("bucket.refused")]
        if refused:
            done = CliRunner(env={"ONEWRITER_BUCKETS": str(KEYS.buckets)}).invoke(
                adopt_command,
                [
                    *("--force", "--all", "--reason", refused[-1][:200]),
                    *("--redis-url", self._cluster.url),
                    *("--data-dir", str(self._brokers.data_directory)),
                ],
            )
            self.was_adopted_by_force = "registration" in done.output

    def _end_writers(self) -> None:
        (self._folder / PUBLISHING).unlink(missing_ok=True)
        (self._folder / STOPPING).touch()
        self._world.links.repair()
        for writer in self._writers:
            writer.wait()

    # ------------------------------------------------------------ the fault

    @property
    def _primary(self) -> StoreServer:
        return self._cluster.primary_of(self.topics.replicated)

    def _partner(self, server: StoreServer) -> StoreServer:
        """The other node of the shard."""
        return self._cluster.partner(server)

    def _fail(self) -> None:
        """Begin the step, and let the fault of the plan occur."""
        primary = self._primary
        other = self._cluster.primary_of(self.topics.other)
        step = self.plan.step
        if step is Step.IDLE:
            (self._folder / PUBLISHING).unlink()
        elif step is Step.TAKEOVER:
            for topic in (self.topics.replicated, self.topics.local):
                self._write(topic, "second", fences=True)
            time.sleep(self._chance.uniform(0.0, STEP_SECONDS_MAX))
        elif self.plan.is_second:
            successor = self._partner(primary)
            primary.kill()
            if step is not Step.PROMOTION:
                self._promoted(successor)
            if step is Step.RETURN:
                primary.start()
            time.sleep(self._chance.uniform(0.0, STEP_SECONDS_MAX))
            primary = successor
        match self.plan.role:
            case Role.PRIMARY:
                self._fail_node(primary)
            case Role.REPLICA:
                self._fail_node(self._partner(primary))
            case Role.OTHER_PRIMARY:
                self._fail_node(other)
            case Role.OWNER:
                self._fail_broker(self._owner, primary)
            case Role.OTHER_BROKER:
                self._fail_broker(1 - self._owner, primary)
            case Role.WRITER:
                self._fail_writers()
        if step is not Step.TAKEOVER and self._chance.random() < 0.5:
            for topic in (self.topics.replicated, self.topics.local):
                self._write(topic, "second", fences=True)
        time.sleep(self._chance.uniform(0.0, FAULT_SECONDS_MAX))

    def _promoted(self, server: StoreServer) -> None:
        wait_until(lambda: self._cluster.serves(server))
        self.has_promoted = True

    def _fail_node(self, server: StoreServer) -> None:
        partner = self._partner(server)
        name, partner_name = (node_name(self._cluster.number_of(s)) for s in (server, partner))
        nodes = [node_name(number) for number in range(NODES)]
        links = self._world.links
        match self.plan.fault:
            case Fault.KILLED:
                server.kill()
            case Fault.FROZEN:
                server.pause()
            case Fault.CUT_FROM_NODES:
                links.cut(both_ways(name, [node for node in nodes if node != name]))
            case Fault.CUT_FROM_PARTNER:
                links.cut(both_ways(name, [partner_name]))
            case Fault.CUT_FROM_BROKERS:
                links.cut(Route(broker_name(number), name) for number in range(BROKERS))
            case Fault.TORN:
                server.kill()
                if self.plan.role is not Role.REPLICA:
                    self._promoted(partner)
                self._tear(server, self._chance.randrange(TORN_BYTES_MAX))
                server.start()
            case Fault.TORN_AT_ONCE:
                mark = server.append_only_bytes()
                self._acknowledge_more()
                server.kill()
                self._tear(server, self._chance.randrange(server.append_only_bytes() - mark + 1))
                server.start()
            case Fault.EMPTIED:
                self._cluster.empty(server)
                server.start()
                self._emptied.append(server)
            case Fault.LAGGING | Fault.LAGGING_WITH_OWNER:
                copying = Route(partner_name, name)
                links.cut([copying])
                self._acknowledge_more()
                server.kill()
                if self.plan.fault is Fault.LAGGING_WITH_OWNER:
                    self._kill_or_freeze(self._owner)
                links.reset([copying])
                self._promoted(partner)
            case fault:
                raise AssertionError(f"{fault} is not a fault of a node")

    def _tear(self, server: StoreServer, lost_bytes: int) -> None:
        """Cut the end of a dead server's file."""
        server.cut_append_only(max(0, server.append_only_bytes() - lost_bytes))

    def _acknowledge_more(self) -> None:
        """Wait for further receipts of the topic that needs no replica."""
        if self.plan.step is Step.IDLE:
            return
        goal = self._receipts(self.topics.local) + LOST
        eventually(
            lambda: self._receipts(self.topics.local) >= goal,
            SETTLED_SECONDS_MAX,
            what="no receipts without a replica",
        )

    def _fail_broker(self, number: int, primary: StoreServer) -> None:
        match self.plan.fault:
            case Fault.KILLED:
                self._brokers.kill(number)
            case Fault.FROZEN:
                self._brokers.freeze(number)
            case Fault.CUT_FROM_PRIMARY:
                to_primary = Route(broker_name(number), node_name(self._cluster.number_of(primary)))
                self._world.links.cut([to_primary])
            case Fault.CUT_FROM_STORE:
                self._world.links.cut(routes_to_store(number))
            case fault:
                raise AssertionError(f"{fault} is not a fault of a broker")

    def _kill_or_freeze(self, number: int) -> None:
        if self._chance.random() < 0.5:
            self._brokers.kill(number)
        else:
            self._brokers.freeze(number)

    def _fail_writers(self) -> None:
        """The writers of the bucket fail together."""
        writers = [writer for writer in self._writers if writer.topic != self.topics.other]
        match self.plan.fault:
            case Fault.KILLED:
                for writer in writers:
                    writer.send_signal(signal.SIGKILL)
            case Fault.FROZEN:
                for writer in writers:
                    writer.send_signal(signal.SIGSTOP)
            case Fault.CUT_FROM_BROKERS:
                self._world.links.cut(
                    Route(WRITER, broker_name(number)) for number in range(BROKERS)
                )
            case fault:
                raise AssertionError(f"{fault} is not a fault of a writer")

    # ------------------------------------------------------------ the repair

    def _repair(self) -> None:
        """Continue what is frozen, start what is dead, and repair the network. Nothing else is done by hand."""
        self._world.links.repair()
        for server in self._cluster.servers:
            if server.is_running:
                server.resume()
            else:
                server.start()
        for writer in self._writers:
            writer.send_signal(signal.SIGCONT)
        for server in self._emptied:
            wait_until(partial(self._cluster.serves, self._partner(server)))
        self._brokers.heal()
        self._cluster.wait_complete()
        (self._folder / PUBLISHING).touch()

    def _prove(self) -> None:
        """Promote a replica that lost data, and what it copied since must suffice."""
        if self.plan.role is Role.REPLICA and self.plan.fault in {Fault.TORN, Fault.EMPTIED}:
            primary = self._primary
            primary.kill()
            self._promoted(self._partner(primary))
            primary.start()
            self._cluster.wait_complete()

    # ------------------------------------------------------------ the outcome

    def _outcome(self, topic: str) -> Outcome:
        """The outcome, as soon as the log can be read and all losses are reported."""
        found: list[Outcome] = []

        def is_reported() -> bool:
            with contextlib.suppress(OnewriterError):
                found.append(self.observed(topic))
                texts = violations(found[-1])
                if not any(SILENT in text or UNRECORDED in text for text in texts):
                    return True
            time.sleep(REPORT_SECONDS)
            return False

        with contextlib.suppress(TimeoutError):
            eventually(is_reported, SETTLED_SECONDS_MAX / 2)
        return found[-1] if found else self.observed(topic)

    def observed(self, topic: str) -> Outcome:
        """What is known about a topic now."""
        may_lose = topic == self.topics.local or self.was_adopted_by_force
        if topic == self.topics.replicated and self.plan.fault is Fault.TORN_AT_ONCE:
            may_lose = True  # its disk has lost what it had confirmed, and no other node could know
        return Outcome(
            topic,
            may_lose,
            records_of(self._writers, topic),
            stored_topic(self._cluster.url, topic, buckets=KEYS.buckets),
            reports_of(self._brokers, topic),
            audit_of(self._cluster, topic),
        )


def reports_of(brokers: LocalBrokers, topic: str) -> Reports:
    """What the brokers logged about losses of the topic."""
    name = str(TopicName.parse(topic))
    return Reports(
        reported_losses([brokers], topic),
        [
            (Position.parse(str(event["after"])), int(str(event["ledger"])))
            for event in brokers.events("entries.at_risk")
            if event["topic"] == name
        ],
    )


def audit_of(cluster: LinkedCluster, topic: str) -> Reports:
    """What the audit stream of the topic's bucket says about losses of the topic."""
    name = TopicName.parse(topic)
    records = cluster.primary_of(topic).command("XRANGE", KEYS.audit(KEYS.bucket(name)), "-", "+")
    reports = [
        {key.decode(): value.decode() for key, value in fields.items()}
        for _, fields in records
        if fields.get(b"log") == str(name).encode()
    ]
    return Reports(
        [
            (Position.parse(report["after"]), Position.parse(report["last"]))
            for report in reports
            if report["kind"] == "loss"
        ],
        [
            (Position.parse(report["after"]), int(report["ledger"]))
            for report in reports
            if report["kind"] == "risk"
        ],
    )
