"""Notices that a peer has gone while nothing is read from it.

A transport that does not read sees neither the peer's end nor its reset. The system knows of both,
and epoll tells them apart from bytes that wait to be read. Where there is no epoll, what is left is
the ping: one that meets a closed socket is answered with a reset, which the next one runs into.
"""

from __future__ import annotations

import asyncio
import select
import sys
from collections.abc import Callable
from contextlib import suppress


class HangUps:
    """Sockets that are not read. Costs one descriptor, and that only while there are some."""

    __slots__ = ("_poll", "_watched")

    def __init__(self) -> None:
        self._watched: dict[int, Callable[[], None]] = {}
        if sys.platform == "linux":
            self._poll: select.epoll | None = None

    def watch(self, descriptor: int, gone: Callable[[], None]) -> None:
        """Call ``gone``, once, when the peer of that socket has closed it or was reset.

        To be forgotten before the descriptor is closed.
        """
        if sys.platform != "linux":
            return
        if self._poll is None:
            self._poll = select.epoll()
            asyncio.get_running_loop().add_reader(self._poll.fileno(), self._look)
        self._watched[descriptor] = gone
        with suppress(OSError):  # the system's bound on watched descriptors: pings have to do
            self._poll.register(descriptor, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def forget(self, descriptor: int) -> None:
        """It is read again, or closed. Harmless for one that is not watched."""
        if sys.platform != "linux" or self._poll is None:
            return
        if self._watched.pop(descriptor, None) is None:
            return
        with suppress(OSError):  # it was not taken in
            self._poll.unregister(descriptor)
        if not self._watched:
            asyncio.get_running_loop().remove_reader(self._poll.fileno())
            self._poll.close()
            self._poll = None

    def _look(self) -> None:
        if sys.platform != "linux" or self._poll is None:
            return
        for descriptor, _ in self._poll.poll(0):
            gone = self._watched.get(descriptor)
            if gone is not None:
                gone()
