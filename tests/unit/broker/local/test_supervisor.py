"""The supervisor with real processes and real signals; its decision about silence without them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from onewriter_broker.local import supervisor as supervisor_module
from onewriter_broker.local.children import processor_seconds
from onewriter_broker.local.datadir import DirectoryLock
from onewriter_broker.local.embedded import EmbeddedServer, EmbeddedSettings
from onewriter_broker.local.supervisor import (
    FIRST_BEAT_SECONDS,
    FIRST_BEAT_SECONDS_MAX,
    FROZEN_SECONDS,
    HELD_UP_SECONDS,
    POLL_SECONDS,
    STUCK_SECONDS,
    ChildEvent,
    ChildFailed,
    ChildSpec,
    Heartbeat,
    RestartDelays,
    Supervisor,
    Watch,
)
from onewriter_broker.settings import Settings
from onewriter_core.errors import ConfigurationError

DELAYS = RestartDelays()
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

# A child as small as a broker can be: it beats, and says how it was stopped.
CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from onewriter_broker.local.supervisor import Heartbeat

async def main(descriptor, directory, behaviour):
    stop = asyncio.Event()
    def say(what):
        (directory / f"{what}-{os.getpid()}").touch()
        stop.set()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(
        signal.SIGHUP, lambda: (directory / f"hung-up-{os.getpid()}").touch()
    )
    if behaviour != "stubborn":
        loop.add_signal_handler(signal.SIGTERM, say, "terminated")
    else:
        loop.add_signal_handler(signal.SIGTERM, lambda: None)
    async with asyncio.TaskGroup() as tasks:
        beating = tasks.create_task(Heartbeat(descriptor, lambda: say("orphaned")).run())
        await asyncio.sleep(0)  # the first beat is written before the file appears
        (directory / f"up-{os.getpid()}").touch()
        while behaviour == "busy":
            pass
        await stop.wait()
        beating.cancel()

asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
"""


def child(directory: Path, name: str = "broker-0", behaviour: str = "") -> ChildSpec:
    return ChildSpec(
        name,
        lambda descriptor: [
            sys.executable, "-c", CHILD, str(descriptor), str(directory), behaviour,
        ],
    )  # fmt: skip


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])


class Events:
    """What the supervisor said about its children."""

    def __init__(self) -> None:
        self.events: list[tuple[str, ChildEvent, int]] = []

    def __call__(self, name: str, event: ChildEvent, process_id: int) -> None:
        self.events.append((name, event, process_id))

    def processes(self, event: ChildEvent, name: str = "broker-0") -> list[int]:
        return [pid for who, what, pid in self.events if (who, what) == (name, event)]


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - the condition lives in another process
            await asyncio.sleep(0.02)


