"""When ledgers are rolled, and how much of the logs' tails stays in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onewriter_broker.log.api import Block
from onewriter_broker.log.memory import MemoryLogStore
from onewriter_broker.log.memory_server import MemoryServer
from onewriter_broker.log.topic_log import TopicLog
from onewriter_broker.settings import Settings
from onewriter_broker.topic.maintenance import ROLL_BYTES_MIN, Maintenance
from onewriter_core.api import ExclusiveTopic
from onewriter_core.ids import Position, TopicName

MEBIBYTE = 1024 * 1024


def declared(**retention: int) -> ExclusiveTopic:
    return ExclusiveTopic.from_document(
        {
            "apiVersion": "onewriter.dev/v1alpha1",
            "kind": "ExclusiveTopic",
            "metadata": {"name": "orders"},
            "spec": {"retention": retention},
        }
    )


def maintenance(*topics: Any, **settings: Any) -> Maintenance:
    loaded = {str(number): topic for number, topic in enumerate(topics)}
    registry: Any = SimpleNamespace(loaded=loaded)
    return Maintenance(registry, Settings(**settings), wall_ms=lambda: 0)


@pytest.mark.parametrize(
    ("topic", "bounds"),
    [
        (None, (64 * MEBIBYTE, 600)),
        (declared(), (64 * MEBIBYTE, 600)),
        (declared(maxBytes=40 * MEBIBYTE), (10 * MEBIBYTE, 600)),
        (declared(maxBytes=100), (ROLL_BYTES_MIN, 600)),
        (declared(maxBytes=10**12), (64 * MEBIBYTE, 600)),
        (declared(maxAgeSeconds=60), (64 * MEBIBYTE, 15)),
        (declared(maxAgeSeconds=1), (64 * MEBIBYTE, 1)),
    ],
)
def test_a_bounded_log_is_rolled_so_that_its_old_part_can_be_cut(
    topic: ExclusiveTopic | None, bounds: tuple[int, float]
) -> None:
    loaded: Any = SimpleNamespace(declared=topic)
    assert maintenance().roll_bounds(loaded) == bounds


def log_with_tail(name: str, blocks: int) -> TopicLog:
    server = MemoryServer()
    server.add_primary("one")
    log = TopicLog(TopicName.parse(name), MemoryLogStore(server.resolve))
    for number in range(1, blocks + 1):
        block = Block(Position(1, number), [1000], bytes(1000), None, 0, b"")
        log.tail.append(block)
        log.tail_bytes += 1208
    return log


def test_all_tails_together_stay_within_their_bound_and_each_keeps_its_newest() -> None:
    busy, quiet = log_with_tail("busy", 50), log_with_tail("quiet", 2)
    topics = [SimpleNamespace(runner=SimpleNamespace(logs={-1: log})) for log in (busy, quiet)]
    maintenance(*topics, tail_bytes_max=20_000).shrink_tails()
    assert busy.tail_bytes <= 10_000
    assert busy.tail[-1].position == Position(1, 50)
    assert len(quiet.tail) == 2, "a log within its share is left alone"


def test_nothing_is_forgotten_while_there_is_room() -> None:
    log = log_with_tail("busy", 50)
    topic = SimpleNamespace(runner=SimpleNamespace(logs={-1: log}))
    maintenance(topic, tail_bytes_max=10**6).shrink_tails()
    assert len(log.tail) == 50
