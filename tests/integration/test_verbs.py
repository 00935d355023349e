"""The command's verbs against real brokers: output for people and scripts, and exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.integration.conftest import RawClients
from tests.integration.following import placed
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import epoch_of
from tests.integration.raw import EXCLUSIVE

from onewriter_core import command
from onewriter_core.command import EXIT_REFUSED, EXIT_UNKNOWN, EXIT_USAGE
from onewriter_testing.processes import LocalBrokers

MODULES = {
    "topics": "show",
    "status": "show",
    "history": "show",
    "fence": "orders",
    "handover": "orders",
    "adopt": "adopt",
    "ownerships": "ownerships",
}


class Said:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def onewriter(verb: str, *arguments: object, **environment: str) -> Said:
    """Run and end the verb like the command, without the command's start."""
    target = f"onewriter_broker.verbs.{MODULES[verb]}:{verb}"
    point = metadata.EntryPoint(verb, target, "onewriter.commands")
    with (
        mock.patch.object(command, "_entry_points", return_value={verb: point}),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
        pytest.raises(SystemExit) as ended,
    ):
        command.main([verb, *map(str, arguments)])
    code = ended.value.code
    return Said(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def at(broker: LocalBrokers) -> tuple[str, str]:
    return "--http-url", broker.http_url


def test_topics_and_status_are_printed_as_tables_or_as_json(
    broker: LocalBrokers, topic: str, raw: RawClients
) -> None:
    client = raw(broker.address())
    holder = client.producer(topic, EXCLUSIVE, name="the-holder")
    client.waiter(topic, name="[bold]the-waiter", properties={"onewriter.queue-priority": "7"})
    listed = onewriter("topics", *at(broker))
    (line,) = [line for line in listed.out.splitlines() if f" {topic} " in line]
    assert ["the-holder", str(holder.epoch)] == [
        word for word in line.split() if word in {"the-holder", str(holder.epoch)}
    ][::-1]
    shown = onewriter("status", topic, *at(broker))
    assert shown.code == 0
    assert "the-holder from 127.0.0.1:" in shown.out
    assert "[bold]the-waiter" in shown.out
    machine = onewriter("status", topic, "-o", "json", *at(broker)).json
    assert machine["name"] == f"persistent://public/default/{topic}"
    assert machine["waiters"][0]["priority"] == 7
    by_environment = onewriter("topics", "-o", "json", ONEWRITER_HTTP_URL=broker.http_url)
    assert machine["name"] in [each["name"] for each in by_environment.json["topics"]]


def test_fence_and_handover_report_their_result_or_why_they_failed(
    broker: LocalBrokers, topic: str, raw: RawClients
) -> None:
    holder = raw(broker.address()).producer(topic, EXCLUSIVE, name="one")
    alone = onewriter("handover", topic, *at(broker))
    assert (alone.code, alone.err) == (EXIT_REFUSED, "onewriter: no producer is waiting\n")
    waiter = raw(broker.address()).waiter(topic, name="two")
    over = onewriter("handover", topic, "--if-epoch", epoch_of(holder) + 1, *at(broker))
    assert (over.code, over.out) == (EXIT_REFUSED, "")
    done = onewriter("handover", topic, "--to", "two", "--if-epoch", holder.epoch, *at(broker))
    assert done.code == 0
    waiter.ready()
    assert f"epoch {waiter.epoch} is two" in done.out
    stale = onewriter("fence", topic, "--if-epoch", holder.epoch, *at(broker))
    assert (stale.code, stale.out) == (EXIT_REFUSED, "")
    fenced = onewriter("fence", topic, "--if-epoch", waiter.epoch, "-o", "json", *at(broker))
    assert fenced.json["oldEpoch"] == waiter.epoch
    waiter.closed_by_broker()
    reported = onewriter("history", topic, *at(broker))
    causes = [
        word for word in reported.out.split() if word in {"Handover", "FencedByAdministrator"}
    ]
    assert causes == ["Handover", "FencedByAdministrator"]


def test_unanswerable_requests_print_one_clear_line() -> None:
    unreachable = onewriter("topics", "--http-url", "http://127.0.0.1:1")
    assert unreachable.code == EXIT_UNKNOWN
    assert unreachable.err.startswith("onewriter: no broker answers at http://127.0.0.1:1 ")
    assert unreachable.err.count("\n") == 1
    wrong = onewriter("status", "a/b", "--http-url", "http://127.0.0.1:1")
    assert wrong.code == EXIT_USAGE
    nonsense = onewriter("status", "orders", "--http-url", "file:///etc/passwd")
    assert nonsense.code == EXIT_USAGE


def test_a_topic_that_does_not_exist_is_a_definite_no(broker: LocalBrokers) -> None:
    missing = onewriter("status", "never-made", *at(broker))
    assert missing.code == EXIT_REFUSED
    assert "persistent://public/default/never-made does not exist" in missing.err


def test_any_broker_can_be_asked_about_any_topic(raw: RawClients) -> None:
    with forked_brokers(brokers=2) as brokers:
        topic = next(f"t-{n}" for n in range(100) if brokers.target_of(f"t-{n}") == 1)
        placed(brokers, topic)
        producer = raw(brokers.address(1)).producer(topic, EXCLUSIVE, name="far")
        shown = onewriter("status", topic, "-o", "json", *at(brokers))
        assert shown.json["holder"]["producerName"] == "far"
        rows = onewriter("topics", "-o", "json", *at(brokers)).json["topics"]
        (row,) = [row for row in rows if row["name"].endswith(f"/{topic}")]
        assert (row["epoch"], row["holder"]["producerName"]) == (producer.epoch, "far")
        fenced = onewriter("fence", topic, "--if-epoch", producer.epoch, *at(brokers))
        assert fenced.code == 0
        producer.closed_by_broker()


def test_adopt_explains_itself_and_asks_for_force(tmp_path: Path) -> None:
    request = onewriter("adopt", "--all", "--data-dir", tmp_path)
    assert request.code == EXIT_USAGE
    assert "--force" in request.out
    without_reason = onewriter("adopt", "--all", "--force", "--data-dir", tmp_path)
    assert without_reason.code == EXIT_USAGE
    both = onewriter("adopt", "--all", "--bucket", 1, "--force", "--reason", "x")
    assert both.code == EXIT_USAGE
    elsewhere = onewriter("adopt", "--all", "--force", "--reason", "x", "--data-dir", tmp_path)
    assert elsewhere.code == EXIT_USAGE
    assert "is not an anchor directory" in elsewhere.err


@pytest.mark.parametrize(
    "is_running",
    [True, pytest.param(False, marks=pytest.mark.full)],  # the same verb
)
def test_adopt_takes_an_emptied_store_back_into_service(
    tmp_path: Path, raw: RawClients, *, is_running: bool
) -> None:
    brokers = LocalBrokers(tmp_path)
    brokers.start()
    try:
        before = raw(brokers.address()).producer("orders", EXCLUSIVE, name="before")
        before.publish(b"will be lost")
        brokers.stop()
        empty_the_store(brokers)
        if is_running:
            brokers.start(wait=False)
            brokers.wait_for_event("bucket.waiting")
        data = brokers.data_directory
        done = onewriter(
            "adopt", "--all", "--force", "--reason", "the disk died", "--data-dir", data
        )
        assert done.code == 0, done.err or done.out
        # Buckets that were never used are acquired without an operator.
        assert "1 of 64 buckets adopted" in done.out
        if not is_running:
            brokers.start(wait=False)
        brokers.wait_ready()
        after = raw(brokers.address()).producer("orders", EXCLUSIVE, name="after")
        assert epoch_of(after) > epoch_of(before)
        reported = onewriter("history", "orders", "-o", "json", *at(brokers)).json["records"]
        assert "the disk died" in [each.get("reason") for each in reported]
    finally:
        brokers.stop()


def empty_the_store(brokers: LocalBrokers) -> None:
    """FLUSHALL by mistake: the append-only file is truncated to zero bytes."""
    for path in (brokers.data_directory / "valkey").rglob("*.aof"):
        os.truncate(path, 0)
