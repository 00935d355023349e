"""Parses and checks the options of reads. Each error says what to write instead.

Uses neither Spark nor I/O. The result is pickled for executors; it contains the token, but its repr does not.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.names import position_of
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.read.selection import Bound, Epochs, Kind, Selection, full_positions
from onewriter_pipeline.read.spans import Reading
from onewriter_pipeline.schema import (
    COLD,
    DELTA,
    FORMATS,
    HOT,
    MESSAGE_COLUMNS,
    PROPERTIES,
    TIERS,
    column_types,
)
from pyspark_onewriter.synonyms import canonical, replaced

URL_VARIABLE: Final = "ONEWRITER_HTTP_URL"
TOKEN_VARIABLE: Final = "ONEWRITER_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variables for options that are not given."""

ACCESS_OPTIONS: Final = (
    "admin.url",
    "service.url",
    "authToken",
    "authTokenFile",
    "tls.caFile",
    "tls.certFile",
    "tls.keyFile",
    "tls.verify",
)
"""Options of the connection, for reads and writes."""

READ_OPTIONS: Final = (
    *ACCESS_OPTIONS,
    "topic",
    "topics",
    "topicsPattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingEpoch",
    "endingEpoch",
    "epochs",
    "maxEntriesPerTrigger",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minEntriesPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxEntriesPerPartition",
    "failOnDataLoss",
    "tier",
    "table",
    "table.options",
    "table.format",
    "columns",
    "includeProperties",
    "valueFormat",
    "corruptEntries",
    "verifyChecksums",
    "ackSubscription",
)

_NOT_IN_STREAMS: Final = ("endingOffsets", "endingTimestamp", "endingEpoch", "epochs")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TRIGGER_DELAY_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a micro-batch. The minimum applies until ``delay_seconds`` have passed."""

    entries_max: int | None = None
    bytes_max: int | None = None
    messages_max: int | None = None
    entries_min: int | None = None
    delay_seconds: float = _TRIGGER_DELAY_SECONDS


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """All parameters of a read; can be pickled."""

    access: Access
    selection: Selection
    reading: Reading
    limits: Limits
    partitions_min: int
    partition_entries_max: int
    tier: str = HOT
    table: str = ""
    table_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    table_format: str = DELTA
    subscription: str = ""
    """The durable subscription that follows a stream; empty: none."""

    @property
    def reads_table(self) -> bool:
        """Whether offloaded entries are read from the table."""
        return self.tier != HOT

    @property
    def reads_log(self) -> bool:
        """Whether brokers are asked."""
        return self.tier != COLD

    @property
    def columns(self) -> Sequence[str]:
        """The columns that are read."""
        return self.reading.columns

    @property
    def json(self) -> bool:
        """Whether values are JSON texts."""
        return self.reading.json


class Given:
    """A user's options, case-insensitive. Raises Invalid for unknown ones, and for one with two names."""

    def __init__(self, options: Mapping[str, str], known: Sequence[str]) -> None:
        names = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for name, value in canonical(options).items():
            if name.lower() not in names:
                raise Invalid(_unknown(name, known))
            self._values[names[name.lower()]] = value.strip()

    def text(self, name: str, default: str = "") -> str:
        """The text of an option."""
        return self._values.get(name, default)

    def named(self, *names: str) -> list[str]:
        """Which of these options are given."""
        return [name for name in names if self._values.get(name, "")]

    def one_of(self, name: str, choices: Sequence[str]) -> str:
        """One of some words; the first is the default."""
        value = self._values.get(name, choices[0]).lower()
        if value not in choices:
            raise Invalid(f"{name}: {value!r} is none of {', '.join(choices)}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        return self.one_of(name, ("true", "false") if default else ("false", "true")) == "true"

    def number(self, name: str, *, least: int = 1) -> int | None:
        """A whole number; None if it is not given."""
        value = self._values.get(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdecimal()) or int(value) < least:
            raise Invalid(f"{name}: {value[:60]!r} is not a whole number of at least {least}")
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        """A time with a unit: 500ms, 30s, 15m, 1h."""
        value = self._values.get(name)
        if value is None:
            return default
        digits = value.rstrip("abcdefghijklmnopqrstuvwxyz ")
        unit = value[len(digits) :].strip()
        try:
            return float(digits) * _UNITS[unit]
        except (ValueError, KeyError):
            raise Invalid(
                f"{name}: {value[:60]!r} is not a time such as 500ms, 30s, 15m, 1h"
            ) from None


def _unknown(name: str, known: Sequence[str]) -> str:
    instead = replaced(name)
    if instead:
        return instead
    lowered = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), lowered, 1, 0.5)
    if name.lower() == "path":
        return "load() takes no path: name the topic with option('topic', ...)"
    return f"there is no option {name[:60]!r}" + (f": {lowered[near[0]]!r}?" if near else "")


