"""The simulated network between clients and brokers. It delays bytes and has faults.

A connection has two directions. Each direction delivers in order, after a random delay. There is no order between
connections. A direction can be *held*, as if its packets were lost: TCP retransmits them, so everything arrives after
the release. A connection can be *reset*. A frozen process receives the bytes that arrived when it is thawed. The
connections of a dead process are reset.

Not simulated: flow control of the socket buffers (a peer that does not read).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from tests.simulation.loop import Process, VirtualLoop

DELAY_SECONDS = (0.0002, 0.003)
"""Usual one-way delay: minimum and maximum."""

SLOW_SECONDS = (0.01, 0.4)
"""The same while the network is slow."""


@dataclass(slots=True, eq=False)
class Direction:
    """The bytes in transit from one end to the other."""

    receiver: End
    is_held: bool = False
    queue: deque[bytes | None] = field(default_factory=deque)
    """Held bytes; None is the end of the stream."""
    busy_until: float = 0.0


class End:
    """One end of a connection, in one process."""

    def __init__(self, process: Process, connection: Wire) -> None:
        self.process = process
        self.connection = connection
        self.is_closed = False

    def received(self, data: bytes) -> None:
        raise AssertionError("a subclass of End must handle received bytes")

    def lost(self) -> None:
        raise AssertionError("a subclass of End must handle a lost connection")

    def send(self, data: bytes) -> None:
        self.connection.send(self, data)

    def shut(self) -> None:
        """Close in order: the bytes that were sent still arrive."""
        self.connection.send(self, None)


class Wire:
    """One TCP connection."""

    def __init__(self, network: Network, name: str) -> None:
        self.network = network
        self.name = name
        self.ends: tuple[End, End]
        self.is_over = False
        self._directions: dict[End, Direction] = {}

    def join(self, client: End, broker: End) -> None:
        self.ends = (client, broker)
        self._directions = {client: Direction(broker), broker: Direction(client)}

    @property
    def client(self) -> End:
        return self.ends[0]

    @property
    def broker(self) -> End:
        return self.ends[1]

    def send(self, sender: End, data: bytes | None) -> None:
        direction = self._directions[sender]
        if self.is_over:
            return
        if direction.is_held:
            direction.queue.append(data)
        else:
            self._carry(direction, data)

    def hold(self, *, to_broker: bool, to_client: bool) -> None:
        """Hold back packets from now on, in one direction or both."""
        if to_broker:
            self._directions[self.client].is_held = True
        if to_client:
            self._directions[self.broker].is_held = True

    def release(self) -> None:
        """Deliver packets again, first those that were held back."""
        for direction in self._directions.values():
            direction.is_held = False
            queue, direction.queue = direction.queue, deque()
            for data in queue:
                self._carry(direction, data)

    def reset(self) -> None:
        """End the connection. Bytes in transit are lost, and both ends are informed after the usual delay."""
        if self.is_over:
            return
        self.is_over = True
        self.network.wires.pop(self, None)
        for end in self.ends:
            self.network.later(self._report_lost, end)

    def _carry(self, direction: Direction, data: bytes | None) -> None:
        network = self.network
        at = max(direction.busy_until, network.loop.time() + network.delay())
        direction.busy_until = at
        network.loop.call_at(
            at, self._arrive, direction, data, context=network.loop.world.context.copy()
        )

    def _arrive(self, direction: Direction, data: bytes | None) -> None:
        if self.is_over:
            return
        end = direction.receiver
        if data is None:
            self.is_over = True
            self.network.wires.pop(self, None)
            for each in self.ends:
                self._report_lost(each)
        elif not end.process.is_dead:
            self.network.loop.call(end.process, self._receive, end, data)

    def _receive(self, end: End, data: bytes) -> None:
        if not end.is_closed:
            end.received(data)

    def _report_lost(self, end: End) -> None:
        if not end.process.is_dead:
            self.network.loop.call(end.process, self._lost, end)

    def _lost(self, end: End) -> None:
        if not end.is_closed:
            end.is_closed = True
            end.lost()


class BrokerEnd(End):
    """The broker's end. It calls the real ClientProtocol through asyncio's interface."""

    protocol: asyncio.BufferedProtocol

    def __init__(self, process: Process, connection: Wire) -> None:
        super().__init__(process, connection)
        self.transport = SimulatedTransport(self)
        self.is_paused = False
        self.waiting: list[bytes] = []

    def open(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        if self.is_closed:
            return
        self.protocol = cast("asyncio.BufferedProtocol", factory())
        self.protocol.connection_made(self.transport)

    def received(self, data: bytes) -> None:
        if self.is_paused:
            self.waiting.append(data)
            return
        view = memoryview(data)
        while view and not self.is_closed:
            buffer = memoryview(self.protocol.get_buffer(len(view)))
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            view = view[count:]
            self.protocol.buffer_updated(count)

    def resume(self) -> None:
        self.is_paused = False
        waiting, self.waiting = self.waiting, []
        for data in waiting:
            self.received(data)

    def lost(self) -> None:
        if hasattr(self, "protocol"):
            self.protocol.connection_lost(None)


class SimulatedTransport(asyncio.Transport):
    """The transport that the broker writes to."""

    def __init__(self, end: BrokerEnd) -> None:
        super().__init__({"peername": (end.connection.name, 0)})
        self._end = end
        self._is_closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not self._is_closing:
            self._end.send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._end.shut()

    def abort(self) -> None:
        self._is_closing = True
        self._end.connection.reset()

    def pause_reading(self) -> None:
        self._end.is_paused = True

    def resume_reading(self) -> None:
        if self._end.is_paused:
            self._end.connection.network.loop.call(self._end.process, self._end.resume)


@dataclass(slots=True, eq=False)
class _Listener(asyncio.AbstractServer):
    network: Network
    port: int
    process: Process
    factory: Callable[[], asyncio.BaseProtocol]

    def close(self) -> None:
        if self.network.listeners.get(self.port) is self:
            del self.network.listeners[self.port]

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.network.loop

    def is_serving(self) -> bool:
        return self.network.listeners.get(self.port) is self

    async def start_serving(self) -> None:
        """Does nothing: the server serves from the start."""

    async def serve_forever(self) -> None:
        await asyncio.Event().wait()

    async def wait_closed(self) -> None:
        """Returns at once: connections continue without the server."""


class Network:
    """All connections, and the delays of their bytes."""

    def __init__(self, loop: VirtualLoop, randomness: random.Random) -> None:
        self.loop = loop
        self.is_slow = False
        self.listeners: dict[int, _Listener] = {}
        self.wires: dict[Wire, None] = {}
        self._randomness = randomness
        self._count = 0
        loop.network = self

    def delay(self) -> float:
        low, high = SLOW_SECONDS if self.is_slow else DELAY_SECONDS
        return self._randomness.uniform(low, high)

    def later(self, callback: Callable[..., object], *args: object) -> None:
        """Call ``callback`` in the world's process after the usual delay."""
        self.loop.call_at(
            self.loop.time() + self.delay(),
            callback,
            *args,
            context=self.loop.world.context.copy(),
        )

    def listen(
        self, process: Process, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> asyncio.AbstractServer:
        listener = _Listener(self, port, process, factory)
        self.listeners[port] = listener
        return listener

    async def connect(self, port: int, make_end: Callable[[Wire], End]) -> End:
        """Connect to a broker; raises ConnectionRefusedError if no server listens there."""
        await asyncio.sleep(self.delay())
        listener = self.listeners.get(port)
        if listener is None or listener.process.is_dead:
            raise ConnectionRefusedError(f"no process listens on port {port}")
        self._count += 1
        wire = Wire(self, f"client-{self._count}")
        end, broker = make_end(wire), BrokerEnd(listener.process, wire)
        wire.join(end, broker)
        self.wires[wire] = None
        self.loop.call(listener.process, broker.open, listener.factory)
        return end

    def kill(self, process: Process) -> None:
        """Free the ports of a process that ended, and reset its connections."""
        for port, listener in list(self.listeners.items()):
            if listener.process is process:
                del self.listeners[port]
        for wire in list(self.wires):
            if process in {end.process for end in wire.ends}:
                wire.reset()
