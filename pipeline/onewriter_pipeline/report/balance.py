"""How many topics each host led at any time: what PIP-440's balance is about. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Balance:
    """From ``times_ms[i]`` on, ``led[host][i]`` topics are led by a host."""

    times_ms: tuple[int, ...]
    led: Mapping[str, tuple[int, ...]]

    @property
    def spread(self) -> tuple[int, ...]:
        """The most topics of a host less the fewest, among those that lead or have led."""
        return tuple(max(each) - min(each) for each in zip(*self.led.values(), strict=True))


def host_of(tenure: Mapping[str, Any]) -> str:
    """Where a holder ran, as far as it said; else its name."""
    return str(tenure["host"] or tenure["producer"])


def balance_of(timeline: Iterable[Mapping[str, Any]]) -> Balance:
    """Out of tenures, in whatever order."""
    changes: list[tuple[int, str, int]] = []
    for tenure in timeline:
        if not tenure["producer"] or tenure["since_ms"] is None:
            continue
        host = host_of(tenure)
        changes.append((tenure["since_ms"], host, 1))
        if tenure["until_ms"] is not None:
            changes.append((tenure["until_ms"], host, -1))
    hosts = sorted({host for _, host, _ in changes})
    now: Counter[str] = Counter()
    times: list[int] = []
    led: dict[str, list[int]] = {host: [] for host in hosts}
    for time_ms, host, step in sorted(changes):
        now[host] += step
        if not times or times[-1] != time_ms:
            times.append(time_ms)
            for each in hosts:
                led[each].append(now[each])
        else:
            led[host][-1] = now[host]
    return Balance(tuple(times), {host: tuple(counts) for host, counts in led.items()})