def access_of(given: Given) -> Access:
    """How to reach the brokers. Environment variables complete the options."""
    token, token_file = given.text("authToken"), given.text("authTokenFile")
    if token and token_file:
        raise Invalid("authToken and authTokenFile: give one of them")
    if not token and not token_file:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
    access = Access(
        _url(given),
        token,
        token_file,
        given.text("tls.caFile"),
        given.text("tls.certFile"),
        given.text("tls.keyFile"),
        given.flag("tls.verify", default=True),
    )
    access.addresses()
    return access


def service_url_of(given: Given) -> str:
    """The service URL (Pulsar's protocol) if an option gives it. Otherwise the HTTP address determines it."""
    service = given.text("service.url")
    return service if service.startswith(("pulsar://", "pulsar+ssl://")) else ""


def _url(given: Given) -> str:
    service, admin = given.text("service.url"), given.text("admin.url")
    if admin:
        return admin
    if service.startswith(("http://", "https://")):
        return service
    from_environment = os.environ.get(URL_VARIABLE, "")
    if not from_environment:
        raise Invalid(
            "admin.url is missing: the brokers' HTTP address, such as http://localhost:8080"
            f" (or the environment variable {URL_VARIABLE})"
        )
    return from_environment


def read_options(
    options: Mapping[str, str], columns: Mapping[str, str] | None = None
) -> ReadOptions:
    """The options of a batch read. ``columns``: the columns to read, with their SQL types; None: all.

    Raises Invalid.
    """
    given = Given(options, READ_OPTIONS)
    if given.named("ackSubscription"):
        raise Invalid("ackSubscription: only streams acknowledge what they have read")
    return _read_options(given, columns, Kind.EARLIEST)


