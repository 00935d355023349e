"""Only the holder, and publishers that it trusts, write into an exclusive epoch over HTTP.

The number of an epoch is public: it is in a topic's status. Each attack below knows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.attacks.guarded import (
    ADMINISTRATOR,
    GuardedBrokers,
    address_of,
    http_as,
    token_of,
    wire_as,
)
from tests.integration.conftest import RawClients
from tests.integration.http_calls import OWN, Http, epoch_of
from tests.integration.raw import RawProducer

from onewriter_broker.log.limits import APPS_PER_SUBJECT_MAX
from onewriter_core.log_format.staged_rows import MAGIC
from onewriter_core.publish_rights import capability_of
from onewriter_core.wire.messages import build_batch
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.frames import BlockFrame
from onewriter_testing.in_process import InProcessBroker

TOPIC = "payments"
APP = "nightly"
WRITER, STANDBY, STRANGER = "payments-writer", "payments-standby", "unrelated"

MANIFESTS = f"""
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {{name: {TOPIC}}}
spec:
  topic: persistent://public/default/{TOPIC}
  access: {{requireClaim: true}}
---
apiVersion: onewriter.dev/v1alpha1
kind: ProducerClaim
metadata: {{name: writer}}
spec:
  topicRef: {{name: {TOPIC}}}
  subject: {{tokenSubject: {WRITER}}}
  mode: WaitForExclusive
  allow: [lead, takeover]
---
apiVersion: onewriter.dev/v1alpha1
kind: ProducerClaim
metadata: {{name: standby}}
spec:
  topicRef: {{name: {TOPIC}}}
  subject: {{tokenSubject: {STANDBY}}}
  mode: WaitForExclusive
  allow: [lead, takeover]
"""


def part_of(content: bytes) -> bytes:
    """The body of a staged part with one row."""
    messages = build_batch([(pb.SingleMessageMetadata(), content)])
    size, rows = (4 + len(messages)).to_bytes(4, "little"), (1).to_bytes(4, "little")
    return MAGIC + size + rows + messages


@dataclass
class Payments:
    """A topic that its writer leads."""

    broker: InProcessBroker
    connect: Callable[[str], Any]
    writer: RawProducer

    @property
    def epoch(self) -> int:
        return epoch_of(self.writer)

    def capability(self, app: str = APP, seconds: int = 600) -> str:
        return capability_of(self.writer.registration, app, int(time.time()) + seconds)  # noqa: TID251

    def holder(self) -> Caller:
        return Caller(self, WRITER, {"Onewriter_Registration": self.writer.registration})

    def caller(self, subject: str, **headers: str) -> Caller:
        return Caller(self, subject, headers)

    def take_over(self, subject: str, deposed: int | None = None) -> RawProducer:
        """Let another producer lead the topic; a producer that was deposed before names the epoch that it deposes."""
        properties = {"onewriter.if-epoch": str(deposed or self.epoch)}
        client = self.connect(subject)
        found: RawProducer = client.producer(
            TOPIC, pb.EXCLUSIVE_WITH_FENCING, properties=properties
        )
        return found

    def stored(self) -> int:
        """How many messages the topic's log holds."""
        status, answer = http_as(self.broker, ADMINISTRATOR)("GET", f"{OWN}/{TOPIC}/segments")
        assert status == 200, answer
        return sum(segment["messages"] for segment in answer["segments"])


@dataclass
class Caller:
    """An HTTP client that presents a registration or a capability."""

    payments: Payments
    subject: str
    headers: dict[str, str]

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        http: Http = http_as(self.payments.broker, self.subject)
        return http(method, f"{OWN}/{TOPIC}/{path}", body, **self.headers)

    def stage(self, attempt: str = "a", app: str = APP, version: int = 1) -> tuple[int, Any]:
        return self.ask("PUT", f"staged/{app}/{version}/p/{attempt}", part_of(b"row"))

    def publish(
        self, *parts: Any, app: str = APP, version: int = 1, epoch: int | None = None
    ) -> tuple[int, Any]:
        body = {"epoch": epoch or self.payments.epoch, "parts": list(parts)}
        return self.ask("POST", f"staged/{app}/{version}/publish", body)


@pytest.fixture
def payments(guarded: GuardedBrokers, raw: RawClients) -> Payments:
    broker = guarded(manifests=MANIFESTS)

    def connect(subject: str) -> Any:
        return wire_as(broker, raw, subject)

    writer = connect(WRITER).producer(TOPIC, pb.WAIT_FOR_EXCLUSIVE)
    return Payments(broker, connect, writer)


def staged_by_holder(payments: Payments, attempt: str = "w") -> Any:
    status, part = payments.holder().stage(attempt)
    assert status == 200, part
    return part


