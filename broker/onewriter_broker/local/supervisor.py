"""The supervisor: a small parent process that keeps brokers and the embedded server running.

It holds the data directory's lock, owns the embedded server, and starts the brokers as children. The event
loop of each broker writes a byte to an inherited pipe every BEAT_SECONDS. The supervisor kills a broker that
stops writing, so that its sockets are reset and its clients connect to other brokers. It does so early if the
broker's process uses no processor time either (it is stopped or blocked), and later if it does, because long
work would otherwise cause an outage. Killing a broker does not affect the store. After the supervisor itself
was stopped (a suspended machine, SIGSTOP), it measures again instead of killing brokers that were stopped
with it.

``Heartbeat`` is the broker's end of the pipe. It also notices the end of the supervisor. The supervisor
improves availability only; no safety property depends on it.
"""

from __future__ import annotations

import asyncio
import enum
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from onewriter_broker.local.children import (
    processor_seconds,
    send_signal,
    start_child,
    stop_child,
)
from onewriter_broker.local.datadir import DirectoryLock
from onewriter_broker.local.embedded import EmbeddedStore
from onewriter_broker.settings import Settings
from onewriter_core.errors import ConfigurationError

BEAT_SECONDS = 0.25
"""Interval between two bytes of a child."""

FROZEN_SECONDS = 2.0
"""A child that has written before is frozen if it has neither written nor used processor time for this long."""

STUCK_SECONDS = 10.0
"""A child that has written before is stuck if it has not written for this long, whatever its processor time
is."""

FIRST_BEAT_SECONDS = 60.0
"""A child that has never written, and that uses no processor time for this time, is frozen."""

FIRST_BEAT_SECONDS_MAX = 600.0
"""The same limit for a child that uses processor time: on a busy machine it takes minutes to load its program."""

POLL_SECONDS = 0.1
"""Polling interval of the children."""

HELD_UP_SECONDS = 0.5
"""A longer gap between two polls means that the supervisor itself was stopped."""

REFUSED_CODE = 2
"""The exit code of a child with invalid settings, an unsuitable store, or a port in use."""

STOP_SECONDS = 10.0
"""Time for a clean stop of a child."""

_BEATS_READ_MAX = 4096

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RestartDelays:
    """Delays before restarts of a child that keeps ending: they double from ``first`` to ``longest``."""

    first_seconds: float = 0.1
    longest_seconds: float = 10.0
    steady_seconds: float = 30.0
    """A child that ran for this long is restarted without delay."""


class Heartbeat:
    """The child's side of the pipe; ``run`` is a task in its event loop.

    ``descriptor`` is the number that the supervisor passed on the command line. ``on_parent_gone`` is called
    once when the supervisor has ended; the child should then stop.
    """

    def __init__(self, descriptor: int, on_parent_gone: Callable[[], None]) -> None:
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._on_parent_gone = on_parent_gone

    async def run(self) -> None:
        """Write bytes until cancelled or until the supervisor has ended."""
        try:
            while True:
                if not self._beat():
                    break
                await asyncio.sleep(BEAT_SECONDS)
        finally:
            os.close(self._descriptor)
        self._on_parent_gone()

    def _beat(self) -> bool:
        try:
            os.write(self._descriptor, b".")
        except BlockingIOError:
            return True  # the supervisor is stopped and the pipe is full: this byte is not needed
        except BrokenPipeError:
            return False
        return True


