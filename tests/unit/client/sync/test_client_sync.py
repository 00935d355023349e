"""``onewriter.sync``: the same SDK for programs without an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest
from tests.unit.client.fake_broker import QUICK, FakeBroker
from tests.unit.client.fake_topic import FakeTopic

import onewriter.sync
from onewriter import (
    Batching,
    Closed,
    ConfigurationError,
    Fenced,
    OnewriterError,
    ProducerOptions,
    Refused,
    Unavailable,
)
from onewriter_core.errors import ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

SECONDS_MAX = 60.0


class Stage:
    """A scripted broker in a loop of its own, for stories that block."""

    def __init__(self) -> None:
        self.broker = FakeBroker()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.broker.start(), self._loop).result(SECONDS_MAX)

    def do(self, work: Callable[[], object]) -> None:
        """Have the broker do something, in its own thread."""
        done = threading.Event()

        def run() -> None:
            work()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(SECONDS_MAX)

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.broker.stop(), self._loop).result(SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    opened = Stage()
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def client(stage: Stage) -> Iterator[onewriter.sync.Client]:
    with onewriter.sync.Client(stage.broker.url, limits=QUICK) as opened:
        yield opened


def test_leading_from_beginning_to_end(stage: Stage, client: onewriter.sync.Client) -> None:
    with client.lead("orders", priority=3, metadata="next: 4") as leadership:
        assert leadership.epoch == 7
        assert leadership.session.startswith("7-")
        assert leadership.topic == "persistent://public/default/orders"
        assert leadership.send(b"mine").entry == 2
        assert leadership.announce("next: 5").entry == 3
        assert leadership.lost.wait(timeout_seconds=0.01) is None
        assert not leadership.is_over
    assert isinstance(leadership.lost.reason, Closed)
    assert len(stage.broker.all(pb.CommandCloseProducer)) == 1
    assert leadership.producer.queue_priority == 3


def test_a_loss_is_reported_to_waiting_calls_and_to_the_next_call(
    stage: Stage, client: onewriter.sync.Client
) -> None:
    reported: list[OnewriterError] = []
    with client.lead("orders", on_lost=reported.append) as leadership:
        stage.broker.answers[pb.CommandProducer] = stage.broker.fence
        stage.do(lambda: stage.broker.links[-1].write(replies.close_producer(1)))
        reason = leadership.lost.wait(timeout_seconds=SECONDS_MAX)
        assert isinstance(reason, Fenced)
        assert reported == [reason]
        assert leadership.lost.is_set()
        with pytest.raises(Fenced):
            leadership.send(b"too late")


def test_a_callback_must_not_block(stage: Stage, client: onewriter.sync.Client) -> None:
    raised: list[str] = []

    def send(_reason: OnewriterError) -> None:
        try:
            leadership.send(b"from the client's own thread")
        except Closed as error:
            raised.append(str(error))

    with client.lead("orders") as leadership:
        leadership.lost.call(send)
        leadership.handover()
    assert raised == ["a callback must not call what blocks"]


def test_a_pipeline_of_batches(stage: Stage, client: onewriter.sync.Client) -> None:
    options = ProducerOptions(batching=Batching(delay_seconds=3600.0))
    producer = client.create_producer("orders", options)
    receipts = [producer.submit(b"%d" % number) for number in range(10)]
    producer.flush()
    assert [receipt.result(SECONDS_MAX).batch_index for receipt in receipts] == list(range(10))
    late = producer.submit(b"late")
    producer.close()
    assert late.result(SECONDS_MAX).entry == 2
    assert isinstance(producer.end, Closed)
    with pytest.raises(Closed):
        producer.submit(b"after the end")


def test_messages_without_a_receipt_fail_when_the_client_closes(stage: Stage) -> None:
    options = ProducerOptions(batching=Batching(delay_seconds=3600.0))
    with onewriter.sync.Client(stage.broker.url, limits=QUICK) as client:
        receipt = client.create_producer("orders", options).submit(b"never sent")
    with pytest.raises(OnewriterError):
        receipt.result(SECONDS_MAX)


def test_errors_are_those_of_the_sdk(stage: Stage, client: onewriter.sync.Client) -> None:
    stage.broker.answers[pb.CommandProducer] = stage.broker.refuse(
        ServerError.AUTHORIZATION_ERROR, "no claim"
    )
    with pytest.raises(Refused, match="no claim"):
        client.lead("orders").__enter__()
    stage.broker.answers[pb.CommandProducer] = stage.broker.queue
    with pytest.raises(Unavailable, match="not the leader"):
        client.lead("orders", timeout_seconds=0.05).__enter__()
    with pytest.raises(ConfigurationError):
        client.create_producer("no://topic")


def test_a_client_that_is_not_open_raises_an_error_that_says_so(stage: Stage) -> None:
    client = onewriter.sync.Client(stage.broker.url)
    with pytest.raises(Closed):
        client.create_producer("orders")
    with client:
        producer = client.create_producer("orders")
    with pytest.raises(Closed):
        producer.send(b"after the end")
    with pytest.raises(ConfigurationError):
        onewriter.sync.Client("http://somewhere").__enter__()


def test_closing_the_client_ends_what_waits_in_another_thread(stage: Stage) -> None:
    ended: list[BaseException] = []
    with onewriter.sync.Client(stage.broker.url, limits=QUICK) as client:
        leadership = client.lead("orders").__enter__()

        def wait() -> None:
            try:
                ended.append(leadership.lost.wait() or AssertionError("no reason"))
            except Closed as error:
                ended.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
    waiting.join(SECONDS_MAX)
    assert [type(each) for each in ended] == [Closed]


def test_a_call_while_the_loop_ends_is_refused(stage: Stage) -> None:
    """Too late to be cancelled with the others, too early to find the loop closed."""
    ended: list[BaseException] = []

    async def last() -> AsyncIterator[None]:
        try:
            yield
        finally:  # asyncio ends generators when it has cancelled all tasks
            late.start()
            late.join(0.2)

    def call() -> None:
        try:
            opened._thread.call(asyncio.sleep(3600.0))
        except Closed as error:
            ended.append(error)

    late = threading.Thread(target=call, daemon=True)
    generator = last()

    async def begin() -> None:
        await anext(generator)

    with onewriter.sync.Client(stage.broker.url, limits=QUICK) as opened:
        opened._thread.call(begin())
    late.join(SECONDS_MAX)
    assert [type(each) for each in ended] == [Closed]


def test_a_call_that_the_loop_never_got_to_ends_with_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = threading.Event()
    ended: list[BaseException] = []

    def lost(work: Coroutine[Any, Any, None], _: object) -> concurrent.futures.Future[None]:
        work.close()
        taken.set()
        return concurrent.futures.Future()

    def call() -> None:
        try:
            opened._thread.call(asyncio.sleep(0))
        except Closed as error:
            ended.append(error)

    calling = threading.Thread(target=call, daemon=True)
    with onewriter.sync.Client(stage.broker.url, limits=QUICK) as opened:
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lost)
        calling.start()
        assert taken.wait(SECONDS_MAX)
        monkeypatch.undo()
    calling.join(SECONDS_MAX)
    assert [type(each) for each in ended] == [Closed]


def test_many_threads_call_while_one_closes(stage: Stage) -> None:
    ended: list[OnewriterError] = []
    with onewriter.sync.Client(stage.broker.url, limits=QUICK) as client:
        producer = client.create_producer("orders")
        begun = threading.Barrier(5)

        def work() -> None:
            begun.wait(SECONDS_MAX)
            try:
                while True:
                    producer.send(b"one of many")
            except OnewriterError as error:
                ended.append(error)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        begun.wait(SECONDS_MAX)
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert len(ended) == 4


def test_submitting_after_the_end_or_from_a_callback_leaves_no_state(stage: Stage) -> None:
    raised: list[str] = []

    def submit(_reason: OnewriterError | None = None) -> None:
        try:
            producer.submit(b"not taken")
        except Closed as error:
            raised.append(str(error))

    with (
        warnings.catch_warnings(record=True) as warned,
        onewriter.sync.Client(stage.broker.url, limits=QUICK) as client,
    ):
        warnings.simplefilter("always")
        producer = client.create_producer("orders")
        with client.lead("others") as leadership:
            leadership.lost.call(submit)
        client.__exit__(None, None, None)
        submit()
        gc.collect()
    assert raised == ["a callback must not call what blocks", "the client is not open"]
    assert [str(each.message) for each in warned] == []


def test_closing_is_idempotent_also_when_the_client_was_closed(stage: Stage) -> None:
    reported: list[str] = []

    def close(_reason: OnewriterError) -> None:
        try:
            producer.close()
        except Closed as error:
            reported.append(str(error))

    with onewriter.sync.Client(stage.broker.url, limits=QUICK) as client:
        producer = client.create_producer("orders")
        stage.broker.answers[pb.CommandSubscribe] = lambda link, asked: link.write(
            replies.success(asked.request_id)
        )
        reader = client.create_reader("orders")
        leadership = client.lead("others").__enter__()
        leadership.lost.call(close)
    for closing in (producer.close, reader.close):
        closing()
        closing()
    assert isinstance(producer.end, Closed)
    assert reported == ["a callback must not call what blocks"]
    client.__exit__(None, None, None)


def closed_meanwhile(client: onewriter.sync.Client, during_handover: Callable[[], None]) -> str:
    """A function whose block ends while another thread closes the client."""
    client.__enter__()

    def close() -> None:
        during_handover()
        client.__exit__(None, None, None)

    with client.lead("orders"):
        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        if during_handover is at_once:
            closing.join(SECONDS_MAX)
        return "the body's own result"


def at_once() -> None:
    """Before the block ends."""


def test_leaving_a_lead_whose_client_was_closed_raises_nothing(stage: Stage) -> None:
    def handing_over() -> None:
        stage.until(lambda: bool(stage.broker.all(pb.CommandCloseProducer)))

    stage.broker.answers[pb.CommandCloseProducer] = None
    for when in (handing_over, at_once):
        client = onewriter.sync.Client(stage.broker.url, limits=QUICK)
        assert closed_meanwhile(client, when) == "the body's own result"


def test_an_exception_of_the_body_is_raised_after_the_client_was_closed(stage: Stage) -> None:
    client = onewriter.sync.Client(stage.broker.url, limits=QUICK).__enter__()
    leading = client.lead("orders")

    def body() -> None:
        with leading as leadership:
            client.__exit__(None, None, None)
            leadership.handover()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        body()
    assert raised.value.__context__ is None


def test_the_predecessors_metadata_is_known_when_the_block_begins(
    stage: Stage, client: onewriter.sync.Client
) -> None:
    stage.do(lambda: FakeTopic(stage.broker))
    with client.lead("orders", read_predecessor=True) as leadership:
        assert leadership.predecessor is None
    with client.lead("orders") as leadership, pytest.raises(ConfigurationError):
        _ = leadership.predecessor
