"""Sidecars as processes beside a real broker: leading, fenced, frozen, killed, handed over, verified."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest
from tests.integration.conftest import ATTENTIVE, ROUNDS, RawClients, StockClients
from tests.integration.forked_brokers import BUCKETS, forked_brokers
from tests.integration.raw import EXCLUSIVE, FENCING, contents_of, entries_of, eventually
from tests.integration.sidecars import Events, SessionOver, Sidecar, sidecars
from tests.servers import running_server

from onewriter_core.wire.messages import parse_metadata
from onewriter_testing.processes import LocalBrokers

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "sidecar"

PATIENT: Any = {"publish_timeout_seconds": 100}
"""For tests in which brokers die: one may be slow to start."""


@pytest.fixture
def verified() -> Iterator[tuple[LocalBrokers, Callable[[str], None]]]:
    """A broker on its own store, and ``onewriter verify`` of a topic directly from that store."""
    with (
        running_server() as store,
        forked_brokers(redis_url=store.url, settings=ATTENTIVE) as brokers,
    ):

        def verify(topic: str) -> None:
            program = "from onewriter_broker.verify.cli import verify_command; verify_command()"
            run = subprocess.run(
                [
                    *(sys.executable, "-c", program, topic),
                    *("--redis-url", store.url, "--buckets", str(BUCKETS)),
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            assert run.returncode == 0, run.stdout + run.stderr

        yield brokers, verify


# ---------------------------------------------------------------- publishing


def test_consumers_see_what_a_sidecar_publishes(
    broker: LocalBrokers, stock: StockClients, topic: str, tmp_path: Path
) -> None:
    with sidecars(tmp_path, broker.service_url, topic, "writer-0") as (writer,):
        session = writer.lead()
        status, answer = writer.publish(
            b"hello", session, Onewriter_Key="k", Onewriter_Properties='{"a": "b"}'
        )
        assert status == 200
        reader = stock(broker.service_url).create_reader(topic, pulsar.MessageId.earliest)
        message = reader.read_next(60_000)
        assert (message.data(), message.partition_key()) == (b"hello", "k")
        assert message.properties() == {"a": "b"}
        position = message.message_id()
        assert (position.ledger_id(), position.entry_id()) == (answer["ledger"], answer["entry"])
        assert answer["epoch"] == writer.standing()["epoch"]


def test_a_stream_across_the_death_of_the_broker_is_stored_once_each(
    topic: str, tmp_path: Path
) -> None:
    contents = [b"%d" % number for number in range(5_000)]
    with (
        forked_brokers() as brokers,
        sidecars(tmp_path, brokers.service_url, topic, "writer-0", **PATIENT) as (writer,),
    ):
        session = writer.lead()
        killer = threading.Timer(0.1, brokers.replace)
        killer.start()
        lines: list[Any] = []
        for start in range(0, len(contents), 500):
            lines += writer.stream(contents[start : start + 500], session)[:-1]
            time.sleep(0.02)
        killer.join()
        brokers.wait_ready()
        assert {line["stored"] for line in lines} == {True}
        assert contents_of(brokers.address(), topic) == contents
        assert writer.lead() == session, "it resumed, under the same epoch"


# ---------------------------------------------------------------- handover


@pytest.mark.parametrize("how", ["SIGTERM", "SIGUSR1"])
def test_a_planned_handover(broker: LocalBrokers, topic: str, tmp_path: Path, how: str) -> None:
    """The next candidate leads before the former one has ended."""
    with sidecars(tmp_path, broker.service_url, topic, "a", "b") as (leader, waiter):
        session = leader.lead()
        assert leader.publish(b"a's last", session)[0] == 200
        events = Events(waiter)
        if how == "SIGTERM":
            leader.process.terminate()
        else:
            leader.signal(signal.SIGUSR1)
        successor = waiter.lead()
        eventually(lambda: any(standing["leading"] for standing in events.seen))
        events.close()
        status, answer = waiter.publish(b"b's first", successor)
        assert status == 200
        assert answer["epoch"] > int(session.partition("-")[0])
        if how == "SIGTERM":
            assert leader.process.wait(120) == 0
        else:
            assert leader.publish(b"late", session)[0] == 409
            assert leader.standing()["phase"] == "standing-aside"
            assert leader.http("POST", "/rejoin")[0] == 200
            leader.until("queueing")
        assert contents_of(broker.address(), topic) == [b"a's last", b"b's first"]


@pytest.mark.full  # test_a_planned_handover
@pytest.mark.campaign
@pytest.mark.timeout(360 + 10 * ROUNDS)
def test_taking_turns_by_release(broker: LocalBrokers, topic: str, tmp_path: Path) -> None:
    epochs: list[int] = []
    with sidecars(tmp_path, broker.service_url, topic, "a", "b") as pair:
        for number in range(ROUNDS):
            leader, waiter = pair[number % 2], pair[1 - number % 2]
            epochs.append(int(leader.lead().partition("-")[0]))
            waiter.until("queueing")
            assert leader.release()[0] == 200
            waiter.lead()
    assert epochs == sorted(set(epochs))


def test_the_leaders_sidecar_is_killed(broker: LocalBrokers, topic: str, tmp_path: Path) -> None:
    with sidecars(tmp_path, broker.service_url, topic, "a", "b") as (leader, waiter):
        session = leader.lead()
        assert leader.publish(b"before", session)[0] == 200
        leader.kill()
        successor = waiter.lead()
        assert waiter.publish(b"after", successor)[0] == 200
        # The container restarts: the session that its application still has is invalid.
        leader.restart()
        leader.until("queueing")
        status, answer = leader.publish(b"under the former session", session)
        assert (status, answer["stored"]) == (409, False)
        assert waiter.publish(b"under a's session", session)[0] == 409
        assert contents_of(broker.address(), topic) == [b"before", b"after"]


def test_a_frozen_sidecar_wakes_up_and_publishes_nothing(
    verified: tuple[LocalBrokers, Callable[[str], None]], topic: str, tmp_path: Path
) -> None:
    """Requests that it finds on waking, and later ones: each gets 409, and none is in the log."""
    brokers, verify = verified
    with sidecars(tmp_path, brokers.service_url, topic, "a", "b") as (frozen, waiter):
        session = frozen.lead()
        assert frozen.publish(b"before", session)[0] == 200
        events = Events(frozen)
        eventually(lambda: ("leading", True) in events.phases())
        frozen.signal(signal.SIGSTOP)
        successor = waiter.lead()
        assert waiter.publish(b"successor", successor)[0] == 200
        answers: list[tuple[int, Any]] = []
        zombies = [
            threading.Thread(
                target=lambda number=number: answers.append(
                    frozen.publish(b"zombie %d" % number, session)
                )
            )
            for number in range(20)
        ]
        for each in zombies:
            each.start()
        time.sleep(0.3)  # they are in its sockets
        frozen.signal(signal.SIGCONT)
        for each in zombies:
            each.join()
        epochs = tuple(int(each.partition("-")[0]) for each in (session, successor))
        assert len(answers) == 20
        for status, answer in answers:
            assert (status, answer["stored"]) == (409, False), answer
            assert (answer["sessionEpoch"], answer["epoch"]) == epochs
        status, answer = frozen.publish(b"zombie", session)
        assert (status, answer["stored"]) == (409, False)
        frozen.until("queueing")
        assert ("queueing", False) in events.phases() or ("queueing", True) in events.phases()
        assert not any(standing["session"] not in {session, None} for standing in events.seen), (
            "it was told of a term that it did not have"
        )
        events.close()
        assert waiter.publish(b"undisturbed", successor)[0] == 200
        log = contents_of(brokers.address(), topic)
        assert log == [b"before", b"successor", b"undisturbed"]
        verify(topic)


@pytest.mark.campaign
@pytest.mark.timeout(360 + 20 * ROUNDS)
def test_results_stored_and_not_stored_are_true(
    verified: tuple[LocalBrokers, Callable[[str], None]],
    raw: RawClients,
    topic: str,
    tmp_path: Path,
) -> None:
    """Under load, the topic is taken away repeatedly. Each answer is compared with the log."""
    brokers, verify = verified
    outcomes: dict[bytes, bool | None] = {}
    with sidecars(tmp_path, brokers.service_url, topic, "a") as (writer,):
        for number in range(ROUNDS):
            session = writer.lead()
            contents = [b"%d/%d" % (number, each) for each in range(2_000)]
            taking = threading.Timer(0.02 + 0.01 * (number % 7), _take_over, [brokers, raw, topic])
            taking.start()
            try:
                for content, line in zip(
                    contents, writer.stream(contents, session)[:-1], strict=False
                ):
                    outcomes[content] = line["stored"]
            except SessionOver:  # on a busy machine the topic is taken before the stream begins
                outcomes |= dict.fromkeys(contents, False)
            taking.join()
        writer.lead()
    log = contents_of(brokers.address(), topic)
    assert len(set(log)) == len(log), "a message stands twice"
    said_stored = {content for content, stored in outcomes.items() if stored is True}
    said_not_stored = {content for content, stored in outcomes.items() if stored is False}
    assert said_stored <= set(log), "an acknowledged message is missing"
    assert not said_not_stored & set(log), "a message that was refused is in the log"
    verify(topic)


def _take_over(brokers: LocalBrokers, raw: RawClients, topic: str) -> None:
    usurper = raw(brokers.address()).producer(topic, FENCING)
    usurper.close()


@pytest.mark.full  # test_access_modes.py
def test_priority_decides_who_is_next(broker: LocalBrokers, topic: str, tmp_path: Path) -> None:
    url = broker.service_url
    with (
        sidecars(tmp_path, url, topic, "a") as (leader,),
        _waiting(tmp_path, url, topic, "low", priority=1) as low,
        _waiting(tmp_path, url, topic, "high", priority=10) as high,
    ):
        leader.stop()
        high.lead()
        low.until("queueing")


@contextlib.contextmanager
def _waiting(
    directory: Path, url: str, topic: str, name: str, **settings: object
) -> Iterator[Sidecar]:
    sidecar = Sidecar(directory, url, topic, name, **settings)
    try:
        sidecar.until("queueing")
        yield sidecar
    finally:
        sidecar.stop()


@pytest.mark.full  # test_sdk_lead.py
def test_each_takeover_publishes_the_new_leader(
    broker: LocalBrokers, topic: str, tmp_path: Path
) -> None:
    """PIP-440: identity, priority, epoch and resume info are a term's first message."""
    with sidecars(tmp_path, broker.service_url, topic, "a", "b", announce="true") as (a, b):
        assert b.http("PUT", "/resume-info", {"offset": 12})[0] == 200
        assert a.publish(b"work", a.lead())[0] == 200
        a.kill()
        b.lead()
        first, work, second = entries_of(broker.address(), topic)
        assert parse_metadata(work).partition_key == ""
        leaders = []
        for entry in (first, second):
            metadata = parse_metadata(entry)
            assert metadata.partition_key == "onewriter.leader"
            leaders.append({each.key: each.value for each in metadata.properties})
        assert [each["onewriter.kind"] for each in leaders] == ["leader", "leader"]
        announced = [json.loads(each) for each in contents_of(broker.address(), topic)[::2]]
        assert [each["identity"] for each in announced] == ["a", "b"]
        assert announced[1]["resumeInfo"] == {"offset": 12}
        assert announced[1]["epoch"] == b.standing()["epoch"]


