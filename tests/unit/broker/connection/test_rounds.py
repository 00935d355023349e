"""The event loop's time is shared between connections."""

from __future__ import annotations

from collections.abc import Callable

from onewriter_broker.connection.rounds import DEFAULT_LIMITS, Rounds

STEP = DEFAULT_LIMITS.tick_seconds / 2


class Loop:
    """An event loop with a clock that tests move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[Callable[[], None]] = []
        self.rounds = Rounds(lambda: self.now, self.calls.append)

    def iterate(self) -> None:
        calls, self.calls[:] = list(self.calls), []
        for call in calls:
            call()


class Worker:
    """A connection with ``steps`` steps of work; each takes half of a tick's time."""

    def __init__(self, loop: Loop, steps: int, log: list[str], name: str) -> None:
        self._loop = loop
        self._steps = steps
        self._log = log
        self._name = name

    def work(self) -> None:
        self._loop.now += STEP
        self._log.append(self._name)
        self._steps -= 1
        if self._steps:
            self._loop.rounds.wait(self)


def test_waiting_connections_share_each_tick() -> None:
    loop, log = Loop(), list[str]()
    for name, steps in (("a", 3), ("b", 1), ("c", 2)):
        loop.rounds.wait(Worker(loop, steps, log, name))
    loop.iterate()
    assert log == ["a", "b"]
    loop.iterate()
    assert log == ["a", "b", "c", "a"]
    loop.iterate()
    assert "".join(log) == "abcaca"
    assert not loop.calls


def test_a_connection_that_waits_again_is_not_called_twice_in_one_round() -> None:
    loop, log = Loop(), list[str]()
    loop.rounds.wait(Worker(loop, 2, log, "a"))
    loop.iterate()
    assert log == ["a"]
    loop.iterate()
    assert log == ["a", "a"]


def test_a_closed_connection_is_not_called() -> None:
    loop, log = Loop(), list[str]()
    worker = Worker(loop, 1, log, "a")
    loop.rounds.wait(worker)
    loop.rounds.leave(worker)
    loop.iterate()
    assert log == []


def test_connections_just_read_may_use_one_share_of_a_tick() -> None:
    loop = Loop()
    loop.rounds.spent(STEP)
    assert loop.rounds.has_time
    loop.rounds.spent(STEP)
    assert not loop.rounds.has_time
    loop.iterate()
    assert loop.rounds.has_time


def test_a_little_work_needs_no_call_of_the_loop() -> None:
    loop = Loop()
    loop.rounds.spent(0.0001)
    assert not loop.calls
