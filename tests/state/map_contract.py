"""The contract of a SharedMap, tested in memory (unit) and on a real broker (integration)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import pytest
from pydantic import BaseModel

from onewriter import Closed, Refused
from onewriter.state import (
    SAMPLE,
    SharedMap,
    SharedState,
    SharedStateBuilder,
    StateLimits,
    UnreadableEntry,
    VersionConflict,
    WatchOverflow,
    WrongType,
)

LIMITS = StateLimits(timeout_seconds=120)

TURNS = 3
"""How often each of two busy writers must be granted the topic before the test checks the result."""

SECONDS_MAX = 90.0


class World(Protocol):
    """The place of the maps of one test: all of them use the same log."""

    def map(self, keys: Any, values: Any, **options: Any) -> SharedMap[Any, Any]: ...

    def state(self, builder: SharedStateBuilder[Any, Any]) -> SharedState[Any, Any]: ...

    async def entries(self) -> list[list[bytes]]:
        """Return the present log: each entry's messages."""
        ...

    async def append(self, contents: list[bytes]) -> None:
        """Let another writer append one entry."""
        ...


class Box(BaseModel):
    colour: str
    size: int = 1


def counter(**options: Any) -> SharedStateBuilder[int, int]:
    return SharedStateBuilder(
        initial=lambda: 0,
        apply=lambda state, operation: state + operation,
        serialize=lambda operation: b"%d" % operation,
        deserialize=int,
        limits=LIMITS,
        **options,
    )


