"""Commands that wait until the broker has its declarations, or until an identity is confirmed."""

from __future__ import annotations

import pytest

from onewriter_broker.connection.admission import not_now
from onewriter_core.errors import ServerError
from onewriter_core.wire.commands import Command, decode_command
from onewriter_core.wire.frames import FrameReader
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

TOPIC = "persistent://public/default/t"


def producer(mode: int = pb.EXCLUSIVE, epoch: int | None = None) -> pb.CommandProducer:
    return pb.CommandProducer(
        topic=TOPIC,
        producer_id=1,
        request_id=7,
        producer_access_mode=mode,  # type: ignore[arg-type]  # one of them
        topic_epoch=epoch,
    )


SUBSCRIBE = pb.CommandSubscribe(
    topic=TOPIC,
    subscription="s",
    sub_type=pb.CommandSubscribe.EXCLUSIVE,
    consumer_id=1,
    request_id=7,
)
LOOKUP = pb.CommandLookup(topic=TOPIC, request_id=7)
PARTITIONS = pb.CommandPartitionedMetadata(topic=TOPIC, request_id=7)
LISTING = pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=7)


def answered(
    command: Command, *, has_declarations: bool = True, may_only_resume: bool = False
) -> object:
    answer = not_now(command, has_declarations=has_declarations, may_only_resume=may_only_resume)
    if answer is None:
        return None
    ((frame, _),) = FrameReader().feed(answer)
    return decode_command(frame)


@pytest.mark.parametrize("command", [producer(), SUBSCRIBE, LISTING])
def test_a_broker_without_declarations_refuses_clients(command: Command) -> None:
    answer = answered(command, has_declarations=False)
    assert isinstance(answer, pb.CommandError)
    assert (answer.request_id, ServerError(answer.error)) == (7, ServerError.SERVICE_NOT_READY)


def test_early_look_ups_keep_the_connections_of_clients() -> None:
    looked_up, partitions = (
        answered(each, has_declarations=False) for each in (LOOKUP, PARTITIONS)
    )
    assert isinstance(looked_up, pb.CommandLookupResponse)
    assert isinstance(partitions, pb.CommandPartitionedMetadataResponse)
    codes = {ServerError(looked_up.error), ServerError(partitions.error)}
    assert codes == {ServerError.METADATA_ERROR}


def test_commands_without_a_topic_are_handled() -> None:
    for command in (pb.CommandPing(), pb.CommandPong(), pb.CommandAuthResponse()):
        assert answered(command, has_declarations=False, may_only_resume=True) is None


@pytest.mark.parametrize(
    ("command", "goes_on"),
    [
        (producer(epoch=5), True),
        (producer(pb.WAIT_FOR_EXCLUSIVE, epoch=5), True),
        (producer(), False),
        (producer(pb.WAIT_FOR_EXCLUSIVE), False),
        (producer(pb.EXCLUSIVE_WITH_FENCING), False),
        (producer(pb.SHARED), False),
        (producer(pb.SHARED, epoch=5), False),
        (SUBSCRIBE, False),
        (LOOKUP, True),
        (PARTITIONS, True),
    ],
)
def test_an_unconfirmed_identity_may_resume_and_no_more(command: Command, goes_on: bool) -> None:
    answer = answered(command, may_only_resume=True)
    assert (answer is None) == goes_on
    if answer is not None:
        assert isinstance(answer, pb.CommandError)
        assert ServerError(answer.error) is ServerError.SERVICE_NOT_READY
    assert answered(command) is None


def test_an_unconfirmed_identity_adds_no_schema() -> None:
    schema = pb.Schema(name="s", type=pb.Schema.STRING, schema_data=b"")
    command = pb.CommandGetOrCreateSchema(request_id=7, topic=TOPIC, schema=schema)
    answer = answered(command, may_only_resume=True)
    assert isinstance(answer, pb.CommandGetOrCreateSchemaResponse)
    assert ServerError(answer.error_code) is ServerError.SERVICE_NOT_READY
    assert answered(command) is None
