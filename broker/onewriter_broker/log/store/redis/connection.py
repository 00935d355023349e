"""One pipelined connection to a Redis server; replies arrive in the order of the commands.

It replaces redis-py's connection because a guarded append then takes a half to a third of the
client's CPU time: large payloads go to the transport without a copy, and a reply costs one future
(figures in docs/benchmarks.md). primary.py handles discovery and authentication, store.py the
meaning of commands.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from typing import cast

import hiredis

from onewriter_broker.log.store.redis.script_calls import Word

PAYLOAD_BYTES_UNCOPIED = 16 * 1024
"""An argument of at least this size goes to the transport without a copy into the command."""

SEND_BUFFER_BYTES = 2 * 1024 * 1024
"""Send buffer of the socket: a call of 1 MiB leaves in one write (with the default of 208 KiB in two to
three), without iterations of the event loop in between."""

REPLIES_AWAITED_MAX = 4096
"""Largest number of commands without a reply on one connection. ``writable`` waits until there are fewer."""

Reply = object
"""bytes, int, None, a list of replies, or an exception: the server's error or the lost connection."""


def encode(words: Sequence[Word]) -> list[bytes | bytearray]:
    """A command in the server's protocol, as consecutive buffers."""
    for word in words:  # without a function for each of them: a call with fences has thousands
        if not isinstance(word, int) and len(word) >= PAYLOAD_BYTES_UNCOPIED:
            break
    else:
        # The type stub requires a tuple with one element.
        return [hiredis.pack_command(tuple(words))]  # type: ignore[arg-type]
    head = bytearray(b"*%d\r\n" % len(words))
    buffers: list[bytes | bytearray] = []
    start = 0
    for index, word in enumerate(words):
        if not isinstance(word, int) and _is_large(word):
            data = word if isinstance(word, bytes) else word.encode()
            _pack(head, words[start:index])
            head += b"$%d\r\n" % len(data)
            buffers += (head, data)
            head = bytearray(b"\r\n")
            start = index + 1
    _pack(head, words[start:])
    buffers.append(head)
    return buffers


def _is_large(word: Word) -> bool:
    return not isinstance(word, int) and len(word) >= PAYLOAD_BYTES_UNCOPIED


def _pack(head: bytearray, words: Sequence[Word]) -> None:
    """Add arguments to an unfinished command."""
    if words:
        # The type stub requires a tuple with one element.
        packed = hiredis.pack_command(tuple(words))  # type: ignore[arg-type]
        head += memoryview(packed)[packed.index(b"\n") + 1 :]


class RedisConnection(asyncio.Protocol):
    """A connection from the event loop's ``create_connection``. It cannot be opened again after it is closed."""

    def __init__(self, *, replies_awaited_max: int = REPLIES_AWAITED_MAX) -> None:
        self._replies_awaited_max = replies_awaited_max
        self._reader = hiredis.Reader()
        self._awaited: deque[asyncio.Future[Reply]] = deque()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._answered = asyncio.Event()
        self._closed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether commands may still be submitted."""
        # A transport with TLS may not report that it is closing after the server closed it.
        transport = self._transport
        return transport is not None and not (transport.is_closing() or self._closed.is_set())

    def submit(self, words: Sequence[Word]) -> asyncio.Future[Reply]:
        """Send one command now; the future's result is its reply, which may be an error.

        Raises ConnectionError if nothing was sent: the connection is closed, or has too many commands.
        """
        return self.submit_all((words,))[0]

    def submit_all(self, commands: Sequence[Sequence[Word]]) -> list[asyncio.Future[Reply]]:
        """As ``submit``, for consecutive commands: all of them are sent or none."""
        if self._transport is None or not self.is_open:
            raise ConnectionError("the connection to the store is closed")
        if len(self._awaited) + len(commands) > self._replies_awaited_max:
            raise ConnectionError("too many commands await the store's reply")
        buffers = [buffer for words in commands for buffer in encode(words)]
        loop = asyncio.get_running_loop()
        replies: list[asyncio.Future[Reply]] = [loop.create_future() for _ in commands]
        self._awaited.extend(replies)
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)
        return replies

    async def writable(self, commands: int = 1) -> None:
        """Wait until that number of commands may be submitted; return immediately if the connection is closed.

        The transport's buffer then has space, and the commands do not exceed the number of awaited replies.
        """
        await self._writable.wait()
        while self._awaited and len(self._awaited) + commands > self._replies_awaited_max:
            self._answered.clear()
            await self._answered.wait()
            await self._writable.wait()

    def close(self) -> None:
        """Close the connection; pending replies become ConnectionError."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(ConnectionError("the connection to the store was dropped"))

    async def wait_closed(self) -> None:
        """Wait until the socket is closed; only after ``close`` or a reply that is an error."""
        await self._closed.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        connected = self._transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self._answer(reply)
        except hiredis.HiredisError as error:
            self._fail(ConnectionError(f"the store broke its protocol: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()
        lost = ConnectionError(f"the connection to the store was lost: {exc or 'closed'}")
        lost.__cause__ = exc
        self._fail(lost)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _answer(self, reply: Reply) -> None:
        if not self._awaited:
            raise hiredis.ProtocolError("a reply without a command")
        future = self._awaited.popleft()
        self._answered.set()
        if not future.done():
            future.set_result(reply)

    def _fail(self, error: ConnectionError) -> None:
        self._writable.set()
        self._answered.set()
        while self._awaited:
            future = self._awaited.popleft()
            if not future.done():
                future.set_result(error)
