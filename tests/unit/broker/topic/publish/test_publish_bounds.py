"""What exceeds the limits of an atomic publish, or of a log that stores it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.unit.broker.topic.fence_path_world import serving
from tests.unit.broker.topic.publish.publish_world import APP, asked, log_of

from onewriter_broker.log.limits import APPS_MAX
from onewriter_broker.log.topic_log import atomic_publish
from onewriter_broker.log.topic_log.atomic_publish import Entries, TooLarge
from onewriter_core.errors import Refused, Unavailable
from onewriter_core.log_format import limits
from onewriter_core.log_format.field_names import VERSION_PREFIX
from onewriter_core.wire.values import Send


def large(count: int, size: int) -> Sequence[tuple[Send, memoryview]]:
    payload = memoryview(bytes(size))
    return [(Send(0, 1), payload)] * count


@pytest.mark.parametrize(
    ("count", "size"),
    [
        (1, limits.PUBLISH_ENTRY_BYTES_MAX + 1),
        (257, 1024 * 1024),
        (limits.PUBLISH_ENTRIES_MAX + 1, 1),
    ],
    ids=["an entry", "all of it", "its entries"],
)
async def test_a_too_large_part_is_refused_immediately(count: int, size: int) -> None:
    with pytest.raises(TooLarge):
        Entries(large(count, size))


def test_bytes_and_entries_are_all_that_bounds_a_publish() -> None:
    """A caller that knows both for a batch to several topics can compute whether each topic accepts it."""
    small = limits.BLOCK_ENTRIES_MAX * 508
    half = limits.BLOCK_BYTES_MAX // 2 + 1
    rest = limits.PUBLISH_BYTES_MAX - small
    entries = Entries([*large(rest // half, half), *large(small, 1)])
    assert 2_048 < len(entries.sizes) <= limits.PUBLISH_BLOCKS_MAX
    pairs = 2 * limits.PUBLISH_BYTES_MAX // limits.BLOCK_BYTES_MAX
    full = limits.PUBLISH_ENTRIES_MAX // limits.BLOCK_ENTRIES_MAX
    assert pairs + full <= limits.PUBLISH_BLOCKS_MAX


async def test_nothing_is_not_published() -> None:
    async with serving() as world:
        _, log = await log_of(world)
        with pytest.raises(Refused, match="at least one"):
            log.publish(asked(0))


async def test_the_number_of_waiters_is_limited() -> None:
    async with serving() as world:
        _, log = await log_of(world)
        log._is_writable = True
        for version in range(atomic_publish.PUBLISHES_WAITING_MAX):
            log.publish(asked(1, version=version))
        with pytest.raises(Refused, match="wait already"):
            log.publish(asked(1, version=99))


async def test_the_apps_of_a_log_are_limited() -> None:
    async with serving() as world:
        _, log = await log_of(world)
        log._state |= {f"{VERSION_PREFIX}app-{number}": "1" for number in range(APPS_MAX)}
        with pytest.raises(Refused, match="administrator"):
            log.publish(asked(1))
        log._state[f"{VERSION_PREFIX}{APP}"] = "1"
        log.publish(asked(1, version=2))


async def test_a_log_that_is_not_open_takes_none() -> None:
    async with serving() as world:
        _, log = await log_of(world)
        log._is_writable = False
        with pytest.raises(Unavailable):
            log.publish(asked(1))
