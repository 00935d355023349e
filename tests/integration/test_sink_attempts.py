"""The sink without Spark: attempts, drivers and restarts in the worst order, with a real broker.

The cases themselves are tested: they must fail with a sink that is broken on purpose.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pickle
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from tests.integration.conftest import StockClients
from tests.integration.http_calls import OWN, Http
from tests.integration.leaders import program
from tests.integration.sinks import full
from tests.integration.test_atomic_publish import Reader, holder, rows

from onewriter_pipeline.errors import Conflict, MissingPart, PipelineError
from onewriter_pipeline.lead.leader import Leader
from onewriter_pipeline.publish import staging
from onewriter_pipeline.publish.lead_session import LeadSession
from onewriter_testing.processes import LocalBrokers
from pyspark_onewriter import sink

APP: Final = "job"
QUERY: Final = "0f3a-query"

Messages = list[WriterCommitMessage | None]


@contextlib.contextmanager
def as_task(partition: int, attempt: int, batch: int) -> Iterator[None]:
    """Set what Spark passes to the tasks of a batch of a stream; other tasks get less."""
    before, context = TaskContext.get(), object.__new__(TaskContext)
    properties = {"sql.streaming.queryId": QUERY, "streaming.sql.batchId": str(batch)}
    named = {"partitionId": partition, "taskAttemptId": attempt, "localProperties": properties}
    TaskContext.__init__(context, **named)
    TaskContext._setTaskContext(context)
    try:
        yield
    finally:
        TaskContext._setTaskContext(before)


class Driver:
    """A program that writes one batch after the other. Like Spark, it distributes copies of its sink."""

    def __init__(
        self, log: Log, options: dict[str, Any], *, is_stream: bool, leader: Leader | None = None
    ) -> None:
        self._is_stream = is_stream
        named = {"admin.url": log.broker.http_url, "topic": log.name} | options
        given = {name: str(value) for name, value in named.items()}
        columns = rows(0, 1).schema.names
        written = sink.write_options(given, columns, is_stream=is_stream, overwrites=False)
        if leader is not None and written.lead_session is not None:
            written = replace(written, lead_session=replace(written.lead_session, leader=leader))
        self.leader = leader or Leader()
        self._options = written
        self._pickled = self._begun()

    def _begun(self) -> bytes:
        """Return what tasks receive. For a stream this includes the commit, which Spark creates for each batch."""
        options = sink.begun(self._options)
        made = sink.TopicStreamWriter(options) if self._is_stream else sink.TopicWriter(options)
        return pickle.dumps(made)

    def write(
        self, partition: int, *batches: pa.RecordBatch, batch: int = 0
    ) -> WriterCommitMessage:
        """Run an attempt of a task."""
        return self.attempt(partition, iter(batches), batch)

    def attempt(
        self, partition: int, batches: Iterator[pa.RecordBatch], batch: int = 0
    ) -> WriterCommitMessage:
        """Run an attempt whose rows arrive one after the other."""
        if self._is_stream:
            self._pickled = self._begun()
        with as_task(partition, next(_attempts), batch):
            message = self._copy().write(batches)
        assert isinstance(message, WriterCommitMessage)
        return message

    def commit(self, messages: Messages, batch: int = 0) -> None:
        self._end("commit", messages, batch)

    def abort(self, messages: Messages, batch: int = 0) -> None:
        self._end("abort", messages, batch)

    def _end(self, how: str, messages: Messages, batch: int) -> None:
        more = (batch,) if self._is_stream else ()
        if self._is_stream:
            self._pickled = self._begun()
        getattr(self._copy(), how)(messages, *more)

    def _copy(self) -> Any:
        return pickle.loads(self._pickled)  # noqa: S301 - our own


_attempts = itertools.count()


class Log:
    """A topic, its writers, and its contents."""

    def __init__(self, broker: LocalBrokers, name: str, client: Any, folder: Path) -> None:
        self.broker, self.name, self.client = broker, name, client
        self._folder = folder
        self.http = Http(broker.http_url)
        client.create_producer(name).close()

    def driver(self, version: int, **options: Any) -> Driver:
        """Return the driver of a batch."""
        return Driver(self, {"txnAppId": APP, "txnVersion": version} | options, is_stream=False)

    def stream(self, *, elsewhere: bool = False, **options: Any) -> Driver:
        """Return the driver of a query; ``elsewhere``: another driver on the same checkpoint."""
        leader = Leader(root=self._folder) if elsewhere else None
        named = {"checkpointLocation": f"/checkpoints/{self.name}"} | options
        return Driver(self, named, is_stream=True, leader=leader)

    def stored(self) -> list[int]:
        """Return the topic's rows in order."""
        return Reader(self.client, self.name).numbers()


