"""Limits how often the operator repairs one object: two programs that disagree must not write for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

AT_ONCE: Final = 5
"""Repairs of one object without a delay."""

DELAY_SECONDS_MIN: Final = 2.0
DELAY_SECONDS_MAX: Final = 60.0
"""Bounds of the delay after these, which doubles with each repair."""

QUIET_SECONDS: Final = 300.0
"""After this time without a repair the next one has no delay."""

REMEMBERED_MAX: Final = 10_000
"""Objects whose repairs are remembered; the one that was repaired longest ago is forgotten first."""


@dataclass(slots=True)
class _Repaired:
    count: int
    at: float


class RepairLimit:
    """The repairs of all objects, by ``kind/name``. ``now``: monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._repaired: dict[str, _Repaired] = {}

    def delay_seconds(self, name: str) -> float:
        """How long the next repair of an object has to wait."""
        known = self._repaired.get(name)
        if known is None or known.count < AT_ONCE:
            return 0.0
        doublings = min(known.count - AT_ONCE, 16)
        delay: float = min(DELAY_SECONDS_MIN * 2**doublings, DELAY_SECONDS_MAX)
        return max(0.0, known.at + delay - self._now())

    def repaired(self, name: str) -> None:
        """Note a repair. An object that needed none for a while counts as new."""
        now = self._now()
        known = self._repaired.get(name)
        is_new = known is None or now - known.at > QUIET_SECONDS
        self._repaired.pop(name, None)
        self._repaired[name] = _Repaired(1 if is_new or known is None else known.count + 1, now)
        while len(self._repaired) > REMEMBERED_MAX:
            del self._repaired[next(iter(self._repaired))]