class Watch:
    """Decides whether one child is frozen or stuck. Pure: it gets the beats and the result of each poll.

    Times are seconds. See FROZEN_SECONDS and STUCK_SECONDS.
    """

    def __init__(
        self,
        now: float,
        frozen_seconds: float = FROZEN_SECONDS,
        stuck_seconds: float = STUCK_SECONDS,
    ) -> None:
        self._frozen_seconds = frozen_seconds
        self._stuck_seconds = max(stuck_seconds, frozen_seconds)
        self._checked_at = now
        self._silent_seconds = 0.0
        self._idle_seconds = 0.0
        self._used: float | None = None
        self._has_beaten = False

    def beat(self) -> None:
        """Record a sign of life since the last poll."""
        self._has_beaten = True
        self._silent_seconds = 0.0

    @property
    def has_beaten(self) -> bool:
        """Whether the child has ever given a sign of life."""
        return self._has_beaten

    def is_frozen(self, now: float, used: float | None = None) -> bool:
        """Evaluate one poll of the child. Time without polls does not count.

        ``used``: the processor time of its process so far; None on systems that do not report it. Then only
        its silence counts.
        """
        gap = now - self._checked_at
        self._checked_at = now
        if gap > HELD_UP_SECONDS:
            self._silent_seconds = self._idle_seconds = 0.0
            return False
        self._silent_seconds += gap
        self._idle_seconds += gap
        if used is not None and used != self._used:
            self._used, self._idle_seconds = used, 0.0
        if not self._has_beaten:
            is_idle = self._idle_seconds >= FIRST_BEAT_SECONDS
            return is_idle or self._silent_seconds >= FIRST_BEAT_SECONDS_MAX
        is_idle = self._idle_seconds >= self._frozen_seconds
        return self._silent_seconds >= (self._frozen_seconds if is_idle else self._stuck_seconds)

    @property
    def reason(self) -> str:
        """The reason for killing a frozen child."""
        silent = f"no iteration of its event loop for {self._silent_seconds:.1f} s"
        idle = f", no processor time for {self._idle_seconds:.1f} s"
        return silent + (idle if self._idle_seconds >= self._frozen_seconds else "")


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A child to keep running.

    ``command`` returns its command line for the number of the heartbeat's descriptor.
    """

    name: str
    command: Callable[[int], Sequence[str]]


class ChildEvent(enum.Enum):
    """An event of a child, passed to the supervisor's ``on_event``. The value is the name of its log line."""

    STARTED = "child.started"
    FROZEN = "child.frozen"
    ENDED = "child.ended"


