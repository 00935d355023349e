"""Checks the state of a log that was read from the store, before a broker relies on it.

Another program may have written to the state. The topic is then broken, like one whose key has another type: the broker
names the key and the field, does not fence the topic, and serves all other topics. Code that gets a checked state parses
the fields without further checks.

This module does not check fields whose readers accept any value: cursors, schemas, witnesses, layouts and views.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from onewriter_broker.log.store.api import BrokenKey
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.topic.history.tenures import (
    ABSENT_SINCE,
    HEARD_AT,
    LEADS,
    PRESENT_SINCE,
    SERVES,
    SINCE,
    tenure_of,
)
from onewriter_broker.topic.producers.deduplication import FIELD as DEDUPLICATION
from onewriter_broker.topic.producers.resends import SNAPSHOT_FIELD
from onewriter_core.ids import NUMBER_MAX, Position, TopicName, whole_number
from onewriter_core.log_format.field_names import (
    FLOOR_PREFIX,
    LEDGER_ENDS,
    SETTLED,
    TERMINATED,
    TRIMMED,
)
from onewriter_core.topic.model import SERVE_SECONDS_MAX

SHOWN_MAX: Final = 40
"""Characters of an unreadable value that the message shows."""


def check_state(name: TopicName, state: Mapping[str, str], buckets: int) -> None:
    """Raise BrokenKey if the state of a log has a value that no broker wrote."""
    for field, text in state.items():
        check = _number if field.startswith(FLOOR_PREFIX) else _CHECKS.get(field)
        if check is None:
            continue
        try:
            check(text)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            key = Keys(buckets).state(name)
            raise BrokenKey(f"{key}: {field} is {text[:SHOWN_MAX]!r}") from None


def _number(text: str) -> None:
    if whole_number(text) is None:
        raise ValueError


def _number_or_empty(text: str) -> None:
    if text:
        _number(text)


def _serves(text: str) -> None:
    if whole_number(text, round(SERVE_SECONDS_MAX * 1000)) is None:
        raise ValueError  # a longer time would keep the topic from every later writer


def _position(text: str) -> None:
    if not all(0 <= number <= NUMBER_MAX for number in Position.parse(text)):
        raise ValueError


def _position_or_empty(text: str) -> None:
    if text:
        _position(text)


def _ledger_ends(text: str) -> None:
    for pair in filter(None, text.split(",")):
        ledger, end = pair.split(" ")
        _number(ledger)
        _position(end)


def _holder(text: str) -> None:
    tenure = tenure_of({"holder": text})
    if tenure is None:
        return
    identity = tenure.identity
    texts = (
        *(tenure.producer_name, tenure.admitted_by),
        *(identity.subject, identity.pod_uid, identity.pod, identity.node),
    )
    _require(holds=all(isinstance(each, str) for each in texts))
    _require(holds=type(tenure.epoch) is int and 0 <= tenure.epoch <= NUMBER_MAX)


def _deposed(text: str) -> None:
    found = json.loads(text)
    _require(holds=isinstance(found, list))
    for subject, pod_uid in found:
        _require(holds=isinstance(subject, str) and isinstance(pod_uid, str))


def _sequences(text: str) -> None:
    for epoch, last, published_ms in _object(text).values():
        _require(holds=all(type(each) is int for each in (epoch, last, published_ms)))


def _deduplication(text: str) -> None:
    if text:
        position, _, numbers = text.partition(" ")
        _position(position)
        _require(holds=all(type(each) is int for each in _object(numbers).values()))


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError  # noqa: TRY004 - as for any other unreadable value
    return found


def _require(*, holds: bool) -> None:
    if not holds:
        raise ValueError


_CHECKS: Final[Mapping[str, Callable[[str], None]]] = {
    **dict.fromkeys(("epoch", "ledger", "generation", LEADS, SETTLED), _number),
    SERVES: _serves,
    **dict.fromkeys((SINCE, ABSENT_SINCE, PRESENT_SINCE, HEARD_AT), _number_or_empty),
    TRIMMED: _position,
    TERMINATED: _position_or_empty,
    LEDGER_ENDS: _ledger_ends,
    "holder": _holder,
    "deposed": _deposed,
    SNAPSHOT_FIELD: _sequences,
    DEDUPLICATION: _deduplication,
}
