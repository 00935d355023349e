"""Losses that the operator repairs, with brokers and writers on the pods of the store: most primaries lost together, pods that a
smaller layout removes, and a volume that is restored from a copy.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.bare_brokers import declared
from tests.integration.cluster_checker import Outcome, Reports, judge
from tests.integration.continuous_writer import stored_topic
from tests.integration.forked import fork
from tests.integration.forked_brokers import BUCKETS
from tests.integration.recorded_writer import (
    PUBLISHING,
    STOPPING,
    WriterProcess,
    records_of,
)
from tests.integration.store_pods import (
    SHARDS,
    Pod,
    PodBrokers,
    World,
    pod_names,
    run_adopt,
)

from onewriter_broker.log.store.keys import Keys
from onewriter_core.cluster_views import first_slot, slot_of
from onewriter_core.ids import Position, TopicName

pytestmark = [pytest.mark.timeout(900), pytest.mark.full]

KEYS = Keys(BUCKETS)
LINES = 20
"""Receipts of each writer before a fault, and of the next writer after it."""

ADOPT_SECONDS_MAX = 240.0


def shard_of(topic: str) -> int:
    slot = slot_of(KEYS.unit(KEYS.bucket(TopicName.parse(topic))))
    return next(n for n in range(SHARDS) if slot < first_slot(n + 1, SHARDS))


def topic_in(shard: int, stem: str) -> str:
    """A topic of a shard."""
    return next(n for n in (f"{stem}-{k}" for k in itertools.count()) if shard_of(n) == shard)


REPLICATED = [topic_in(shard, "replicated") for shard in range(SHARDS)]
LOCAL = [topic_in(shard, "local") for shard in range(SHARDS)]


class Stage:
    """Brokers on the pods, and writers."""

    def __init__(self, world: World, brokers: PodBrokers, folder: Path) -> None:
        self.world, self.brokers = world, brokers
        self._folder = folder
        self.writers: list[WriterProcess] = []
        folder.mkdir()
        (folder / PUBLISHING).touch()

    def write(self, name: str, *topics: str, fences: bool = False) -> list[WriterProcess]:
        """Start a writer of each topic, and wait until each has receipts."""
        ports = {self.brokers.address(n)[1]: self.brokers.address(n)[1] for n in (0, 1)}
        found = [WriterProcess(topic, name, self._folder, ports, fences=fences) for topic in topics]
        self.writers += found
        for writer in found:
            writer.has_acknowledged(LINES)
        return found

    def writer(self, topic: str) -> WriterProcess:
        return next(writer for writer in reversed(self.writers) if writer.topic == topic)

    def more(self, *topics: str) -> None:
        """Wait for further receipts of these topics."""
        goals = {topic: self.writer(topic).receipts + LINES for topic in topics}
        for topic, goal in goals.items():
            self.writer(topic).has_acknowledged(goal)

    def adopt(self, *options: str) -> None:
        """Run ``onewriter adopt --all``, as in a broker's pod."""
        log = self._folder / "adopt.log"
        done = fork(
            run_adopt,
            ["--all", *options, "--data-dir", str(self.brokers.data_directory)],
            log=log,
            environment={
                "ONEWRITER_BUCKETS": str(BUCKETS),
                "ONEWRITER_REDIS_URL": self.world.url,
            },
        )
        assert done.wait(ADOPT_SECONDS_MAX) == 0, log.read_text()

    def end(self) -> None:
        (self._folder / PUBLISHING).unlink(missing_ok=True)
        (self._folder / STOPPING).touch()
        for writer in self.writers:
            writer.wait()

    def outcome(self, topic: str, *, may_lose: bool) -> Outcome:
        name = str(TopicName.parse(topic))
        return Outcome(
            topic,
            may_lose,
            records_of(self.writers, topic),
            stored_topic(self.world.url, topic, buckets=BUCKETS),
            Reports(
                [
                    (Position.parse(str(e["after"])), Position.parse(str(e["last"])))
                    for e in self.brokers.events("entries.lost")
                    if e["topic"] == name
                ],
                [
                    (Position.parse(str(e["after"])), int(str(e["ledger"])))
                    for e in self.brokers.events("entries.at_risk")
                    if e["topic"] == name
                ],
            ),
            self.audit(topic),
        )

    def audit(self, topic: str) -> Reports:
        name = TopicName.parse(topic)
        with self.world.primary_of(shard_of(topic)).connected() as connection:
            records = connection.xrange(KEYS.audit(KEYS.bucket(name)))
        found = [
            {key.decode(): value.decode() for key, value in fields.items()}
            for _, fields in records
            if fields.get(b"log") == str(name).encode()
        ]
        return Reports(
            [
                (Position.parse(each["after"]), Position.parse(each["last"]))
                for each in found
                if each["kind"] == "loss"
            ],
            [
                (Position.parse(each["after"]), int(each["ledger"]))
                for each in found
                if each["kind"] == "risk"
            ],
        )


