"""``POST /publish?guard=``: another topic, under the guard of the one that the sidecar leads."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tests.unit.client.fake_broker import FakeBroker, FakeLink
from tests.unit.client.sidecar_world import Answer, SidecarWorld

from onewriter_core.errors import ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

AUDIT = "{orders}-audit"


def grant_guarded(broker: FakeBroker) -> None:
    """Guarded producers may write, and their guard is compared with each append."""

    def grant(link: FakeLink, command: Any) -> None:
        if not any(item.key == "onewriter.guard" for item in command.metadata):
            broker.grant(link, command)
            return
        link.write(
            replies.producer_success(
                command.request_id, "guarded", topic_epoch=0, guard_is_atomic=True
            )
        )

    broker.answers[pb.CommandProducer] = grant


async def publish(sidecar: SidecarWorld, session: str, topic: str = AUDIT) -> Answer:
    path = f"/publish?guard={quote(topic, safe='')}"
    return await sidecar.call("POST", path, b"audited", session=session)


async def test_a_guarded_publish_goes_to_the_other_topic(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = (await sidecar.until("leading"))["session"]
    grant_guarded(broker)
    answer = await publish(sidecar, session)
    assert (answer.status, answer.body["stored"], answer.body["epoch"]) == (200, True, 7)
    command = broker.all(pb.CommandProducer)[-1]
    assert command.topic == f"persistent://public/default/{AUDIT}"
    properties = {item.key: item.value for item in command.metadata}
    assert properties["onewriter.guard-number"] == "7"
    assert broker.contents()[-1] == b"audited"


async def test_a_stream_may_be_guarded_as_a_whole(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = (await sidecar.until("leading"))["session"]
    grant_guarded(broker)
    path = f"/publish?guard={quote(AUDIT, safe='')}"
    body = b'{"content": "a"}\n{"content": "b"}\n'
    kind = "application/x-ndjson"
    answer = await sidecar.call("POST", path, body, session=session, Content_Type=kind)
    assert answer.status == 200
    assert broker.contents()[-2:] == [b"a", b"b"]


async def test_a_guard_that_is_over_is_a_409_also_where_only_the_store_knew(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    session = (await sidecar.until("leading"))["session"]
    text = "the guard has a newer number than 7. Current epoch: 9"
    broker.answers[pb.CommandProducer] = broker.refuse(ServerError.PRODUCER_FENCED, text)
    answer = await publish(sidecar, session)
    assert answer.status == 409
    assert (answer.body["sessionEpoch"], answer.body["epoch"]) == (7, 9)
    assert answer.body["stored"] is False


async def test_a_guard_is_no_way_around_the_session(
    broker: FakeBroker, sidecar: SidecarWorld
) -> None:
    await sidecar.until("leading")
    grant_guarded(broker)
    requests = len(broker.all(pb.CommandProducer))
    assert (await publish(sidecar, "6-0123456789abcdef")).status == 409
    assert len(broker.all(pb.CommandProducer)) == requests


async def test_a_name_that_is_none_is_refused(broker: FakeBroker, sidecar: SidecarWorld) -> None:
    session = (await sidecar.until("leading"))["session"]
    assert (await publish(sidecar, session, "a/b")).status == 422
