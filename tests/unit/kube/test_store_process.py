"""The operator's connection to a store process, with a server that answers what the test says."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.cluster.pki import Authority
from tests.tls_store import connections_ended, serve_with

from onewriter_core.errors import Unavailable
from onewriter_operator.store_process import AccessDenied, StoreProcess

NODES = (
    "id-a 10.0.0.1:6379@16379,store-0-0 myself,master - 0 0 7 connected 0-5460\n"
    "id-b 10.0.0.2:6379@16379,store-0-1 slave id-a 0 0 7 connected\n"
)
PRIMARY = "# Replication\r\nrole:master\r\nmaster_repl_offset:120\r\n"
REPLICA = (
    "role:slave\r\nmaster_link_status:up\r\nmaster_sync_in_progress:0\r\nslave_repl_offset:90\r\n"
    "master_repl_offset:80\r\n"
)
ANSWERS = {
    "CLUSTER NODES": NODES,
    "CLUSTER INFO": "cluster_state:ok\r\ncluster_slots_assigned:16384\r\n",
    "INFO replication": PRIMARY,
    "INFO keyspace": "# Keyspace\r\ndb0:keys=3,expires=0\r\ndb1:keys=4,expires=1\r\n",
}


class Server:
    """A server of the store's protocol.

    ``answers``: by command, or by its first word. An error begins with ``-``; None is no answer at all, and sets
    ``withheld``.
    """

    def __init__(self) -> None:
        self.answers: dict[str, str | None] = dict(ANSWERS)
        self.commands: list[str] = []
        self.withheld = asyncio.Event()
        self.connections = 0
        self._open: list[tuple[asyncio.StreamWriter, asyncio.Event]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        ended = asyncio.Event()
        self._open.append((writer, ended))
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await self._answer(await self._read(reader), writer)
        finally:
            writer.close()
            ended.set()

    async def _answer(self, command: str, writer: asyncio.StreamWriter) -> None:
        self.commands.append(command)
        answer = self.answers.get(command.partition(" ")[0], self.answers.get(command, "OK"))
        if answer is None:
            self.withheld.set()
            return
        text = f"{answer}\r\n" if answer.startswith("-") else f"${len(answer)}\r\n{answer}\r\n"
        writer.write(text.encode())
        await writer.drain()

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> str:
        words = []
        for _ in range(int((await reader.readuntil(b"\n"))[1:])):
            length = int((await reader.readuntil(b"\n"))[1:])
            words.append((await reader.readexactly(length + 2))[:-2].decode())
        return " ".join(words)

    async def disconnect(self) -> None:
        """End all connections."""
        for writer, _ in self._open:
            writer.close()
        for _, ended in self._open:
            await ended.wait()


@asynccontextmanager
async def process(
    server: Server,
    answer_seconds: float = 60.0,
    *,
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
    ca_file: str = "",
) -> AsyncIterator[StoreProcess]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    found = StoreProcess(host, port, "operator", "secret", answer_seconds, ca_file)
    try:
        yield found
    finally:
        await found.close()
        listening.close()
        await server.disconnect()
        await connections_ended()


async def test_a_primary_reports_its_view_its_keys_and_its_offset() -> None:
    server = Server()
    async with process(server) as connection:
        answer = await connection.ask()
    assert answer.view.me == "id-a"
    assert [node.node_id for node in answer.view.nodes] == ["id-a", "id-b"]
    assert (answer.keys, answer.offset) == (7, 120)
    assert answer.is_in_sync
    assert answer.is_serving
    assert "AUTH operator secret" in server.commands


@pytest.mark.parametrize(
    ("old", "new", "is_in_sync"),
    [
        ("link_status:up", "link_status:up", True),
        ("link_status:up", "link_status:down", False),
        ("in_progress:0", "in_progress:1", False),
    ],
)
async def test_a_replica_is_in_sync_when_it_is_connected_and_has_copied(
    old: str, new: str, is_in_sync: bool
) -> None:
    server = Server()
    server.answers["INFO replication"] = REPLICA.replace(old, new)
    async with process(server) as connection:
        answer = await connection.ask()
    assert (answer.is_in_sync, answer.offset) == (is_in_sync, 90)


async def test_an_empty_process_without_a_cluster_serves_nothing() -> None:
    server = Server()
    server.answers |= {
        "CLUSTER INFO": "cluster_state:fail\r\n",
        "INFO replication": "role:master\r\nmaster_repl_offset:-1\r\n",
        "INFO keyspace": "# Keyspace\r\n",
    }
    async with process(server) as connection:
        answer = await connection.ask()
    assert (answer.keys, answer.offset, answer.is_serving) == (0, -1, False)


BAD: Mapping[str, Mapping[str, str]] = {
    "another text": {"CLUSTER NODES": "nothing of a cluster"},
    "a process that loads its data": {"INFO replication": "-LOADING dataset in memory"},
    "a process without a cluster": {
        "CLUSTER NODES": "-ERR This instance has cluster support disabled"
    },
}


@pytest.mark.parametrize("case", BAD)
async def test_a_process_without_a_view_is_unavailable(case: str) -> None:
    server = Server()
    server.answers |= BAD[case]
    async with process(server) as connection:
        with pytest.raises(Unavailable) as raised:
            await connection.ask()
        assert not isinstance(raised.value, AccessDenied)
        server.answers |= ANSWERS
        assert (await connection.ask()).keys == 7


@pytest.mark.parametrize(
    "refusal",
    [{"AUTH": "-WRONGPASS invalid username-password pair"}, {"INFO keyspace": "-NOPERM no"}],
)
async def test_a_refused_password_is_reported_and_tried_again_on_another_connection(
    refusal: dict[str, str],
) -> None:
    server = Server()
    server.answers |= refusal
    async with process(server) as connection:
        with pytest.raises(AccessDenied, match="does not accept the operator's password"):
            await connection.ask()
        for command in refusal:
            server.answers.pop(command)
        server.answers |= ANSWERS
        assert (await connection.ask()).keys == 7
    assert server.connections == 2


async def test_a_refused_command_keeps_the_connection() -> None:
    server = Server()
    words = ("CLUSTER", "REPLICATE", "id-c")
    server.answers["CLUSTER REPLICATE id-c"] = "-ERR Unknown node id-c"
    async with process(server) as connection:
        await connection.ask()
        with pytest.raises(Unavailable, match="Unknown node id-c"):
            await connection.execute(words)
        server.answers["CLUSTER REPLICATE id-c"] = "OK"
        await connection.execute(words)
        assert (await connection.ask()).keys == 7
    assert server.connections == 1


async def test_a_broken_connection_is_opened_again() -> None:
    server = Server()
    async with process(server) as connection:
        await connection.ask()
        await server.disconnect()
        with pytest.raises(Unavailable, match="does not answer"):
            await connection.ask()
        assert (await connection.ask()).keys == 7
    assert server.connections == 2


async def test_a_command_is_never_sent_to_a_process_that_was_not_asked() -> None:
    server = Server()
    words = ("CLUSTER", "REPLICATE", "id-c")
    async with process(server) as connection:
        with pytest.raises(Unavailable, match="is not connected"):
            await connection.execute(words)
        await connection.ask()
        await server.disconnect()
        for reason in ("does not answer", "is not connected"):
            with pytest.raises(Unavailable, match=reason):
                await connection.execute(words)
        await connection.ask()
        await connection.execute(words)
    assert server.commands.count("CLUSTER REPLICATE id-c") == 1


async def test_a_process_that_hangs_is_unavailable_and_its_late_answer_is_never_taken() -> None:
    server = Server()
    server.answers["INFO keyspace"] = None
    async with process(server, answer_seconds=0.5) as connection:
        with pytest.raises(Unavailable, match="does not answer"):
            await connection.ask()
        server.answers |= ANSWERS
        connection.answer_seconds = 60.0
        assert (await connection.ask()).keys == 7
    assert server.connections == 2


async def test_a_cancelled_question_leaves_no_answer_to_the_next_one() -> None:
    server = Server()
    server.answers["CLUSTER INFO"] = None
    async with process(server) as connection:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            question = group.create_task(connection.ask())
            await server.withheld.wait()
            question.cancel()
        server.answers |= ANSWERS
        assert (await connection.ask()).keys == 7
    assert server.connections == 2


async def test_a_process_that_is_away_is_unavailable() -> None:
    server = Server()
    async with process(server) as connection:
        pass
    with pytest.raises(Unavailable, match="does not answer"):
        await connection.ask()


# ------------------------------------------------------------ TLS


async def test_with_tls_only_a_process_with_a_certificate_of_the_authority_gets_the_password(
    tmp_path: Path,
) -> None:
    authority, server = Authority(tmp_path), Server()
    authority.server("store", ["127.0.0.1"])
    context = serve_with(tmp_path, "store", asks_for=None)
    ca_file = tmp_path / "trusted.crt"
    async with process(server, tls=context, ca_file=str(ca_file)) as connection:
        with pytest.raises(Unavailable, match=r"No such file.*trusted\.crt"):
            await connection.ask()
        other = Authority(tmp_path / "other")
        ca_file.write_bytes(other.certificate.read_bytes())
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await connection.ask()
        assert server.commands == []
        ca_file.write_bytes(authority.certificate.read_bytes())
        assert (await connection.ask()).view.me == "id-a"
    async with process(server, host="localhost", tls=context, ca_file=str(ca_file)) as connection:
        with pytest.raises(Unavailable, match="not valid for 'localhost'"):
            await connection.ask()
    async with process(server, ca_file=str(ca_file)) as connection:
        with pytest.raises(Unavailable, match="does not answer"):
            await connection.ask()
