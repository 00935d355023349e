"""The options of writes: their meaning, and the errors for invalid ones."""

from __future__ import annotations

import pickle
import re

import pytest

from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.lead.requests import EXCLUSIVE, WAIT_FOR_EXCLUSIVE, Grant
from onewriter_pipeline.publish.hashing import JAVA, MURMUR
from onewriter_pipeline.publish.lead_session import TOPIC_IDLE_SECONDS
from onewriter_pipeline.publish.staging import Part
from onewriter_pipeline.publish.transfer import AT_LEAST_ONCE, EXACTLY_ONCE, StagedLog, publish
from pyspark_onewriter.sink_options import (
    APP_DEFAULT,
    CAPABILITY_OPTION,
    WRITE_OPTIONS,
    WriteOptions,
    write_options,
)

ORDERS = "persistent://public/default/orders"
GIVEN = {"admin.url": "http://localhost:1", "topic": "orders"}
TXN = {"txnAppId": "job", "txnVersion": "7"}


def batch(columns: str = "value", **options: str) -> WriteOptions:
    named = {name.replace("_", "."): value for name, value in options.items()}
    given = {name: value for name, value in (GIVEN | TXN | named).items() if value}
    return write_options(given, columns.split(), is_stream=False, overwrites=False)


def stream(columns: str = "value", **options: str) -> WriteOptions:
    return write_options(GIVEN | options, columns.split(), is_stream=True, overwrites=False)


def test_defaults_of_the_write_options() -> None:
    found = batch()
    target = found.target
    assert (found.app, found.version, target.topic, target.grants) == ("job", 7, "orders", {})
    assert (target.scheme, target.guarantee, target.is_led) == (JAVA, EXACTLY_ONCE, False)
    assert found.lead_session is not None
    assert (found.lead_session.mode, found.lead_session.idle_seconds) == (
        EXCLUSIVE,
        TOPIC_IDLE_SECONDS,
    )
    assert stream(checkpointLocation="/x", queryName="q").version is None
    again = pickle.loads(pickle.dumps(found))  # noqa: S301 - our own
    assert (again.target, again.lead_session.use) == (found.target, found.lead_session.use)


def test_every_write_option_is_parsed() -> None:
    found = batch(
        accessMode="Wait-For-Exclusive",
        hashingScheme="murmur3_32hash",
        rowsPerEntry="1",
        leaderIdleTime="90s",
        service_url="pulsar://somewhere:6650",
    )
    assert (found.target.scheme, found.target.frame_rows) == (MURMUR, 1)
    assert found.lead_session is not None
    assert (found.lead_session.mode, found.lead_session.idle_seconds) == (WAIT_FOR_EXCLUSIVE, 90.0)
    assert found.lead_session.service_url == "pulsar://somewhere:6650"


def test_batch_writes_have_unique_uses_and_a_query_keeps_its_use_in_each_process() -> None:
    def use(options: WriteOptions) -> str:
        assert options.lead_session is not None
        return options.lead_session.use

    assert use(batch()) != use(batch())
    assert use(stream(checkpointLocation="/x")) == use(stream(checkpointLocation="/x"))
    assert use(stream(checkpointLocation="/x")) != use(stream(checkpointLocation="/y"))
    assert use(stream()) != use(stream(topic="others"))


def test_at_least_once_needs_neither_app_nor_version() -> None:
    found = batch(deliveryGuarantee="at-least-once", txnAppId="", txnVersion="")
    assert (found.app, found.target.guarantee) == (APP_DEFAULT, AT_LEAST_ONCE)
    assert found.version is not None
    assert stream(deliveryGuarantee="at-least-once").version is None


@pytest.mark.parametrize(
    ("text", "epochs"),
    [
        ("7", {ORDERS: 7}),
        ('{"orders": 7}', {ORDERS: 7}),
        ('{"orders": 7, "tenant/space/more": 9}', {ORDERS: 7, "persistent://tenant/space/more": 9}),
    ],
)
def test_epochs_are_given_by_topic(text: str, epochs: dict[str, int]) -> None:
    for topic in ("orders", "orders-partition-3"):
        found = batch(topic=topic, epoch=text)
        assert found.target.grants == {name: Grant(epoch) for name, epoch in epochs.items()}
        assert found.lead_session is None, "the user's program leads"


def test_epoch_of_a_topic_applies_to_its_partitions() -> None:
    target = batch(epoch="7").target
    assert target.grant(f"{ORDERS}-partition-3") == target.grant("orders") == Grant(7)
    with pytest.raises(Invalid, match="whose epoch is not given"):
        target.grant("others")
    assert batch().target.grant("others") is None


