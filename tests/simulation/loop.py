"""A deterministic event loop with virtual time, on which several simulated processes run.

Every callback belongs to the *process* in whose context it was scheduled. The callbacks of a frozen process (SIGSTOP)
are queued, and run in order when it is thawed. The callbacks of a dead process (SIGKILL) never run. Within a process,
callbacks run in asyncio's order. The seed decides which process runs next. Different seeds therefore cover different orders that
an operating system may choose.

This module knows no brokers, clients or sockets; the network (network.py) attaches itself through
``create_server``.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

STEPS_MAX = 20_000_000
"""Limit of the loop's ticks in one run. An endless loop in the code under test ends here."""

_Result = TypeVar("_Result")


class Deadlock(AssertionError):
    """No callback is scheduled although the run has not ended."""


class Process:
    """A unit that runs, freezes and dies on its own: a broker, a client, or the world around them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_frozen = False
        self.is_dead = False
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = contextvars.copy_context()
        self.context.run(_PROCESS.set, self)

    @property
    def is_running(self) -> bool:
        return not self.is_frozen and not self.is_dead


_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Listening(Protocol):
    """The registry of servers: the simulated network."""

    def listen(
        self, process: Process, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> asyncio.AbstractServer: ...


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. ``randomness`` decides which process runs first if several could."""

    def __init__(self, randomness: random.Random) -> None:
        super().__init__()
        self.world = Process("world")
        self.processes = [self.world]
        self.network: Listening | None = None
        self.steps = 0
        self._randomness = randomness
        self._now = 0.0
        self._timers: list[tuple[float, int, Process, asyncio.TimerHandle]] = []
        self._timer_count = 0

    # ------------------------------------------------------------ processes

    def add_process(self, name: str) -> Process:
        process = Process(name)
        self.processes.append(process)
        return process

    def spawn(self, process: Process, work: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        """Run a coroutine as a task of that process."""
        context = process.context.copy()
        task = self.create_task(work, context=context)
        process.tasks = [other for other in process.tasks if not other.done()]
        process.tasks.append(task)
        return task

    def call(self, process: Process, callback: Callable[..., object], *args: object) -> None:
        """Run a callback in that process, after the callbacks that are ready there."""
        self.call_soon(callback, *args, context=process.context.copy())

    @property
    def current_process(self) -> str:
        """Return the name of the process whose code runs now."""
        found = _PROCESS.get()
        return self.world.name if found is None else found.name

    # ------------------------------------------------------------ asyncio's loop

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]  # typeshed's version with TypeVarTuple
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._process_of(context).ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_at(  # type: ignore[override]  # typeshed's version with TypeVarTuple
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        if context is None:
            context = contextvars.copy_context()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, self._process_of(context), timer))
        return timer

    def call_later(  # type: ignore[override]  # typeshed's version with TypeVarTuple
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    async def create_server(  # type: ignore[override]  # only what brokers ask for
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int = 0,
        **_options: object,
    ) -> asyncio.AbstractServer:
        assert self.network is not None
        process = _PROCESS.get()
        assert process is not None
        return self.network.listen(process, port, protocol_factory)

    def _process_of(self, context: contextvars.Context | None) -> Process:
        found = _PROCESS.get() if context is None else context.get(_PROCESS)
        return self.world if found is None else found

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers stay in the queue until they are due."""

    def _write_to_self(self) -> None:
        """No thread waits in a selector."""

    def _run_once(self) -> None:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Deadlock(f"the run did not end within {STEPS_MAX} ticks; time {self._now:.3f} s")
        runnable = [p for p in self.processes if p.ready and p.is_running]
        if not runnable:
            self._advance()
            return
        process = runnable[0] if len(runnable) == 1 else self._randomness.choice(runnable)
        ready = process.ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _advance(self) -> None:
        """Advance the time until a callback is due."""
        timers = self._timers
        while timers and timers[0][3].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(f"no callback is scheduled; time {self._now:.3f} s")
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            _, _, process, timer = heapq.heappop(timers)
            if not timer.cancelled():
                process.ready.append(timer)
