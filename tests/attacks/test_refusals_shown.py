"""A topic's owner sees the refused clients; a client without the right to own the topic does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.attacks.guarded import ADMINISTRATOR, GuardedBrokers, http_as, wire_as
from tests.integration.conftest import RawClients
from tests.integration.http_calls import OWN
from tests.integration.raw import RefusedByBroker

from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.in_process import InProcessBroker

TOPIC, WRITER, READER, STRANGER = "orders", "writer", "reader", "stranger"

MANIFESTS = f"""
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {{name: {TOPIC}}}
spec: {{access: {{consumers: {{subjects: [{READER}, auditor]}}}}}}
---
apiVersion: onewriter.dev/v1alpha1
kind: ProducerClaim
metadata: {{name: {TOPIC}}}
spec: {{topicRef: {{name: {TOPIC}}}, subject: {{tokenSubject: {WRITER}}}}}
"""


@pytest.fixture
def broker(guarded: GuardedBrokers, raw: RawClients) -> InProcessBroker:
    """A broker whose topic was refused to a stranger twice, and to a reader that wanted to write."""
    found = guarded(manifests=MANIFESTS, observer_subjects="prometheus")
    wire_as(found, raw, WRITER).producer(TOPIC, pb.EXCLUSIVE)
    for _ in range(2):
        with pytest.raises(RefusedByBroker):
            wire_as(found, raw, STRANGER).subscribe(TOPIC)
    with pytest.raises(RefusedByBroker):
        wire_as(found, raw, READER).producer(TOPIC, pb.EXCLUSIVE)
    return found


def status(broker: InProcessBroker, subject: str) -> tuple[int, Any]:
    return http_as(broker, subject)("GET", f"{OWN}/{TOPIC}")


@pytest.mark.parametrize("subject", [WRITER, ADMINISTRATOR])
def test_owner_and_administrator_see_who_was_refused(broker: InProcessBroker, subject: str) -> None:
    _, answer = status(broker, subject)
    shown = [(each["subject"], each["right"], each["count"]) for each in answer["refusals"]]
    assert shown == [(READER, "produce", 1), (STRANGER, "consume", 2)]


@pytest.mark.parametrize("subject", ["auditor", "prometheus", STRANGER])
def test_only_owners_and_administrators_see_refusals(broker: InProcessBroker, subject: str) -> None:
    code, answer = status(broker, subject)
    assert code == (403 if subject == STRANGER else 200)
    assert "refusals" not in answer
    assert READER not in json.dumps(answer).replace(f"{subject} lacks", "")


def test_a_partition_and_an_epoch_count_for_their_topic(broker: InProcessBroker) -> None:
    for path in (f"{TOPIC}/segments", f"{TOPIC}-partition-0/segments"):
        http_as(broker, "curious")("GET", f"{OWN}/{path}")
    http_as(broker, WRITER)(
        "POST", f"{OWN}/{TOPIC}/staged/app/1/publish", {"epoch": 2, "parts": []}
    )
    rights = {(each["subject"], each["right"]) for each in status(broker, WRITER)[1]["refusals"]}
    assert {("curious", "consume"), (WRITER, "publish_under_epoch")} <= rights


def test_requests_for_unknown_topics_use_no_memory(
    broker: InProcessBroker, raw: RawClients
) -> None:
    kept = broker._broker.clients.authorization.at_topics
    for number in range(5):
        http_as(broker, STRANGER)("POST", f"{OWN}/invented-{number}/fence")
    assert len(kept._topics) == 1