# ---------------------------------------------------------------- identity


TOKEN_SECONDS = 4.0
"""Validity of a token that is replaced each half second: long enough for a busy machine to replace and present it."""


def test_a_rotated_token_keeps_the_writer(topic: str, tmp_path: Path) -> None:
    secret = b"a secret of at least thirty-two bytes"
    (tmp_path / "secret").write_bytes(secret)
    token = tmp_path / "token"
    is_over = threading.Event()

    def rotate() -> None:
        claims = {"sub": "writer", "exp": time.time_ns() / 1e9 + TOKEN_SECONDS}
        token.write_text(jwt.encode(claims, secret, algorithm="HS256"))

    def rotate_on() -> None:
        while not is_over.wait(0.5):
            rotate()

    rotate()
    rotating = threading.Thread(target=rotate_on)
    rotating.start()
    settings = {"token_secret_file": str(tmp_path / "secret"), "authentication_required": True}
    try:
        with (
            forked_brokers(settings=settings) as brokers,
            sidecars(tmp_path, brokers.service_url, topic, "a", token_file=token, **PATIENT) as (
                writer,
            ),
        ):
            session = writer.lead()
            until = time.monotonic() + 2.5 * TOKEN_SECONDS  # so at least two tokens expire
            while time.monotonic() < until:
                assert writer.publish(b"x", session)[0] == 200
                time.sleep(0.5)
            brokers.replace()  # a new connection needs a valid token
            status, answer = writer.publish(b"after", session)
            assert status == 200, answer
    finally:
        is_over.set()
        rotating.join()


