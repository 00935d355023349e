"""RedisStagedStore: staged parts on Redis; the part of RedisLogStore that keeps them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from onewriter_broker.log.store.keys import Keys
from onewriter_broker.log.store.redis.connection import Reply
from onewriter_broker.log.store.redis.script_calls import Word
from onewriter_broker.log.store.staged_parts import StagedPart
from onewriter_core.errors import OnewriterError, Refused, ServerError

Send = Callable[[Sequence[Sequence[Word]]], Awaitable[list[Reply]]]
"""Sends pipelined commands and returns their replies."""

PROBE_STREAM = "ow:probe:unused"
"""A stream that never exists."""


class RedisStagedStore:
    """Implements StagedStore (staged_parts.py), which documents the methods."""

    def __init__(self, keys: Keys, send: Send) -> None:
        self._keys = keys
        self._send = send
        self._has_rights = False

    async def check_rights(self) -> None:
        if self._has_rights:
            return
        try:
            await self._send([["XDEL", PROBE_STREAM, "0-1"]])
        except OnewriterError as error:
            if "NOPERM" in str(error):
                text = (
                    "the store does not let this broker use XDEL, without which a publish that was"
                    " cut short could not be undone: give its user the rules of docs/install.md"
                )
                raise Refused(ServerError.NOT_ALLOWED_ERROR, text) from error
            raise
        self._has_rights = True

    async def write(self, bucket: int, name: str, number: int, chunk: bytes) -> None:
        await self._send([["HSET", self._keys.staged(bucket, name), number, chunk]])

    async def note(self, bucket: int, name: str, part: StagedPart) -> None:
        await self._send([["HSET", self._keys.staged(bucket), name, part.encode()]])

    async def read(self, bucket: int, name: str, number: int) -> bytes | None:
        (reply,) = await self._send([["HGET", self._keys.staged(bucket, name), number]])
        return reply if isinstance(reply, bytes) else None

    async def noted(self, bucket: int) -> Mapping[str, str]:
        (reply,) = await self._send([["HGETALL", self._keys.staged(bucket)]])
        words = reply if isinstance(reply, list) else []
        texts = [word.decode(errors="replace") for word in words if isinstance(word, bytes)]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    async def drop(self, bucket: int, name: str, chunks: int) -> None:
        key = self._keys.staged(bucket, name)
        commands: list[list[Word]] = [["HDEL", key, number] for number in range(chunks)]
        await self._send([*commands, ["HDEL", self._keys.staged(bucket), name]])
