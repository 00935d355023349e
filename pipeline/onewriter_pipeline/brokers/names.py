"""Topic names and positions: as users write them, and as brokers expect them in paths and queries. Pure."""

from __future__ import annotations

from urllib.parse import quote

from onewriter_core.ids import InvalidTopicName, Position, TopicName
from onewriter_pipeline.errors import Invalid


def log_name(text: str) -> TopicName:
    """The name of a topic or of one partition, from its full or short form. Raises Invalid."""
    try:
        name = TopicName.parse(text)
    except InvalidTopicName as error:
        raise Invalid(str(error)) from error
    if name.domain != "persistent":
        raise Invalid(f"{name} is not a persistent topic; only persistent topics are supported")
    return name


def topic_path(name: TopicName) -> str:
    """The path of a topic or partition in the HTTP API."""
    return f"/onewriter/v1/topics/{path_of(name)}"


def path_of(name: TopicName) -> str:
    """The name as a part of a path."""
    return "/".join(quote(each, safe="") for each in (name.tenant, name.namespace, name.local_name))


def position_of(text: str) -> Position:
    """A position from its text. Raises Invalid."""
    ledger, _, entry = text.partition(":")
    if not (ledger.isascii() and ledger.isdecimal() and entry.isascii() and entry.isdecimal()):
        raise Invalid(f"{text[:60]!r} is not a position: write <ledger>:<entry>")
    return Position(int(ledger), int(entry))


def shown(position: Position) -> str:
    """A position as text."""
    return f"{position.ledger}:{position.entry}"
