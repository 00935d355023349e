"""MemoryCompactedStore: compacted views in memory; the part of MemoryLogStore that keeps them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from onewriter_broker.log.api import Binding, Outcome
from onewriter_broker.log.blocks import MalformedBlock
from onewriter_broker.log.compacted import (
    COMPACTED,
    COMPACTING,
    DROP_BLOCKS_MAX,
    Attempt,
    CompactedBlock,
    Extent,
    View,
)
from onewriter_broker.log.keys import Keys
from onewriter_broker.log.memory_scripts import check_key, log_refusal
from onewriter_broker.log.memory_server import Change, Dataset, MemoryNode
from onewriter_core.ids import Position, TopicName


class Call(Protocol):
    """Executes one write on the node that the store is connected to."""

    async def __call__(self, call: str, run: Callable[[MemoryNode], Outcome]) -> Outcome: ...


class Read(Protocol):
    """Executes one read of the dataset that is named."""

    async def __call__(self, call: str, read: Callable[[Dataset], Any], replid: str) -> Any: ...


class MemoryCompactedStore:
    """Implements CompactedStore (compacted.py) over servers in memory, for tests and simulations."""

    def __init__(self, keys: Keys, call: Call, read: Read) -> None:
        self._keys = keys
        self._call = call
        self._read = read

    async def begin(
        self, binding: Binding, topic: TopicName, token: str, attempt: Attempt
    ) -> Outcome:
        def change(dataset: Dataset) -> None:
            dataset.states[topic][COMPACTING] = attempt.encode()

        def decide(state: dict[str, str], _dataset: Dataset) -> Outcome | Change:
            return Outcome.FENCED if _slot(state) == attempt.slot else change

        return await self._guarded("compact_begin", binding, topic, token, decide)

    async def write(
        self,
        binding: Binding,
        topic: TopicName,
        token: str,
        attempt: Attempt,
        number: int,
        block: CompactedBlock,
    ) -> Outcome:
        def change(dataset: Dataset) -> None:
            dataset.compacted.setdefault((topic, attempt.slot), []).append(block)

        def decide(state: dict[str, str], dataset: Dataset) -> Outcome | Change:
            is_present = state.get(COMPACTING) == attempt.encode()
            if not is_present or _slot(state) == attempt.slot:
                return Outcome.FENCED
            check_key(dataset, self._keys.compacted(topic, attempt.slot))
            present = dataset.compacted.get((topic, attempt.slot), [])
            return change if len(present) == number else Outcome.FENCED

        return await self._guarded("compact_write", binding, topic, token, decide)

    async def finish(
        self, binding: Binding, topic: TopicName, token: str, attempt: Attempt, view: View
    ) -> Outcome:
        def change(dataset: Dataset) -> None:
            dataset.states[topic][COMPACTED] = view.encode()

        def decide(state: dict[str, str], dataset: Dataset) -> Outcome | Change:
            if state.get(COMPACTING) != attempt.encode():
                return Outcome.FENCED
            check_key(dataset, self._keys.compacted(topic, attempt.slot))
            blocks = dataset.compacted.get((topic, attempt.slot), [])
            return change if len(blocks) == view.blocks else Outcome.LOST

        return await self._guarded("compact_finish", binding, topic, token, decide)

    async def drop(
        self, binding: Binding, topic: TopicName, token: str, slot: int
    ) -> Outcome | int:
        left = 0

        def change(dataset: Dataset) -> None:
            blocks = dataset.compacted.get((topic, slot), [])
            dataset.compacted[topic, slot] = blocks[:-DROP_BLOCKS_MAX]

        def decide(state: dict[str, str], dataset: Dataset) -> Outcome | Change:
            nonlocal left
            if _slot(state) == slot:
                return Outcome.FENCED
            check_key(dataset, self._keys.compacted(topic, slot))
            left = max(0, len(dataset.compacted.get((topic, slot), [])) - DROP_BLOCKS_MAX)
            return change

        outcome = await self._guarded("compact_drop", binding, topic, token, decide)
        return left if outcome is Outcome.DONE else outcome

    async def read(
        self, topic: TopicName, slot: int, first: int, count: int, *, replid: str = ""
    ) -> list[CompactedBlock]:
        blocks = await self._blocks(topic, slot, replid)
        return blocks[first : first + count]

    async def places(
        self, topic: TopicName, slot: int, numbers: Sequence[int], *, replid: str = ""
    ) -> list[Position]:
        blocks = await self._blocks(topic, slot, replid)
        if any(number >= len(blocks) for number in numbers):
            raise MalformedBlock(f"{self._keys.compacted(topic, slot)}: a block is missing")
        return [blocks[number].position for number in numbers]

    async def named(self, topic: TopicName, *, replid: str = "") -> str:
        def read(dataset: Dataset) -> str:
            check_key(dataset, self._keys.state(topic))
            return dataset.states.get(topic, {}).get(COMPACTED, "")

        found: str = await self._read("read_compacted", read, replid)
        return found

    async def extent(self, topic: TopicName, slot: int, *, replid: str = "") -> Extent:
        blocks = await self._blocks(topic, slot, replid)
        return Extent(len(blocks), blocks[-1].last, blocks[-1].chain) if blocks else Extent(0)

    async def _blocks(self, topic: TopicName, slot: int, replid: str) -> list[CompactedBlock]:
        def read(dataset: Dataset) -> list[CompactedBlock]:
            check_key(dataset, self._keys.compacted(topic, slot))
            return list(dataset.compacted.get((topic, slot), []))

        found: list[CompactedBlock] = await self._read("read_compacted", read, replid)
        return found

    async def _guarded(
        self,
        call: str,
        binding: Binding,
        topic: TopicName,
        token: str,
        decide: Callable[[dict[str, str], Dataset], Outcome | Change],
    ) -> Outcome:
        """What all these scripts begin with; ``decide`` answers, or says what is changed."""

        def run(node: MemoryNode) -> Outcome:
            refused = log_refusal(self._keys, node, binding, topic, token)
            if refused is not None:
                return refused
            decided = decide(node.dataset.states[topic], node.dataset)
            if isinstance(decided, Outcome):
                return decided
            node.execute(decided)
            return Outcome.DONE

        return await self._call(call, run)


def _slot(state: dict[str, str]) -> int | None:
    """The slot whose view counts."""
    text = state.get(COMPACTED, "")
    return int(text.partition(" ")[0]) if text else None