# ------------------------------------------------------------ cases


def attempts_that_end_before_and_behind_the_commit(log: Log) -> None:
    """Rows of one attempt count, although others read them in another order, and end at any time."""
    driver = log.driver(1)
    messages: Messages = []
    turned = [rows(50, 50), rows(0, 50)]

    def ends_before_the_commit() -> Iterator[pa.RecordBatch]:
        yield turned[0]
        messages.append(driver.write(0, rows(0, 100)))
        yield turned[1]

    def ends_behind_the_commit() -> Iterator[pa.RecordBatch]:
        yield turned[0]
        driver.attempt(0, ends_before_the_commit())
        messages.append(driver.write(1, rows(100, 100)))
        driver.commit(messages)
        yield turned[1]

    driver.attempt(0, ends_behind_the_commit())
    assert log.stored() == list(range(200))


def partitions_stand_in_their_order(log: Log) -> None:
    """Whichever ends first, and also one without rows."""
    driver = log.driver(1)
    last = driver.write(3, rows(200, 100))
    empty = driver.write(1, rows(0, 0))
    middle = driver.write(2, rows(100, 60), rows(160, 40))
    driver.commit([driver.write(0, rows(0, 100)), empty, middle, last])
    assert log.stored() == list(range(300))


def a_batch_is_played_again(log: Log) -> None:
    """Spark does this if a commit failed after its work: abort, and the batch again."""
    for _ in range(3):
        driver = log.driver(1)
        messages: Messages = [driver.write(0, rows(0, 10)), driver.write(1, rows(10, 10))]
        driver.commit(messages)
        driver.abort(messages)
        assert log.stored() == list(range(20))


def drivers_beside_one_another(log: Log) -> None:
    """One gives up while another one still stages. A driver of an older version gets an error."""
    one, other = log.driver(1), log.driver(1)
    first: Messages = [one.write(0, rows(0, 10))]
    second: Messages = [other.write(0, rows(0, 10)), None]
    other.abort(second)
    one.commit(first)
    assert log.stored() == list(range(10))
    newer = log.driver(3)
    newer.commit([newer.write(0, rows(10, 10))])
    behind = log.driver(2)
    with expected(Conflict):
        behind.commit([behind.write(0, rows(90, 10))])
    assert log.stored() == list(range(20))


def a_task_told_nothing(log: Log) -> None:
    """Then nothing is published. The batch may be written again."""
    driver = log.driver(1)
    messages: Messages = [driver.write(0, rows(0, 10)), None, driver.write(2, rows(20, 10))]
    with expected(PipelineError):
        driver.commit(messages)
    assert log.stored() == []
    driver.abort(messages)
    again = log.driver(1)
    again.commit([again.write(n, rows(n * 10, 10)) for n in range(3)])
    assert log.stored() == list(range(30))


def a_part_is_lost(log: Log) -> None:
    """A staged part no longer exists: it is never treated as a part without rows."""
    driver = log.driver(1)
    messages: Messages = [driver.write(0, rows(0, 10))]
    status, _ = log.http("DELETE", f"{OWN}/{log.name}/staged/{APP}/1")
    assert status == 200
    messages.append(driver.write(1, rows(10, 10)))
    with expected(MissingPart):
        driver.commit(messages)
    assert log.stored() == []
    driver.commit([driver.write(0, rows(0, 10)), driver.write(1, rows(10, 10))])
    assert log.stored() == list(range(20))


def an_epoch_is_over(log: Log) -> None:
    """Nothing is published under it, although the topic has no other holder at the moment."""
    with program(log.broker.service_url, log.name, APP) as grant:
        driver = log.driver(1, epoch=grant.epoch, capabilityToken=grant.capability)
        holder(log.client, log.name).close()
    with expected(Conflict):
        driver.commit([driver.write(0, rows(0, 10))])
    assert log.stored() == []


