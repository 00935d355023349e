"""A network that a test can cut: it is between a client's socket and the broker in this process.

While it is cut, no data passes in either direction, although both sides consider the connection alive. Data
under way arrives when it is healed, as with TCP. If one side closes meanwhile, the other side notices it
then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast


class GatedTransport(asyncio.Transport):
    """The transport that the broker uses."""

    def __init__(self, transport: asyncio.Transport, ended: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        self._ended = ended
        self._held: list[bytes] = []
        self._wants_reading = True
        self._has_ended = False
        self.is_cut = False

    def cut(self) -> None:
        """Stop all traffic from now on."""
        self.is_cut = True
        self._transport.pause_reading()

    def heal(self) -> None:
        """Let traffic pass again, beginning with what was held back."""
        self.is_cut = False
        held, self._held = self._held, []
        self._transport.writelines(held)
        if self._has_ended:
            self._transport.abort()
        elif self._wants_reading:
            self._transport.resume_reading()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._has_ended:
            return
        if self.is_cut:
            self._held += [bytes(data) for data in list_of_data]
        else:
            self._transport.writelines(list_of_data)

    def pause_reading(self) -> None:
        self._wants_reading = False
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._wants_reading = True
        if not self.is_cut:
            self._transport.resume_reading()

    def abort(self) -> None:
        self._end(self._transport.abort)

    def close(self) -> None:
        self._end(self._transport.close)

    def _end(self, end: Callable[[], None]) -> None:
        if not self.is_cut:
            end()
        elif not self._has_ended:
            self._has_ended = True
            self._ended()

    def is_closing(self) -> bool:
        return self._has_ended or self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        # A peer that is cut off must look silent, not closed.
        return default if name == "socket" else self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._held))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)


class Gate(asyncio.BufferedProtocol):
    """One connection. ``is_to_be_cut`` is called for each new one."""

    def __init__(
        self,
        inner: asyncio.BufferedProtocol,
        gates: dict[Gate, None],
        is_to_be_cut: Callable[[], bool],
    ) -> None:
        self._inner = inner
        self._gates = gates
        self._is_to_be_cut = is_to_be_cut
        self._is_noted = False
        self.peer = ""
        """``HOST:PORT`` of the client, which the broker also uses."""
        self.line: GatedTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        host, port, *_ = transport.get_extra_info("peername")
        self.peer = f"{host}:{port}"
        self.line = GatedTransport(cast("asyncio.Transport", transport), self._ended)
        self._gates[self] = None
        self._inner.connection_made(self.line)
        if self._is_to_be_cut():
            self.line.cut()

    def _ended(self) -> None:
        """Handle that the broker closed the connection while it was cut."""
        asyncio.get_running_loop().call_soon(self.connection_lost, None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return cast("memoryview", self._inner.get_buffer(sizehint))

    def buffer_updated(self, nbytes: int) -> None:
        self._inner.buffer_updated(nbytes)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.line.is_cut:
            self._gates.pop(self, None)
        if not self._is_noted:
            self._is_noted = True
            self._inner.connection_lost(exc)