def refused(answer: tuple[int, Any]) -> None:
    status, reported = answer
    assert status == 403, reported
    assert "publish_under_epoch" in reported["reason"]


# --- who may


def test_the_holder_and_its_delegates_publish(payments: Payments) -> None:
    holder, bearer = (
        payments.holder(),
        payments.caller("spark", Onewriter_Capability=payments.capability()),
    )
    parts = [caller.stage(str(number))[1] for number, caller in enumerate([holder, bearer])]
    status, answer = holder.publish(*parts)
    assert (status, answer.get("outcome")) == (200, "published"), answer
    status, part = bearer.stage(version=2)
    assert status == 200, part
    status, answer = bearer.publish(part, version=2)
    assert (status, answer.get("outcome")) == (200, "published"), answer
    assert payments.stored() == 3
    status, answer = http_as(payments.broker, ADMINISTRATOR)("GET", f"{OWN}/{TOPIC}/segments")
    publishers = [
        each["subject"] for segment in answer["segments"] for each in segment["publishers"]
    ]
    assert publishers == [WRITER, "spark"], "the rows of a bearer are not taken for the holder's"


def test_the_audit_names_the_publisher_and_its_right(payments: Payments) -> None:
    """One record for each, even if it publishes often: the holder of a capability cannot fill the audit."""
    holder = payments.holder()
    bearer = payments.caller("spark", Onewriter_Capability=payments.capability())
    for version, caller in enumerate([holder, bearer, holder, bearer], 1):
        assert caller.publish(caller.stage(version=version)[1], version=version)[0] == 200
    status, answer = http_as(payments.broker, ADMINISTRATOR)("GET", f"{OWN}/{TOPIC}/history")
    assert status == 200, answer
    records = [each for each in answer["records"] if each["kind"] == "publisher"]
    names = ("app", "epoch", "right", "subject", "holder")
    assert [tuple(each[name] for name in names) for each in records] == [
        (APP, payments.epoch, "held", WRITER, WRITER),
        (APP, payments.epoch, "capability", "spark", WRITER),
    ]


def test_readers_of_blocks_may_ask_for_the_publishers(payments: Payments) -> None:
    holder = payments.holder()
    assert holder.publish(staged_by_holder(payments))[0] == 200
    access = Access(payments.broker.http_url, token=token_of(ADMINISTRATOR))
    with Broker(access) as broker:
        for publishers, by in ((True, f'{{"subject":"{WRITER}"}}'), (False, None)):
            frames = list(broker.frames(TOPIC, publishers=publishers))
            assert [each.by for each in frames if isinstance(each, BlockFrame)] == [by]


def test_the_registration_is_the_same_after_a_resume(payments: Payments) -> None:
    before, epoch = payments.writer.registration, payments.epoch
    payments.writer.client.close()
    back = payments.connect(WRITER).producer(
        TOPIC, pb.WAIT_FOR_EXCLUSIVE, name=payments.writer.name, epoch=epoch, reconnects=1
    )
    assert (epoch_of(back), back.registration) == (epoch, before)
    assert payments.holder().publish(staged_by_holder(payments))[0] == 200


def test_a_stock_client_is_given_no_registration(payments: Payments, raw: RawClients) -> None:
    assert payments.writer.registration
    payments.writer.client.close()
    stock = raw(address_of(payments.broker), token=token_of(WRITER), extensions_version=0)
    assert stock.producer(TOPIC, pb.EXCLUSIVE_WITH_FENCING).registration == ""


# --- who may not


@pytest.mark.parametrize("subject", [STANDBY, STRANGER, ADMINISTRATOR, WRITER])
def test_the_epoch_alone_is_no_right(payments: Payments, subject: str) -> None:
    """A standby has a claim, an administrator has every role, another client of the writer its token."""
    part = staged_by_holder(payments)
    refused(payments.caller(subject).publish(part))
    refused(payments.caller(subject).publish())
    layout = {"epoch": payments.epoch}
    status, answer = payments.caller(subject).ask("POST", f"staged/{APP}/1/layout", layout)
    assert (status == 403) == (subject != WRITER), (
        answer
    )  # a task of the writer's program prepares it
    assert payments.stored() == 0


@pytest.mark.parametrize("subject", [STANDBY, STRANGER, ADMINISTRATOR])
def test_a_stolen_registration_counts_for_the_holder_alone(
    payments: Payments, subject: str
) -> None:
    intruder = payments.caller(subject, Onewriter_Registration=payments.writer.registration)
    refused(intruder.publish(staged_by_holder(payments)))
    if subject != STANDBY:  # which may produce, and so stage
        refused(intruder.stage())
    assert intruder.ask("PUT", f"staged/{APP}/1/p/w", part_of(b"evil"))[0] == 403
    assert payments.stored() == 0


