"""The stock Java and Go clients through the loopback relay: the same results as without it, also over TLS upstream.

test_relay.py has the same proofs with the Python client.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.following import placed, topic_of
from tests.integration.forked_brokers import forked_brokers
from tests.integration.raw import contents_of, eventually
from tests.integration.relays import running_relay
from tests.integration.secured import WRITER, secured_broker
from tests.integration.test_clients_java import PROGRAM, java_command, run_java
from tests.integration.test_clients_secured import CASES, JAVA_PROGRAM, go_command, outcomes
from tests.servers import running_server

from onewriter_testing.processes import LocalBrokers

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]  # test_relay.py keeps the proof

LINE_WRITER = PROGRAM.with_name("LineWriter.java")
LANGUAGES = ("java", "go")
RELAYED = (
    "^(exclusive|wait|reconnection|added|failover|redeliver|seek|chunks|several|consumers live)"
)
"""Cases in which the relay changes, splits or interrupts what passes: partitions, queues, look-ups, large messages."""
RELAYED_MIN = 25

SENT_SECONDS_MAX = 240.0
"""Time limit for a program's start and a message, on a busy machine."""

RETURN_SECONDS = 300.0


def line_writer(language: str) -> list[str]:
    """The command of the program that writes lines."""
    return java_command(LINE_WRITER) if language == "java" else [*go_command(), "write"]


class LineWriter:
    """A running program; ``send`` waits for the receipt."""

    def __init__(self, process: subprocess.Popen[str], output: Path) -> None:
        self._process = process
        self._output = output

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        eventually(lambda: self._has_ended() or self._has_sent(line), SENT_SECONDS_MAX, what=line)
        assert self._has_sent(line), self._output.read_text()[-4000:]

    def _has_sent(self, line: str) -> bool:
        return f"sent {line}" in self._output.read_text().splitlines()

    def _has_ended(self) -> bool:
        return self._process.poll() is not None


@contextlib.contextmanager
def writing(language: str, url: str, topic: str, folder: Path) -> Iterator[LineWriter]:
    """A client that holds the topic exclusively and knows nothing but the relay's address."""
    output = folder / f"{language}.out"
    with (
        output.open("w") as file,
        subprocess.Popen(
            [*line_writer(language), url, topic],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        try:
            yield LineWriter(process, output)
        finally:
            process.kill()


def test_java_finds_what_it_expects(broker: LocalBrokers, tmp_path: Path) -> None:
    with running_relay(tmp_path, broker.service_url) as relay:
        run = run_java(PROGRAM, relay.url, broker.http_url, RELAYED)
        failures = [line for line in run.stdout.splitlines() if line.startswith("FAIL")]
        assert failures == []
        assert run.returncode == 0, run.stderr[-4000:]
        assert run.stdout.count("\nok ") + run.stdout.startswith("ok ") >= RELAYED_MIN


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_clients_own_token_counts_over_tls(tmp_path: Path, language: str) -> None:
    """Rights, refusals and renewed tokens are those of the client, although the relay has a token."""
    with (
        secured_broker(tmp_path, language, f"{language}-schema") as secured,
        secured.renewed(WRITER) as token,
        running_relay(
            tmp_path, secured.url, token_file=token, tls_ca_file=secured.authorities
        ) as relay,
    ):
        command = java_command(JAVA_PROGRAM) if language == "java" else go_command()
        found = outcomes(secured, command, language, relay.url)
        assert [line for line in found if line.startswith("FAIL")] == []
        assert len(found) == CASES


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_relay_adds_tls_and_the_pods_token(tmp_path: Path, language: str) -> None:
    with (
        secured_broker(tmp_path, "orders") as secured,
        secured.renewed(WRITER) as token,
        running_relay(
            tmp_path, secured.url, token_file=token, tls_ca_file=secured.authorities
        ) as relay,
        writing(language, relay.url, "orders", tmp_path) as writer,
    ):
        writer.send("with the pod's token")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_writer_continues_at_the_other_broker_when_its_own_is_frozen(
    tmp_path: Path, language: str
) -> None:
    settings = {"resume_window_seconds": RETURN_SECONDS}
    with (
        running_server() as store,
        forked_brokers(brokers=2, redis_url=store.url, settings=settings) as brokers,
        running_relay(tmp_path, brokers.service_url) as relay,
    ):
        topic = topic_of(brokers, 0, "frozen")
        placed(brokers, topic)
        with writing(language, relay.url, topic, tmp_path) as writer:
            writer.send("before")
            granted = brokers.events("topic.transition")[-1]
            frozen = brokers.freeze(0)
            try:
                writer.send("after")
                resumed = brokers.wait_for_event(
                    "topic.transition", lambda event: event["kind"] == "resume"
                )
                assert resumed["epoch"] == granted["epoch"]
                assert contents_of(brokers.address(1), topic) == [b"before", b"after"]
                assert relay.metrics()['relay_closed_total{reason="silent"}'] >= 1
            finally:
                brokers.thaw(frozen)