class MapContract:
    """A subclass defines the fixture ``world``."""

    async def test_everything_a_map_does(self, world: World) -> None:
        async with world.map(str, int) as first:
            assert await first.get("a") is None
            assert await first.get_or_default("a", 7) == 7
            assert await first.put("a", 1) is None
            assert await first.put("a", 2) == 1
            assert await first.put_if_absent("a", 3) == 2
            assert await first.put_if_absent("b", 3) is None
            assert await first.replace("b", 4, 5) is False
            assert await first.replace("missing", 4, 5) is False
            assert await first.replace("b", 3, 300) is True
            assert await first.update("b", lambda value: (value or 0) + 1) == 301
            assert await first.update("b", lambda _value: None) is None
            changed = await first.update_multiple(lambda _map: {"a": None, "c": 3, "d": 4})
            assert dict(changed) == {"c": 3, "d": 4}
            assert await first.delete("c") == 3
            assert await first.delete("c") is None
            assert sorted(await first.list_keys()) == ["d"]
            assert await first.scan(dict) == {"d": 4}
            await first.clear()
            assert await first.scan(len) == 0

    async def test_other_maps_see_a_write_immediately_with_latest(self, world: World) -> None:
        async with world.map(str, int) as one, world.map(str, int) as other:
            for number in range(10):
                await (one, other)[number % 2].put("k", number)
                for each in (one, other):
                    assert await each.get("k", latest=True) == number

    async def test_nothing_is_written_when_nothing_changes(self, world: World) -> None:
        async with world.map(str, int) as shared:
            await shared.put("a", 1)
            version, entries = shared.state.version, len(await world.entries())
            await shared.put("a", 1)
            await shared.put_if_absent("a", 9)
            await shared.replace("a", 2, 3)
            await shared.delete("b")
            await shared.update("a", lambda value: value)
            await shared.update_multiple(lambda _map: {"a": 1, "b": None})
            assert shared.state.version == version
            assert len(await world.entries()) == entries

    async def test_a_write_of_many_operations_is_one_entry(self, world: World) -> None:
        async with world.map(str, int) as shared:
            await shared.update_multiple(lambda _map: {str(n): n for n in range(100)})
        assert len(await world.entries()) == 1

    async def test_concurrent_writes_share_entries_and_none_is_lost(self, world: World) -> None:
        async with world.map(str, int) as shared:

            async def add() -> int | None:
                return await shared.update("sum", lambda value: (value or 0) + 1)

            results = await asyncio.gather(*(add() for _ in range(500)))
            assert sorted(result or 0 for result in results) == list(range(1, 501))
        assert len(await world.entries()) < 100

    async def test_a_reader_of_writes_sees_exactly_the_entries_of_its_operations(
        self, world: World
    ) -> None:
        async with world.state(counter(immutable=True)) as state:

            async def add(amount: int) -> bool:
                """Return whether the new state is the earlier one plus these operations."""
                before: list[int] = []

                def generate(value: int) -> list[int]:
                    before.append(value)
                    return [amount, amount]

                after = await state.write(generate, lambda value: value)
                return bool(after == before[-1] + 2 * amount)

            assert all(await asyncio.gather(*map(add, range(1, 51))))
            assert await state.read(lambda value: value) == 2 * sum(range(51))

    async def test_states_are_not_shared_with_readers(self, world: World) -> None:
        builder: SharedStateBuilder[list[int], int] = SharedStateBuilder(
            initial=list,
            apply=_append,
            serialize=lambda operation: b"%d" % operation,
            deserialize=int,
            limits=LIMITS,
        )
        async with world.state(builder) as state:
            leaked = await state.write(lambda _state: [1, 2], lambda value: value)
            leaked.append(99)
            (await state.read(lambda value: value)).append(98)
            await state.write(lambda value: value.append(97) or [3], lambda value: value)
            assert await state.read(lambda value: value) == [1, 2, 3]

    async def test_views_of_a_map_never_change(self, world: World) -> None:
        async with world.map(str, int) as shared:
            await shared.put("a", 1)
            view: Mapping[str, int] = await shared.scan(lambda whole: whole)
            await shared.put("a", 2)
            await shared.clear()
            assert dict(view) == {"a": 1}
            with pytest.raises(TypeError):
                view["a"] = 5  # type: ignore[index]

    async def test_a_function_that_raises_changes_nothing(self, world: World) -> None:
        async with world.state(counter()) as state:
            await state.write(lambda _value: [1], lambda value: value)

            def generate(_value: int) -> Any:
                yield 5
                raise RuntimeError("mine")

            with pytest.raises(RuntimeError, match="mine"):
                await state.write(generate, lambda value: value)
            with pytest.raises(TypeError):  # raised by the function that applies the operation
                await state.write(lambda _value: [2, 1j], lambda value: value)
            assert await state.read(lambda value: value) == 1
            assert state.version == 1
        assert len(await world.entries()) == 1

    async def test_a_write_may_expect_a_version(self, world: World) -> None:
        async with world.map(str, int) as one, world.map(str, int) as other:
            await one.put("a", 1)
            seen = await other.state.snapshot(latest=True)
            await one.put("a", 2)
            with pytest.raises(VersionConflict) as conflict:
                await other.update_multiple(lambda _map: {"a": 3}, if_version=seen.version)
            assert (conflict.value.expected, conflict.value.actual) == (1, 2)
            seen = await other.state.snapshot()
            await other.update_multiple(lambda _map: {"a": 3}, if_version=seen.version)
            assert await one.get("a", latest=True) == 3

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            (str, ["", "text", "é"]),
            (int, [0, 1, -1, 127, 128, -128, -129, 2**80, -(2**80)]),
            (bytes, [b"", b"\x00\xff"]),
            (dict, [{}, {"b": [1, None, "x"]}]),
            (Box, [Box(colour="red"), Box(colour="blue", size=3)]),
        ],
    )
    async def test_values_of_a_type(self, world: World, kind: Any, values: list[Any]) -> None:
        async with world.map(int, kind) as shared:
            for number, value in enumerate(values):
                await shared.put(number, value)
            assert await shared.scan(dict, latest=True) == dict(enumerate(values))
        async with world.map(int, kind) as again:
            assert await again.scan(dict) == dict(enumerate(values))

    async def test_wrong_types_are_refused_before_anything_is_written(self, world: World) -> None:
        async with world.map(str, int) as shared:
            for attempt in (
                lambda: shared.put(1, 1),
                lambda: shared.put("a", "text"),
                lambda: shared.put("a", True),
                lambda: shared.get(b"a"),
                lambda: shared.delete(None),
                lambda: shared.replace("a", 1, "b"),
                lambda: shared.put_if_absent("a", None),
                lambda: shared.update("a", lambda _value: "text"),
                lambda: shared.update_multiple(lambda _map: {3: 3}),
            ):
                with pytest.raises(WrongType):
                    await attempt()
        assert await world.entries() == []

    async def test_watching(self, world: World) -> None:
        async with world.map(str, int) as one, world.map(str, int) as other:
            await one.put("a", 1)
            await other.get("a", latest=True)
            async with other.watch(initial=True) as watch:
                await one.put("b", 2)
                await one.delete("a")
                await one.update_multiple(lambda _map: {"c": 3})
                await one.clear()
                seen = [await anext(watch) for _ in range(6)]
        changes = [(each.key, each.value, each.previous) for each in seen]
        assert changes[:4] == [("a", 1, None), ("b", 2, None), ("a", None, 1), ("c", 3, None)]
        assert sorted(changes[4:]) == [("b", None, 2), ("c", None, 3)]
        assert [each.version for each in seen] == [1, 2, 3, 4, 5, 5]

    async def test_a_watcher_that_is_too_slow_gets_an_error(self, world: World) -> None:
        limits = StateLimits(timeout_seconds=20, watched_changes_max=5)
        async with world.map(str, int, limits=limits) as shared, shared.watch() as watch:
            for number in range(7):
                await shared.put("a", number)
            for number in range(5):
                assert (await anext(watch)).value == number
            with pytest.raises(WatchOverflow):
                await anext(watch)

    async def test_the_samples_operations_are_read_and_written(self, world: World) -> None:
        await world.append([b'{"type": 1, "key": "YQ==", "value": "AQ=="}'])
        async with world.map(str, int, format=SAMPLE) as shared:
            assert await shared.get("a", latest=True) == 1
            await shared.update_multiple(lambda _map: {"b": 128, "a": None})
            assert await shared.scan(dict, latest=True) == {"b": 128}
            await shared.clear()
        assert await world.entries() == [
            [b'{"type": 1, "key": "YQ==", "value": "AQ=="}'],
            [
                b'{"type": 1, "key": "Yg==", "value": "AIA="}',
                b'{"type": 2, "key": "YQ==", "value": null}',
            ],
            [b'{"type": 0, "key": null, "value": null}'],
        ]

    async def test_an_entry_that_cannot_be_read_is_named(self, world: World) -> None:
        async with world.map(str, int) as shared:
            await shared.put("a", 1)
            await world.append([b"something else"])
            with pytest.raises(UnreadableEntry) as unreadable:
                await shared.get("a", latest=True)
            assert unreadable.value.position.entry >= 1
            assert await shared.get("a") == 1
            with pytest.raises(UnreadableEntry):
                await shared.put("a", 2)
        async with world.map(str, int) as again:  # the log is readable up to there
            assert await again.get("a") == 1

    async def test_a_write_that_fits_no_entry_is_refused(self, world: World) -> None:
        async with world.map(str, bytes) as shared:
            with pytest.raises(Refused, match="nothing was written"):
                await shared.put("a", bytes(6 * 1024 * 1024))
            await shared.put("a", bytes(4 * 1024 * 1024))
            await shared.put("b", b"x")
            assert await shared.size(latest=True) == 2

    async def test_more_concurrent_writes_than_fit_into_an_entry(self, world: World) -> None:
        async with world.map(str, bytes) as shared:
            await asyncio.gather(*(shared.put(str(n), b"%d" % n) for n in range(2_500)))
            await asyncio.gather(*(shared.put(str(n), bytes(100_000)) for n in range(20)))
            content = await shared.scan(dict, latest=True)
        assert len(content) == 2_500
        async with world.map(str, bytes) as again:
            assert await again.scan(dict, latest=True) == content

    async def test_many_writes_in_the_samples_format(self, world: World) -> None:
        async with world.map(int, int, format=SAMPLE) as shared:
            await asyncio.gather(*(shared.put(n, n) for n in range(200)))
            await shared.update_multiple(lambda _map: {n: -n for n in range(500)})
            content = await shared.scan(dict, latest=True)
        assert content == {n: -n for n in range(500)}
        assert len(await world.entries()) == 201

    async def test_use_outside_of_its_with_statement_raises(self, world: World) -> None:
        shared = world.map(str, int)
        with pytest.raises(Closed):
            await shared.get("a")
        async with shared:
            await shared.put("a", 1)
        with pytest.raises(Closed):
            await shared.put("a", 2)

    async def test_two_busy_writers_take_turns(self, world: World) -> None:
        """Neither writer starves or fences the other: every write of both succeeds."""
        async with world.map(str, int) as one, world.map(str, int) as other:

            async def keep_adding(shared: SharedMap[Any, Any], name: str) -> int:
                count = 0
                while min(grants_of(one), grants_of(other)) < TURNS:
                    await shared.update(name, lambda value: (value or 0) + 1)
                    await shared.update("both", lambda value: (value or 0) + 1)
                    count += 1
                return count

            async with asyncio.timeout(SECONDS_MAX):
                counts = await asyncio.gather(keep_adding(one, "one"), keep_adding(other, "other"))
            assert await one.get("both", latest=True) == sum(counts)
            assert await one.get("one") == counts[0] > 0
            assert await one.get("other") == counts[1] > 0


class StockMapContract(MapContract):
    """The contract on a stock broker, which proves no end of the log and does not report waiters."""

    async def test_nothing_is_written_when_nothing_changes(self, world: World) -> None:
        """Only the entries that show the end of the log are written."""
        async with world.map(str, int) as shared:
            await shared.put("a", 1)
            await shared.put("a", 1)
            await shared.delete("b")
            assert shared.state.version == 1


def grants_of(shared: SharedMap[Any, Any]) -> int:
    """Return how often the map was granted the topic."""
    return shared.state.grants


def _append(state: list[int], operation: int) -> list[int]:
    state.append(operation)
    return state
