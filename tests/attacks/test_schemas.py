"""Schemas that are large or slow to compare affect only the client that sends them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator

import pytest
from tests.attacks.guarded import GuardedBrokers, address_of, wire_as
from tests.integration.conftest import RawClients
from tests.integration.raw import RawClient, full

from onewriter_broker.topic.schemas.checks import Question, SchemaChecks
from onewriter_broker.topic.schemas.rules import (
    BRANCHES_MAX,
    BYTES_MAX,
    NESTING_MAX,
    Incompatible,
    KeptSchema,
    Schema,
    Strategy,
)
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.in_process import InProcessBroker, in_process_broker


def union(branches: int, first: int = 0) -> bytes:
    """A field whose type is one of this number of records."""
    records = [
        {"type": "record", "name": f"b{n}", "fields": [{"name": "x", "type": "int"}]}
        for n in range(first, first + branches)
    ]
    return json.dumps(
        {"type": "record", "name": "r", "fields": [{"name": "u", "type": records}]}
    ).encode()


def nested(levels: int) -> bytes:
    inner: object = "int"
    for _ in range(levels):
        inner = {"type": "array", "items": inner}
    return json.dumps(inner).encode()


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with in_process_broker() as served:
        served._broker.clients.schema_checks._seconds_max = 60.0  # a busy machine is slow
        yield served


def make(client: RawClient, topic: str, data: bytes) -> pb.CommandGetOrCreateSchemaResponse:
    request_id = client.next_request_id()
    schema = pb.Schema(name="s", type=pb.Schema.AVRO, schema_data=data)
    client.say(pb.CommandGetOrCreateSchema(request_id=request_id, topic=full(topic), schema=schema))
    return client.expect(
        pb.CommandGetOrCreateSchemaResponse, lambda each: each.request_id == request_id
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (union(BRANCHES_MAX + 1), "at most 200 branches"),
        (nested(NESTING_MAX + 1), "at most 64 levels"),
        (nested(900), "at most 64 levels"),
        (b"[" * 30_000, "Invalid schema definition"),
        (b'"x' + b"x" * BYTES_MAX + b'"', f"at most {BYTES_MAX} bytes"),
        (b"9" * 6_000, "Invalid schema definition"),
        (b'{"type": "fixed", "name": "f", "size": 1' + b"0" * 6_000 + b"}", "Invalid schema"),
    ],
    ids=["branches", "levels", "many-levels", "brackets", "bytes", "digits", "size"],
)
def test_a_schema_beyond_the_bounds_is_refused(
    broker: InProcessBroker, raw: RawClients, data: bytes, reason: str
) -> None:
    client = raw(address_of(broker))
    client.producer("bounded")
    answer = make(client, "bounded", data)
    assert reason in answer.error_message
    assert len(answer.error_message) < 1_000
    client.producer("bounded").publish(b"served")


def test_schemas_that_take_long_are_compared_apart(
    broker: InProcessBroker, raw: RawClients
) -> None:
    client = raw(address_of(broker))
    client.producer("compared")
    assert not make(client, "compared", union(60)).error_message
    assert not make(client, "compared", union(60)).error_message, "it is the same"
    answer = make(client, "compared", union(61, first=30))
    assert "Unable to read schema" in answer.error_message


async def test_a_comparison_that_takes_too_long_is_ended_and_refused() -> None:
    kept = KeptSchema(0, Schema(pb.Schema.AVRO, union(200)), 0)
    question = Question(Schema(pb.Schema.AVRO, union(200, first=1)), (kept,), Strategy.FULL)
    assert not question.is_light
    before = set(children())
    with pytest.raises(Incompatible, match=r"takes longer than 0\.01 s"):
        await SchemaChecks(seconds_max=0.01).judge(question, "somebody")
    assert set(children()) <= before, "it does not run on"


def children() -> list[int]:
    """The processes that this one has started and that still run."""
    path = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    with open(path) as found:  # noqa: PTH123
        return [int(each) for each in found.read().split()]


def test_a_question_and_its_answer_pass_to_the_other_process_unchanged() -> None:
    kept = KeptSchema(3, Schema(pb.Schema.JSON, union(2), {"k": "v"}), 5)
    question = Question(
        Schema(pb.Schema.AVRO, union(3)), (kept,), Strategy.BACKWARD, is_reader=True
    )
    assert Question.decode(question.encode()) == question


def test_an_identity_cannot_block_schema_checks_of_others_in_its_namespace(
    guarded: GuardedBrokers, raw: RawClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, goes_on, began = "slow", threading.Event(), threading.Event()
    judge = Question.judge

    def held(question: Question) -> None:
        if slow in str(question.schema):
            began.set()
            assert goes_on.wait(60)
        judge(question)

    monkeypatch.setattr(Question, "judge", held)
    broker = guarded()
    calm, greedy = (wire_as(broker, raw, subject) for subject in ("calm", "greedy"))
    for topic in ("greedy-0", "greedy-1", "calm"):
        calm.producer(topic).close()
    try:
        for topic in ("greedy-0", "greedy-1"):  # the second waits, and takes no place
            schema = pb.Schema(name="s", type=pb.Schema.AVRO, schema_data=record(slow))
            greedy.say(
                pb.CommandGetOrCreateSchema(
                    request_id=greedy.next_request_id(), topic=full(topic), schema=schema
                )
            )
        assert began.wait(60)
        assert not make(calm, "calm", record("quick")).error_message
    finally:
        goes_on.set()


def record(name: str) -> bytes:
    return json.dumps({"type": "record", "name": name, "fields": []}).encode()
