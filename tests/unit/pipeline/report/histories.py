"""Histories of holders, with long names and periods that hardly fit into a picture."""

from __future__ import annotations

from typing import Any, Final

MINUTE_MS: Final = 60_000


def tenures(count: int, leaderless_ms: int | None = 0) -> list[dict[str, Any]]:
    """Tenures of three topics, as ``audit.history.timeline`` lists them."""
    return [
        {
            "topic": "persistent://public/default/" + "orders-" * 20 + str(number % 3),
            "epoch": number + 1,
            "producer": None if number % 50 == 49 else "service-" * 10 + str(number % 60),
            "subject": "system:serviceaccount:shop:orders",
            "host": "host",
            "cause": "Requested",
            "ended_by": "ConnectionLost",
            "broker": "broker-0",
            "since_ms": number * MINUTE_MS,
            "until_ms": (number + 3) * MINUTE_MS if number < count - 3 else None,
            "left_ms": (number + 2) * MINUTE_MS,
            "leaderless_ms": leaderless_ms,
        }
        for number in range(count)
    ]