def an_epoch_passes_on(log: Log) -> None:
    """Its driver publishes while its holder has the topic, then the driver of the next epoch."""
    with program(log.broker.service_url, log.name, APP) as old:
        driver = log.driver(1, epoch=old.epoch, capabilityToken=old.capability)
        driver.commit([driver.write(0, rows(0, 10))])
        with program(log.broker.service_url, log.name, APP) as new:
            successor = log.driver(2, epoch=new.epoch, capabilityToken=new.capability)
            successor.commit([successor.write(0, rows(10, 10))])
            stale = log.driver(3, epoch=old.epoch, capabilityToken=old.capability)
            with expected(Conflict):
                stale.commit([stale.write(0, rows(90, 10))])
    assert log.stored() == list(range(20))


def a_query_is_restarted(log: Log) -> None:
    """In the middle of its second batch, and with another batch than that of its tasks."""
    query = log.stream()
    query.commit([query.write(0, rows(0, 10))])
    query.commit([query.write(0, rows(10, 10), batch=1)], batch=1)
    again = log.stream()
    again.commit([again.write(0, rows(10, 10), batch=1)], batch=1)
    third: Messages = [again.write(0, rows(20, 10), batch=2)]
    with expected(PipelineError):
        again.commit(third, batch=3)
    assert log.stored() == list(range(20))
    again.commit(third, batch=2)
    assert log.stored() == list(range(30))


def a_driver_is_superseded_in_a_batch(log: Log) -> None:
    """It publishes nothing more, and names the leader. The other driver publishes the batch, once."""
    fencing: dict[str, Any] = {"accessMode": "exclusive-with-fencing"}
    query = log.stream(**fencing)
    query.commit([query.write(0, rows(0, 10))])
    messages: Messages = [query.write(0, rows(10, 10), batch=1)]
    other = log.stream(elsewhere=True, **fencing)
    others: Messages = [other.write(0, rows(10, 10), batch=1)]
    with expected(Conflict, "is led by spark-"):
        query.commit(messages, batch=1)
    query.abort(messages, batch=1)
    other.commit(others, batch=1)
    assert log.stored() == list(range(20))
    other.abort([], batch=2)  # it ends


def a_driver_is_superseded_between_batches(log: Log) -> None:
    """The next batch fails before any row is staged. After a restart the query may lead again."""
    fencing: dict[str, Any] = {"accessMode": "exclusive-with-fencing"}
    query = log.stream(**fencing)
    query.commit([query.write(0, rows(0, 10))])
    other = log.stream(elsewhere=True, **fencing)
    with expected(Conflict, "does not lead"):
        query.write(0, rows(10, 10), batch=1)
    with expected(Conflict, "another producer holds"):
        log.stream()
    other.commit([other.write(0, rows(10, 10), batch=1)], batch=1)
    other.abort([], batch=2)
    again = log.stream()
    again.commit([again.write(0, rows(20, 10), batch=2)], batch=2)
    assert log.stored() == list(range(30))


def a_leader_process_dies_in_a_batch(log: Log) -> None:
    """The driver leads again, but not for what it had begun: another may have led in between."""
    query = log.stream(elsewhere=True)
    query.commit([query.write(0, rows(0, 10))])
    messages: Messages = [query.write(0, rows(10, 10), batch=1)]
    os.kill(query.leader.status()["pid"], signal.SIGKILL)
    with expected(Conflict, "began under epoch"):
        query.commit(messages, batch=1)
    query.abort(messages, batch=1)
    again = log.stream(elsewhere=True)
    again.commit([again.write(0, rows(10, 10), batch=1)], batch=1)
    again.abort([], batch=2)
    assert log.stored() == list(range(20))


def drivers_depose_each_other(log: Log) -> None:
    """Each of them restarts where it failed. Nevertheless every row is stored once."""
    fencing: dict[str, Any] = {"accessMode": "exclusive-with-fencing"}
    for batch in range(4):
        one = log.stream(**fencing)
        first: Messages = [one.write(0, rows(batch * 10, 10), batch=batch)]
        other = log.stream(elsewhere=True, **fencing)
        second: Messages = [other.write(0, rows(batch * 10, 10), batch=batch)]
        with expected(Conflict):
            one.commit(first, batch)
        one.abort(first, batch)
        other.commit(second, batch)
        other.abort(second, batch)
        again = log.stream(**fencing)
        again.commit([again.write(0, rows(batch * 10, 10), batch=batch)], batch)
        again.abort([], batch)
    assert log.stored() == list(range(40))