def test_an_invalid_token_is_reported_and_reviewed_again(topic: str, tmp_path: Path) -> None:
    secret = b"a secret of at least thirty-two bytes"
    (tmp_path / "secret").write_bytes(secret)
    token = tmp_path / "token"
    token.write_text("nonsense")
    settings = {"token_secret_file": str(tmp_path / "secret"), "authentication_required": True}
    with forked_brokers(settings=settings) as brokers:
        sidecar = Sidecar(tmp_path, brokers.service_url, topic, "a", token_file=token)
        try:
            standing = sidecar.until("queueing", connected=False)
            eventually(lambda: sidecar.standing()["trouble"] != "")
            assert sidecar.http("GET", "/readyz")[0] == 503
            assert standing["session"] is None
            token.write_text(jwt.encode({"sub": "writer"}, secret, algorithm="HS256"))
            sidecar.lead()
        finally:
            sidecar.stop()


# ---------------------------------------------------------------- other components


@pytest.mark.full  # tests/unit/client: the SDK connects again
def test_a_broker_that_is_not_there_yet_is_waited_for(
    raw: RawClients, topic: str, tmp_path: Path
) -> None:
    brokers = LocalBrokers(tmp_path / "brokers")
    sidecar = Sidecar(tmp_path, brokers.service_url, topic, "a")
    try:
        standing = sidecar.until("queueing", connected=False)
        assert standing["verified"] is False
        status, answer = sidecar.publish(b"x", f"1-{'0' * 16}")
        assert (status, answer["epoch"]) == (409, None)
        brokers.start()
        sidecar.lead()
        assert raw(brokers.address()).lookup(topic).broker_service_url
    finally:
        sidecar.stop()
        brokers.stop()


