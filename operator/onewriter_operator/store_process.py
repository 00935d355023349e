"""The operator's connection to one process of the store's cluster."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import redis.exceptions
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from onewriter_core.cluster_views import parse_view
from onewriter_core.errors import Unavailable, Undecided
from onewriter_operator.plan.store_shards import PodAnswer

ANSWER_SECONDS: Final = 2.0
"""The default of ``answer_seconds``."""

CONNECT_SECONDS: Final = 1.0
"""Time for a connection. A former address of a pod does not answer at all, and must not delay the repair of others."""

Info = Mapping[str, str]


class AccessDenied(Unavailable):
    """The process does not accept the password."""


class StoreProcess:
    """A process at ``host`` and ``port``. It connects again after every failure: the host may have another address.

    ``ca_file``: the authority that must have signed the process's certificate, which must have the name ``host``. It is read
    for each connection. Empty: no TLS.
    ``answer_seconds``: time for a connection and the answers to all questions, or to one command.
    """

    def __init__(
        self,
        host: str,
        port: int,
        username: str,
        password: str,
        answer_seconds: float = ANSWER_SECONDS,
        ca_file: str = "",
    ) -> None:
        self._host = host
        self._port = port
        self._username = username
        self._password = password
        self.answer_seconds = answer_seconds
        self._ca_file = ca_file
        self._connection: Connection | None = None

    async def ask(self) -> PodAnswer:
        """Its view of the cluster, its data and its role. Raises Unavailable."""
        nodes, state, replication, keyspace = await self._calls(
            ("CLUSTER", "NODES"),
            ("CLUSTER", "INFO"),
            ("INFO", "replication"),
            ("INFO", "keyspace"),
        )
        try:
            view = parse_view(nodes, (self._host, self._port))
        except Undecided as error:
            raise Unavailable(str(error)) from error
        role = _info(replication)
        databases = _info(keyspace).values()
        is_copied = (
            role.get("master_link_status") == "up" and role.get("master_sync_in_progress") == "0"
        )
        offset = role.get("slave_repl_offset") or role.get("master_repl_offset") or "0"
        return PodAnswer(
            view,
            keys=sum(_keys(text) for text in databases),
            is_in_sync=role.get("role") == "master" or is_copied,
            offset=int(offset) if offset.lstrip("-").isdigit() else 0,
            is_serving=_info(state).get("cluster_state") == "ok",
        )

    async def execute(self, words: tuple[str | int, ...]) -> None:
        """Execute a command at the process that answered last.

        Raises Unavailable if it was refused, or may not have been executed. It does not connect again: another process
        could be reached.
        """
        if self._connection is None:
            raise Unavailable(f"{self._host} is not connected: it is asked again before a command")
        await self._calls(words)

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def _calls(self, *commands: tuple[str | int, ...]) -> list[str]:
        try:
            async with asyncio.timeout(self.answer_seconds):
                connection = await self._connected()
                found = []
                for words in commands:
                    await connection.send_command(*words)
                    found.append(_text(await connection.read_response()))
                return found
        except (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError) as error:
            await self.close()
            raise AccessDenied(f"{self._host} does not accept the operator's password") from error
        except redis.exceptions.ResponseError as error:
            raise Unavailable(f"{self._host}: {error}") from error
        except (redis.exceptions.RedisError, OSError, TimeoutError) as error:
            await self.close()
            raise Unavailable(
                f"{self._host} does not answer: {str(error) or type(error).__name__}"
            ) from error
        except BaseException:
            # A reply that was not read would be taken for that of the next command.
            await self.close()
            raise

    async def _connected(self) -> Connection:
        if self._connection is None:
            connection = (SSLConnection if self._ca_file else Connection)(
                host=self._host,
                port=self._port,
                username=self._username,
                password=self._password,
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=self.answer_seconds,
                socket_connect_timeout=min(CONNECT_SECONDS, self.answer_seconds),
            )
            if isinstance(connection, SSLConnection):
                # Its own context would also trust the authorities of the system.
                connection.ssl_context.context = _trusting(self._ca_file)
            self._connection = connection
            await connection.connect()  # type: ignore[no-untyped-call]
        return self._connection


def _trusting(ca_file: str) -> ssl.SSLContext:
    """Trust these authorities alone. Raises OSError, naming a file that cannot be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and host name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=Path(ca_file).read_text(encoding="ascii", errors="ignore"))
    return context


def _text(reply: object) -> str:
    return reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)


def _info(text: str) -> Info:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value for name, separator, value in pairs if separator}


def _keys(text: str) -> int:
    """The keys of one database: ``keys=3,expires=0,...``."""
    first = text.partition(",")[0].removeprefix("keys=")
    return int(first) if first.isdigit() else 0