@asynccontextmanager
async def supervising(
    directory: Path,
    children: Sequence[ChildSpec],
    events: Callable[[str, ChildEvent, int], None],
    server: EmbeddedServer | None = None,
    delays: RestartDelays = DELAYS,
) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(
        directory, lambda: children, server=server, delays=delays, on_event=events
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(supervisor.run())
        try:
            yield supervisor
        finally:
            supervisor.request_stop()
        assert await running == 0


def names(directory: Path, pattern: str) -> list[str]:
    return [path.name for path in directory.glob(pattern)]


def is_up(directory: Path, process_id: int) -> bool:
    return (directory / f"up-{process_id}").exists()


# Real processes.


async def test_a_frozen_child_is_killed_and_replaced(tmp_path: Path) -> None:
    events = Events()
    async with supervising(tmp_path, [child(tmp_path)], events):
        await eventually(lambda: bool(events.events) and is_up(tmp_path, events.events[0][2]))
        frozen = events.events[0][2]
        os.kill(frozen, signal.SIGSTOP)
        await eventually(lambda: len(events.processes(ChildEvent.STARTED)) == 2)
        assert events.processes(ChildEvent.FROZEN) == [frozen]
        with pytest.raises(ProcessLookupError):
            os.kill(frozen, 0)
        await eventually(lambda: is_up(tmp_path, events.processes(ChildEvent.STARTED)[1]))


async def test_a_dead_child_is_replaced_and_the_others_continue(tmp_path: Path) -> None:
    events = Events()
    children = [child(tmp_path, "broker-0"), child(tmp_path, "broker-1")]
    async with supervising(tmp_path, children, events):
        await eventually(lambda: len(names(tmp_path, "up-*")) == 2)
        os.kill(events.processes(ChildEvent.STARTED, "broker-0")[0], signal.SIGKILL)
        await eventually(lambda: len(names(tmp_path, "up-*")) == 3)
        assert events.processes(ChildEvent.FROZEN) == []
        assert len(events.processes(ChildEvent.STARTED, "broker-1")) == 1


async def test_a_child_that_ran_steadily_is_replaced_without_delay(
    tmp_path: Path,
) -> None:
    delays = RestartDelays(first_seconds=3600.0, longest_seconds=3600.0, steady_seconds=0.0)
    events = Events()
    async with supervising(tmp_path, [child(tmp_path)], events, delays=delays):
        await eventually(lambda: len(names(tmp_path, "up-*")) == 1)
        os.kill(events.processes(ChildEvent.STARTED)[0], signal.SIGKILL)
        await eventually(lambda: len(names(tmp_path, "up-*")) == 2)


async def test_every_child_reads_its_files_again_even_while_it_starts(
    tmp_path: Path,
) -> None:
    events = Events()
    children = [child(tmp_path, "broker-0"), child(tmp_path, "broker-1")]
    async with supervising(tmp_path, children, events):
        await eventually(lambda: len(events.events) == 2)
        os.kill(os.getpid(), signal.SIGHUP)  # they are not up yet, and would die of it
        await eventually(lambda: len(names(tmp_path, "hung-up-*")) == 2)
        assert len(events.processes(ChildEvent.STARTED)) == 1
        (tmp_path / names(tmp_path, "hung-up-*")[0]).unlink()
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually(lambda: len(names(tmp_path, "hung-up-*")) == 2)
    assert events.processes(ChildEvent.FROZEN) == []


async def test_the_end_of_its_terminal_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = Events()
    monkeypatch.setattr(supervisor_module, "_has_terminal", lambda: True)
    supervisor = Supervisor(tmp_path, lambda: [child(tmp_path)], on_event=events)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(supervisor.run())
        await eventually(lambda: bool(names(tmp_path, "up-*")))
        os.kill(os.getpid(), signal.SIGHUP)  # a person's order: the terminal is there
        await eventually(lambda: bool(names(tmp_path, "hung-up-*")))
        assert not running.done()
        monkeypatch.setattr(supervisor_module, "_has_terminal", lambda: False)
        os.kill(os.getpid(), signal.SIGHUP)
    assert running.result() == 0


async def test_a_clean_stop_lets_children_finish(tmp_path: Path) -> None:
    events = Events()
    async with supervising(tmp_path, [child(tmp_path)], events):
        await eventually(lambda: bool(names(tmp_path, "up-*")))
        await asyncio.sleep(0.3)
    (process_id,) = events.processes(ChildEvent.STARTED)
    assert (tmp_path / f"terminated-{process_id}").exists()


async def test_an_urgent_stop_does_not_wait(tmp_path: Path) -> None:
    events = Events()
    async with supervising(tmp_path, [child(tmp_path, behaviour="stubborn")], events) as supervisor:
        await eventually(lambda: bool(names(tmp_path, "up-*")))
        await asyncio.sleep(0.3)
        supervisor.request_stop()
        await asyncio.sleep(0.3)
        assert events.processes(ChildEvent.ENDED) == [], "asked once, it gets its time"
        supervisor.request_stop()
        await eventually(lambda: bool(events.processes(ChildEvent.ENDED)))


async def test_a_child_that_cannot_work_ends_the_supervisor(tmp_path: Path) -> None:
    hopeless = ChildSpec("broker-0", lambda _: [sys.executable, "-c", "raise SystemExit(78)"])
    supervisor = Supervisor(tmp_path, lambda: [hopeless])
    with pytest.raises(ChildFailed, match="broker-0 ended during its start with code 78"):
        await supervisor.run()
    DirectoryLock(tmp_path, what="nobody").acquire()


async def test_a_child_that_is_killed_during_its_first_start_is_started_again(
    tmp_path: Path,
) -> None:
    # The first process waits to be killed, the second one works.
    command = f"import os, time; os.mkdir({str(tmp_path / 'begun')!r}); time.sleep(600)"
    working = child(tmp_path)
    starts = iter(([sys.executable, "-c", command],))
    spec = ChildSpec("broker-0", lambda beats: next(starts, None) or working.command(beats))
    events = Events()
    async with supervising(tmp_path, [spec], events):
        await eventually((tmp_path / "begun").exists)
        os.kill(events.processes(ChildEvent.STARTED)[0], signal.SIGKILL)
        await eventually(lambda: bool(names(tmp_path, "up-*")))
        assert len(events.processes(ChildEvent.STARTED)) == 2


async def test_a_child_that_is_killed_and_then_refuses_to_start_ends_the_supervisor(
    tmp_path: Path,
) -> None:
    commands = iter(("import os; os.kill(os.getpid(), 9)", "raise SystemExit(78)"))
    hopeless = ChildSpec("broker-0", lambda _: [sys.executable, "-c", next(commands)])
    with pytest.raises(ChildFailed, match="broker-0 ended during its start with code 78"):
        await Supervisor(tmp_path, lambda: [hopeless]).run()


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = ChildSpec("broker-0", lambda _: [str(tmp_path / "nowhere")])
    with pytest.raises(ConfigurationError, match="broker-0 cannot be started"):
        await Supervisor(tmp_path, lambda: [missing]).run()


async def test_killing_a_broker_does_not_touch_the_store(tmp_path: Path) -> None:
    events = Events()
    server = EmbeddedServer(EmbeddedSettings(tmp_path / "valkey"))
    async with supervising(tmp_path, [child(tmp_path)], events, server):
        await eventually(lambda: bool(names(tmp_path, "up-*")))
        await asyncio.sleep(0.3)
        store = server.process_id
        assert store is not None
        os.kill(events.processes(ChildEvent.STARTED)[0], signal.SIGKILL)
        await eventually(lambda: len(names(tmp_path, "up-*")) == 2)
        assert server.process_id == store
        os.kill(store, signal.SIGKILL)
        await eventually(lambda: server.process_id not in {None, store})
        assert len(events.processes(ChildEvent.STARTED)) == 2
    assert server.process_id is None


async def test_a_second_start_on_the_same_directory_names_the_first(tmp_path: Path) -> None:
    events = Events()
    async with supervising(tmp_path, [child(tmp_path)], events):
        await eventually(lambda: bool(events.events))
        with pytest.raises(
            ConfigurationError, match=f"in use by onewriter with process id {os.getpid()}"
        ):
            await Supervisor(tmp_path, list).run()


# The supervisor as a process of its own.

SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from onewriter_broker.local.supervisor import ChildSpec, Supervisor

directory, program = Path(sys.argv[1]), sys.argv[2]
spec = ChildSpec("broker-0", lambda fd: [sys.executable, "-c", program, str(fd), str(directory), ""])

def on_event(name, event, pid):
    print(event.value, pid, flush=True)

sys.exit(asyncio.run(Supervisor(directory, lambda: [spec], on_event=on_event).run()))
"""


@asynccontextmanager
async def supervisor_process(
    directory: Path,
) -> AsyncIterator[tuple[subprocess.Popen[str], Callable[[], list[list[str]]]]]:
    """The process, and what it has said about its children so far."""
    output = directory / "output"
    with output.open("w") as file:
        process = subprocess.Popen(  # noqa: ASYNC220 - it does not wait
            [sys.executable, "-c", SUPERVISOR, str(directory), CHILD],
            stdout=file,
            text=True,
            env=ENVIRONMENT,
        )

    def events() -> list[list[str]]:
        lines = [line.split() for line in output.read_text().splitlines()]
        return [line for line in lines if len(line) == 2 and line[1].isdigit()]

    try:
        yield process, events
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return sys.platform != "linux"


async def test_a_suspended_supervisor_kills_no_broker_when_it_resumes(tmp_path: Path) -> None:
    async with supervisor_process(tmp_path) as (supervisor, events):
        await eventually(lambda: bool(names(tmp_path, "up-*")))
        await asyncio.sleep(0.5)
        supervisor.send_signal(signal.SIGSTOP)
        await asyncio.sleep(FROZEN_SECONDS + 1)
        supervisor.send_signal(signal.SIGCONT)
        await asyncio.sleep(1)
        assert [event for event, _ in events()] == ["child.started"]


async def test_a_suspended_machine_s_children_are_not_killed_when_all_wake(tmp_path: Path) -> None:
    async with supervisor_process(tmp_path) as (supervisor, events):
        await eventually(lambda: bool(names(tmp_path, "up-*")))
        await asyncio.sleep(0.5)
        child_id = int(events()[0][1])
        supervisor.send_signal(signal.SIGSTOP)
        os.kill(child_id, signal.SIGSTOP)
        await asyncio.sleep(FROZEN_SECONDS + 1)
        supervisor.send_signal(signal.SIGCONT)
        os.kill(child_id, signal.SIGCONT)
        await asyncio.sleep(1)
        assert [event for event, _ in events()] == ["child.started"]


async def test_children_do_not_outlive_a_killed_supervisor_even_when_frozen(tmp_path: Path) -> None:
    async with supervisor_process(tmp_path) as (supervisor, events):
        await eventually(lambda: bool(names(tmp_path, "up-*")))
        child_id = int(events()[0][1])
        os.kill(child_id, signal.SIGSTOP)
        supervisor.kill()
        await eventually(lambda: not is_running(child_id))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_stops_everything_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    async with supervisor_process(tmp_path) as (supervisor, events):
        await eventually(lambda: bool(names(tmp_path, "up-*")))
        await asyncio.sleep(0.3)
        supervisor.send_signal(number)
        assert await asyncio.to_thread(supervisor.wait, 120) == 0
        assert [event for event, _ in events()] == ["child.started", "child.ended"]
        assert names(tmp_path, "terminated-*")


# The child's side.


async def test_a_child_notices_that_the_pipe_s_other_end_is_gone() -> None:
    reading, writing = os.pipe()
    gone = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Heartbeat(writing, gone.set).run())
        await asyncio.sleep(0)
        assert os.read(reading, 10) == b"."
        os.close(reading)
        await gone.wait()


def fill(descriptor: int) -> None:
    while True:
        try:
            os.write(descriptor, b"x" * 4096)
        except BlockingIOError:
            return


async def test_a_supervisor_that_does_not_read_holds_no_child_up() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    heartbeat = Heartbeat(writing, lambda: None)
    fill(writing)
    async with asyncio.TaskGroup() as tasks:
        beating = tasks.create_task(heartbeat.run())
        await asyncio.sleep(0.05)
        assert not beating.done()
        beating.cancel()
    os.close(reading)


# Judgement.


def is_frozen_within(watch: Watch, start: float, seconds: float) -> bool:
    """Look regularly for so long; whether the child was found frozen at any time."""
    steps = round(seconds / POLL_SECONDS)
    return any(watch.is_frozen(start + POLL_SECONDS * step) for step in range(1, steps + 1))


def test_silence_counts_from_the_last_beat() -> None:
    watch = Watch(0.0)
    watch.beat()
    assert not is_frozen_within(watch, 0.0, FROZEN_SECONDS - 2 * POLL_SECONDS)
    watch.beat()
    assert not is_frozen_within(watch, FROZEN_SECONDS, FROZEN_SECONDS - 4 * POLL_SECONDS)
    assert is_frozen_within(watch, 2 * FROZEN_SECONDS, 2 * FROZEN_SECONDS)


def test_how_long_a_silence_may_last_is_a_setting() -> None:
    watch = Watch(0.0, 10.0)
    watch.beat()
    assert not is_frozen_within(watch, 0.0, 9.5)
    assert is_frozen_within(watch, 9.5, 1.0)
    assert Settings.model_fields["frozen_after_seconds"].default == FROZEN_SECONDS


def test_a_child_has_longer_for_its_first_beat() -> None:
    watch = Watch(0.0)
    assert not is_frozen_within(watch, 0.0, FIRST_BEAT_SECONDS - 1)
    assert is_frozen_within(watch, FIRST_BEAT_SECONDS - 1, 2)


def test_a_child_that_loads_its_program_on_a_busy_machine_is_not_frozen() -> None:
    watch = Watch(0.0)
    assert not busy(watch, 0.0, FIRST_BEAT_SECONDS_MAX - 1)
    assert busy(watch, FIRST_BEAT_SECONDS_MAX - 1, 2)


def test_after_a_pause_of_the_observer_silence_counts_from_zero() -> None:
    watch = Watch(0.0)
    watch.beat()
    assert not is_frozen_within(watch, 0.0, FROZEN_SECONDS - 2 * POLL_SECONDS)
    assert not watch.is_frozen(FROZEN_SECONDS + HELD_UP_SECONDS + 1)
    assert not is_frozen_within(watch, 3.0, FROZEN_SECONDS - 2 * POLL_SECONDS)


def busy(watch: Watch, start: float, seconds: float) -> bool:
    """Like ``is_frozen_within``, but of a child whose processor time rises."""
    steps = round(seconds / POLL_SECONDS)
    times = (start + POLL_SECONDS * step for step in range(1, steps + 1))
    return any(watch.is_frozen(now, used=now / 10) for now in times)


def test_a_child_with_a_stuck_event_loop_is_killed() -> None:
    watch = Watch(0.0)
    watch.beat()
    assert not busy(watch, 0.0, STUCK_SECONDS - 2 * POLL_SECONDS)
    assert busy(watch, STUCK_SECONDS - 2 * POLL_SECONDS, 4 * POLL_SECONDS)
    assert "processor time" not in watch.reason
    assert Settings.model_fields["stuck_after_seconds"].default == STUCK_SECONDS


def test_a_child_that_was_busy_and_stops_is_killed_soon() -> None:
    watch = Watch(0.0)
    watch.beat()
    assert not busy(watch, 0.0, 5.0)
    stopped = 5.0 / 10
    steps = range(1, round(2 * FROZEN_SECONDS / POLL_SECONDS))
    found = [watch.is_frozen(5.0 + POLL_SECONDS * step, used=stopped) for step in steps]
    first = found.index(True) * POLL_SECONDS
    assert abs(first - FROZEN_SECONDS) <= 3 * POLL_SECONDS
    assert "no processor time" in watch.reason


def test_an_idle_child_with_heartbeats_is_not_killed() -> None:
    watch = Watch(0.0)
    for step in range(1, 1000):
        watch.beat()
        assert not watch.is_frozen(POLL_SECONDS * step, used=1.0)


def test_the_processor_time_of_a_process_rises_while_it_works() -> None:
    before = processor_seconds(os.getpid())
    assert before is not None
    while processor_seconds(os.getpid()) == before:
        pass
    assert processor_seconds(2**22 + 1) is None  # there is no such process


async def test_a_child_whose_loop_is_busy_is_killed_after_the_longer_time(tmp_path: Path) -> None:
    events = Events()
    supervisor = Supervisor(
        tmp_path,
        lambda: [child(tmp_path, behaviour="busy")],
        frozen_seconds=0.3,
        stuck_seconds=1.5,
        on_event=events,
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(supervisor.run())
        await eventually(lambda: bool(events.processes(ChildEvent.FROZEN)))
        supervisor.request_stop()
        supervisor.request_stop()
    assert running.result() == 0


# The lock.


def test_a_lock_is_given_back_and_can_be_taken_again(tmp_path: Path) -> None:
    first, second = (DirectoryLock(tmp_path / "new", what="onewriter") for _ in range(2))
    first.acquire()
    with pytest.raises(ConfigurationError, match="stop it first, or choose another"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be used"):
        DirectoryLock(tmp_path / "file", what="onewriter").acquire()


def test_a_lock_that_is_not_held_cannot_be_shared(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not held"):
        _ = DirectoryLock(tmp_path, what="onewriter").descriptor
