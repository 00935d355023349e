"""The Java client and its admin client against a real broker: upstream's cases of exclusive producers, and
the breadth of the API, in tests/conformance/java/ClientConformance.java.

The same program runs against Pulsar 4.0.7 (``python -m bench.pulsar_lab``). A few cases fail there: Pulsar
serves Key_Shared and keeps schemas, and its defaults disable batch index acknowledgements and the forced
deletion of namespaces.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from bench.machine import LabUnavailable
from bench.pulsar_lab import fetch_jars
from tests.integration.http_calls import Http

from onewriter import EARLIEST, Client, Compression, ProducerOptions
from onewriter_pipeline.binaries import binaries
from onewriter_pipeline.publish.hashing import JAVA, MURMUR, partitions_of
from onewriter_testing.processes import LocalBrokers

pytestmark = (
    pytest.mark.full
)  # needs Java; test_clients_python.py and test_clients_wire.py keep the proof

PROGRAM = Path(__file__).parent.parent / "conformance" / "java" / "ClientConformance.java"
CASES_MIN = 80
"""The minimum number of cases in the program: with fewer the test could not fail."""


CHUNKS = PROGRAM.with_name("Chunks.java")
ROUTING = PROGRAM.with_name("Routing.java")
LARGE_BYTES = 12 * 1024 * 1024
RUN_SECONDS_MAX = 600.0
"""Time limit for a program on a busy machine. Alone it takes half a minute."""


def java_command(program: Path) -> list[str]:
    """The command that runs one of the programs, with the jars of the stock client."""
    java = shutil.which("java")
    if java is None:
        pytest.fail("Java is missing: apt-get install openjdk-17-jdk-headless")
    try:
        jars = fetch_jars()
    except LabUnavailable as missing:
        pytest.fail(str(missing))
    silence = ("-Dpulsar.log.root.level=OFF", "-Dpulsar.log.level=OFF")
    return [java, *silence, "-cp", f"{jars}/*", str(program)]


def run_java(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one of the programs to its end."""
    command = [*java_command(program), *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )


@pytest.mark.timeout(900)  # the jars are fetched once, which takes minutes
def test_the_java_client_finds_what_it_expects(broker: LocalBrokers) -> None:
    run = run_java(PROGRAM, broker.service_url, broker.http_url)
    failures = [line for line in run.stdout.splitlines() if line.startswith("FAIL")]
    assert failures == []
    assert run.returncode == 0, run.stderr[-4000:]
    assert run.stdout.count("\nok ") + run.stdout.startswith("ok ") >= CASES_MIN


@pytest.mark.timeout(900)
async def test_messages_in_chunks_go_between_java_and_the_sdk(
    broker: LocalBrokers, topic: str
) -> None:
    written = [random.Random(number).randbytes(LARGE_BYTES) for number in range(2)]
    written.insert(1, b"between")
    async with Client(broker.service_url) as client:
        options = ProducerOptions(chunking=True, compression=Compression.LZ4)
        producer = await client.create_producer(topic, options)
        for content in written:
            await producer.send(content)
        back = f"{topic}-back"
        words = (broker.service_url, topic, str(len(written)), back)
        run = await asyncio.to_thread(run_java, CHUNKS, *words)
        assert run.returncode == 0, run.stderr[-4000:]
        lines = [line for line in run.stdout.splitlines() if line.startswith(("read ", "sent "))]
        digests = [hashlib.sha256(content).hexdigest() for content in written]
        assert lines[:-1] == [f"read {digest}" for digest in digests]
        reader = await client.create_reader(back, EARLIEST)
        message = await reader.next(timeout_seconds=60)
        assert lines[-1] == f"sent {hashlib.sha256(message.content).hexdigest()}"
        assert len(message.chunk_ids) > 1


@pytest.mark.timeout(900)
def test_the_pipeline_sends_a_key_to_the_partition_that_java_does(
    broker: LocalBrokers, topic: str
) -> None:
    path = f"/admin/v2/persistent/public/default/{topic}/partitions"
    assert Http(broker.http_url)("PUT", path, 7)[0] == 204
    keys = ["a", "key-1", "a longer key, of several words", "Grüße", "𝄞 clef", "0" * 100]
    run = run_java(ROUTING, broker.service_url, topic, *keys)
    assert run.returncode == 0, run.stderr[-4000:]
    column, counts = binaries(pa.array(keys)), np.full(len(keys), 7)
    expected = [f"default {each}" for each in partitions_of(column, counts, JAVA)]
    expected += [f"murmur {each}" for each in partitions_of(column, counts, MURMUR)]
    found = [line for line in run.stdout.splitlines() if line.startswith(("default ", "murmur "))]
    assert found == expected
