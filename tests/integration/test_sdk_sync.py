"""``onewriter.sync`` against a real broker: everything that the SDK does, from threads without an event loop."""

from __future__ import annotations

import concurrent.futures
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.integration.raw import eventually

import onewriter.sync
from onewriter import (
    EARLIEST,
    Closed,
    ConfigurationError,
    ConsumerOptions,
    EndOfTopic,
    Fenced,
    MessageId,
    NoMessage,
    OnewriterError,
    Phase,
    ProducerOptions,
    ProducerState,
    Refused,
    SharedStateBuilder,
    SubscriptionType,
    VersionConflict,
)
from onewriter.sync import Candidacy, Client, Leadership, SharedMap, SharedState, Standing
from onewriter.testing import InProcessBroker, in_process_broker

SECONDS_MAX = 120.0
FROM_THE_START = ConsumerOptions(start=EARLIEST)


@pytest.fixture(scope="module")
def local() -> Iterator[InProcessBroker]:
    with in_process_broker() as started:
        yield started


@pytest.fixture
def client(local: InProcessBroker) -> Iterator[Client]:
    with Client(local.service_url) as opened:
        yield opened


@pytest.fixture
def other(local: InProcessBroker) -> Iterator[Client]:
    with Client(local.service_url) as opened:
        yield opened