def test_the_secret_of_an_earlier_epoch_is_over(payments: Payments) -> None:
    former, capability = payments.holder(), payments.capability()
    old = payments.epoch
    part = staged_by_holder(payments)
    successor = payments.take_over(STANDBY)
    bearer = payments.caller(STRANGER, Onewriter_Capability=capability)
    for caller in (former, bearer):
        refused(caller.publish(part, epoch=epoch_of(successor)))
    refused(bearer.stage("late"))
    status, answer = former.publish(part, epoch=old)
    assert (status, f"epoch {old} does not lead" in answer["reason"]) == (409, True)
    status, answer = bearer.publish(part, epoch=old)  # a reader may ask, and publishes nothing
    assert (status, f"epoch {old} does not lead" in answer["reason"]) == (409, True)
    again = payments.take_over(WRITER, epoch_of(successor))
    refused(former.publish(part, epoch=epoch_of(again)))
    assert payments.stored() == 0


def test_a_capability_is_for_its_app_alone(payments: Payments) -> None:
    bearer = payments.caller(STRANGER, Onewriter_Capability=payments.capability("other"))
    refused(bearer.stage())
    refused(bearer.publish(staged_by_holder(payments)))
    status, part = bearer.stage(app="other")
    assert status == 200
    assert payments.holder().publish(part)[0] == 400  # nor does its part count for another app
    assert payments.stored() == 0


def test_an_expired_capability_is_over(payments: Payments) -> None:
    bearer = payments.caller(STRANGER, Onewriter_Capability=payments.capability(seconds=-1))
    refused(bearer.stage())
    refused(bearer.publish(staged_by_holder(payments)))
    assert "expired" in bearer.publish()[1]["reason"]


@pytest.mark.parametrize(
    "forged",
    [
        lambda real: "",
        lambda real: "nonsense",
        lambda real: real[:-1] + ("0" if real[-1] != "0" else "1"),
        lambda real: real.replace(".", ".9", 1) if "." in real else f"{real}0",
        lambda real: f"{APP}.99999999999.{'0' * 64}",
        lambda real: capability_of("0" * 64, APP, 99_999_999_999),
        lambda real: "é" * 200,
    ],
    ids=["empty", "nonsense", "bit", "later", "zeros", "other key", "text"],
)
def test_a_forged_secret_is_none(payments: Payments, forged: Callable[[str], str]) -> None:
    part = staged_by_holder(payments)
    for header, real in [
        ("Onewriter_Capability", payments.capability()),
        ("Onewriter_Registration", payments.writer.registration),
    ]:
        for subject in (WRITER, STANDBY, STRANGER):
            caller = payments.caller(subject, **{header: forged(real)})
            refused(caller.publish(part))
            if subject == STRANGER:
                refused(caller.stage())
            else:  # by its own right to produce, like all parts that are not published
                assert caller.stage(subject)[0] == 200
    assert payments.stored() == 0


def test_a_secret_without_a_token_opens_nothing(payments: Payments) -> None:
    bearer = payments.caller("", Onewriter_Capability=payments.capability())
    assert bearer.stage()[0] == 401
    assert bearer.publish()[0] == 401


@pytest.mark.parametrize("mode", ["exclusive", "exclusive-with-fencing", "wait-for-exclusive"])
def test_a_publish_without_an_epoch_is_refused(payments: Payments, mode: str) -> None:
    """A publish is no second way to become the topic's writer, whatever its body asks for."""
    part = staged_by_holder(payments)
    epoch = payments.epoch
    callers = [payments.holder(), *(payments.caller(each) for each in (STANDBY, ADMINISTRATOR))]
    for caller in callers:
        for body in ({"mode": mode}, {"epoch": None, "mode": mode}):
            path = f"staged/{APP}/1/publish"
            status, answer = caller.ask("POST", path, body | {"parts": [part]})
            assert status == 400, answer
            assert "epoch is missing" in answer["reason"]
    assert payments.stored() == 0
    assert payments.holder().publish(part, epoch=epoch)[0] == 200, "it leads as before"


def test_a_right_to_one_topic_is_none_to_another(payments: Payments, raw: RawClients) -> None:
    """The same epoch number elsewhere, and topics that do not exist, are answered alike."""
    shown = {"Onewriter_Registration": payments.writer.registration}
    http = http_as(payments.broker, WRITER)
    for topic in ("orders", "nowhere-partition-3"):
        path = f"{OWN}/{topic}/staged/{APP}/1"
        body = {"epoch": payments.epoch, "parts": []}
        refused(http("POST", f"{path}/publish", body, **shown))
    status, answer = http_as(payments.broker, ADMINISTRATOR)("GET", "/onewriter/v1/topics")
    assert status == 200
    assert {topic["name"].rpartition("/")[2] for topic in answer["topics"]} == {TOPIC}


