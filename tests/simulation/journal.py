"""Collects the brokers' log lines for the history, and reports log events that must never occur."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog
from tests.simulation.history import LossReport
from tests.simulation.loop import VirtualLoop
from tests.simulation.recording import Recorder

from onewriter_core.ids import Position

UNEXPECTED = frozenset({"topic.failed", "connection.failed"})
"""Log events of unexpected errors. Each is an anomaly of the run."""

LINES_MAX = 20_000


class Journal:
    """A structlog processor that records every log line and prints nothing."""

    def __init__(self, loop: VirtualLoop, recorder: Recorder) -> None:
        self._loop = loop
        self._recorder = recorder

    def __call__(
        self, _logger: Any, level: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        recorder = self._recorder
        if not recorder.is_closed:
            name = str(event.pop("event"))
            process = self._loop.current_process
            recorder.seen(f"log.{name}")
            if name == "entries.lost":
                recorder.history.losses.append(
                    LossReport(
                        event["topic"],
                        Position.parse(event["after"]),
                        Position.parse(event["last"]),
                    )
                )
            what = " ".join(
                f"{key}={value}" for key, value in event.items() if key not in {"exc_info", "pid"}
            )
            line = f"{self._loop.time():.4f} {process} {level} {name} {what}"
            if len(recorder.history.journal) < LINES_MAX:
                recorder.history.journal.append(line)
            if name in UNEXPECTED:
                recorder.anomaly(f"{line}\n{_traceback()}")
        raise structlog.DropEvent

    def unhandled(self, context: Mapping[str, Any]) -> None:
        """Record an exception that no code handled as an anomaly."""
        error = context.get("exception")
        if not self._recorder.is_closed and error is not None:
            self._recorder.anomaly(f"unhandled: {context.get('message')}: {error!r}")

    def warned(
        self,
        message: Warning | str,
        _category: type[Warning],
        filename: str,
        lineno: int,
        *_more: object,
    ) -> None:
        """Record a warning as an anomaly. During the teardown warnings are expected."""
        if not self._recorder.is_closed:
            self._recorder.anomaly(f"warning: {message} ({filename}:{lineno})")


def _traceback() -> str:
    import traceback

    return traceback.format_exc()