class ChildFailed(ConfigurationError):
    """A child ended by itself at its first start: a retry would not help."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(
            f"{name} ended during its start with code {code}; its last log lines give the reason"
        )
        self.code = code


async def _nothing() -> None:
    pass


class Supervisor:
    """Runs ``children`` and, if given, the embedded ``server`` on ``data_directory``.

    ``children`` is called once the server answers, because its URL is known then. ``before_start`` runs when the
    directory is locked, before anything is started; it may raise ConfigurationError. The supervisor kills a
    child that is frozen for ``frozen_seconds``, or stuck for ``stuck_seconds`` (Watch). ``on_event`` gets the
    child's name, the event, and the process id.
    """

    def __init__(
        self,
        data_directory: Path,
        children: Callable[[], Sequence[ChildSpec]],
        *,
        server: EmbeddedStore | None = None,
        before_start: Callable[[], Awaitable[None]] = _nothing,
        frozen_seconds: float = FROZEN_SECONDS,
        stuck_seconds: float = STUCK_SECONDS,
        delays: RestartDelays = RestartDelays(),
        on_event: Callable[[str, ChildEvent, int], None] = lambda _name, _event, _pid: None,
    ) -> None:
        self._lock = DirectoryLock(data_directory, what="onewriter")
        self._children = children
        self._server = server
        self._before_start = before_start
        self._frozen_seconds = frozen_seconds
        self._stuck_seconds = stuck_seconds
        self._delays = delays
        self._on_event = on_event
        self._to_hang_up: set[str] = set()
        self._has_terminal = False
        self._stop = asyncio.Event()
        self._is_urgent = asyncio.Event()

    def request_stop(self) -> None:
        """Stop cleanly; a second request stops at once."""
        if self._stop.is_set():
            self._is_urgent.set()
        self._stop.set()

    def hang_up(self) -> None:
        """Let every child read its files again (SIGHUP), each as soon as it runs."""
        self._to_hang_up = {child.name for child in self._children()}

    def _hung_up(self) -> None:
        """Handle SIGHUP: an order to read files again, or the end of the terminal from which this was
        started.
        """
        if self._has_terminal and not _has_terminal():
            self.request_stop()
        else:
            self.hang_up()

    async def run(self) -> int:
        """Run until SIGINT, SIGTERM or ``request_stop``; returns the exit code. SIGHUP: see ``hang_up``.

        Raises ConfigurationError if the directory is in use, ``before_start`` refuses, or the embedded server cannot
        start; ChildFailed if a child never ran.
        """
        self._lock.acquire()
        try:
            await self._before_start()
            return await self._run_locked()
        finally:
            self._lock.release()

    async def _run_locked(self) -> int:
        loop = asyncio.get_running_loop()
        self._has_terminal = _has_terminal()
        handlers = {
            signal.SIGINT: self.request_stop,
            signal.SIGTERM: self.request_stop,
            signal.SIGHUP: self._hung_up,
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            if self._server is not None:
                await self._server.start()
            try:
                await self._run_children()
            finally:
                if self._server is not None:
                    await self._server.stop()
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
        return 0

    async def _run_children(self) -> None:
        refusal: Exception | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                keepers = [tasks.create_task(self._keep(child)) for child in self._children()]
                if self._server is not None:
                    keepers.append(tasks.create_task(self._server.watch()))
                await self._stop.wait()
                for keeper in keepers:
                    keeper.cancel()
        except* ConfigurationError as errors:
            refusal = errors.exceptions[0]
        if refusal is not None:
            raise refusal  # if it is raised in the clause above, some releases of Python put it into another group

    async def _keep(self, child: ChildSpec) -> None:
        """Run one child, and restart it whenever it ends; when cancelled, stop it cleanly."""
        loop = asyncio.get_running_loop()
        delays = self._delays
        delay = delays.first_seconds
        is_first = True
        while True:
            started_at = loop.time()
            code, has_beaten = await self._run_once(child)
            was_killed = (
                code < 0
            )  # by a signal: it did not end by itself, and may work when it is started again
            if is_first and (code == REFUSED_CODE or not (has_beaten or was_killed)):
                raise ChildFailed(child.name, code)
            is_first = is_first and not has_beaten
            if loop.time() - started_at >= delays.steady_seconds:
                delay = delays.first_seconds
            else:
                await asyncio.sleep(delay)
                delay = min(2 * delay, delays.longest_seconds)

    async def _run_once(self, child: ChildSpec) -> tuple[int, bool]:
        """Run one process of a child until it ends; returns its exit code, and whether it ever worked."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        try:
            process = await start_child(
                child.command(writing), pass_descriptors=[writing], death_signal=signal.SIGKILL
            )
        except OSError as error:
            os.close(reading)
            raise ConfigurationError(f"{child.name} cannot be started: {error}") from error
        finally:
            os.close(writing)
        self._report_event(child, ChildEvent.STARTED, process)
        try:
            has_beaten = await self._watch(child, process, reading)
        except asyncio.CancelledError:
            await self._stop_cleanly(process)
            raise
        finally:
            os.close(reading)
            self._report_event(child, ChildEvent.ENDED, process)
        return process.returncode or 0, has_beaten

    async def _watch(self, child: ChildSpec, process: Process, reading: int) -> bool:
        """Poll a child until it has ended, and kill it if it is frozen."""
        loop = asyncio.get_running_loop()
        watch = Watch(loop.time(), self._frozen_seconds, self._stuck_seconds)
        while process.returncode is None:
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await process.wait()
            except TimeoutError:
                pass  # it is running
            try:
                if os.read(reading, _BEATS_READ_MAX):
                    watch.beat()
            except BlockingIOError:
                pass  # no byte since the last poll
            if watch.has_beaten and child.name in self._to_hang_up:
                self._to_hang_up.discard(child.name)
                send_signal(process, signal.SIGHUP)
            if process.returncode is None and watch.is_frozen(
                loop.time(), processor_seconds(process.pid)
            ):
                self._report_event(child, ChildEvent.FROZEN, process, watch.reason)
                send_signal(process, signal.SIGKILL)
                await process.wait()
        return watch.has_beaten

    async def _stop_cleanly(self, process: Process) -> None:
        """Send SIGTERM, and SIGKILL when the time is over or the stop became urgent."""
        send_signal(process, signal.SIGCONT)
        async with asyncio.TaskGroup() as tasks:
            stopping = tasks.create_task(stop_child(process, STOP_SECONDS))
            urgent = tasks.create_task(self._is_urgent.wait())
            await asyncio.wait((stopping, urgent), return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                send_signal(process, signal.SIGKILL)
            urgent.cancel()

    def _report_event(
        self, child: ChildSpec, event: ChildEvent, process: Process, reason: str = ""
    ) -> None:
        _log.info(
            event.value,
            child=child.name,
            process_id=process.pid,
            code=process.returncode,
            **({"reason": reason} if reason else {}),
        )
        self._on_event(child.name, event, process.pid)


def _has_terminal() -> bool:
    """Whether this process has a terminal that still exists."""
    try:
        os.tcgetpgrp(sys.stdin.fileno())
    except (OSError, ValueError):
        return False
    return True


def broker_child(settings: Settings) -> ChildSpec:
    """A broker process, and the file in the data directory from which it reads its settings."""
    path = settings.data_dir.absolute() / "run" / f"{settings.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(settings.model_dump_json())
    command = [sys.executable, "-P", "-m", "onewriter_broker.process", str(path)]
    return ChildSpec(settings.name, lambda heartbeat: [*command, str(heartbeat)])
