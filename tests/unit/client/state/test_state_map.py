"""SharedMap in memory: the contract, and against a plain dictionary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.state.map_contract import LIMITS, MapContract, StockMapContract

from onewriter.state import MemoryLog, SharedMap, SharedState, SharedStateBuilder
from onewriter.state.log import LogMessage


class MemoryWorld:
    def __init__(self) -> None:
        self.log = MemoryLog()

    def map(self, keys: Any, values: Any, **options: Any) -> SharedMap[Any, Any]:
        options.setdefault("limits", LIMITS)
        return SharedMap.in_memory(keys, values, log=self.log, **options)

    def state(self, builder: SharedStateBuilder[Any, Any]) -> SharedState[Any, Any]:
        return builder.in_memory(self.log)

    async def entries(self) -> list[list[bytes]]:
        return [[message.content for message in entry.messages] for entry in self.log.entries]

    async def append(self, contents: list[bytes]) -> None:
        grant = await self.log.acquire(lambda: None)
        await grant.append([LogMessage(content) for content in contents])
        await grant.hand_over()


@pytest.fixture
def world() -> MemoryWorld:
    return MemoryWorld()


class TestContract(MapContract):
    pass


class TestLikeAStockBroker(StockMapContract):
    @pytest.fixture
    def world(self) -> MemoryWorld:
        world = MemoryWorld()
        world.log = MemoryLog(proves_end=False, tells_waiting=False)
        return world


KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.integers(0, 3)


class AgainstADictionary(RuleBasedStateMachine):
    """Two maps on one log are, whoever is asked, one dictionary."""

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.log = MemoryLog()
        self.model: dict[str, int] = {}
        self.maps: list[SharedMap[str, int]] = []
        for _ in range(2):
            self.maps.append(SharedMap.in_memory(str, int, log=self.log, limits=LIMITS))
        self.stop = asyncio.Event()
        self.runner.run(self._open())

    async def _open(self) -> None:
        """Maps live in a task of their own: each statement here is a run of its own."""
        opened = asyncio.Event()
        self.life = asyncio.get_running_loop().create_task(self._live(opened))
        await opened.wait()

    async def _live(self, opened: asyncio.Event) -> None:
        async with self.maps[0], self.maps[1]:
            opened.set()
            await self.stop.wait()

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.runner.run(self._close())
            self.runner.close()

    async def _close(self) -> None:
        self.stop.set()
        await self.life

    def on(
        self, which: int, work: Callable[[SharedMap[str, int]], Coroutine[Any, Any, Any]]
    ) -> Any:
        return self.runner.run(work(self.maps[which]))

    @rule(which=st.integers(0, 1), key=KEYS, value=VALUES)
    def put(self, which: int, key: str, value: int) -> None:
        assert self.on(which, lambda m: m.put(key, value)) == self.model.get(key)
        self.model[key] = value

    @rule(which=st.integers(0, 1), key=KEYS, value=VALUES)
    def put_if_absent(self, which: int, key: str, value: int) -> None:
        assert self.on(which, lambda m: m.put_if_absent(key, value)) == self.model.get(key)
        self.model.setdefault(key, value)

    @rule(which=st.integers(0, 1), key=KEYS, expected=VALUES, value=VALUES)
    def replace(self, which: int, key: str, expected: int, value: int) -> None:
        replaced = self.model.get(key) == expected
        assert self.on(which, lambda m: m.replace(key, expected, value)) is replaced
        if replaced:
            self.model[key] = value

    @rule(which=st.integers(0, 1), key=KEYS)
    def delete(self, which: int, key: str) -> None:
        assert self.on(which, lambda m: m.delete(key)) == self.model.pop(key, None)

    @rule(which=st.integers(0, 1))
    def clear(self, which: int) -> None:
        self.on(which, lambda m: m.clear())
        self.model.clear()

    @rule(which=st.integers(0, 1), changes=st.dictionaries(KEYS, st.none() | VALUES))
    def update_multiple(self, which: int, changes: dict[str, int | None]) -> None:
        self.model = {**self.model, **changes}  # type: ignore[dict-item]
        self.model = {key: value for key, value in self.model.items() if value is not None}
        after = self.on(which, lambda m: m.update_multiple(lambda _map: changes))
        assert dict(after) == self.model

    @rule(which=st.integers(0, 1), loses_entries=st.booleans(), key=KEYS, value=VALUES)
    def put_whose_answer_is_lost(
        self, which: int, loses_entries: bool, key: str, value: int
    ) -> None:
        self.log.lose_answers(1, loses_entries=loses_entries)
        self.on(which, lambda m: m.put(key, value))
        self.log.lose_answers(0)
        self.model[key] = value

    @rule()
    def fence(self) -> None:
        self.log.fence()

    @rule()
    def break_followers(self) -> None:
        self.log.break_followers()

    @invariant()
    def both_are_the_dictionary(self) -> None:
        if hasattr(self, "maps"):
            for which in range(2):
                assert self.on(which, lambda m: m.scan(dict, latest=True)) == self.model


AgainstADictionary.TestCase.settings = settings(
    max_examples=10, stateful_step_count=20, deadline=None
)
TestAgainstADictionary = AgainstADictionary.TestCase
