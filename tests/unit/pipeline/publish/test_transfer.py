"""A batch whose broker refuses or disappears: errors, cleanup, and time limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

import pyarrow as pa
import pytest
from tests.unit.pipeline.scripted_broker import Answer, Request, ScriptedBroker, scripted_broker

from onewriter_broker.topic.publish import staged_rows
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.errors import (
    Away,
    Conflict,
    Damaged,
    Invalid,
    MissingPart,
    PipelineError,
)
from onewriter_pipeline.lead.requests import Grant
from onewriter_pipeline.publish import transfer
from onewriter_pipeline.publish.transfer import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    PublishTarget,
    TransferLimits,
)

TOPICS = [f"t{number}" for number in range(5)]
PATIENCE_SECONDS = 0.2


class Script:
    """A broker that accepts everything; ``refuses`` has statuses by the ends of refused requests."""

    def __init__(self) -> None:
        self.refuses: dict[str, int] = {}
        self.knows_before = False
        self.held: dict[str, int] = {}

    def is_question(self, request: Request) -> bool:
        """Whether the request is a publish without parts that is not refused."""
        is_publish = request.path.endswith("/publish")
        return is_publish and not request.body["parts"] and not self.knows_before

    def __call__(self, request: Request) -> Answer:
        for end, status in self.refuses.items():
            if request.path.endswith(end) and not self.is_question(request):
                return Answer(status, {"reason": "no"})
        key = request.path.partition("/staged/")[2]
        match request.method, key.rpartition("/")[2]:
            case "PUT", _:
                rows = sum(rows for rows, _ in staged_rows.frames(request.body))
                size = len(request.body)
                return Answer(
                    body={"key": key, "rows": rows, "bytes": size, "checksum": "c"},
                )
            case _, "layout":
                return Answer(body={"partitions": 0})
            case _, "publish":
                held = self.held.get(request.path.split("/")[6])
                if held is not None:
                    gone = {"first": None, "last": None, "rows": 0, "held": held}
                    return Answer(body={"outcome": "duplicate"} | gone)
                return Answer(
                    body={"outcome": "published", "first": "1:0", "last": "1:0", "rows": 1}
                )
            case _:
                return Answer(body={"dropped": 1})


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def broker(script: Script) -> Iterator[ScriptedBroker]:
    with scripted_broker(script) as broker:
        yield broker


def target(broker: ScriptedBroker, discard_seconds: float = 0.3) -> PublishTarget:
    grants = {f"persistent://public/default/{name}": Grant(7) for name in TOPICS}
    limits = TransferLimits(pending_bytes_max=0, discard_seconds=discard_seconds)
    access = Access(broker.url, patience_seconds=PATIENCE_SECONDS)
    return PublishTarget(access, grants=grants, limits=limits)


def rows() -> pa.RecordBatch:
    return pa.record_batch({"value": [b"row"] * len(TOPICS), "__topic": TOPICS})


def discards(broker: ScriptedBroker) -> set[str]:
    return {each.path for each in broker.requests if each.path.endswith("/discard")}


def test_task_without_a_broker_does_not_wait_again_for_each_log(
    script: Script, broker: ScriptedBroker
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield rows()
        script.refuses = {"": 503}
        yield rows()

    with pytest.raises(Away):
        transfer.stage(target(broker), "job", 1, (0, 0), batches())
    assert discards(broker) == set()


@pytest.mark.parametrize("status", [429, 503])
def test_failed_task_drops_its_rows_within_one_deadline(
    script: Script, broker: ScriptedBroker, status: int
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield rows()
        script.refuses = {"/discard": status}
        raise PipelineError("these rows end here")

    with pytest.raises(
        PipelineError, match="end here"
    ):  # a busy broker gets 600 s, a discard gets 0.3 s
        transfer.stage(target(broker), "job", 1, (0, 0), batches())
    assert len(discards(broker)) == 1, "one broker that does not answer ends all discards"


def test_failed_task_drops_everything_it_staged(script: Script, broker: ScriptedBroker) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield rows()
        script.refuses = {"t1/staged/job/1/discard": 403}
        raise PipelineError("these rows end here")

    with pytest.raises(PipelineError, match="end here"):
        transfer.stage(target(broker, discard_seconds=60.0), "job", 1, (0, 0), batches())
    assert len(discards(broker)) == len(TOPICS)


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (409, Conflict, "written again when that is over, it is finished"),
        (410, MissingPart, "written again, it is finished"),
        (413, Invalid, "it is refused again"),
        (500, Damaged, "it may be refused again"),
    ],
)
def test_the_error_states_whether_a_retry_completes_the_batch(
    script: Script, broker: ScriptedBroker, status: int, error: type[PipelineError], message: str
) -> None:
    script.refuses = {f"t{each}/staged/job/1/publish": status for each in (1, 3)}
    staged = transfer.stage(target(broker), "job", 1, (0, 0), [rows()])
    with pytest.raises(error) as refused:
        transfer.publish(target(broker), "job", 1, staged)
    (note,) = refused.value.__notes__
    assert "5 logs 3 have their rows" in note
    assert note.endswith(message)


@pytest.mark.parametrize(("guarantee", "version"), [(EXACTLY_ONCE, 1), (AT_LEAST_ONCE, 10**15 - 1)])
def test_all_logs_are_asked_before_the_first_publish(
    script: Script, broker: ScriptedBroker, guarantee: str, version: int
) -> None:
    wanted = replace(target(broker), guarantee=guarantee)
    staged = transfer.stage(wanted, "job", 1, (0, 0), [rows()])
    app = quote(wanted.app("job"))
    script.refuses, script.knows_before = {f"t3/staged/{app}/{version}/publish": 409}, True
    with pytest.raises(Conflict) as refused:
        transfer.publish(wanted, "job", 1, staged)
    (note,) = refused.value.__notes__
    assert note.startswith("That was persistent://public/default/t3, asked before the first")
    requests = [each for each in broker.requests if each.path.endswith("/publish")]
    assert len(requests) == len(TOPICS)
    assert [each.body for each in requests] == [{"epoch": 7, "parts": []}] * len(TOPICS)


def test_later_version_in_one_log_is_found_before_the_first_publish(
    script: Script, broker: ScriptedBroker
) -> None:
    staged = transfer.stage(target(broker), "job", 1, (0, 0), [rows()])
    script.held["t3"] = 2
    with pytest.raises(Conflict, match="has version 2 of it already"):
        transfer.publish(target(broker), "job", 1, staged)
    script.held["t3"] = 1
    assert transfer.publish(target(broker), "job", 1, staged)
    requests = [each.body for each in broker.requests if each.path.endswith("/publish")]
    assert [body["parts"] for body in requests[: 2 * len(TOPICS)]] == [[]] * 2 * len(TOPICS)
    assert all(body["parts"] for body in requests[2 * len(TOPICS) :])


def test_publish_requests_repeat_the_brokers_description_of_parts(broker: ScriptedBroker) -> None:
    staged = transfer.stage(target(broker), "job", 1, (0, 0), [rows()])
    transfer.publish(target(broker), "job", 1, staged)
    requests = [each for each in broker.requests if each.path.endswith("/publish")][-1]
    assert [sorted(part) for part in requests.body["parts"]] == [
        ["bytes", "checksum", "key", "rows"]
    ]
    assert all(
        (part.entries, part.entry_bytes > 0) == (1, True) for log in staged for part in log.parts
    )


def test_rows_for_a_topic_without_a_leader_are_staged_and_not_published(
    broker: ScriptedBroker,
) -> None:
    unled = replace(target(broker), grants={})
    staged = transfer.stage(unled, "job", 1, (0, 0), [rows()])
    with pytest.raises(Invalid, match="no epoch of persistent://public/default/t0 is given"):
        transfer.publish(unled, "job", 1, staged)
    assert not [each for each in broker.requests if each.path.endswith("/publish")]


def test_requests_under_an_epoch_carry_its_capability(
    broker: ScriptedBroker,
) -> None:
    wanted = target(broker)
    shown = {topic: Grant(7, f"job.99.{number}") for number, topic in enumerate(wanted.grants)}
    proven = replace(wanted, grants=shown)
    staged = transfer.stage(proven, "job", 1, (0, 0), [rows()])
    transfer.publish(proven, "job", 1, staged)
    transfer.discard(proven, "job", 1, staged)
    for number, name in enumerate(TOPICS):
        requests = [each for each in broker.requests if f"/{name}/staged/" in each.path]
        assert len(requests) == 5, "layout, part, question, publish, discard"
        assert {each.headers["Onewriter-Capability"] for each in requests} == {f"job.99.{number}"}
    assert "job.99" not in repr(proven)
