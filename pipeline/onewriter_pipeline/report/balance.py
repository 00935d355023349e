"""The number of topics that each host led over time, which PIP-440 balances. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Balance:
    """From ``times_ms[i]`` on, a host leads ``led[host][i]`` topics."""

    times_ms: tuple[int, ...]
    led: Mapping[str, tuple[int, ...]]

    @property
    def spread(self) -> tuple[int, ...]:
        """At each time, the difference between the hosts with the most and the fewest topics."""
        return tuple(max(each) - min(each) for each in zip(*self.led.values(), strict=True))


def host_of(tenure: Mapping[str, Any]) -> str:
    """The host of a holder, if it is known; otherwise the holder's name."""
    return str(tenure["host"] or tenure["producer"])


def balance_of(timeline: Iterable[Mapping[str, Any]]) -> Balance:
    """The balance from tenures in any order."""
    changes: list[tuple[int, str, int]] = []
    for tenure in timeline:
        if not tenure["producer"] or tenure["since_ms"] is None:
            continue
        host = host_of(tenure)
        changes.append((tenure["since_ms"], host, 1))
        left_ms = tenure.get("left_ms")
        until_ms = tenure["until_ms"] if left_ms is None else left_ms
        if until_ms is not None:
            changes.append((until_ms, host, -1))
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
