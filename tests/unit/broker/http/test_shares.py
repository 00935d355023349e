"""Places for requests: a share for each identity, some for administrators, a short wait for the rest."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from onewriter_broker.http.shares import Capacity, Shares
from onewriter_broker.http.site import Refusal

CAPACITY = Capacity(places=6, each=2, kept=2, waiting=4)


class Asking:
    """Requests that hold their places until they are told to leave."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self.served: list[str] = []
        self._tasks: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}

    async def ask(self, name: str, identity: str, *, is_privileged: bool = False) -> None:
        """``name`` asks; whether it is served at once is seen in ``served``."""
        done = asyncio.Event()

        async def hold() -> None:
            async with self._shares.place(identity, is_privileged=is_privileged):
                self.served.append(name)
                await done.wait()

        self._tasks[name] = (asyncio.get_running_loop().create_task(hold()), done)
        await settle()

    async def leave(self, name: str) -> None:
        task, done = self._tasks[name]
        done.set()
        await task
        await settle()

    async def refused(self, name: str) -> bool:
        with contextlib.suppress(Refusal):
            await self._tasks[name][0]
            return False
        return True

    async def cancel(self, name: str) -> None:
        self._tasks[name][0].cancel()
        await asyncio.wait([self._tasks[name][0]])
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_identity_has_its_share_and_others_have_theirs() -> None:
    asking = Asking(Shares(CAPACITY, "requests", 60.0))
    for name in ("a1", "a2", "a3"):
        await asking.ask(name, "a")
    await asking.ask("b1", "b")
    assert asking.served == ["a1", "a2", "b1"]
    await asking.leave("a1")
    assert asking.served == ["a1", "a2", "b1", "a3"]
    for name in ("a2", "a3", "b1"):
        await asking.leave(name)


async def test_places_are_kept_for_administrators() -> None:
    asking = Asking(Shares(CAPACITY, "requests", 60.0))
    for number in range(5):
        await asking.ask(f"{number}", f"identity-{number}")
    for number in range(2):
        await asking.ask(f"boss{number}", "boss", is_privileged=True)
    assert asking.served == ["0", "1", "2", "3", "boss0", "boss1"]
    await asking.leave("0")
    assert asking.served[-1] == "4"
    for name in ("1", "2", "3", "4", "boss0", "boss1"):
        await asking.leave(name)


async def test_free_places_go_round_the_identities_that_wait() -> None:
    asking = Asking(Shares(Capacity(places=1, each=2, kept=0, waiting=9), "requests", 60.0))
    await asking.ask("first", "x")
    for name in ("a1", "a2", "b1", "b2"):
        await asking.ask(name, name[0])
    for name in ("first", "a1", "b1", "a2", "b2"):
        await asking.leave(name)
    assert asking.served == ["first", "a1", "b1", "a2", "b2"]


async def test_a_request_that_waits_too_long_is_refused() -> None:
    asking = Asking(Shares(CAPACITY, "requests", 0.01))
    for name in ("a1", "a2", "a3"):
        await asking.ask(name, "a")
    assert await asking.refused("a3")
    await asking.leave("a1")
    await asking.ask("a4", "a")
    assert asking.served == ["a1", "a2", "a4"]
    await asking.leave("a2")
    await asking.leave("a4")


async def test_the_line_is_bounded_in_all_and_for_each() -> None:
    shares = Shares(CAPACITY, "requests", 60.0)
    asking = Asking(shares)
    for number in range(5):
        await asking.ask(f"a{number}", "a")
    assert await asking.refused("a4")
    for number in range(3):
        await asking.ask(f"b{number}", "b")
    for number in range(3):
        await asking.ask(f"c{number}", "c")
    assert await asking.refused("c1")
    assert await asking.refused("c2")
    for name in ("a2", "a3", "b2", "c0", "a0", "a1", "b0", "b1"):
        await asking.cancel(name)
    assert (shares._total, shares._waiters, dict(shares._taken), shares._waiting) == (0, 0, {}, {})


async def test_a_cancelled_waiting_request_leaves_no_state() -> None:
    shares = Shares(Capacity(places=1, each=1, kept=0, waiting=9), "requests", 60.0)
    asking = Asking(shares)
    for name in ("a", "b", "c"):
        await asking.ask(name, name)
    await asking.cancel("b")
    await asking.leave("a")
    assert asking.served == ["a", "c"]
    await asking.leave("c")
    assert (shares._total, shares._waiters) == (0, 0)


async def test_a_refusal_contains_its_reason_and_time() -> None:
    shares = Shares(Capacity(places=1, each=1, kept=0, waiting=0), "watches", 60.0)
    async with shares.place("a", is_privileged=False):
        with pytest.raises(Refusal, match="too many watches") as refused:
            async with shares.place("b", is_privileged=False):
                pass
    assert refused.value.status == 429