def test_capability_accompanies_the_epoch_of_a_program() -> None:
    assert batch(epoch="7", capabilityToken="c").target.grants == {ORDERS: Grant(7, "c")}
    both = batch(epoch='{"orders": 7, "more": 9}', capabilityToken='{"more": "m"}').target
    assert [both.grants[ORDERS].capability, both.grant("more")] == ["", Grant(9, "m")]
    assert "secret" not in repr(batch(epoch="7", capabilityToken="secret"))


def test_spark_redacts_secret_options() -> None:
    """Plans, the UI and event logs show all other options (the default of spark.redaction.regex)."""
    redacted = re.compile("(?i)secret|password|token|access[.]?key")
    secrets = {name for name in WRITE_OPTIONS if redacted.search(name)}
    assert secrets >= {CAPABILITY_OPTION, "authToken"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": ""}, "topic is missing: name the topic"),
        ({"topic": "non-persistent://public/default/x"}, "not a persistent topic"),
        ({"txnVersion": ""}, "txnAppId and txnVersion are missing"),
        ({"txnAppId": "a b"}, "not a valid app"),
        (
            {"txnAppId": "a" * 195, "deliveryGuarantee": "at-least-once", "txnVersion": ""},
            "not a valid app",
        ),
        ({"txnVersion": "9" * 16}, "not a valid version"),
        ({"deliveryGuarantee": "at-most-once"}, "none of exactly-once, at-least-once"),
        ({"deliveryGuarantee": "at-least-once"}, "txnVersion has no effect"),
        ({"accessMode": "shared"}, "none of exclusive, exclusive-with-fencing, wait-for-exclusive"),
        ({"accessMode": "exclusive", "epoch": "7"}, "epoch and accessMode: give one"),
        ({"leaderIdleTime": "1m", "epoch": "7"}, "epoch and leaderIdleTime: give one"),
        ({"leaderIdleTime": "soon"}, "not a time such as"),
        ({"capabilityToken": "c"}, "capabilityToken without epoch"),
        ({"capability": "c", "epoch": "7"}, "no option 'capability': 'capabilityToken'"),
        ({"capabilityToken": '{"orders": 1}', "epoch": "7"}, "capabilityToken is a text"),
        ({"hashingScheme": "BoostHash"}, "none of JavaStringHash, Murmur3_32Hash"),
        ({"epoch": "x"}, "epoch: 'x' is not a whole number"),
        ({"epoch": "0"}, "epoch: '0' is not a whole number"),
        ({"epoch": '{"orders": "7"}'}, "is not a topic epoch"),
        ({"epoch": '{"orders": 0}'}, "is not a topic epoch"),
        ({"acessMode": "exclusive"}, "'accessMode'"),
    ],
    ids=str,
)
def test_invalid_write_options_are_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        batch(**options)


def test_rows_that_name_topics_need_epochs_by_topic() -> None:
    columns = "value __topic"
    assert batch(columns, topic="").target.topic == ""
    assert batch(columns, topic="", epoch='{"orders": 7}').target.grants == {ORDERS: Grant(7)}
    with pytest.raises(Invalid, match="of each topic that rows name"):
        batch(columns, topic="", epoch="7")


def test_invalid_writes_are_refused() -> None:
    with pytest.raises(Invalid, match="cannot be overwritten"):
        write_options(GIVEN | TXN, ["value"], is_stream=False, overwrites=True)
    with pytest.raises(Invalid, match="cannot be set for a stream"):
        stream(txnVersion="7")
    with pytest.raises(Invalid, match="cannot have the columns other"):
        stream("value other")


@pytest.mark.parametrize(
    ("logs", "holds", "message"),
    [
        ([f"t-{number}" for number in range(101)], (1, 1, 1), "more than 100 topics"),
        ([f"t-partition-{number}" for number in range(1001)], (1, 1, 1), "more than 1000 partit"),
        (["a", "b"], (2**28, 1, 1), "at most 268435456 are published"),
        (["a", "b"], (2**26, 2**17 + 1, 2**26), "262146 entries.* at most 262144 .*rowsPerEntry"),
        (["a", "b"], (2**26, 1, 2**27), "at most 268435456 are published"),
        (["a", "b"], (2**26, 2**17, 2**27 - 43 * 2**17 + 1), "268435458 bytes .* at most"),
    ],
    ids=["topics", "partitions", "bytes", "entries", "keys", "heads of entries"],
)
def test_batch_that_is_too_large_is_published_to_no_log(
    logs: list[str], holds: tuple[int, int, int], message: str
) -> None:
    """There is no broker, so no request is sent."""
    target = batch("value __topic", topic="").target
    size, entries, entry_bytes = holds
    parts = tuple(
        Part(f"job/7/{number}.0/x", entries, size, "c", entries, entry_bytes) for number in range(2)
    )
    with pytest.raises(Invalid, match=message):
        publish(target, "job", 7, [StagedLog(log, parts) for log in logs])
