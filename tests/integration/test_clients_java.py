"""The Java client and its admin client against a real broker: upstream's exclusive-producer stories
and the breadth of the API, in tests/conformance/java/ClientConformance.java.

The same program runs against Pulsar 4.0.7 (``python -m bench.pulsar_lab``). There a few cases fail:
Pulsar serves Key_Shared and keeps schemas, and its defaults leave batch index acknowledgements and
the forced deletion of namespaces off.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from bench.machine import LabUnavailable
from bench.pulsar_lab import fetch_jars

from onewriter_broker.testing import LocalBrokers

PROGRAM = Path(__file__).parent.parent / "conformance" / "java" / "ClientConformance.java"
CASES_MIN = 80
"""So many cases are in the program: fewer that ran would be a test that cannot fail."""


@pytest.mark.timeout(900)  # the jars are fetched once, which takes minutes
def test_the_java_client_finds_what_it_expects(broker: LocalBrokers) -> None:
    java = shutil.which("java")
    if java is None:
        pytest.fail("Java is missing: apt-get install openjdk-17-jdk-headless")
    try:
        jars = fetch_jars()
    except LabUnavailable as missing:
        pytest.fail(str(missing))
    run = subprocess.run(
        [
            java,
            "-Dpulsar.log.root.level=OFF",
            "-Dpulsar.log.level=OFF",
            "-cp",
            f"{jars}/*",
            str(PROGRAM),
            broker.service_url,
            broker.http_url,
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    failures = [line for line in run.stdout.splitlines() if line.startswith("FAIL")]
    assert failures == []
    assert run.returncode == 0, run.stderr[-4000:]
    assert run.stdout.count("\nok ") + run.stdout.startswith("ok ") >= CASES_MIN
