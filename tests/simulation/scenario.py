"""The scenario of a run: clients compete, faults occur and are repaired, and the final data enters the history.

The seed decides which clients there are and which faults occur. README.md describes the steps.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from functools import partial

from tests.contents import Contents
from tests.simulation.actors import roles
from tests.simulation.actors.client import Client
from tests.simulation.actors.consumer import Reader
from tests.simulation.actors.guardian import beside, elsewhere, guardian
from tests.simulation.actors.owner import own_repeatedly
from tests.simulation.actors.producer import Producer
from tests.simulation.checkers.promotion import was_spread
from tests.simulation.cluster_faults import CLUSTER_FAULTS
from tests.simulation.history import (
    History,
    Kind,
    LogEntry,
    LogMarker,
    Operation,
    Outcome,
    TopicLogs,
)
from tests.simulation.nemesis import FAULTS, Fault, Nemesis
from tests.simulation.recording import holder_and_number, value_of
from tests.simulation.world import BUCKETS, LOCAL_TOPIC, REPLICATED_TOPIC, World, run

from onewriter_broker.dispatch.cursor import Cursor
from onewriter_broker.dispatch.ledgers import LedgerGaps
from onewriter_broker.dispatch.saved_cursors import STATE_PREFIX
from onewriter_broker.log.store.api import Marker
from onewriter_broker.log.topic_log.log import payloads
from onewriter_core.ids import NUMBER_MAX, Position, TopicName, bucket_of
from onewriter_core.topic.model import Purpose
from onewriter_testing.fake_store.cluster import FakeCluster, even_ranges

TOPICS = [LOCAL_TOPIC, REPLICATED_TOPIC]

TARGETS = [target for t in TOPICS for target in (beside(t), elsewhere(t, BUCKETS))]
"""The topics to which guardians write under their guard (actors/guardian.py)."""

SHARDS = 3
"""Shards of a cluster: two with a bucket each, and one that only votes."""

CALM_SECONDS = 16.0
"""Time between the repair of the last fault and the final reads: L1's bound and a margin."""


def simulate(seed: int, faults: Mapping[str, Fault] = FAULTS) -> History:
    """Run one seed with these faults. The same arguments give the same history."""
    randomness = random.Random(f"{seed}/shape")
    scenario = partial(run_scenario, faults=faults)
    return run(seed, scenario, brokers=randomness.choice([2, 2, 3]))


def simulate_cluster(
    seed: int,
    faults: Mapping[str, Fault] = CLUSTER_FAULTS,
    *,
    empty_serves: bool = False,
    confirms_for_others: bool = False,
) -> History:
    """Run one seed on a cluster of three shards.

    The options plant bugs in the fake nodes: a node without data serves (``FakeCluster.empty_serves``), or WAIT ignores
    which connection wrote (``FakeNode.confirms_for_others``).
    """
    randomness = random.Random(f"{seed}/shape")
    cluster = FakeCluster(even_ranges(BUCKETS, SHARDS), empty_serves=empty_serves)
    for node in cluster.nodes.values():
        node.confirms_for_others = confirms_for_others
    scenario = partial(run_scenario, faults=faults)
    return run(seed, scenario, brokers=randomness.choice([2, 2, 3]), cluster=cluster)


async def run_scenario(world: World, faults: Mapping[str, Fault] = FAULTS) -> None:
    randomness = world.random("scenario")
    _add_clients(world, randomness)
    await asyncio.sleep(randomness.uniform(0.5, 2.0))
    administrator = roles.Administrator(world, TOPICS, world.random("administrator"))
    if randomness.random() < 0.5:
        world.background(administrator.run())
    await Nemesis(world, world.random("nemesis"), faults).run()
    world.history.healed_at = world.loop.time()
    for _ in range(8):
        await administrator.adopt()  # as an operator does who sees a refused bucket
        await asyncio.sleep(CALM_SECONDS / 8)
    for name in sorted(world.clients):
        if not name.startswith("consumer"):
            world.kill_client(name)
    await _write_and_read_at_the_end(world)
    add_final_data(world)


