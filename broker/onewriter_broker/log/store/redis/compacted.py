"""RedisCompactedStore: compacted views on Redis; the part of RedisLogStore that keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from onewriter_broker.log.store.api import Binding, BrokenKey, Outcome
from onewriter_broker.log.store.compacted import (
    DROP_BLOCKS_MAX,
    Attempt,
    CompactedBlock,
    Extent,
    View,
    decode_block,
    extent_of,
    head_of,
    place_of,
)
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.log.store.redis import script_calls
from onewriter_broker.log.store.redis.connection import Reply
from onewriter_broker.log.store.redis.script_calls import Word
from onewriter_core.ids import Position, TopicName
from onewriter_core.log_format.field_names import COMPACTED


class Write(Protocol):
    """Sends one guarded write and returns the script's answer."""

    async def __call__(self, words: Sequence[Word]) -> Reply: ...


class Read(Protocol):
    """Sends one read to the named dataset. ``blocks``: how many blocks the reply has at most."""

    async def __call__(self, words: Sequence[Word], replid: str, *, blocks: int = 0) -> Reply: ...


class RedisCompactedStore:
    """Implements CompactedStore (compacted.py), which documents the methods."""

    def __init__(self, keys: Keys, write: Write, read: Read) -> None:
        self._keys = keys
        self._write = write
        self._read = read

    async def begin(
        self, binding: Binding, topic: TopicName, token: str, attempt: Attempt
    ) -> Outcome:
        keys = [self._keys.unit(binding.bucket), self._keys.state(topic)]
        arguments = [*_guard(binding), token, attempt.encode()]
        reply = await self._write(script_calls.COMPACT_BEGIN.call(keys, arguments))
        return script_calls.outcome(reply)

    async def write(
        self,
        binding: Binding,
        topic: TopicName,
        token: str,
        attempt: Attempt,
        number: int,
        block: CompactedBlock,
    ) -> Outcome:
        keys = self._keys_of(binding, topic, attempt.slot)
        arguments = [*_guard(binding), token, attempt.encode(), number, head_of(block)]
        arguments.append(block.payload)
        reply = await self._write(script_calls.COMPACT_WRITE.call(keys, arguments))
        return script_calls.outcome(reply)

    async def finish(
        self, binding: Binding, topic: TopicName, token: str, attempt: Attempt, view: View
    ) -> Outcome:
        keys = self._keys_of(binding, topic, attempt.slot)
        arguments = [*_guard(binding), token, attempt.encode(), view.blocks, view.encode()]
        reply = await self._write(script_calls.COMPACT_FINISH.call(keys, arguments))
        return script_calls.outcome(reply)

    async def drop(
        self, binding: Binding, topic: TopicName, token: str, slot: int
    ) -> Outcome | int:
        keys = self._keys_of(binding, topic, slot)
        arguments = [*_guard(binding), token, slot, DROP_BLOCKS_MAX]
        reply = await self._write(script_calls.COMPACT_DROP.call(keys, arguments))
        return reply if isinstance(reply, int) else script_calls.outcome(reply)

    async def read(
        self, topic: TopicName, slot: int, first: int, count: int, *, replid: str = ""
    ) -> list[CompactedBlock]:
        key = self._keys.compacted(topic, slot)
        names = [f"{part}{number}" for number in range(first, first + count) for part in "mp"]
        found = await self._fields(key, names, replid, blocks=count)
        blocks: list[CompactedBlock] = []
        for head, payload in zip(found[::2], found[1::2], strict=True):
            if head is None or payload is None:
                break
            blocks.append(decode_block(key, head, payload))
        return blocks

    async def places(
        self, topic: TopicName, slot: int, numbers: Sequence[int], *, replid: str = ""
    ) -> list[Position]:
        key = self._keys.compacted(topic, slot)
        found = await self._fields(key, [f"m{number}" for number in numbers], replid)
        return [place_of(key, head or b"") for head in found]

    async def named(self, topic: TopicName, *, replid: str = "") -> str:
        (found,) = await self._fields(self._keys.state(topic), [COMPACTED], replid)
        return "" if found is None else found.decode(errors="replace")

    async def extent(self, topic: TopicName, slot: int, *, replid: str = "") -> Extent:
        key = self._keys.compacted(topic, slot)
        (held,) = await self._fields(key, ["n"], replid)
        text = b"0" if held is None else held
        if not text.isdigit():
            raise BrokenKey(f"{key}: n is not a number")
        blocks = int(text)
        (head,) = await self._fields(key, [f"m{blocks - 1}"], replid)
        return extent_of(key, blocks, head or b"")

    async def _fields(
        self, key: str, names: Sequence[str], replid: str, *, blocks: int = 0
    ) -> list[bytes | None]:
        reply = await self._read(["HMGET", key, *names], replid, blocks=blocks)
        words = reply if isinstance(reply, list) else [None] * len(names)
        return [word if isinstance(word, bytes) else None for word in words]

    def _keys_of(self, binding: Binding, topic: TopicName, slot: int) -> list[str]:
        keys = self._keys
        return [keys.unit(binding.bucket), keys.state(topic), keys.compacted(topic, slot)]


def _guard(binding: Binding) -> list[Word]:
    return [binding.replid, binding.generation, binding.owner, binding.version]
