"""The pipelined connection: what goes onto the wire, and what happens when the peer fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import hiredis
import pytest

from onewriter_broker.log.store.redis.connection import (
    PAYLOAD_BYTES_UNCOPIED,
    REPLIES_AWAITED_MAX,
    RedisConnection,
    encode,
)

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def connected_to(
    peer: Peer, *, replies_awaited_max: int = REPLIES_AWAITED_MAX
) -> AsyncIterator[RedisConnection]:
    """A connection to a server that behaves as ``peer`` does, until the test ends."""
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer(reader, writer)
        await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        gone.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        made = partial(RedisConnection, replies_awaited_max=replies_awaited_max)
        _, connection = await loop.create_connection(made, "127.0.0.1", port)
        try:
            yield connection
        finally:
            connection.close()
            await connection.wait_closed()
            await gone.wait()


def test_a_command_is_encoded_as_bulk_strings() -> None:
    assert b"".join(encode(["SET", b"k\x00", 12, "ü"])) == (
        b"*4\r\n$3\r\nSET\r\n$2\r\nk\x00\r\n$2\r\n12\r\n$2\r\n\xc3\xbc\r\n"
    )


def test_a_large_argument_is_passed_on_unchanged() -> None:
    payload = b"x" * PAYLOAD_BYTES_UNCOPIED
    buffers = encode(["SET", "k", payload, "after"])
    assert any(buffer is payload for buffer in buffers)
    assert b"".join(buffers).endswith(payload + b"\r\n$5\r\nafter\r\n")


async def test_replies_reach_their_commands_in_order_errors_being_replies() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"THREE\r\n")
        writer.write(b"+OK\r\n:7\r\n-ERR no\r\n")

    async with connected_to(peer) as connection:
        awaited = [connection.submit([word]) for word in ("ONE", "TWO", "THREE")]
        first, second, third = await asyncio.gather(*awaited)
    assert (first, second) == (b"OK", 7)
    assert isinstance(third, hiredis.ReplyError)


async def test_a_caller_that_gave_up_does_not_take_the_reply_to_another_call() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"TWO\r\n")
        writer.write(b":1\r\n:2\r\n")

    async with connected_to(peer) as connection:
        given_up, kept = connection.submit(["ONE"]), connection.submit(["TWO"])
        given_up.cancel()
        assert await kept == 2


@pytest.mark.parametrize("answer", [b"", b"garbage\r\n"], ids=["hangs up", "talks nonsense"])
async def test_a_peer_that_fails_ends_the_connection_for_all(answer: bytes) -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"TWO\r\n")
        writer.write(answer)
        writer.close()

    async with connected_to(peer) as connection:
        replies = await asyncio.gather(connection.submit(["ONE"]), connection.submit(["TWO"]))
        assert [type(reply) for reply in replies] == [ConnectionError, ConnectionError]
        assert not connection.is_open
        with pytest.raises(ConnectionError):
            connection.submit(["THREE"])


async def test_an_unrequested_reply_ends_the_connection() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"ONE\r\n")
        writer.write(b"+OK\r\n+and another\r\n")

    async with connected_to(peer) as connection:
        assert await connection.submit(["ONE"]) == b"OK"
        assert not connection.is_open


async def test_unanswered_commands_are_bounded() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Says nothing."""

    async with connected_to(peer, replies_awaited_max=3) as connection:
        for _ in range(3):
            connection.submit(["PING"])
        with pytest.raises(ConnectionError, match="too many"):
            connection.submit(["PING"])


async def test_a_caller_waits_until_its_commands_fit_below_the_limit_of_awaited_replies() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"THREE\r\n")
        writer.write(b":1\r\n")
        await reader.readuntil(b"FOUR\r\n")
        writer.write(b":2\r\n:3\r\n:4\r\n")
        await reader.readuntil(b"FIVE\r\n")
        writer.write(b":5\r\n")

    async with connected_to(peer, replies_awaited_max=3) as connection:
        first, *_ = [connection.submit([word]) for word in ("ONE", "TWO", "THREE")]
        await connection.writable()
        assert first.done()
        connection.submit(["FOUR"])
        await connection.writable(2)
        assert await connection.submit(["FIVE"]) == 5


async def test_more_commands_than_the_limit_wait_until_no_reply_is_awaited() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"TWO\r\n")
        writer.write(b":1\r\n:2\r\n")

    async with connected_to(peer, replies_awaited_max=2) as connection:
        awaited = [connection.submit([word]) for word in ("ONE", "TWO")]
        await connection.writable(3)
        assert all(reply.done() for reply in awaited)


async def test_a_closed_connection_keeps_no_caller_waiting() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Says nothing."""

    async with connected_to(peer, replies_awaited_max=1) as connection:
        connection.submit(["ONE"])
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(connection.writable())
            await asyncio.sleep(0)
            assert not waiting.done()
            connection.close()