@contextlib.contextmanager
def expected(error: type[Exception], text: str = "") -> Iterator[None]:
    """Check that this error is raised, with such a text."""
    try:
        yield
    except error as raised:
        found = str(raised)
    else:
        raise AssertionError(f"no {error.__name__}")
    assert text in found


Scenario = Callable[[Log], None]

SCENARIOS: Final[tuple[Scenario, ...]] = (
    attempts_that_end_before_and_behind_the_commit,
    partitions_stand_in_their_order,
    a_batch_is_played_again,
    drivers_beside_one_another,
    a_task_told_nothing,
    a_part_is_lost,
    an_epoch_is_over,
    an_epoch_passes_on,
    a_query_is_restarted,
    a_driver_is_superseded_in_a_batch,
    a_driver_is_superseded_between_batches,
    a_leader_process_dies_in_a_batch,
    drivers_depose_each_other,
)


@pytest.fixture
def log(broker: LocalBrokers, topic: str, stock: StockClients) -> Iterator[Log]:
    with tempfile.TemporaryDirectory(prefix="ow") as folder:  # short: sockets are in it
        yield Log(broker, topic, stock(broker.service_url), Path(folder))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_every_row_is_there_once(log: Log, scenario: Scenario) -> None:
    scenario(log)


# ------------------------------------------------------------ sinks that are broken on purpose

WRITERS: Final = (sink.TopicWriter, sink.TopicStreamWriter)


