"""The watch: everything that a broker serves and every change of it, as lines; and histories that outlive
brokers.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import jwt
import pytest
from tests.integration.conftest import ATTENTIVE, RawClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import ADMIN, OWN, Http, epoch_of
from tests.integration.raw import EXCLUSIVE, FENCING, eventually

from onewriter_testing.processes import LocalBrokers

WATCH = "/onewriter/v1/watch"
SECRET = "a secret of at least thirty-two bytes"  # noqa: S105 - a test's
Json = dict[str, Any]


class Watching:
    """One watcher. ``lines`` holds all lines received."""

    def __init__(self, url: str, token: str = "") -> None:
        self.lines: list[Json] = []
        self.is_ended = False
        where = urlsplit(url)
        assert where.hostname is not None
        self._connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection.request("GET", WATCH, headers=headers)
        self.answer = self._connection.getresponse()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            for line in self.answer:
                self.lines.append(json.loads(line))
        self.is_ended = True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._connection.sock is not None:
                self._connection.sock.shutdown(2)
        self._reader.join(10)
        self._connection.close()

    def of(self, topic: str) -> list[Json]:
        return [line for line in self.lines if line.get("topic", "").endswith(f"/{topic}")]

    def wait(self, holds: Callable[[list[Json]], object]) -> None:
        eventually(lambda: bool(holds(self.lines)))

    def status(self, topic: str) -> Json:
        found = self.of(topic)
        assert found, f"nothing was told of {topic}"
        status: Json = found[-1]["status"]
        return status


@pytest.fixture
def watch(broker: LocalBrokers) -> Iterator[Callable[..., Watching]]:
    with contextlib.ExitStack() as stack:

        def make(url: str = broker.http_url, token: str = "") -> Watching:
            watching = Watching(url, token)
            stack.callback(watching.close)
            return watching

        yield make


def is_synced(lines: list[Json]) -> bool:
    return any(line["type"] == "SYNCED" for line in lines)


def test_a_watch_sends_the_present_state_then_each_change(
    broker: LocalBrokers, topic: str, raw: RawClients, watch: Callable[..., Watching]
) -> None:
    holder = raw(broker.address()).producer(topic, EXCLUSIVE, name="holder")
    watching = watch()
    watching.wait(is_synced)
    assert watching.answer.headers["Content-Type"] == "application/x-ndjson"
    synced = next(line for line in watching.lines if line["type"] == "SYNCED")
    assert (synced["broker"].partition("~")[0], synced["revision"]) == ("broker-0", None)
    assert watching.status(topic)["holders"][0]["producerName"] == "holder"
    successor = raw(broker.address()).waiter(topic, name="heir")
    watching.wait(lambda _: watching.status(topic)["waiting"] == 1)
    holder.close()
    successor.ready_at_last()
    watching.wait(lambda _: (watching.status(topic)["holder"] or {}).get("producerName") == "heir")
    status = watching.status(topic)
    last = status["transitions"][-1]
    assert (last["cause"], last["previous"]["producerName"], last["holder"]["producerName"]) == (
        "Released",
        "holder",
        "heir",
    )
    assert last["previous"]["epoch"] == epoch_of(holder) < last["epoch"]
    reported = Http(broker.http_url)("GET", f"{OWN}/{topic}")[1]
    # The line of a topic has neither refusals nor quotas nor the shard of the store.
    assert reported.keys() - {"refusals", "quotaExceeded", "shard"} == status.keys()
    assert reported["transitions"] == status["transitions"]
    assert reported["slots"][0]["epoch"] == status["slots"][0]["epoch"]


def test_an_idle_broker_sends_only_signs_of_life(
    broker: LocalBrokers, topic: str, raw: RawClients, watch: Callable[..., Watching]
) -> None:
    producer = raw(broker.address()).producer(topic, EXCLUSIVE)
    producer.publish(b"the transition reports when the first message was stored")
    watching = watch()
    watching.wait(is_synced)
    watching.wait(lambda _: watching.status(topic)["transitions"][0]["firstMessageMs"] is not None)
    before = len(watching.of(topic))
    for _ in range(50):
        producer.publish(b"messages are no change of a topic")
    watching.wait(lambda lines: lines[-1]["type"] == "PING")
    assert len(watching.of(topic)) == before


def test_a_burst_of_changes_is_reported_in_few_lines(
    broker: LocalBrokers, topic: str, raw: RawClients, watch: Callable[..., Watching]
) -> None:
    client = raw(broker.address())
    client.producer(topic, EXCLUSIVE)
    watching = watch()
    watching.wait(is_synced)
    before = len(watching.of(topic))
    started = time.monotonic()
    for number in range(300):
        client.ask_producer(topic, 2, name=f"w{number}")  # WaitForExclusive
    watching.wait(lambda _: watching.status(topic)["waiting"] == 300)
    rounds = (time.monotonic() - started) / 0.1 + 1
    assert len(watching.of(topic)) - before <= rounds


def test_a_deleted_topic_is_reported(
    broker: LocalBrokers, topic: str, raw: RawClients, watch: Callable[..., Watching]
) -> None:
    producer = raw(broker.address()).producer(topic, EXCLUSIVE)
    watching = watch()
    watching.wait(is_synced)
    producer.close()
    code, answer = Http(broker.http_url)("DELETE", f"{ADMIN}/persistent/public/default/{topic}")
    assert code == 204, answer
    watching.wait(lambda _: watching.of(topic)[-1]["type"] == "GONE")


def test_the_number_of_watchers_is_limited(watch: Callable[..., Watching]) -> None:
    with forked_brokers() as brokers:
        watchers = [watch(brokers.http_url) for _ in range(16)]
        for each in watchers:
            each.wait(is_synced)
        assert watch(brokers.http_url).answer.status == 429
        watchers[0].close()
        eventually(lambda: watch(brokers.http_url).answer.status == 200)


def test_a_watch_ends_with_its_token_and_with_the_broker(
    tmp_path: Any, raw: RawClients, watch: Callable[..., Watching]
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)

    def token(seconds: float) -> str:
        claims = {"sub": "operator", "exp": time.time_ns() / 1e9 + seconds}
        return jwt.encode(claims, SECRET, algorithm="HS256")

    settings = {
        "token_secret_file": str(secret),
        "authentication_required": True,
        "observer_subjects": "operator",
    }
    with forked_brokers(settings=settings) as brokers:
        assert watch(brokers.http_url).answer.status == 401
        lasting = watch(brokers.http_url, token(600))
        lasting.wait(is_synced)
        for seconds in (3, 12, 48):  # long enough for this machine to begin in time
            brief = watch(brokers.http_url, token(seconds))
            eventually(lambda: brief.is_ended)  # noqa: B023 - called here
            if is_synced(brief.lines):
                break
        assert is_synced(brief.lines)
        assert not lasting.is_ended
        assert brokers.stop() == 0, "the stop did not wait for the watcher"
        lasting.wait(lambda _: lasting.is_ended)


# The history.


def causes(broker: LocalBrokers, topic: str) -> list[str]:
    reported = Http(broker.http_url)("GET", f"{OWN}/{topic}")[1]
    return [each["cause"] for each in reported["transitions"]]


def test_a_takeover_is_one_by_force_if_the_loser_does_not_answer_and_else_none(
    attentive: LocalBrokers, topic: str, raw: RawClients, watch: Callable[..., Watching]
) -> None:
    answering = raw(attentive.address()).producer(f"{topic}-answered", EXCLUSIVE, name="loser")
    raw(attentive.address()).producer(f"{topic}-answered", FENCING, name="winner")
    answering.closed_by_broker()
    frozen = raw(attentive.address())
    loser = frozen.producer(topic, EXCLUSIVE, name="loser")
    watching = watch(attentive.http_url)
    frozen.freeze()
    raw(attentive.address()).producer(topic, FENCING, name="winner")
    eventually(lambda: causes(attentive, topic) == ["Initial", "Forced"])
    # The other loser was notified earlier, so that its silence would be long enough by now, too.
    assert causes(attentive, f"{topic}-answered") == ["Initial", "TakenOver"]
    watching.wait(lambda _: watching.status(topic)["transitions"][-1]["cause"] == "Forced")
    last = watching.status(topic)["transitions"][-1]
    assert (last["previous"]["producerName"], last["previous"]["epoch"]) == (
        "loser",
        epoch_of(loser),
    )


def test_the_history_outlives_the_broker(topic: str, raw: RawClients) -> None:
    """All that was reported before the broker died is reported afterwards, including who was forced out."""
    with forked_brokers(settings=ATTENTIVE) as brokers:
        client = raw(brokers.address())
        for name in ("a", "b"):
            client.producer(topic, EXCLUSIVE, name=name).close()
        frozen = raw(brokers.address())
        frozen.producer(topic, EXCLUSIVE, name="c")
        frozen.freeze()
        raw(brokers.address()).producer(topic, FENCING, name="d")
        eventually(lambda: causes(brokers, topic)[-1] == "Forced")
        before = Http(brokers.http_url)("GET", f"{OWN}/{topic}")[1]["transitions"]
        assert [each["holder"]["producerName"] for each in before] == ["a", "b", "c", "d"]
        brokers.kill()
        brokers.restart(0)
        again = raw(brokers.address())
        again.ask_producer(topic, 2, name="e").ready_at_last()

        def reported() -> list[Json]:
            found: list[Json] = Http(brokers.http_url)("GET", f"{OWN}/{topic}")[1]["transitions"]
            return found

        eventually(lambda: len(reported()) == 5)
        for old, new in zip(before, reported(), strict=False):
            fits = {name: new[name] for name in ("kind", "cause", "epoch", "holder", "previous")}
            assert {name: old[name] for name in fits} == fits
        assert reported()[-1]["previous"]["producerName"] == "d"
        assert reported()[-1]["cause"] == "BrokerChanged"
