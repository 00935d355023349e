"""``onewriter check`` on a real broker: what it proves, and that it notices violations."""

from __future__ import annotations

import asyncio
from typing import Any

import click.testing
import pytest

from onewriter import Fenced, check
from onewriter_core.errors import Unavailable
from onewriter_testing.processes import LocalBrokers


def run(*arguments: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(check.check, list(arguments))


def test_a_fenced_writer_is_refused(broker: LocalBrokers, topic: str) -> None:
    for _ in range(2):  # repeatable on the same topic
        done = run(topic, "--service-url", broker.service_url)
        assert done.exit_code == 0, done.output
        for words in ("claimed: epoch", "taken over", "is refused", "not given again", "publishes"):
            assert words in done.output


def test_a_missing_broker_is_reported(topic: str) -> None:
    done = run(topic, "--service-url", "pulsar://127.0.0.1:1", "--timeout-seconds", "0.5")
    assert isinstance(done.exception, Unavailable)


def test_a_topic_that_is_not_declared_is_waited_for(broker: LocalBrokers) -> None:
    done = run(
        "persistent://nobody/default/knows",
        *("--service-url", broker.service_url, "--timeout-seconds", "5"),
    )
    assert isinstance(done.exception, Unavailable)
    reasons = [line for line in done.output.splitlines() if "refused, retrying:" in line]
    assert reasons
    assert len(set(reasons)) == len(reasons), "once for the same reason"


class Writer:
    """A producer of a broker that does not fence."""

    def __init__(self, epoch: int, *, is_refused: bool) -> None:
        self.epoch = epoch
        self.is_refused = is_refused

    async def send(self, content: bytes) -> str:
        if self.is_refused and content == b"too late":
            raise Fenced("not yours any more")
        return "1:1"


class Unfaithful:
    """A client of such a broker. ``epochs`` are the epochs that it grants, one after the other."""

    def __init__(self, *epochs: int, is_refused: bool) -> None:
        self.writers = [Writer(epoch, is_refused=is_refused) for epoch in epochs]

    async def create_producer(self, topic: str, options: object) -> Writer:
        return self.writers.pop(0)


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (Unfaithful(7, 7, is_refused=True), "did not raise the epoch: it was 7 and is 7"),
        (Unfaithful(7, 8, is_refused=False), "published at 1:1 after it was deposed"),
        (Unfaithful(7, 8, 9, is_refused=True), "epoch 7 deposed its successor"),
    ],
)
def test_violated_expectations_are_noticed(client: Any, words: str) -> None:
    with pytest.raises(check.NotProved, match=words):
        asyncio.run(check._prove(client, "topic", lambda _: None))