@contextlib.contextmanager
def instead(method: str, other: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of both kinds of sink. The replacement gets the method as its first argument."""
    with contextlib.ExitStack() as stack:
        for writer in WRITERS:
            right = getattr(writer, method)
            wrong = functools.partialmethod(lambda self, right, *a: other(right, self, *a), right)
            stack.enter_context(patch.object(writer, method, wrong))
        yield


def names_without_attempt(_: Log) -> Mutation:
    """All attempts of a task stage under one name."""
    right = staging.Staging.stager

    def stager(self: staging.Staging, partition: int, _: int, **more: Any) -> staging.Stager:
        with patch("onewriter_pipeline.publish.staging.secrets.token_hex", lambda _: "same"):
            return right(self, partition, 0, **more)

    return patch.object(staging.Staging, "stager", stager)


def an_app_for_each_driver(_: Log) -> Mutation:
    """Nothing is compared with the published version: each driver starts from the beginning."""
    right, drivers = sink.write_options, itertools.count()

    def options(given: dict[str, str], *words: Any, **more: Any) -> Any:
        return right(given | {"txnAppId": f"driver-{next(drivers)}"}, *words, **more)

    return patch.object(sink, "write_options", options)


def any_version_is_a_duplicate(_: Log) -> Mutation:
    """It does not check which version is stored."""
    right = staging.Staging.try_to_publish

    def publish(self: staging.Staging, *words: Any) -> staging.Publication:
        found = right(self, *words)
        return replace(found, held=0) if found.is_duplicate else found

    return patch.object(staging.Staging, "try_to_publish", publish)


def the_epoch_is_not_passed(_: Log) -> Mutation:
    """Every driver leads for itself."""
    right = sink.write_options

    def options(given: dict[str, str], *words: Any, **more: Any) -> Any:
        return right({k: v for k, v in given.items() if k != "epoch"}, *words, **more)

    return patch.object(sink, "write_options", options)


def a_batch_begins_under_no_epoch(_: Log) -> Mutation:
    """It is published under whichever epoch its driver leads by then."""
    right = LeadSession.publish

    def publish(
        self: LeadSession, target: Any, app: str, version: int, staged: Any, begun_under: Any
    ) -> Any:
        return right(self, target, app, version, staged, dict.fromkeys(begun_under, 0))

    return patch.object(LeadSession, "publish", publish)


def a_loss_is_not_noted(_: Log) -> Mutation:
    """A deposed driver continues with the next batch as if it had started again."""
    right = LeadSession.begin

    def begin(self: LeadSession, target: Any, app: str) -> Any:
        self.end(is_over=True)
        return right(self, target, app)

    return patch.object(LeadSession, "begin", begin)


def abort_undoes_what_is_published(log: Log) -> Mutation:
    """The log forgets the version, so that it is published again."""

    def abort(right: Any, *words: Any) -> None:
        log.http("DELETE", f"{OWN}/{log.name}/published/{APP}")
        right(*words)

    return instead("abort", abort)


def abort_drops_what_others_staged(log: Log) -> Mutation:
    """It drops all parts of the batch, instead of only its own."""

    def abort(*_: Any) -> None:
        log.http("DELETE", f"{OWN}/{log.name}/staged/{APP}/1")

    return instead("abort", abort)


def what_no_task_told_is_left_out(_: Log) -> Mutation:
    """A task without a result counts as one without rows."""

    def commit(right: Any, self: Any, messages: Messages, *batch: int) -> None:
        right(self, [each for each in messages if each is not None], *batch)

    return instead("commit", commit)


def a_lost_part_is_left_out(_: Log) -> Mutation:
    """The existing parts are published."""

    def commit(right: Any, self: Any, messages: Messages, *batch: int) -> None:
        try:
            right(self, messages, *batch)
        except MissingPart:
            right(self, messages[1:], *batch)

    return instead("commit", commit)


def tasks_append_themselves(log: Log) -> Mutation:
    """A task's rows are published at once, under their own app."""

    def write(_: Any, self: Any, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        number = context.taskAttemptId()
        app, target = f"task-{number}", self._options.target
        grant = target.grant(full(log.name))
        with staging.Staging(target.access, log.name, app, 1, grant) as opened:
            opened.publish(opened.stage(context.partitionId(), number, batches))
        return WriterCommitMessage()

    stack = contextlib.ExitStack()
    stack.enter_context(instead("write", write))
    stack.enter_context(instead("commit", lambda *_: None))
    return stack


def parts_are_turned_round(_: Log) -> Mutation:
    """The last partition is published first."""

    def commit(right: Any, self: Any, messages: Messages, *batch: int) -> None:
        right(self, messages[::-1], *batch)

    return instead("commit", commit)


def another_batch_is_committed(_: Log) -> Mutation:
    """The number that Spark names is not compared."""

    def commit(right: Any, self: Any, messages: Any, _: int) -> None:
        right(self, messages, messages[0].version)

    return instead("commit", commit)


Mutation = contextlib.AbstractContextManager[Any]
Mutant = Callable[[Log], Mutation]

MUTANTS: Final[tuple[tuple[Mutant, tuple[Scenario, ...]], ...]] = (
    (names_without_attempt, (attempts_that_end_before_and_behind_the_commit,)),
    (an_app_for_each_driver, (a_batch_is_played_again, a_query_is_restarted)),
    (any_version_is_a_duplicate, (drivers_beside_one_another,)),
    (abort_undoes_what_is_published, (a_batch_is_played_again,)),
    (abort_drops_what_others_staged, (drivers_beside_one_another,)),
    (what_no_task_told_is_left_out, (a_task_told_nothing,)),
    (a_lost_part_is_left_out, (a_part_is_lost,)),
    (the_epoch_is_not_passed, (an_epoch_is_over, an_epoch_passes_on)),
    (a_batch_begins_under_no_epoch, (a_leader_process_dies_in_a_batch,)),
    (a_loss_is_not_noted, (a_driver_is_superseded_between_batches,)),
    (tasks_append_themselves, (attempts_that_end_before_and_behind_the_commit,)),
    (parts_are_turned_round, (partitions_stand_in_their_order,)),
    (another_batch_is_committed, (a_query_is_restarted,)),
)


@pytest.mark.parametrize(
    ("mutant", "scenario"),
    [(mutant, scenario) for mutant, scenarios in MUTANTS for scenario in scenarios],
    ids=lambda each: each.__name__,
)
def test_a_broken_sink_is_detected(log: Log, mutant: Mutant, scenario: Scenario) -> None:
    with mutant(log), pytest.raises((AssertionError, PipelineError)):
        scenario(log)
