"""Running a command while a topic is led or resources are owned, with real processes and no brokers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.client.fake_broker import SECONDS_MAX, begin, until

from onewriter import Fenced, OnewriterError, Unavailable
from onewriter.verbs.child import Child, End, Stop, first_of

URL = "pulsar://nowhere:6650"

NOTES = "echo $$ > pid; sleep 600 & echo $! > below; wait"
"""A command that started another one."""

DEAF = "trap '' TERM; " + NOTES


@pytest.fixture
async def stop() -> AsyncIterator[Stop]:
    """Signals of this very process go to it."""
    before = {which: signal.getsignal(which) for which in (signal.SIGTERM, signal.SIGINT)}
    yield Stop()
    for which, handler in before.items():
        asyncio.get_running_loop().remove_signal_handler(which)
        signal.signal(which, handler)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def shell(script: str, *, grace_seconds: float = SECONDS_MAX, unconfirmed: float = 0.0) -> Child:
    return Child(
        command=["sh", "-c", script],
        service_url=URL,
        grace_seconds=grace_seconds,
        unconfirmed_seconds=unconfirmed,
    )


async def never() -> None:
    await asyncio.Event().wait()


async def long_work() -> str:
    await never()
    return "done"


def written(name: str) -> str:
    """What the command wrote down of itself."""
    path = Path(name)
    return path.read_text().strip() if path.exists() else ""


def is_gone(pid: int) -> bool:
    """Whether it ended, though it may not be reaped yet: its parent has ended, too."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


async def pid_in(name: str) -> int:
    async def is_written() -> bool:
        return bool(written(name))

    await until(is_written)
    return int(written(name))


async def until_gone(pid: int) -> None:
    async def ended() -> bool:
        return is_gone(pid)

    await until(ended)


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
async def test_the_exit_code_is_that_of_a_shell(stop: Stop, script: str, code: int) -> None:
    assert await shell(script).run({}, stop, lost=never, confirm=never) == (End.ITSELF, code)


async def test_a_command_that_cannot_be_executed_has_its_exit_code(
    stop: Stop, capfd: pytest.CaptureFixture[str]
) -> None:
    for word, code in (("/nowhere/at/all", 127), ("/etc/passwd", 126)):
        child = Child(command=[word], service_url=URL, grace_seconds=0.0, unconfirmed_seconds=0.0)
        assert await child.run({}, stop, lost=never, confirm=never) == (End.ITSELF, code)
        assert word in capfd.readouterr().err


async def test_a_command_gets_the_environment_of_its_leadership(stop: Stop) -> None:
    child = shell('test "$EPOCH $ONEWRITER_SERVICE_URL $KEPT" = "7 pulsar://nowhere:6650 yes"')
    os.environ["KEPT"] = "yes"
    try:
        assert await child.run({"EPOCH": "7"}, stop, lost=never, confirm=never) == (End.ITSELF, 0)
    finally:
        del os.environ["KEPT"]


async def test_after_a_loss_it_ends_with_all_that_it_started(stop: Stop) -> None:
    lost = asyncio.Event()
    running = begin(shell(NOTES).run({}, stop, lost=lost.wait, confirm=never))
    pid, below = await pid_in("pid"), await pid_in("below")
    assert os.getpgid(pid) == pid != os.getpgid(0)
    lost.set()
    assert await running == (End.LOST, 128 + signal.SIGTERM)
    await until_gone(below)


async def test_a_command_that_ignores_sigterm_is_killed_after_the_grace_period(stop: Stop) -> None:
    lost = asyncio.Event()
    child = shell(DEAF, grace_seconds=0.1)
    running = begin(child.run({}, stop, lost=lost.wait, confirm=never))
    below = await pid_in("below")
    lost.set()
    assert await running == (End.LOST, 128 + signal.SIGKILL)
    await until_gone(below)


async def test_the_rest_of_the_group_is_killed_when_the_command_ends(stop: Stop) -> None:
    child = shell("trap '' TERM; sleep 600 & echo $! > below; exit 4")
    assert await child.run({}, stop, lost=never, confirm=never) == (End.ITSELF, 4)
    await until_gone(await pid_in("below"))


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
async def test_signals_are_passed_on(stop: Stop, which: signal.Signals) -> None:
    # A shell may not trap what it was started to ignore, and Python can.
    program = (
        "import os, signal, sys, time\n"
        "for s in (signal.SIGTERM, signal.SIGINT): signal.signal(s, lambda n, _: sys.exit(n))\n"
        "open('pid', 'w').write(str(os.getpid()))\n"
        "time.sleep(600)"
    )
    child = Child(
        command=[sys.executable, "-c", program],
        service_url=URL,
        grace_seconds=SECONDS_MAX,
        unconfirmed_seconds=0.0,
    )
    running = begin(child.run({}, stop, lost=never, confirm=never))
    await pid_in("pid")
    os.kill(os.getpid(), which)
    assert await running == (End.STOPPED, which)
    again = await shell("echo yes > ran").run({}, stop, lost=never, confirm=never)
    assert again == (End.STOPPED, 128 + which), "nothing is started any more"
    assert written("ran") == ""


async def test_a_signal_ends_what_is_waited_for(stop: Stop) -> None:
    waiting = begin(stop.unless(long_work()))
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await waiting is None
    assert stop.exit_code == 128 + signal.SIGTERM
    assert await stop.unless(long_work()) is None, "also one that came before"


async def test_a_cancellation_does_not_count_as_a_signal(stop: Stop) -> None:
    waiting = begin(stop.unless(never()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize("error", [Unavailable("away"), Fenced("over"), None])
async def test_a_command_without_confirmation_is_stopped(
    stop: Stop, error: OnewriterError | None
) -> None:
    requests: list[None] = []

    async def confirm() -> None:
        requests.append(None)
        if len(requests) < 3:
            return
        if error is None:
            await never()
        else:
            raise error

    child = shell(NOTES, unconfirmed=0.2)
    end, _ = await child.run({}, stop, lost=never, confirm=confirm)
    assert end is End.UNCONFIRMED
    assert end.is_loss
    assert len(requests) == 3


async def test_of_concurrent_events_the_first_named_one_counts() -> None:
    async def at_once() -> None:
        return

    waits = {End.ITSELF: never, End.LOST: at_once, End.STOPPED: at_once}
    assert await first_of(waits) is End.LOST
