"""What e2e preloads shifts the wall clock of a process, and nothing else; certificates expire at will."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from e2e.certificates import expired
from e2e.faults import CLOCK_FILE
from e2e.images import CLOCK_SOURCE, clock_library
from tests.cluster.pki import Authority

DAY_SECONDS = 86_400

PROGRAM = """
import datetime, threading, time
coarse, monotonic = time.clock_gettime(5), time.monotonic()
lock = threading.Condition()
with lock:
    lock.wait(0.01)
print(round(time.time() - coarse), round(time.time_ns() / 1e9 - coarse))
print(round(datetime.datetime.now(datetime.UTC).timestamp() - coarse))
print(round(time.monotonic() - monotonic))
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("seconds", [0, DAY_SECONDS, -DAY_SECONDS])
def test_the_wall_clock_of_a_process_is_shifted(tmp_path: Path, seconds: int) -> None:
    clock_file = tmp_path / "clock"  # one in this machine's /dev/shm would shift other tests
    source = CLOCK_SOURCE.read_text()
    assert source.count(CLOCK_FILE) == 1
    elsewhere = tmp_path / "clock.c"
    elsewhere.write_text(source.replace(CLOCK_FILE, str(clock_file)))
    clock_library(tmp_path, elsewhere)
    clock_file.write_bytes(struct.pack("=q", seconds))
    environment = {"LD_PRELOAD": str(tmp_path / "clock.so")}
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(seconds)] * 3 + ["0"]


def test_a_certificate_expires_at_will(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.server("broker", ["broker.shop.svc"])
    usual, signer = (tmp_path / "broker.crt").read_bytes(), authority.certificate.read_bytes()
    found = x509.load_pem_x509_certificate(
        expired(usual, signer, (tmp_path / "ca.key").read_bytes())
    )
    former = x509.load_pem_x509_certificate(usual)
    assert found.not_valid_after_utc < datetime.now(UTC)
    assert found.public_key() == former.public_key()
    assert list(found.extensions) == list(former.extensions)
    found.verify_directly_issued_by(x509.load_pem_x509_certificate(signer))
