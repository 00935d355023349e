"""Requests of producers in their properties, which every stock client can set (docs/wire.md).

guards.py reads the properties of guards.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from onewriter_core.api.common import INT32_MAX, INT32_MIN
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import NUMBER_MAX, whole_number
from onewriter_core.property_names import (
    ACCESS_MODE_PROPERTY,
    IF_EPOCH_PROPERTY,
    PRIORITY_PROPERTY,
    SERVE_SECONDS_PROPERTY,
)
from onewriter_core.topic.model import SERVE_SECONDS_MAX, AccessMode
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

SECONDS_DIGITS_MAX = 32

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


class RequestedPriority(NamedTuple):
    """The priority that a producer asked for; None if it asked for none.

    ``note`` is for the audit: the invalid value that the producer sent.
    """

    value: int | None
    note: str | None = None


def properties_of(command: pb.CommandProducer) -> dict[str, str]:
    return {item.key: item.value for item in command.metadata}


def mode_of(command: pb.CommandProducer) -> AccessMode:
    """The access mode. A property replaces the mode that the Go client cannot ask for."""
    mode = AccessMode(command.producer_access_mode)
    requested = properties_of(command).get(ACCESS_MODE_PROPERTY)
    if mode is AccessMode.EXCLUSIVE and requested == "ExclusiveWithFencing":
        return AccessMode.EXCLUSIVE_WITH_FENCING
    return mode


def if_epoch_of(properties: Mapping[str, str]) -> int | None:
    """Raises Refused."""
    text = properties.get(IF_EPOCH_PROPERTY)
    if text is None:
        return None
    epoch = whole_number(text)
    if epoch is None:
        wrong = f"{IF_EPOCH_PROPERTY} must be a whole number, at most {NUMBER_MAX}"
        raise Refused(ServerError.NOT_ALLOWED_ERROR, wrong)
    return epoch


def serve_seconds_of(properties: Mapping[str, str]) -> float:
    """In whole milliseconds; 0 if the producer does not ask for it. Raises Refused."""
    text = properties.get(SERVE_SECONDS_PROPERTY)
    if text is None:
        return 0.0
    try:
        seconds = float(text) if text.isascii() and len(text) <= SECONDS_DIGITS_MAX else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= SERVE_SECONDS_MAX:
        wrong = f"{SERVE_SECONDS_PROPERTY} must be more than 0 and at most {SERVE_SECONDS_MAX:g}"
        raise Refused(ServerError.NOT_ALLOWED_ERROR, wrong)
    return math.ceil(seconds * 1000) / 1000  # as the store keeps it, and never less


def parse_priority(properties: Mapping[str, str], wire_value: int | None) -> RequestedPriority:
    """The priority that a PRODUCER command asks for; never raises.

    The wire field wins over the property ``onewriter.queue-priority``. A value that is not a signed 32-bit number
    counts as if there were none, so the default of the claim applies, and the result carries a note.
    """
    if wire_value is not None:
        if INT32_MIN <= wire_value <= INT32_MAX:
            return RequestedPriority(wire_value)
        return RequestedPriority(None, f"queue priority {wire_value} is not a signed 32-bit number")
    text = properties.get(PRIORITY_PROPERTY)
    if text is None:
        return RequestedPriority(None)
    if _WHOLE_NUMBER.fullmatch(text) and INT32_MIN <= int(text) <= INT32_MAX:
        return RequestedPriority(int(text))
    return RequestedPriority(
        None, f"{PRIORITY_PROPERTY} {text[:40]!a} is not a signed 32-bit number"
    )
