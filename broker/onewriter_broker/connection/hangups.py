"""Detects that a peer has closed its connection while the broker does not read from it.

A transport that does not read sees neither the peer's end nor its reset. The kernel knows both, and
epoll reports them separately from unread bytes. Without epoll, only pings detect it: the peer's kernel
answers a ping to a closed socket with a reset, and the next ping fails.
"""

from __future__ import annotations

import asyncio
import select
import sys
from collections.abc import Callable
from contextlib import suppress


class HangUps:
    """Watches sockets that are not being read. It needs one descriptor of its own while it watches any."""

    __slots__ = ("_poll", "_watched")

    def __init__(self) -> None:
        self._watched: dict[int, Callable[[], None]] = {}
        if sys.platform == "linux":
            self._poll: select.epoll | None = None

    def watch(self, descriptor: int, gone: Callable[[], None]) -> None:
        """Call ``gone`` once when the peer of that socket closes it or resets it.

        Call ``forget`` before the descriptor is closed.
        """
        if sys.platform != "linux":
            return
        if self._poll is None:
            self._poll = select.epoll()
            asyncio.get_running_loop().add_reader(self._poll.fileno(), self._report_hangups)
        self._watched[descriptor] = gone
        with suppress(OSError):  # the kernel's limit of watched descriptors: pings have to suffice
            self._poll.register(descriptor, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def forget(self, descriptor: int) -> None:
        """Stop watching, because the socket is read again or closed. Does nothing for a socket that
        is not watched.
        """
        if sys.platform != "linux" or self._poll is None:
            return
        if self._watched.pop(descriptor, None) is None:
            return
        with suppress(OSError):  # it could not be registered
            self._poll.unregister(descriptor)
        if not self._watched:
            asyncio.get_running_loop().remove_reader(self._poll.fileno())
            self._poll.close()
            self._poll = None

    def _report_hangups(self) -> None:
        if sys.platform != "linux" or self._poll is None:
            return
        for descriptor, _ in self._poll.poll(0):
            gone = self._watched.get(descriptor)
            if gone is not None:
                gone()