def known_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read before it is known whether it is a batch or a stream.

    Raises Invalid for what is an error in both.
    """
    return _read_options(Given(options, READ_OPTIONS), None, Kind.LATEST)


def _read_options(given: Given, columns: Mapping[str, str] | None, begins: Kind) -> ReadOptions:
    tier = given.one_of("tier", TIERS)
    return ReadOptions(
        Access("") if tier == COLD else access_of(given),
        _selection(given, begins),
        _reading(given, columns),
        _limits(given),
        given.number("minPartitions") or 0,
        given.number("maxEntriesPerPartition") or 0,
        tier,
        _table(given, tier),
        _table_options(given),
        given.one_of("table.format", FORMATS),
        given.text("ackSubscription"),
    )


def _table(given: Given, tier: str) -> str:
    table = given.text("table")
    if tier == HOT and table:
        raise Invalid("table: tier=all or tier=cold reads it, and tier=hot does not")
    if tier != HOT and not table:
        raise Invalid(f"tier={tier} needs the option table: the folder or URL of the tables")
    return table


def _table_options(given: Given) -> dict[str, str]:
    text = given.text("table.options")
    try:
        document = json.loads(text) if text else {}
    except ValueError:
        document = None
    if not isinstance(document, dict) or not all(
        isinstance(each, str) for each in document.values()
    ):
        raise Invalid('table.options is a JSON object of texts, {"AWS_REGION": "..."}')
    return document


def stream_options(options: Mapping[str, str], columns: Mapping[str, str]) -> ReadOptions:
    """The options of a stream. By default it begins at the end of the logs."""
    given = Given(options, READ_OPTIONS)
    ending = given.named(*_NOT_IN_STREAMS)
    if ending:
        raise Invalid(f"{ending[0]}: a stream has no end")
    if given.text("tier").lower() == COLD and given.named("ackSubscription"):
        raise Invalid("ackSubscription cannot be used with tier=cold, which reads no log")
    return _read_options(given, columns, Kind.LATEST)


def _selection(given: Given, begins: Kind) -> Selection:
    named = given.named("topic", "topics", "topicsPattern")
    if len(named) != 1:
        which = " and ".join(named) + ": " if named else ""
        raise Invalid(f"{which}give one of topic, topics, topicsPattern")
    topics = tuple(each.strip() for each in given.text("topics").split(",") if each.strip())
    if given.text("topic"):
        topics = (given.text("topic"),)
    if not topics and named == ["topics"]:
        raise Invalid("topics contains no topic name")
    epochs = _epochs(given)
    starting = _bound(given, "starting", begins)
    ending = _bound(given, "ending", Kind.LATEST)
    if begins is Kind.EARLIEST and starting.kind is Kind.LATEST:
        raise Invalid("startingOffsets: a batch cannot start at 'latest'")
    if ending.kind is Kind.EARLIEST:
        raise Invalid("endingOffsets cannot be 'earliest'")
    if starting.kind is ending.kind is Kind.TIME and ending.time_ms < starting.time_ms:
        raise Invalid("endingTimestamp is before startingTimestamp")
    if epochs is not None:
        both = given.named("startingOffsets", "startingTimestamp")
        if both:
            raise Invalid(f"{both[0]} and topic epochs: give one of them")
        starting = Bound(Kind.EARLIEST)
    return Selection(topics, given.text("topicsPattern"), starting, ending, epochs)


def _bound(given: Given, which: str, default: Kind) -> Bound:
    offsets, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if len(given.named(offsets, timestamp)) > 1:
        raise Invalid(f"{offsets} and {timestamp}: give one of them")
    time_ms = given.number(timestamp, least=0)
    if time_ms is not None:
        strategy = given.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"))
        or_latest = which == "ending" or strategy == "latest"
        return Bound(Kind.TIME, time_ms=time_ms, or_latest=or_latest)
    text = given.text(offsets)
    if not text:
        return Bound(default)
    if text.lower() in {Kind.EARLIEST.value, Kind.LATEST.value}:
        return Bound(Kind(text.lower()))
    return Bound(Kind.POSITIONS, positions=offsets_of(offsets, text))


def offsets_of(option: str, text: str) -> dict[str, Position]:
    """Offsets from their text, ``{"orders": "3:17"}``. Raises Invalid."""
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict) or not all(
        isinstance(each, str) for each in document.values()
    ):
        raise Invalid(
            f"{option}: {text[:60]!r} is none of 'earliest', 'latest',"
            ' {"topic": "<ledger>:<entry>"}'
        )
    return full_positions({name: position_of(position) for name, position in document.items()})


def _epochs(given: Given) -> Epochs | None:
    listed = given.text("epochs")
    first, last = given.number("startingEpoch", least=0), given.number("endingEpoch", least=0)
    if listed:
        if first is not None or last is not None:
            raise Invalid("epochs and startingEpoch or endingEpoch: give one of them")
        parts = [each.strip() for each in listed.split(",")]
        if not all(each.isascii() and each.isdecimal() for each in parts):
            raise Invalid(f"epochs: {listed[:60]!r} is not a list such as 3,5")
        return Epochs(frozenset(map(int, parts)))
    if first is None and last is None:
        return None
    if first is not None and last is not None and last < first:
        raise Invalid("endingEpoch is before startingEpoch")
    return Epochs(first=first, last=last)


def _reading(given: Given, columns: Mapping[str, str] | None) -> Reading:
    json_values = given.one_of("valueFormat", ("binary", "json")) == "json"
    with_properties = given.flag("includeProperties", default=True)
    names = [name for name in MESSAGE_COLUMNS if with_properties or name != PROPERTIES]
    named = _named_columns(given, json_values=json_values)
    if columns is not None:
        names = _checked(columns, json_values=json_values)
        if named and set(named) != set(names):
            raise Invalid("columns and a schema with other columns: give one of them")
    elif named:
        names = named
    return Reading(
        tuple(names),
        given.flag("failOnDataLoss", default=True),
        given.one_of("corruptEntries", ("fail", "skip")) == "skip",
        given.flag("verifyChecksums", default=True),
        json_values,
    )


def _named_columns(given: Given, *, json_values: bool) -> list[str]:
    """The columns that the option ``columns`` names; empty: it is not given."""
    if not given.named("columns"):
        return []
    if given.named("includeProperties"):
        raise Invalid("columns and includeProperties: give one of them")
    types = column_types(json=json_values)
    names = [each.strip() for each in given.text("columns").split(",") if each.strip()]
    _check_names(names, types)
    if len(set(names)) != len(names) or not names:
        raise Invalid(f"columns: {given.text('columns')[:60]!r} is not a list of different columns")
    return names


def _check_names(names: Iterable[str], types: Mapping[str, str]) -> None:
    for name in names:
        if name not in types:
            raise Invalid(f"messages have no column {name[:60]!r}; they have {', '.join(types)}")


def _checked(columns: Mapping[str, str], *, json_values: bool) -> list[str]:
    """The columns of a schema that a user may have written."""
    types = column_types(json=json_values)
    _check_names(columns, types)
    for name, kind in columns.items():
        if types[name].replace(" ", "").lower() != kind.lower():
            raise Invalid(f"the column {name} is {types[name]}, not {kind[:60].upper()}")
    return list(columns)


def _limits(given: Given) -> Limits:
    return Limits(
        given.number("maxEntriesPerTrigger"),
        given.number("maxBytesPerTrigger"),
        given.number("maxMessagesPerTrigger"),
        given.number("minEntriesPerTrigger"),
        given.seconds("maxTriggerDelay", _TRIGGER_DELAY_SECONDS),
    )
