"""A socket that accepts a limited amount of data."""

from __future__ import annotations

import asyncio

import pytest

from onewriter._transport.connection import Connection


class SlowSocket:
    """Takes so many messages each time that the socket has room; ``run`` makes room again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        monkeypatch.setattr(Connection, "has_space", property(lambda _connection: self.takes()))

    def takes(self) -> bool:
        self.left -= 1
        return self.left >= 0

    def make_space(self, connection: Connection, messages: int) -> None:
        self.left = messages
        connection.resume_writing()

    async def run(self, connection: Connection) -> None:
        while True:
            self.make_space(connection, 2)
            await asyncio.sleep(0.001)