@contextlib.contextmanager
def staged(folder: Path, replicas: int = 1) -> Iterator[Stage]:
    world = World(folder, replicas)
    brokers = PodBrokers(
        folder / "brokers",
        brokers=2,
        manifests=declared(*((topic, "Replicated") for topic in REPLICATED)),
        redis_url=world.url,
        supervised=False,
        settings={"buckets": BUCKETS, "redis_replicas": 1, "store_timeout_seconds": 2.0},
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(pod_names())
        stack.callback(world.stop_all)
        for pod in world.pods:
            pod.start()
        with world.operating(replicas):
            world.until_complete()
        world.plans.clear()
        stack.callback(brokers.stop)
        brokers.start()
        stage = Stage(world, brokers, folder / "writers")
        stack.callback(stage.end)
        try:
            yield stage
        except BaseException as error:
            error.add_note(f"the brokers' log ends with:\n{brokers.log_end()}")
            raise


@pytest.mark.parametrize("owner_is_lost", [False, True])
def test_replicas_take_over_without_votes_when_most_primaries_are_lost_together(
    tmp_path: Path, *, owner_is_lost: bool
) -> None:
    """One of them is lost with its volume, the other one hangs on a node that is cut off, and wakes at the end.

    The replicas restart, too, and lack the newest messages. No primary votes for them, and the operator decides.
    """
    with staged(tmp_path) as stage:
        world = stage.world
        first = stage.write("first", *REPLICATED, *LOCAL)
        cut_off, lost = (world.primary_of(shard) for shard in (0, 1))
        replicas = [world.replicas_of(shard)[0] for shard in (0, 1)]
        for replica in replicas:
            replica.kill()
        stage.more(*LOCAL, REPLICATED[2])
        for writer in first:
            if shard_of(writer.topic) == 0:
                writer.send_signal(signal.SIGSTOP)
        if owner_is_lost:
            stage.brokers.kill(0)
            stage.brokers.kill(1)
        zombie = cut_off.abandon()
        lost.lose_volume()
        for replica in replicas:
            replica.start()
        with world.operating():
            world.until_complete(skipped_seconds=2.0)
        assert "CLUSTER FAILOVER TAKEOVER" in "\n".join(world.commands())
        assert "ADDSLOTSRANGE" not in world.words()
        assert {cut_off, lost}.isdisjoint(world.primaries())
        if owner_is_lost:
            stage.brokers.restart(0, wait=False)
            stage.brokers.restart(1, wait=False)
            stage.brokers.wait_ready()
        stage.write("second", *REPLICATED, *LOCAL, fences=True)
        zombie.send_signal(signal.SIGCONT)
        for writer in first:
            writer.send_signal(signal.SIGCONT)
        stage.more(*REPLICATED, *LOCAL)
        stage.end()
        for topic in (*REPLICATED, *LOCAL):
            outcome = stage.outcome(topic, may_lose=topic in LOCAL)
            judge(outcome)
            assert outcome.missing or topic not in LOCAL[:2]
            if not owner_is_lost:  # an owner that lives knows what is missing
                assert all(outcome.reports.lists(position) for _, position in outcome.missing)


def test_a_primary_whose_pod_a_smaller_layout_removes_hands_over(tmp_path: Path) -> None:
    """One of the removed pods stops in order, another one only when a replica has taken over from it."""
    with staged(tmp_path, replicas=2) as stage:
        world = stage.world
        removed = [pod for pod in world.pods if pod.name.endswith("-2")]
        stage.write("first", *REPLICATED, *LOCAL)
        for pod in removed[:2]:
            move(world, pod)
        stage.more(*REPLICATED, *LOCAL)
        ids = {pod.view().me for pod in removed}
        with world.operating(1):
            removed[0].leave()
            world.until(lambda: removed[0] not in world.primaries(), "no replica took over")
            removed[0].stop()
            removed[2].leave()
            removed[2].stop()
            stage.more(REPLICATED[2], LOCAL[2])
            world.until(lambda: removed[1] not in world.primaries(), "it was not relieved", 2.0)
            removed[1].leave()
            removed[1].stop()
            for pod in removed:
                world.pods.remove(pod)
            world.until(lambda: ids.isdisjoint(world.ids()), "ids of removed pods stay", 2.0)
            world.until_complete()
            stage.more(*REPLICATED, *LOCAL)
        stage.end()
        for topic in (*REPLICATED, *LOCAL):
            judge(stage.outcome(topic, may_lose=topic in LOCAL))


def move(world: World, pod: Pod) -> None:
    """Let a replica take over from its primary, as the operator does to spread the primaries."""
    pod.execute("CLUSTER", "FAILOVER")
    world.until(lambda: pod in world.primaries(), "it did not take over")


@pytest.mark.parametrize(
    ("copied", "brokers_restart"), [("replica", False), ("primary", True), ("former replica", True)]
)
def test_a_shard_whose_volumes_are_all_lost_is_restored_as_documented(
    tmp_path: Path, copied: str, *, brokers_restart: bool
) -> None:
    """The steps of docs/install.md, "Backup and restore". After the copy further messages are acknowledged.

    ``former replica``: after the copy it was promoted, so brokers refuse the copy, and a person decides.
    """
    with staged(tmp_path) as stage:
        world, copy = stage.world, tmp_path / "copy"
        stage.write("first", *REPLICATED, *LOCAL)
        primary, replica = world.primary_of(0), world.replicas_of(0)[0]
        source = primary if copied == "primary" else replica
        source.copy_volume(copy)
        stage.more(*REPLICATED, *LOCAL)
        if copied == "former replica":
            with world.operating():
                primary.lose_volume()
                world.until_complete()
            stage.more(*REPLICATED, *LOCAL)
        with world.operating():
            primary.kill()
            replica.lose_volume()
            primary.lose_volume()
            world.until_planned("no pod of shard 0 has its data any more")
            stage.more(REPLICATED[1], LOCAL[1], REPLICATED[2], LOCAL[2])
        stage.adopt("--restored")
        if brokers_restart:
            stage.brokers.stop()
        primary.stop()
        replica.stop()
        source.restore_volume(copy)
        with world.operating():
            primary.start()
            replica.start()
            if brokers_restart:
                stage.brokers.start(wait=False)
            world.until_complete(skipped_seconds=2.0)
            if copied == "former replica":
                stage.brokers.wait_for_event(
                    "bucket.waiting", lambda event: "adopt --force" in str(event["reason"])
                )
                stage.adopt("--force", "--reason", "restored")
            stage.brokers.wait_ready()
            stage.write("second", *REPLICATED, *LOCAL, fences=True)
            stage.more(*REPLICATED, *LOCAL)
        stage.end()
        for topic in (*REPLICATED, *LOCAL):
            is_restored = shard_of(topic) == 0
            outcome = stage.outcome(topic, may_lose=is_restored or topic in LOCAL)
            judge(outcome)
            assert outcome.missing or not is_restored
            assert outcome.reports.at_risk or not (is_restored and brokers_restart)
