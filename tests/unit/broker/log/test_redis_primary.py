"""The handshake with a server that is only just starting."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import hiredis
import pytest

from onewriter_broker.log.store.redis.primary import RedisSettings, open_primary
from onewriter_broker.log.store.redis.server_checks import check_server
from onewriter_core.errors import Undecided


class LoadingServer:
    """Answers as a server does that loads its file, and is done when scripts are loaded.

    While it loads it says that it keeps no append-only file: it does not write one then.
    """

    def __init__(self) -> None:
        self.is_loading = True

    def answer(self, words: list[str]) -> bytes:
        match words:
            case ["INFO", "server"]:
                return bulk("valkey_version:9.1.2\r\nrun_id:r")
            case ["INFO", "replication"]:
                return bulk("role:master\r\nmaster_replid:" + 40 * "a")
            case ["INFO", "persistence"]:
                loading = int(self.is_loading)
                return bulk(f"loading:{loading}\r\naof_enabled:{1 - loading}")
            case ["INFO", _]:
                return bulk("")
            case ["CLIENT", "ID"]:
                return b":7\r\n"
            case ["SCRIPT", "LOAD", _]:
                self.is_loading = False
                return bulk(40 * "b")
            case ["CONFIG", "GET", name]:
                return b"*2\r\n" + bulk(name) + bulk("always")
            case _:
                return b"+OK\r\n"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = hiredis.Reader(encoding="utf-8")
        while data := await reader.read(65536):
            parser.feed(data)
            while (words := parser.gets()) is not False:
                writer.write(self.answer([str(word) for word in words]))
        writer.close()


def bulk(text: str) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text.encode())


@asynccontextmanager
async def loading_server() -> AsyncIterator[RedisSettings]:
    with tempfile.TemporaryDirectory(prefix="ow-") as folder:
        path = Path(folder) / "socket"
        server = await asyncio.start_unix_server(LoadingServer().serve, path)
        async with server:
            yield RedisSettings(url=f"unix://{path}", connect_timeout_seconds=60)


async def test_the_durability_of_a_server_is_read_after_it_has_loaded() -> None:
    """Asked before, a topic would wait for good for a durability that the server has."""
    async with loading_server() as settings:
        primary = await open_primary(settings)
        assert primary.syncs_always
        primary.connection.close()
        await primary.connection.wait_closed()


async def test_a_server_that_loads_is_not_judged_yet() -> None:
    async with loading_server() as settings:
        with pytest.raises(Undecided, match="still loads"):
            await check_server(settings)
