"""``onewriter produce``: lines and arguments become messages, and each one gets a result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.integration.conftest import RawClients
from tests.integration.raw import FENCING, contents_of

from onewriter_testing.processes import LocalBrokers

SECONDS_MAX = 120.0
PROGRAM = str(Path(sys.executable).with_name("onewriter"))


def produce(
    broker: LocalBrokers, *words: str, given: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [PROGRAM, "produce", *words],
        env={**os.environ, "ONEWRITER_SERVICE_URL": broker.service_url},
        input=given,
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def test_arguments_are_messages(broker: LocalBrokers, topic: str) -> None:
    done = produce(broker, topic, "one", "two", "--key", "k", "--property", "a=b=c")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 2
    assert contents_of(broker.address(), topic) == [b"one", b"two"]


def test_lines_are_messages_and_each_gets_its_position(broker: LocalBrokers, topic: str) -> None:
    lines = [b"%d" % number for number in range(3_000)] + [b"", "ü".encode(), b"no end"]
    done = produce(
        broker,
        *(topic, "-o", "json", "--mode", "exclusive", "--batch", "--compression", "zstd"),
        given=b"\n".join(lines),
    )
    assert done.returncode == 0, done.stderr
    output = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(output) == len(lines)
    assert all(each["stored"] is True and each["epoch"] >= 0 for each in output)
    places = [(each["ledger"], each["entry"], each["batchIndex"]) for each in output]
    assert places == sorted(set(places))
    assert len({(ledger, entry) for ledger, entry, _ in places}) < len(lines), "nothing was batched"


def test_a_command_that_waits_for_input_notices_a_takeover(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    process = subprocess.Popen(
        [PROGRAM, "produce", topic, "--mode", "exclusive", "-o", "json"],
        env={**os.environ, "ONEWRITER_SERVICE_URL": broker.service_url},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["stored"] is True, "at once, not at the end"
        taker = raw(broker.address()).producer(topic, FENCING)
        reported = json.loads(process.stdout.readline())
        assert (reported["error"], reported["stored"]) == ("Fenced", False)
        assert process.wait(SECONDS_MAX) == 1, "although its input is still open"
        taker.close()
    finally:
        process.kill()
        process.communicate()
    assert contents_of(broker.address(), topic) == [b"first"]


def test_a_refusal_and_wrong_usage_have_their_exit_codes(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    holder = raw(broker.address()).producer(topic, FENCING)
    refused = produce(broker, topic, "x", "--mode", "exclusive")
    assert refused.returncode == 1
    holder.close()
    assert produce(broker, topic, "x", "--property", "novalue").returncode == 2
    assert produce(broker, topic, "x" * 100_000, "--service-url", "http://x").returncode == 2
    away = produce(
        broker, topic, "x", "--service-url", "pulsar://127.0.0.1:1", "--timeout-seconds", "0.5"
    )
    assert away.returncode == 3