class Beside:
    """A blocking call in its own thread."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._ended: list[object] = []
        self._thread = threading.Thread(target=self._run, args=[work], daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], object]) -> None:
        try:
            self._ended.append(work())
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self._ended.append(error)

    def result(self) -> object:
        self._thread.join(SECONDS_MAX)
        (ended,) = self._ended
        return ended


def filled(client: Client, topic: str, count: int = 3) -> None:
    producer = client.create_producer(topic)
    for number in range(count):
        producer.send(b"%d" % number)
    producer.close()


# ---------------------------------------------------------------- producers


def test_a_producer_and_its_waiters(client: Client, other: Client, topic: str) -> None:
    options = ProducerOptions(access_mode=onewriter.AccessMode.WAIT_FOR_EXCLUSIVE)
    changes: list[ProducerState] = []
    producer = client.create_producer(
        topic, options, on_change=lambda each: changes.append(each.state)
    )
    assert producer.state is ProducerState.READY
    assert ProducerState.READY in changes
    ended: list[OnewriterError] = []
    producer.when_ended(ended.append)
    second = other.start_producer(topic, options)
    assert producer.waited_for() == 1
    assert producer.waiting == 1
    producer.verify()
    assert producer.may_send()
    producer.close()
    second.ready()
    assert second.epoch is not None
    assert producer.epoch is not None
    assert second.epoch > producer.epoch
    assert [type(each) for each in ended] == [Closed]
    assert producer.ended() is producer.end
    assert isinstance(producer.end, Closed)
    with pytest.raises(Closed):
        producer.check_open()
    second.abandon()
    second.abandon()


# ---------------------------------------------------------------- consumers and readers


def test_consuming(client: Client, topic: str) -> None:
    filled(client, topic)
    consumer = client.subscribe(topic, "books", FROM_THE_START)
    first = consumer.receive(timeout_seconds=SECONDS_MAX)
    consumer.acknowledge(first)
    assert consumer.receive(timeout_seconds=SECONDS_MAX).content == b"1"
    consumer.redeliver_unacknowledged()
    again = consumer.receive(timeout_seconds=SECONDS_MAX)
    assert again.content == b"1"
    consumer.acknowledge_soon(again)
    assert consumer.has_message_available()
    last = consumer.receive(timeout_seconds=SECONDS_MAX)
    assert consumer.last_message_id() == last.id
    consumer.negative_acknowledge(last)
    assert consumer.receive(timeout_seconds=SECONDS_MAX).content == b"2"
    consumer.acknowledge_cumulative(last)
    assert consumer.receive_nowait() is None
    with pytest.raises(NoMessage):
        consumer.receive(timeout_seconds=0.01)
    consumer.seek(first.id)
    assert consumer.is_attached
    assert consumer.receive(timeout_seconds=SECONDS_MAX).id >= first.id
    consumer.unsubscribe()
    assert isinstance(consumer.ended(), Closed)
    consumer.close()


def test_an_iteration_ends_when_another_thread_closes(client: Client, topic: str) -> None:
    filled(client, topic)
    with client.subscribe(topic, "books", FROM_THE_START) as consumer:
        seen: list[bytes] = []

        def consume() -> str:
            for message in consumer:
                seen.append(message.content)
                consumer.acknowledge(message)
            return "ended"

        consuming = Beside(consume)
        eventually(lambda: len(seen) == 3)
        consumer.close()
        assert consuming.result() == "ended"
    shared = ConsumerOptions(kind=SubscriptionType.SHARED)
    waiting = client.subscribe(topic, "shared", shared)
    receiving = Beside(waiting.receive)
    client.__exit__(None, None, None)
    assert isinstance(receiving.result(), Closed)
    waiting.close()
    waiting.abandon()


def test_reading_to_the_end_of_a_terminated_topic(
    client: Client, local: InProcessBroker, topic: str
) -> None:
    from tests.integration.http_calls import PERSISTENT, Http

    filled(client, topic)
    with client.create_reader(topic) as reader:
        assert reader.next_nowait() is None or reader.position is not None
        reader.seek(EARLIEST)
        Http(local.http_url)("POST", f"{PERSISTENT}/{topic}/terminate")
        assert [message.content for message in reader] == [b"0", b"1", b"2"]
        assert reader.has_reached_end_of_topic
        with pytest.raises(EndOfTopic):
            reader.next()
        assert not reader.has_message_available()


def test_an_interrupt_ends_a_call_and_loses_nothing(client: Client, topic: str) -> None:
    consumer = client.subscribe(topic, "books")
    main = threading.get_ident()
    timer = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))

    def is_interrupted() -> None:
        timer.start()
        consumer.receive()

    # Workers of pytest-xdist ignore the signal.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            is_interrupted()
        timer.join()
    finally:
        signal.signal(signal.SIGINT, former)
    filled(client, topic, 1)
    assert consumer.receive(timeout_seconds=SECONDS_MAX).content == b"0"


# ---------------------------------------------------------------- leading


def given_up(leadership: Leadership) -> concurrent.futures.Future[MessageId]:
    """Return the receipt of a message in a transaction that failed."""
    receipts = []
    with contextlib.suppress(ZeroDivisionError), leadership.transaction() as transaction:
        receipts.append(transaction.send(b"never"))
        raise ZeroDivisionError
    return receipts[0]


def test_a_leader_publishes_guards_and_checks(client: Client, other: Client, topic: str) -> None:
    options = ProducerOptions(serve_seconds=1.0)
    beside = f"{{{topic}}}-audit"
    with client.lead(topic, metadata={"next": 1}, options=options) as leadership:
        begun = time.monotonic()
        eventually(leadership.may_serve)
        assert leadership.serve_until > begun
        assert leadership.check().is_current
        leadership.check_held()
        guarded = leadership.guarded(beside)
        guarded.send(b"guarded")
        assert guarded.is_atomic
        assert guarded == leadership.guarded(beside)
        assert guarded.producer().guard_is_atomic
        guarded.submit(b"handed in").result(SECONDS_MAX)
        leadership.seal(f"{topic}-elsewhere")
        with leadership.transaction({"next": 2}) as transaction:
            own = transaction.send(b"mine")
            others = transaction.send(b"theirs", topic=beside)
        assert own.result(SECONDS_MAX).ledger == leadership.epoch
        assert others.result(SECONDS_MAX).entry > 0
        assert isinstance(given_up(leadership).exception(SECONDS_MAX), Closed)
        assert leadership.metadata == {"next": 1}
        reported = other.leader(topic)
        assert reported is not None
        assert reported.metadata == {"next": 2}
        assert leadership.info().epoch == leadership.epoch == leadership.guard.number
        assert leadership.waiting == 0
        guarded.close()
        assert guarded.is_closed
    assert isinstance(leadership.over(), Closed)
    with pytest.raises(Closed):
        leadership.check_held()
    with other.create_reader(beside) as reader:
        found = [reader.next(timeout_seconds=SECONDS_MAX).content for _ in range(3)]
        assert found == [b"guarded", b"handed in", b"theirs"]
        with pytest.raises(NoMessage):
            reader.next(timeout_seconds=0.05)


def test_a_candidate_leads_term_after_term(
    client: Client, local: InProcessBroker, topic: str
) -> None:
    standings: list[Standing] = []

    def elected(term: Leadership) -> None:
        term.send(b"elected under %d" % term.epoch)  # it may block

    with Candidacy(client, topic, on_elected=elected, on_change=standings.append) as candidacy:
        epochs = []
        for term in candidacy.terms():
            epochs.append(term.epoch)
            assert candidacy.term == term
            assert candidacy.standing.phase is Phase.LEADING
            if len(epochs) == 3:
                candidacy.close()
            elif len(epochs) == 2:
                candidacy.release(rejoin=False)
                assert candidacy.term is None
                candidacy.rejoin()
            else:
                version = candidacy.standing.version
                local.fence(topic)
                assert candidacy.change(version).version > version
        assert epochs == sorted(set(epochs))
        with pytest.raises(Closed):
            candidacy.lead()
    losses = [each.loss for each in standings if each.loss is not None]
    assert isinstance(losses[0], Fenced)
    with client.create_reader(topic) as reader:
        for epoch in epochs:
            assert reader.next(timeout_seconds=SECONDS_MAX).content == b"elected under %d" % epoch


def test_an_application_that_cannot_lead_is_no_candidate(client: Client, topic: str) -> None:
    def elected(_term: Leadership) -> None:
        raise ZeroDivisionError

    with (
        Candidacy(client, topic, on_elected=elected) as candidacy,
        pytest.raises(Closed, match="ZeroDivisionError"),
    ):
        candidacy.lead()


# ---------------------------------------------------------------- owning


def test_owning(client: Client, other: Client, topic: str) -> None:
    filled(client, topic, 1)
    full = f"persistent://public/default/{topic}"
    with client.own(topic, [full, f"{topic} shard"], serve_seconds=1.0) as (first, shard):
        assert (first.generation, shard.generation) == (1, 1)
        assert first.is_owned
        assert first.group == topic
        first.check()
        eventually(first.may_serve)
        with first.subscribe(FROM_THE_START) as consumer:
            consumer.acknowledge(consumer.receive(timeout_seconds=SECONDS_MAX))
            first.guarded(f"{topic}-audit").send(b"mine")
            with pytest.raises(ConfigurationError):
                shard.consumer_options()
            (denied,) = other.own(topic, [full]).wait()
            with pytest.raises((Fenced, Refused)):
                _ = denied.generation
            owned = other.own(topic, [(full, 7)]).wait()
            (second,) = owned
            assert isinstance(first.lost.wait(SECONDS_MAX), Fenced)
            assert isinstance(consumer.ended(), OnewriterError)
            with pytest.raises(Fenced):
                first.check_held()
            with pytest.raises(Fenced):
                first.guarded(f"{topic}-audit").send(b"too late")
        assert len(owned) == 1
        assert owned[0] is second
        assert shard.is_owned
        second.release()
        second.release()
        assert owned.is_over
        owned.release()
    assert not shard.is_owned
    with other.own(topic, [f"{topic} shard"]) as taken:
        taken.release(taken[:1])
        assert taken.is_over


# ---------------------------------------------------------------- shared state


def test_a_map_of_many_threads(client: Client, other: Client, topic: str) -> None:
    with (
        SharedMap(client, topic, str, int) as ours,
        SharedMap(other, topic, str, int) as others,
        others.watch() as watch,
    ):

        def count() -> None:
            for _ in range(20):
                ours.update("n", lambda n: (n or 0) + 1)

        for counting in [Beside(count) for _ in range(4)]:
            assert counting.result() is None
        assert others.get("n", latest=True) == 80
        for number, change in enumerate(watch, 1):
            assert (change.key, change.value) == ("n", number)
            if number == 80:
                break
        assert ours.put("a", 1) is None
        assert ours.put_if_absent("a", 2) == 1
        assert ours.replace("a", 1, 3)
        assert ours.get_or_default("b", "none") == "none"
        version = ours.state.version
        after = ours.update_multiple(lambda _view: {"a": None, "b": 5}, if_version=version)
        assert dict(after) == {"n": 80, "b": 5}
        with pytest.raises(VersionConflict):
            ours.update_multiple(lambda _view: {"b": 6}, if_version=version)
        # The reader runs here: it may block, and call what blocks.
        assert ours.scan(lambda view: (len(view), others.size(latest=True))) == (2, 2)
        assert sorted(ours.list_keys()) == ["b", "n"]
        assert ours.delete("b") == 5
        ours.clear()
        assert others.size(latest=True) == 0
        ours.state.checkpoint()
        with pytest.raises(ZeroDivisionError):
            ours.update("n", lambda n: 1 // (n or 0))
        follower = Beside(lambda: list(watch))
        watch.close()
        assert isinstance(follower.result(), list)
    with pytest.raises(Closed):
        ours.get("a")


def test_a_state_of_ones_own(client: Client, topic: str) -> None:
    builder = SharedStateBuilder(
        initial=list[str],
        apply=lambda state, text: [*state, text],
        serialize=str.encode,
        deserialize=bytes.decode,
    )
    with SharedState(builder, client, topic) as state:
        lengths = state.write(lambda lines: [f"line {len(lines)}"], len)
        assert lengths == 1
        assert state.read(list, latest=True) == ["line 0"]
        assert state.snapshot().version == state.version == 1
        assert state.trouble is None
        state.ready()
    assert state.grants == 1


def test_a_map_that_cannot_be_opened_reports_why(client: Client, topic: str) -> None:
    with pytest.raises(ConfigurationError):
        SharedMap(client, f"{topic}-partition-1", str, int)
    with (
        SharedMap(client, topic, str, int) as numbers,
        pytest.raises(onewriter.WrongType),
    ):
        numbers.put("a", "text")  # type: ignore[arg-type]
    closed = Client("pulsar://127.0.0.1:1")
    with pytest.raises(Closed), SharedMap(closed, topic, str, int):
        pytest.fail("it cannot be opened")


def test_a_client_that_is_closed_under_a_map(local: InProcessBroker, topic: str) -> None:
    with Client(local.service_url) as client:
        numbers = SharedMap(client, topic, str, int).__enter__()
        numbers.put("a", 1)
        watch = numbers.watch().__enter__()
        following = Beside(lambda: list(watch))
    assert isinstance(following.result(), list | Closed)
    with pytest.raises(Closed):
        numbers.put("a", 2)
    watch.close()
    numbers.__exit__(None, None, None)


def test_leaving_by_an_interrupt_ends_everything(local: InProcessBroker, topic: str) -> None:
    def interrupted() -> None:
        with Client(local.service_url) as client, SharedMap(client, topic, str, int) as numbers:
            numbers.put("a", 1)
            raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    eventually(lambda: threading.active_count() <= before)
