"""The end of a peer is detected on a socket that is not read."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from onewriter_broker.connection.hangups import HangUps

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have the ping only")


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of one TCP connection: the broker's and the peer's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as peer,
    ):
        own, _ = server.accept()
        with own:
            yield own, peer


async def settle() -> None:
    """Longer than the loopback takes."""
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("is_reset", [False, True])
async def test_the_end_of_a_peer_is_detected_after_its_data(is_reset: bool) -> None:
    hang_ups, gone = HangUps(), asyncio.Event()
    with connection() as (own, peer):
        hang_ups.watch(own.fileno(), gone.set)
        peer.sendall(bytes(100_000))
        await settle()
        assert not gone.is_set(), "bytes to be read are no end"
        if is_reset:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        async with asyncio.timeout(60):
            await gone.wait()
        hang_ups.forget(own.fileno())


async def test_a_hang_up_is_reported_once_and_never_after_forget() -> None:
    hang_ups = HangUps()
    reported: list[str] = []
    with connection() as (one, first_peer), connection() as (other, second_peer):
        hang_ups.watch(one.fileno(), lambda: reported.append("one"))
        hang_ups.watch(other.fileno(), lambda: reported.append("other"))
        hang_ups.forget(other.fileno())
        hang_ups.forget(other.fileno())
        second_peer.close()
        first_peer.close()
        await settle()
        await settle()
        assert reported == ["one"]
        hang_ups.forget(one.fileno())


async def test_a_connection_is_watched_again_each_time_that_it_is_not_read() -> None:
    hang_ups = HangUps()
    reported: list[int] = []
    with connection() as (own, peer):
        for number in range(3):
            hang_ups.watch(own.fileno(), lambda number=number: reported.append(number))  # type: ignore[misc]
            hang_ups.forget(own.fileno())
        hang_ups.watch(own.fileno(), lambda: reported.append(3))
        peer.close()
        await settle()
        assert reported == [3]
        hang_ups.forget(own.fileno())