def test_the_commands_beside_a_running_sidecar(
    broker: LocalBrokers, topic: str, tmp_path: Path
) -> None:
    """A preStop hook calls ``release``. Both find the sidecar by its environment."""
    path = tmp_path / "sidecar.sock"
    with sidecars(tmp_path, broker.service_url, topic, "a", socket=path) as (writer,):
        socket = {"ONEWRITER_SIDECAR_SOCKET": str(path)}
        shown = json.loads(sidecar_command("status", **socket))
        assert (shown["phase"], shown["session"]) == ("leading", writer.lead())
        port = {
            "ONEWRITER_SIDECAR_PORT": str(writer.port),
            "ONEWRITER_SIDECAR_RELEASE_KEY_FILE": str(writer.key_path),
        }
        assert "standing-aside" in sidecar_command("release", **port)
        assert writer.standing()["leading"] is False
        assert path.stat().st_mode & 0o777 == 0o660
    assert not path.exists()


def sidecar_command(*words: str, **environment: str) -> str:
    """Return the output of ``onewriter sidecar WORDS``."""
    program = "from onewriter.sidecar.cli import sidecar; sidecar()"
    run = subprocess.run(
        [sys.executable, "-c", program, *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout


def run_example(*command: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environment,
    )


@pytest.mark.parametrize(
    "example", ["leader.sh", pytest.param("leader.py", marks=pytest.mark.full)]
)
def test_the_examples_lead_and_step_back(
    broker: LocalBrokers, raw: RawClients, topic: str, tmp_path: Path, example: str
) -> None:
    with sidecars(tmp_path, broker.service_url, topic, "a") as (writer,):
        program = EXAMPLES / example
        if example == "leader.sh":
            process = run_example(
                str(program), SIDECAR=writer.http.url, NAME="example", INTERVAL="0.05"
            )
        else:
            options = ["--port", str(writer.port), "--name", "example", "--interval", "0.05"]
            process = run_example(sys.executable, "-u", str(program), *options)
        try:
            _read_until(process, "wrote 3")
            usurper = raw(broker.address()).producer(topic, FENCING)
            _read_until(process, "not in the log", "queueing")
            usurper.close()
            writer.lead()
            _read_until(process, "leading")
            _read_until(process, "wrote")
        finally:
            process.kill()
            process.communicate()
    assert raw(broker.address()).producer(topic, EXCLUSIVE).epoch


def _read_until(process: subprocess.Popen[str], *words: str) -> None:
    for line in process.stdout or ():
        if any(word in line for word in words):
            return
    raise AssertionError(f"the example ended without saying {words}")
