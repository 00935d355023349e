"""The nemesis (a term of Jepsen) injects faults into a world. The seed decides which faults occur, and when.

Each fault is a function that damages something, waits for a while, and repairs it. The nemesis divides the time into
periods. A quarter of the periods have no faults. In each of the others one to three faults occur, each once or several
times. After the last period everything is repaired.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping

from tests.contents import Contents, stored_in
from tests.simulation.history import Span
from tests.simulation.network import Wire
from tests.simulation.recording import value_of
from tests.simulation.world import REPLICATED, BrokerNode, World

from onewriter_broker.log.store.api import Block
from onewriter_broker.log.topic_log.log import payloads
from onewriter_core.ids import Position
from onewriter_testing.fake_store.server import FakeNode

PERIODS = (2, 4)
PERIOD_SECONDS = (3.0, 7.0)
QUIET = 0.25
"""Share of periods without faults."""

Fault = Callable[["Nemesis"], Awaitable[None]]


class Nemesis:
    """Injects faults into a world."""

    def __init__(
        self, world: World, randomness: random.Random, faults: Mapping[str, Fault] | None = None
    ) -> None:
        self.world = world
        self.faults = FAULTS if faults is None else faults
        self.randomness = randomness
        self.until = 0.0
        """End of the current period."""
        self.is_store_disturbed = False
        """Whether a fault of the store is in progress that excludes other faults of the store."""
        self._running: list[asyncio.Task[None]] = []
        self._recorded: set[tuple[str, Position]] = set()

    async def run(self) -> None:
        """Run all periods. Everything is repaired when this returns."""
        world, randomness = self.world, self.randomness
        for _ in range(randomness.randint(*PERIODS)):
            seconds = randomness.uniform(*PERIOD_SECONDS)
            self.until = world.loop.time() + seconds
            if randomness.random() >= QUIET:
                names = sorted(self.faults)
                for name in randomness.sample(names, min(randomness.randint(1, 3), len(names))):
                    self._running.append(world.background(self._repeat(name, self.faults[name])))
            await asyncio.sleep(seconds)
        if self._running:
            await asyncio.wait(self._running)

    async def _repeat(self, name: str, fault: Fault) -> None:
        """Inject the same fault once or several times within the period."""
        world = self.world
        while True:
            await asyncio.sleep(self.randomness.uniform(0.0, 2.0))
            if world.loop.time() >= self.until:
                return
            since = world.loop.time()
            world.recorder.seen(f"fault.{name}")
            await fault(self)
            world.history.faults.append(Span(name, since, world.loop.time()))

    async def lasting(self, low: float, high: float) -> None:
        """Wait for a random time between these seconds."""
        await asyncio.sleep(self.randomness.uniform(low, high))

    # ------------------------------------------------------------ what a fault hits

    def client(self) -> str:
        """Choose a client process."""
        return self.randomness.choice(sorted(self.world.clients))

    def wires_of(self, name: str) -> list[Wire]:
        process = self.world.clients[name].process
        return [wire for wire in self.world.network.wires if wire.client.process is process]

    def node(self) -> BrokerNode | None:
        """Choose a broker that runs, if there is one."""
        up = [node for node in self.world.nodes if node.is_up and not node.process.is_frozen]
        return self.randomness.choice(up) if up else None

    # ------------------------------------------------------------ data that the store loses

    def record_destroyed(self, before: Contents, after: Contents, *, replicated: bool) -> None:
        """Record what a fault destroyed: the entries of ``before`` that ``after`` does not contain.

        Entries of replicated topics are recorded only if ``replicated``. For other faults their profile promises that a
        replica has them, so their loss is a violation.
        """
        for name, log in before.logs.items():
            topic = str(name)
            if topic in REPLICATED and not replicated:
                continue
            remaining = after.logs.get(name)
            positions = set() if remaining is None else {each.position for each in remaining.blocks}
            for block in log.blocks:
                place = (topic, block.position)
                if isinstance(block, Block) and block.position not in positions:
                    if place in self._recorded:
                        continue  # already recorded; the value may have been written again since
                    self._recorded.add(place)
                    gone = self.world.history.destroyed.setdefault(topic, {})
                    for payload in payloads(block):
                        gone[value_of(payload)] = self.world.loop.time()


# ---------------------------------------------------------------- clients


async def pause_client(nemesis: Nemesis) -> None:
    """SIGSTOP and later SIGCONT. The pause may be longer than the broker needs to detect a dead client."""
    thaw = nemesis.world.freeze_client(nemesis.client())
    await nemesis.lasting(0.3, 5.0)
    thaw()


async def kill_client(nemesis: Nemesis) -> None:
    name = nemesis.client()
    if nemesis.world.clients[name].process.is_frozen:
        return
    nemesis.world.kill_client(name)
    await nemesis.lasting(0.3, 2.5)
    nemesis.world.restart_client(name)


async def cut_client(nemesis: Nemesis) -> None:
    for wire in nemesis.wires_of(nemesis.client()):
        wire.reset()
    await nemesis.lasting(0.0, 0.5)


async def cut_all(nemesis: Nemesis) -> None:
    """Reset many connections at once."""
    for wire in list(nemesis.world.network.wires):
        wire.reset()
    await nemesis.lasting(0.0, 0.5)


async def half_open(nemesis: Nemesis) -> None:
    """Packets are lost in one direction or both. Later they arrive, or the connection is reset."""
    randomness = nemesis.randomness
    wires = nemesis.wires_of(nemesis.client())
    to_broker, to_client = randomness.choice([(True, False), (False, True), (True, True)])
    for wire in wires:
        wire.hold(to_broker=to_broker, to_client=to_client)
    await nemesis.lasting(0.5, 6.0)
    for wire in wires:
        if randomness.random() < 0.5:
            wire.reset()
        else:
            wire.release()


async def slow_network(nemesis: Nemesis) -> None:
    """Packets take up to 0.4 s."""
    nemesis.world.network.is_slow = True
    await nemesis.lasting(0.5, 3.0)
    nemesis.world.network.is_slow = False


# ---------------------------------------------------------------- brokers


async def pause_broker(nemesis: Nemesis) -> None:
    """Freeze a broker. Its topics fail over if the pause is long enough; then it resumes and is a zombie."""
    node = nemesis.node()
    if node is None:
        return
    thaw = node.freeze()
    await nemesis.lasting(0.3, 7.0)
    thaw()


async def kill_broker(nemesis: Nemesis) -> None:
    node = nemesis.node()
    if node is None:
        return
    node.kill()
    await nemesis.lasting(0.2, 5.0)
    node.start()


async def rolling_restart(nemesis: Nemesis) -> None:
    for node in nemesis.world.nodes:
        if node.is_up and not node.process.is_frozen:
            await node.stop()
            await nemesis.lasting(0.1, 1.0)
            node.start()
            await nemesis.lasting(0.5, 2.0)


async def broker_without_store(nemesis: Nemesis) -> None:
    node = nemesis.node()
    if node is None:
        return
    faults = node.store.faults
    faults.is_cut_off = True
    await nemesis.lasting(0.2, 4.0)
    faults.is_cut_off = False


async def broker_without_anchor(nemesis: Nemesis) -> None:
    node = nemesis.node()
    if node is None:
        return
    anchor = node.anchor
    anchor.is_away = True
    await nemesis.lasting(0.2, 5.0)
    anchor.is_away = False


async def anchor_away(nemesis: Nemesis) -> None:
    nemesis.world.anchor.reachable = False
    await nemesis.lasting(0.2, 4.0)
    nemesis.world.anchor.reachable = True


async def flaky_anchor(nemesis: Nemesis) -> None:
    """Requests and answers are lost."""
    connections = [node.anchor.connection for node in nemesis.world.nodes]
    for connection in connections:
        connection.is_flaky = True
    await nemesis.lasting(0.3, 3.0)
    for connection in connections:
        connection.is_flaky = False


# ---------------------------------------------------------------- the store


async def flaky_store(nemesis: Nemesis) -> None:
    """Calls are lost before or after their execution, so their outcome is unknown."""
    connections = [node.store.connection for node in nemesis.world.nodes]
    for connection in connections:
        connection.is_flaky = True
    await nemesis.lasting(0.3, 3.0)
    for connection in connections:
        connection.is_flaky = False


async def slow_store(nemesis: Nemesis) -> None:
    connections = [node.store.connection for node in nemesis.world.nodes]
    for connection in connections:
        connection.is_slow = True
    await nemesis.lasting(0.5, 4.0)
    for connection in connections:
        connection.is_slow = False


async def store_down(nemesis: Nemesis) -> None:
    node = nemesis.world.server.primary
    node.is_reachable = False
    await nemesis.lasting(0.2, 4.0)
    node.is_reachable = True


async def connections_dropped(nemesis: Nemesis) -> None:
    nemesis.world.server.primary.drop_connections()
    await nemesis.lasting(0.0, 0.3)


async def identity_renewed(nemesis: Nemesis) -> None:
    """The dataset gets another replication id and keeps its data, as after an expired backlog."""
    server = nemesis.world.server
    server.renew_identity(server.primary)
    for replica in list(server.primary.replicas):
        replica.follow()
    await nemesis.lasting(0.5, 3.0)


def _replica(nemesis: Nemesis) -> FakeNode | None:
    server = nemesis.world.server
    found = [node for name, node in sorted(server.nodes.items()) if node is not server.primary]
    return found[0] if found and found[0].source is server.primary else None


async def promotion(nemesis: Nemesis) -> None:
    """The replica, which may lag, becomes primary. The old primary stays writable for a while."""
    world, server = nemesis.world, nemesis.world.server
    replica = _replica(nemesis)
    if replica is None or nemesis.is_store_disturbed:
        return
    nemesis.is_store_disturbed = True
    old = server.primary
    try:
        if nemesis.randomness.random() < 0.7:
            replica.holds_replication = True
            await nemesis.lasting(0.05, 1.0)
        world.recorder.seen("promotion")
        server.promote(replica)
        if nemesis.randomness.random() < 0.3:
            old.is_reachable = False
        elif nemesis.randomness.random() < 0.3:
            old.drop_connections()
        nemesis.record_destroyed(stored_in(old), stored_in(replica), replicated=False)
        await nemesis.lasting(0.0, 3.0)
        nemesis.record_destroyed(stored_in(old), stored_in(replica), replicated=False)
    finally:
        replica.holds_replication = False
        old.is_reachable = True
        server.demote(old, replica)
        nemesis.is_store_disturbed = False


async def torn_restart(nemesis: Nemesis) -> None:
    """The primary restarts without the end of its append-only file."""
    server = nemesis.world.server
    node = server.primary
    if nemesis.is_store_disturbed or not node.history:
        return
    before = stored_in(node)
    keep = max(0, len(node.history) - nemesis.randomness.randint(0, 40))
    server.restart(node, keep=keep)
    nemesis.record_destroyed(before, stored_in(node), replicated=True)
    for replica in list(node.replicas):
        replica.follow()
    await nemesis.lasting(0.5, 3.0)


async def snapshot_restart(nemesis: Nemesis) -> None:
    """The primary restarts from an older snapshot."""
    server = nemesis.world.server
    node = server.primary
    if nemesis.is_store_disturbed:
        return
    server.save(node)
    await nemesis.lasting(0.0, 0.6)
    if nemesis.is_store_disturbed or node is not server.primary:
        return
    before = stored_in(node)
    server.restart(node, from_snapshot=True)
    nemesis.record_destroyed(before, stored_in(node), replicated=True)
    for replica in list(node.replicas):
        replica.follow()
    await nemesis.lasting(0.5, 3.0)


async def flush_all(nemesis: Nemesis) -> None:
    """FLUSHALL by mistake, at most once in a run. Later an operator adopts the dataset."""
    if nemesis.is_store_disturbed or nemesis.world.was_flushed or nemesis.randomness.random() < 0.7:
        return
    node = nemesis.world.server.primary
    before = stored_in(node).copy()
    nemesis.world.recorder.seen("FLUSHALL")
    nemesis.world.server.flush_all(node)
    nemesis.record_destroyed(before, stored_in(node), replicated=True)
    nemesis.world.was_flushed = True
    await nemesis.lasting(0.5, 1.0)


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        pause_client,
        kill_client,
        cut_client,
        cut_all,
        half_open,
        slow_network,
        pause_broker,
        kill_broker,
        rolling_restart,
        broker_without_store,
        broker_without_anchor,
        anchor_away,
        flaky_anchor,
        flaky_store,
        slow_store,
        store_down,
        connections_dropped,
        identity_renewed,
        promotion,
        torn_restart,
        snapshot_restart,
        flush_all,
    )
}
