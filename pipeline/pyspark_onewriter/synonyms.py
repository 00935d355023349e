"""Names of options that users of Spark's Kafka connector know, and what to use instead of the others. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from onewriter_pipeline.errors import Invalid

SYNONYMS: Final = {
    "subscribe": "topics",
    "subscribePattern": "topicsPattern",
    "kafka.bootstrap.servers": "admin.url",
    "maxOffsetsPerTrigger": "maxEntriesPerTrigger",
    "minOffsetsPerTrigger": "minEntriesPerTrigger",
    "includeHeaders": "includeProperties",
}
"""Each name has the same meaning and the same values as the option beside it."""

ASSIGN: Final = "assign"
"""Kafka's selection of partitions: ``{"orders": [0, 2]}``. It becomes the option ``topics``."""

_BY_TIME: Final = "use {}Timestamp: one time in milliseconds for all topics"
_GROUP: Final = "use ackSubscription: brokers keep what that subscription has not acknowledged"

REPLACED: Final = {
    "startingOffsetsByTimestamp": _BY_TIME.format("starting"),
    "endingOffsetsByTimestamp": _BY_TIME.format("ending"),
    "endingOffsetsByTimestampStrategy": "endingTimestamp ends at the end of the log without it",
    "kafka.group.id": _GROUP,
    "groupIdPrefix": _GROUP,
    "maxRecordsPerPartition": "use maxEntriesPerPartition: an entry is a message or a batch",
}
"""Options of Kafka's connector with another meaning or none here, and what to use instead."""


def assigned(text: str) -> str:
    """The value of ``topics`` for a value of ASSIGN. Raises Invalid."""
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict) or not all(map(_are_partitions, document.values())):
        raise Invalid(f'{ASSIGN}: {text[:60]!r} is not JSON such as {{"orders": [0, 2]}}')
    return ",".join(
        f"{topic}-partition-{number}" for topic, numbers in document.items() for number in numbers
    )


def _are_partitions(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in value
    )


def replaced(name: str) -> str:
    """What to use instead of an option that only Kafka's connector has; empty: not such an option."""
    lowered = name.lower()
    for known, instead in REPLACED.items():
        if known.lower() == lowered:
            return f"there is no option {known}: {instead}"
    if lowered.startswith("kafka."):
        return (
            f"there is no option {name[:60]!r}: options of Kafka's clients have no meaning here, except"
            " kafka.bootstrap.servers for admin.url"
        )
    return ""


def canonical(options: Mapping[str, str]) -> dict[str, str]:
    """Options under their own names. Raises Invalid if an option is given under two names."""
    names = {synonym.lower(): (synonym, name) for synonym, name in SYNONYMS.items()}
    found: dict[str, str] = {}
    given_as: dict[str, str] = {}
    for name, value in options.items():
        shown, own, text = name, name, value
        if name.lower() in names:
            shown, own = names[name.lower()]
        elif name.lower() == ASSIGN:
            shown, own, text = ASSIGN, "topics", assigned(value)
        earlier = given_as.setdefault(own.lower(), shown)
        if earlier != shown:
            raise Invalid(f"{earlier} and {shown}: give one of them")
        found[own] = text
    return found