def _add_clients(world: World, randomness: random.Random) -> None:
    """Add clients that the seed chooses. Over many seeds, all combinations of modes compete."""
    serving = world.random("serving")
    for index, topic in enumerate(TOPICS):
        waiters = randomness.randint(1, 3)
        for number in range(waiters):
            # Sometimes two clients have the same producer name, like a client and its duplicate.
            name = f"waiter-{index}" if randomness.random() < 0.3 else f"waiter-{index}-{number}"
            body = roles.writer(
                topic,
                "WaitForExclusive",
                name,
                priority=randomness.choice([0, 0, 5, 10]),
                steadiness=randomness.choice([0.3, 1.0, 5.0]),
                # Only on the replicated topic: a failover loses no grant there.
                serve_seconds=serving.choice([0, 1, 3]) if topic == REPLICATED_TOPIC else 0,
            )
            world.add_client(f"waiter-{index}-{number}", body, subject=f"waiter-{number}")
        if randomness.random() < 0.4:
            body = roles.writer(topic, "Exclusive", f"exclusive-{index}")
            world.add_client(f"exclusive-{index}", body)
        if randomness.random() < 0.4:
            for number in range(2):
                shared = roles.writer(
                    topic, "Shared", randomness.choice(["", f"shared-{index}-{number}"])
                )
                world.add_client(f"shared-{index}-{number}", shared)
        if randomness.random() < 0.5:
            world.add_client(f"fencer-{index}", roles.fencer(topic))
        if randomness.random() < 0.3:
            world.add_client(f"impostor-{index}", roles.impostor(topic))
        for number in range(randomness.randint(1, 2)):
            world.add_client(f"consumer-{index}-{number}", roles.consumer(topic))
    world.add_client("reader", roles.reader(TOPICS))
    _add_owners(world, world.random("owners"))
    _add_guardians(world, world.random("guardians"))


def _add_guardians(world: World, randomness: random.Random) -> None:
    """Add leaders that also write to other topics under their guard."""
    for index, topic in enumerate(TOPICS):
        for number in range(randomness.randint(0, 2)):
            name = f"guardian-{index}-{number}"
            world.add_client(name, guardian(topic, name, BUCKETS), subject=name)


def _add_owners(world: World, randomness: random.Random) -> None:
    """Add tasks that own a topic for a group. Two clients with one task are a restarted task and its zombie."""
    for index, topic in enumerate(TOPICS):
        for number in range(randomness.randint(0, 3)):
            task = f"task-{randomness.randint(0, 1)}"
            body = partial(own_repeatedly, topic=topic, task=task)
            world.add_client(f"owner-{index}-{number}", body)


async def _write_and_read_at_the_end(world: World) -> None:
    """Write to each topic and read it once more. Both must succeed."""

    async def write_and_read(client: Client) -> None:
        for topic in TOPICS:
            producer = Producer(client, topic, "ExclusiveWithFencing", name="last")
            if not await producer.create():
                world.recorder.anomaly(f"the last writer was refused: {producer.error}")
                continue
            for _ in range(3):
                producer.send()
            await producer.settled()
            await producer.close()
            for _ in range(5):  # a stock reader reconnects; this one starts from the beginning
                if await Reader(client, topic).read():
                    break
                await client.pause(0.1, 0.5)
            else:
                world.recorder.anomaly(f"the last reader of {topic} did not reach the end")

    done = asyncio.get_running_loop().create_future()

    async def body(client: Client) -> None:
        await write_and_read(client)
        if not done.done():
            done.set_result(None)

    world.add_client("last", body)
    try:
        async with asyncio.timeout(60.0):
            await done
    except TimeoutError:
        world.recorder.anomaly("the last writer and reader did not finish within 60 s")


# ---------------------------------------------------------------- the final data


def add_final_data(world: World) -> None:
    """Copy the store's logs, states and audit into the history."""
    history = world.history
    for topic in [*TOPICS, *TARGETS]:
        name = TopicName.parse(topic)
        dataset = world.contents_of(bucket_of(name, BUCKETS))
        if topic in TOPICS or name in dataset.states:
            history.logs[topic] = _log_of(dataset, name)
    for bucket in range(BUCKETS):
        audits = world.contents_of(bucket).audits
        if bucket in audits:
            history.audit += [dict(record) for _, record in audits[bucket]]
    if spread := sum(map(was_spread, history.audit)):
        history.add_event("promotion by load", spread)
    history.unreportable |= _unreportable(history)


