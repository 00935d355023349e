"""``onewriter consume``: the messages of a topic, for people and scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.integration.conftest import RawClients
from tests.integration.raw import eventually

from onewriter_core.command import EXIT_REFUSED, EXIT_USAGE
from onewriter_testing.processes import LocalBrokers

SECONDS_MAX = 120.0
PROGRAM = str(Path(sys.executable).with_name("onewriter"))


def environment(broker: LocalBrokers) -> dict[str, str]:
    return {**os.environ, "ONEWRITER_SERVICE_URL": broker.service_url}


def consume(broker: LocalBrokers, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, "consume", *words],
        env=environment(broker),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def said(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_existing_messages_are_printed_and_no_subscription_remains(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    producer = raw(broker.address()).producer(topic)
    for number in range(5):
        producer.publish(b"%d" % number)
    assert consume(broker, topic).stdout.split() == ["0", "1", "2", "3", "4"]
    assert consume(broker, topic, "--count", "2").stdout.split() == ["0", "1"]
    assert consume(broker, topic, "--from", "latest").stdout == ""
    messages = said(consume(broker, topic, "-o", "json"))
    assert [message["content"] for message in messages] == ["0", "1", "2", "3", "4"]
    third = messages[2]["messageId"]
    assert consume(broker, topic, "--from", third).stdout.split() == ["2", "3", "4"]


def test_a_subscription_continues_where_it_stood(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    producer = raw(broker.address()).producer(topic)
    for number in range(4):
        producer.publish(b"%d" % number)
    of = ("--subscription", "s")
    assert consume(broker, topic, *of, "--count", "3").stdout.split() == ["0", "1", "2"]
    assert consume(broker, topic, *of).stdout.split() == ["3"]
    assert consume(broker, topic, *of).stdout == ""
    first = said(consume(broker, topic, "-o", "json", "--count", "1"))[0]["messageId"]
    shared = (*of, "--type", "shared", "-o", "json", "--from", first)
    assert [each["content"] for each in said(consume(broker, topic, *shared))] == list("0123")


def test_contents_that_are_no_text(broker: LocalBrokers, raw: RawClients, topic: str) -> None:
    raw(broker.address()).producer(topic).publish(b"\xff\x00")
    message = said(consume(broker, topic, "-o", "json"))[0]
    assert message["contentBase64"] == "/wA="
    assert "content" not in message


def test_following_prints_new_messages(broker: LocalBrokers, raw: RawClients, topic: str) -> None:
    process = subprocess.Popen(
        [PROGRAM, "consume", topic, "--follow", "--count", "2", "--from", "latest"],
        env=environment(broker),
        stdout=subprocess.PIPE,
        text=True,
    )
    client = raw(broker.address())
    producer = client.producer(topic)
    found: list[str] = []

    def has_ended() -> bool:
        producer.publish(b"x")  # its start is not visible from outside
        return process.poll() is not None

    try:
        eventually(has_ended, what="it never ended")
        found = process.communicate(timeout=SECONDS_MAX)[0].split()
    finally:
        process.kill()
        process.wait()
    assert found == ["x", "x"]
    assert process.returncode == 0


def test_mistakes_are_named(broker: LocalBrokers, raw: RawClients, topic: str) -> None:
    wrong = consume(broker, topic, "--from", "yesterday")
    assert wrong.returncode == EXIT_USAGE
    assert "earliest, latest, or an id" in wrong.stderr
    raw(broker.address()).subscribe(topic, "s")
    busy = consume(broker, topic, "--subscription", "s")
    assert busy.returncode == EXIT_REFUSED
    assert "already connected" in busy.stderr
