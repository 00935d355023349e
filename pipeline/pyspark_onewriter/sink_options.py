"""Parses and checks the options of writes. Each error says what to write instead. Uses neither Spark nor I/O."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onewriter_core.ids import NUMBER_MAX
from onewriter_pipeline.brokers.names import log_name
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.lead.leader import Leader
from onewriter_pipeline.lead.requests import MODES, Grant
from onewriter_pipeline.publish.hashing import SCHEMES
from onewriter_pipeline.publish.lead_session import TOPIC_IDLE_SECONDS, LeadSession
from onewriter_pipeline.publish.messages import ROW_COLUMNS, check_columns
from onewriter_pipeline.publish.parts import FRAME_ROWS
from onewriter_pipeline.publish.staging import check_app, check_version
from onewriter_pipeline.publish.transfer import EXACTLY_ONCE, GUARANTEES, PublishTarget
from onewriter_pipeline.schema import EXTRA_COLUMNS, MESSAGE_COLUMNS, TOPIC
from pyspark_onewriter.options import ACCESS_OPTIONS, Given, access_of, service_url_of

CAPABILITY_OPTION: Final = "capabilityToken"
"""Its name contains "token", so Spark hides its value in plans and event logs (``spark.redaction.regex``)."""

WRITE_OPTIONS: Final = (
    *ACCESS_OPTIONS,
    "topic",
    "txnAppId",
    "txnVersion",
    "epoch",
    CAPABILITY_OPTION,
    "accessMode",
    "leaderIdleTime",
    "deliveryGuarantee",
    "hashingScheme",
    "rowsPerEntry",
)

APP_DEFAULT: Final = "spark"
"""The app of batches that are written at least once, by default."""

_DRAWN: Final = 10**9
"""Rows that are written at least once are staged under a random version, which only distinguishes jobs."""

USE_BYTES: Final = 16
"""Random bytes that identify a batch write among those of its driver."""

_READ_ONLY: Final = frozenset({*MESSAGE_COLUMNS, *EXTRA_COLUMNS} - ROW_COLUMNS)
"""Columns of messages that rows cannot set."""

_OF_STREAMS: Final = ("queryName", "checkpointLocation", "path")
"""Options that Spark adds to those of a streaming sink."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """All parameters of a write; can be pickled. ``app`` and ``version`` are empty and None if Spark's query and
    batch ids determine them. ``lead_session``: how the driver leads; None: the user's program leads.
    """

    target: PublishTarget
    app: str
    version: int | None
    lead_session: LeadSession | None
    null_columns: tuple[str, ...] = ()
    """Columns of the rows that must be null, because brokers write them."""


def write_options(
    options: Mapping[str, str],
    columns: Sequence[str],
    *,
    is_stream: bool,
    overwrites: bool,
    is_table: bool = False,
) -> WriteOptions:
    """The options of a write of these columns. ``is_table``: they are the columns of a table for reads and writes.
    Raises Invalid.
    """
    added = {name.lower() for name in _OF_STREAMS} if is_stream else set()
    given = Given(
        {name: value for name, value in options.items() if name.lower() not in added},
        WRITE_OPTIONS,
    )
    if overwrites:
        raise Invalid("a topic cannot be overwritten: use mode('append')")
    read_only = [name for name in columns if is_table and name in _READ_ONLY]
    columns = [name for name in columns if name not in read_only]
    check_columns(columns)
    target = _target(given, columns)
    app, version = given.text("txnAppId"), given.number("txnVersion", least=0)
    if is_stream and version is not None:
        raise Invalid("txnVersion cannot be set for a stream, which uses the number of the batch")
    if target.guarantee == EXACTLY_ONCE:
        if not is_stream and (not app or version is None):
            raise Invalid(
                "txnAppId and txnVersion are missing: a name for what writes, and a number that rises"
                " with each batch; a batch that is written again under the same two is there once"
            )
    else:
        if version is not None:
            raise Invalid("txnVersion has no effect with at-least-once; leave it out")
        if not is_stream:
            app, version = app or APP_DEFAULT, secrets.randbelow(_DRAWN)
    check_app(target.app(app or "query"))
    check_version(version or 0)
    lead_session = None
    if not target.is_led:
        use = _query(options, target, app) if is_stream else secrets.token_hex(USE_BYTES)
        lead_session = LeadSession(
            use,
            Leader(),
            given.one_of("accessMode", MODES),
            service_url_of(given),
            given.seconds("leaderIdleTime", TOPIC_IDLE_SECONDS),
        )
    return WriteOptions(target, app, version, lead_session, tuple(read_only))


def _query(options: Mapping[str, str], target: PublishTarget, app: str) -> str:
    """The identifier of a query among those of its driver, the same in each of its processes."""
    spelled = {name.lower(): value for name, value in options.items()}
    named = [spelled.get(name.lower(), "") for name in _OF_STREAMS]
    return hashlib.sha256(repr([target, app, *named]).encode()).hexdigest()


def _target(given: Given, columns: Sequence[str]) -> PublishTarget:
    topic = given.text("topic")
    if topic:
        log_name(topic)
    elif TOPIC not in columns:
        raise Invalid(
            f"topic is missing: name the topic to write to, or give each row its own in a column {TOPIC}"
        )
    epochs = _epochs(given, topic)
    for name in given.named("accessMode", "leaderIdleTime") if epochs else ():
        raise Invalid(
            f"epoch and {name}: give one of them; under an epoch the topic is led already"
        )
    capabilities = _capabilities(given, topic)
    if capabilities.keys() - epochs.keys():
        raise Invalid(
            f"{CAPABILITY_OPTION} without epoch: leadership.spark_options(app) gives both"
        )
    return PublishTarget(
        access_of(given),
        topic,
        {name: Grant(epoch, capabilities.get(name, "")) for name, epoch in epochs.items()},
        bool(epochs),
        _scheme(given),
        given.one_of("deliveryGuarantee", GUARANTEES),
        given.number("rowsPerEntry") or FRAME_ROWS,
    )


def _scheme(given: Given) -> str:
    names = {name.lower(): name for name in SCHEMES}
    text = given.text("hashingScheme", next(iter(SCHEMES)))
    if text.lower() not in names:
        raise Invalid(f"hashingScheme: {text[:60]!r} is none of {', '.join(SCHEMES)}")
    return names[text.lower()]


def _epochs(given: Given, topic: str) -> dict[str, int]:
    """The epochs of topics by full name; empty: the driver leads. Raises Invalid."""
    text = given.text("epoch")
    if not text:
        return {}
    if topic and not text.startswith("{"):
        return {str(log_name(topic).base): given.number("epoch") or 0}
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict) or not all(map(_is_epoch, document.values())):
        raise Invalid(
            f"epoch: {text[:60]!r} is not a topic epoch"
            + ("" if topic else ', of each topic that rows name: {"orders": 7}')
        )
    return {str(log_name(name).base): epoch for name, epoch in document.items()}


def _capabilities(given: Given, topic: str) -> dict[str, str]:
    """The capabilities to write under each topic's epoch. Raises Invalid, whose message shows none of them."""
    text = given.text(CAPABILITY_OPTION)
    if not text:
        return {}
    if topic and not text.startswith("{"):
        return {str(log_name(topic).base): text}
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict) or not all(
        isinstance(each, str) for each in document.values()
    ):
        raise Invalid(
            f'{CAPABILITY_OPTION} is a text, or of each topic that rows name one: {{"orders": "..."}}'
        )
    return {str(log_name(name).base): each for name, each in document.items()}


def _is_epoch(value: object) -> bool:
    return type(value) is int and 0 < value <= NUMBER_MAX
