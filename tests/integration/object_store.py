"""An object store with S3's API on this machine, and tables in it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import binaries

from onewriter_testing.ports import free_ports

BUCKET = "history"
KEY = "an-access-key"
SECRET = "wJalrXUtnFEMIK7MDENG"  # noqa: S105 - valid for this server only
STARTED_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A running server. ``folder`` contains the objects as files of the same names."""

    port: int
    folder: Path

    @property
    def location(self) -> str:
        """The location of tables."""
        return f"s3://{BUCKET}/tables"

    def options(self, **changes: str) -> dict[str, str]:
        """Return the settings for a connection to it, under delta-rs' names."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        } | changes


@contextlib.contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """Start a server that stores its objects below a folder. Raises CannotBuild."""
    program = binaries.program("versitygw")
    objects, kept = folder / "objects", folder / "metadata"
    (objects / BUCKET).mkdir(parents=True)
    kept.mkdir()
    port = free_ports(1)
    command = [str(program), "--quiet", "--port", f"127.0.0.1:{port}"]
    command += ["posix", "--sidecar", str(kept), str(objects)]
    secrets = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    log = folder / "log"
    with log.open("wb") as answer:
        process = subprocess.Popen(command, env=os.environ | secrets, stdout=answer, stderr=answer)
    try:
        _wait(port, process, log)
        yield ObjectStore(port, objects / BUCKET)
    finally:
        process.terminate()
        process.wait()


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    ends = time.monotonic() + STARTED_SECONDS
    while time.monotonic() < ends and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the object store does not start: {log.read_text()[-500:]}")
