"""MemoryStagedStore: staged parts in memory; the part of MemoryLogStore that keeps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from onewriter_broker.log.memory_server import Change, Dataset
from onewriter_broker.log.staged import StagedPart


class Configure(Protocol):
    """Executes one change that nothing guards."""

    async def __call__(self, call: str, change: Change) -> None: ...


class Read(Protocol):
    """Executes one read."""

    async def __call__(self, call: str, read: Callable[[Dataset], Any]) -> Any: ...


class MemoryStagedStore:
    """Implements StagedStore (staged.py) over servers in memory, for tests and simulations."""

    def __init__(self, configure: Configure, read: Read) -> None:
        self._configure = configure
        self._read = read

    async def check_rights(self) -> None:
        return

    async def write(self, bucket: int, name: str, number: int, chunk: bytes) -> None:
        def change(dataset: Dataset) -> None:
            dataset.staged.setdefault((bucket, name), {})[number] = chunk

        await self._configure("staged_write", change)

    async def note(self, bucket: int, name: str, part: StagedPart) -> None:
        def change(dataset: Dataset) -> None:
            dataset.staged_parts.setdefault(bucket, {})[name] = part.encode()

        await self._configure("staged_note", change)

    async def read(self, bucket: int, name: str, number: int) -> bytes | None:
        def read(dataset: Dataset) -> bytes | None:
            return dataset.staged.get((bucket, name), {}).get(number)

        found: bytes | None = await self._read("staged_read", read)
        return found

    async def noted(self, bucket: int) -> Mapping[str, str]:
        def read(dataset: Dataset) -> dict[str, str]:
            return dict(dataset.staged_parts.get(bucket, {}))

        found: dict[str, str] = await self._read("staged_noted", read)
        return found

    async def drop(self, bucket: int, name: str, chunks: int) -> None:
        def change(dataset: Dataset) -> None:
            kept = dataset.staged.get((bucket, name), {})
            for number in range(chunks):
                kept.pop(number, None)
            dataset.staged_parts.get(bucket, {}).pop(name, None)

        await self._configure("staged_drop", change)