def _log_of(dataset: Contents, name: TopicName) -> TopicLogs:
    state = dataset.states.get(name, {})
    found = TopicLogs(epoch=int(state.get("epoch", "0")), ledger=int(state.get("ledger", "0")))
    log = dataset.logs.get(name)
    epoch, is_exclusive = 0, False
    for block in log.blocks if log is not None else []:
        if isinstance(block, Marker):
            ledger = block.position.ledger
            is_exclusive = block.fields["mode"] == "exclusive"
            if is_exclusive:
                epoch = int(block.fields["epoch"])
            elif block.fields["cause"] == Purpose.DEPOSE.value:
                epoch = ledger
            found.markers.append(LogMarker(ledger, epoch, block.fields["owner"]))
            continue
        ledger, number = block.position
        for payload in payloads(block):
            value = value_of(payload)
            holder, sequence = holder_and_number(value)
            found.entries.append(
                LogEntry(Position(ledger, number), epoch, is_exclusive, holder, sequence, value)
            )
            number += 1
    for field, text in sorted(state.items()):
        if field.startswith(STATE_PREFIX):
            cursor = Cursor.from_saved(json.loads(text), LedgerGaps(100))
            found.cursors[field.removeprefix(STATE_PREFIX)] = cursor.mark_delete
    return found


def _knew(history: History, topic: str, process: str, lost_at: float, until: float) -> bool:
    """Return whether a broker served the topic before a loss, and continued to serve it ``until`` then.

    A topic whose loading was aborted does not count, because the broker may not have read its end.
    """
    bucket, knows = bucket_of(TopicName.parse(topic), BUCKETS), False
    for line in history.journal:
        at, broker, _, name, *rest = line.split(" ")
        if broker != process or float(at) >= until:
            continue
        if name == "topic.loaded" and f"topic={topic}" in rest:
            knows = float(at) < lost_at
        elif (name == "bucket.lost" and f"bucket={bucket}" in rest) or (
            name == "topic.unloaded" and f"topic={topic}" in rest
        ):
            knows = False
    return knows


def _ended_too_early(history: History, topic: str, following: Operation) -> bool:
    """Return whether the broker of the fence ended before it served the topic again.

    A broker fences first. Then it reads the surviving data, which takes longer if the store is hard to reach.
    """
    fences = [f for f in history.of(Kind.REFENCE, topic) if f.invoked_at > following.invoked_at]
    successor = next((f for f in fences if f.process != following.process), None)
    if successor is None and not _was_replaced(history, following.process):
        return False
    until = NUMBER_MAX if successor is None else successor.ledger
    return not any(
        append.outcome is Outcome.OK
        and append.position is not None
        and following.ledger <= append.position.ledger < until
        for append in history.of(Kind.APPEND, topic)
    )


def _was_replaced(history: History, process: str) -> bool:
    """Return whether another process with the same broker name started after this one."""
    name, _, number = process.rpartition("~")
    successor = f"{name}~{int(number) + 1}"
    return any(line.split(maxsplit=2)[1] == successor for line in history.journal)


def _unreportable(history: History) -> set[str]:
    """Return lost values that no broker can report: no broker that knew them fenced the topic again."""
    found: set[str] = set()
    refused = {
        line.partition("bucket.refused bucket=")[2].split()[0]
        for line in history.journal
        if "bucket.refused bucket=" in line
    }
    for topic, values in history.destroyed.items():
        if str(bucket_of(TopicName.parse(topic), BUCKETS)) in refused:
            found |= values.keys()  # reported for the whole bucket, which then waited
            continue
        fences = [f for f in history.of(Kind.REFENCE, topic) if f.outcome is Outcome.OK]
        for value, lost_at in values.items():
            last = next((f for f in reversed(fences) if f.invoked_at < lost_at), None)
            later = [f for f in fences if f.invoked_at >= lost_at]
            following = next((f for f in later if last is None or f.replid != last.replid), None)
            if (
                last is None
                or following is None
                or following.process != last.process
                or not _knew(history, topic, last.process, lost_at, following.invoked_at)
                or _ended_too_early(history, topic, following)
            ):
                found.add(value)
    return found
