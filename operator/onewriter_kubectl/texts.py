"""Producers and times as people read them. Pure."""

from __future__ import annotations

from typing import Final

from onewriter_core.kubernetes.kinds import seconds_of
from onewriter_core.tables import text
from onewriter_core.topic_view import ProducerView

NO_PRODUCER: Final = "no producer"

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def producer_text(producer: ProducerView | None) -> str:
    """A producer by its pod, if it has one, and its name."""
    if producer is None:
        return NO_PRODUCER
    name = f"producer {text(producer.producer_name)}"
    return f"{text(producer.pod)} ({name})" if producer.pod else name


def age(timestamp: str, now: float) -> str:
    """An age in kubectl's form: 12s, 3m20s, 5h, 2d. Empty if unknown. ``now``: Unix time."""
    since = seconds_of(timestamp)
    return "" if since is None else duration(max(0.0, now - since))


def duration(length_seconds: float) -> str:
    """A duration in its two largest units."""
    left = int(length_seconds)
    for index, (size, unit) in enumerate(_UNITS):
        if left >= size or unit == "s":
            whole, rest = divmod(left, size)
            below = _UNITS[index + 1] if index + 1 < len(_UNITS) else None
            if below is None or whole >= 10 or rest < below[0]:
                return f"{whole}{unit}"
            return f"{whole}{unit}{rest // below[0]}{below[1]}"
    raise AssertionError("the last unit has no lower limit")
