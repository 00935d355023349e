"""A store process that cannot write its append-only file ends, and answers no write that it does not keep."""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from onewriter_broker.local.embedded import find_program

pytestmark = pytest.mark.timeout(300)

FILE_BYTES_MAX = 200_000
"""The limit of the file's size, which stands for a full volume: a write above it fails."""

POLL_SECONDS = 0.05


def _limit() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))


@contextmanager
def running(
    program: str, folder: Path, *, is_limited: bool
) -> Iterator[tuple[subprocess.Popen[bytes], redis.Redis]]:
    """A server that syncs every write before its answer, as the embedded one does."""
    socket = folder / "socket"
    words = [program, "--port", "0", "--unixsocket", str(socket), "--dir", str(folder)]
    words += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            words,
            stdout=log,
            stderr=log,
            preexec_fn=_limit if is_limited else None,  # noqa: PLW1509 - the test has one thread
        )
    client = redis.Redis(unix_socket_path=str(socket))
    try:
        while True:
            with contextlib.suppress(redis.ConnectionError, redis.BusyLoadingError):
                client.ping()
                break
            time.sleep(POLL_SECONDS)
        yield process, client
    finally:
        client.close()
        process.kill()
        process.wait()


def written(client: redis.Redis) -> int:
    """Write until the server fails; the number of answered writes."""
    for answered in range(FILE_BYTES_MAX):
        try:
            client.set(f"entry-{answered}", b"x" * 1_000)
        except redis.RedisError:
            return answered
    raise AssertionError("the file has no limit")


async def test_a_full_volume_loses_nothing_acknowledged(tmp_path: Path) -> None:
    program = (await find_program()).path
    with running(str(program), tmp_path, is_limited=True) as (process, client):
        answered = written(client)
        assert process.wait() != 0, "it ends, so that its replica can take its place"
    assert answered > 0
    assert b"AOF write error" in (tmp_path / "log").read_bytes()
    with running(str(program), tmp_path, is_limited=False) as (_, client):
        kept = [client.exists(f"entry-{number}") for number in range(answered)]
        assert kept == [1] * answered
