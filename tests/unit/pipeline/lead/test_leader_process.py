"""The leader process of a driver: it is found or started, is private, and ends with its driver."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onewriter_pipeline.errors import Away, Invalid
from onewriter_pipeline.lead.driver import Process, driver_of
from onewriter_pipeline.lead.leader import Leader
from onewriter_pipeline.lead.requests import BEGIN, END, LeaderRequest

SECONDS_MAX = 60.0


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        prefix="ow"
    ) as folder:  # short, because the path of the socket is limited
        yield Path(folder)


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_leader_process_starts_once_and_ends_with_its_driver(
    folder: Path, driver: subprocess.Popen[bytes]
) -> None:
    owner = driver_of(driver.pid)
    leader = Leader(owner, folder)
    assert leader.status() == {}, "nobody has needed it"
    leader.end(LeaderRequest(END, "query", is_over=True))
    assert list(folder.iterdir()) == []
    with pytest.raises(Invalid, match="names no broker"):
        leader.grants(LeaderRequest(BEGIN, "query"))
    first = leader.status()["pid"]
    assert Leader(owner, folder).status()["pid"] == first
    (own,) = folder.iterdir()
    assert own.stat().st_mode & 0o777 == 0o700
    driver.kill()
    driver.communicate()
    until = time.monotonic() + SECONDS_MAX
    while leader.status():
        assert time.monotonic() < until
        time.sleep(0.05)
    with pytest.raises(Away):
        leader._ask(LeaderRequest("status", ""), starts=False)


def test_folder_that_other_users_can_access_is_refused(folder: Path) -> None:
    leader = Leader(root=folder)
    leader._folder.mkdir(mode=0o755)
    leader._folder.chmod(0o755)
    with pytest.raises(Invalid, match="not a folder of this user alone"):
        leader.grants(LeaderRequest(BEGIN, "query"))


def test_path_that_is_too_long_for_a_socket_is_refused(folder: Path) -> None:
    with pytest.raises(Invalid, match="set TMPDIR"):
        Leader(root=folder / ("x" * 100)).grants(LeaderRequest(BEGIN, "query"))


def test_driver_is_the_parent_jvm_or_the_program_itself() -> None:
    own = driver_of()
    assert own.pid == os.getpid()
    assert own.is_running()
    assert not Process(own.pid, "another start").is_running()
    assert not Process(-1, "").is_running()