# --- whose app it is


def test_unauthorized_clients_cannot_change_the_version_of_an_app(payments: Payments) -> None:
    """With a version that is far ahead, the app's own next one would be a duplicate."""
    assert payments.holder().publish(staged_by_holder(payments))[0] == 200
    successor = payments.take_over(STANDBY)
    attacker = payments.caller(STANDBY, Onewriter_Registration=successor.registration)
    capability = capability_of(successor.registration, APP, 99_999_999_999)
    for caller in (attacker, payments.caller(WRITER, Onewriter_Capability=capability)):
        for version in (1, 999_999_999_999_999):
            status, part = caller.stage("x", version=version)
            assert status == 200, part
            status, answer = caller.publish(part, version=version, epoch=epoch_of(successor))
            assert (status, "another subject's app" in answer["reason"]) == (403, True), answer
            assert WRITER not in answer["reason"]
    administrator = payments.caller(ADMINISTRATOR, Onewriter_Capability=capability)
    status, answer = administrator.publish(version=3, epoch=epoch_of(successor))
    assert (status, f"bound to {WRITER}" in answer["reason"]) == (403, True), answer
    status, part = attacker.stage(app="own")
    assert attacker.publish(part, app="own", epoch=epoch_of(successor))[0] == 200
    again = payments.take_over(WRITER, epoch_of(successor))
    job = payments.caller(WRITER, Onewriter_Registration=again.registration)
    status, part = job.stage("y", version=2)
    status, answer = job.publish(part, version=2, epoch=epoch_of(again))
    assert (status, answer["outcome"]) == (200, "published")
    assert payments.stored() == 3


def test_a_subject_cannot_use_up_the_apps_of_a_topic(payments: Payments) -> None:
    holder = payments.holder()
    for number in range(APPS_PER_SUBJECT_MAX + 1):
        app = f"junk-{number}"
        status, part = holder.stage(app=app)
        status, answer = holder.publish(part, app=app)
        assert (status == 200) == (number < APPS_PER_SUBJECT_MAX), answer
    assert f"{APPS_PER_SUBJECT_MAX} names already" in answer["reason"]
    administrator = payments.caller(ADMINISTRATOR)
    assert administrator.ask("DELETE", "published/junk-0")[0] == 200
    assert holder.publish(part, app=app)[0] == 200
    successor = payments.take_over(STANDBY)
    other = payments.caller(STANDBY, Onewriter_Registration=successor.registration)
    status, part = other.stage(app="own")
    assert other.publish(part, app="own", epoch=epoch_of(successor))[0] == 200


# --- what is staged


@pytest.mark.parametrize("subject", [STANDBY, STRANGER])
def test_only_the_stager_of_a_part_drops_or_replaces_it(payments: Payments, subject: str) -> None:
    part = staged_by_holder(payments)
    attacker = payments.caller(subject)
    body = {"parts": [part]}
    assert attacker.ask("POST", f"staged/{APP}/1/discard", body)[0] == 403
    status, answer = attacker.ask("DELETE", f"staged/{APP}/1")
    assert status == 403 or answer == {"dropped": 0}
    status, answer = attacker.ask("PUT", f"staged/{APP}/1/p/w", part_of(b"evil"))
    assert status == 403
    assert payments.holder().publish(part)[0] == 200


def test_the_stager_the_holder_and_an_administrator_drop_parts(payments: Payments) -> None:
    own = payments.caller(STANDBY)
    parts = {}
    for attempt in "abc":
        status, parts[attempt] = own.stage(attempt)
        assert status == 200
    one = {"dropped": 1}
    assert own.ask("POST", f"staged/{APP}/1/discard", {"parts": [parts["a"]]}) == (200, one)
    administrator = payments.caller(ADMINISTRATOR)
    assert administrator.ask("POST", f"staged/{APP}/1/discard", {"parts": [parts["b"]]}) == (
        200,
        one,
    )
    assert payments.holder().ask("DELETE", f"staged/{APP}/1") == (200, one)


def test_a_former_holder_drops_what_was_staged_under_its_epoch(payments: Payments) -> None:
    bearer = payments.caller("spark", Onewriter_Capability=payments.capability())
    status, part = bearer.stage()
    assert status == 200
    former = payments.holder()
    payments.take_over(STANDBY)
    body = {"parts": [part]}
    assert payments.caller(WRITER).ask("POST", f"staged/{APP}/1/discard", body)[0] == 403
    assert former.ask("POST", f"staged/{APP}/1/discard", body) == (200, {"dropped": 1})
