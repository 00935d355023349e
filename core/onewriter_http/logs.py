"""Log lines about requests: bounded in number, and without any byte that a client sent.

Exception texts and tracebacks may quote a request and its token. So a line contains the type of the exception and the
code that raised it, which a developer needs to find the defect.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

import structlog

LINES_MAX: Final = 10
"""The maximum number of lines of one kind in each period."""

PERIOD_SECONDS: Final = 60.0

KINDS_MAX: Final = 256
"""The number of kinds that are counted separately. All other kinds share one count."""

FRAMES_MAX: Final = 8
"""The number of innermost frames of an exception in a line."""

LIBRARIES: Final = ("aiohttp", "asyncio")
"""Loggers of the standard library's logging whose records may quote a request."""


class Throttle:
    """Passes ``lines_max`` lines of a kind in each period and counts the others."""

    def __init__(
        self, lines_max: int = LINES_MAX, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lines_max = lines_max
        self._clock = clock
        self._since = clock()
        self._counts: dict[str, int] = {}
        self._dropped: dict[str, int] = {}

    def passes(self, kind: str) -> bool:
        """Whether to write a line of this kind now."""
        now = self._clock()
        if now - self._since >= PERIOD_SECONDS:
            self._since = now
            self._counts.clear()
        if kind not in self._counts and len(self._counts) >= KINDS_MAX:
            kind = ""
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count <= self._lines_max:
            return True
        if kind in self._dropped or len(self._dropped) < KINDS_MAX:
            self._dropped[kind] = self._dropped.get(kind, 0) + 1
        return False

    def dropped(self, kind: str) -> int:
        """The number of suppressed lines of this kind since the last written one."""
        return self._dropped.pop(kind, 0)


def where(error: BaseException | None) -> list[str]:
    """The frames that raised an exception, innermost last: names and line numbers, no values."""
    frames: list[str] = []
    traceback: TracebackType | None = None if error is None else error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        module = str(traceback.tb_frame.f_globals.get("__name__", "?"))
        frames.append(f"{module}.{code.co_name}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    return frames[-FRAMES_MAX:]


class RequestLog:
    """Writes rate-limited lines with structlog."""

    def __init__(self, name: str, throttle: Throttle | None = None) -> None:
        self._log = structlog.get_logger(name)
        self._throttle = throttle or Throttle()

    def write(
        self, level: int, event: str, error: BaseException | None = None, **facts: str
    ) -> None:
        """Write a line unless there were too many of its kind. ``facts`` must not contain a client's bytes."""
        kind = f"{event} {'' if error is None else type(error).__name__} {sorted(facts.items())}"
        if not self._throttle.passes(kind):
            return
        fields: dict[str, object] = dict(facts)
        if error is not None:
            fields |= {"error": type(error).__name__, "where": where(error)}
        dropped = self._throttle.dropped(kind)
        if dropped:
            fields["similar_lines_dropped"] = dropped
        self._log.log(level, event, **fields)

    def defect(self, event: str, error: BaseException, **facts: str) -> None:
        """Write that a handler failed unexpectedly."""
        self.write(logging.ERROR, event, error, **facts)


class _LibraryLog(logging.Handler):
    """Passes on the fact and the place of a library's log record, without its text."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._throttle = Throttle()

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        RequestLog(record.name, self._throttle).write(
            record.levelno, "library", error, at=f"{record.module}:{record.lineno}"
        )


def configure_structlog(level: int, *renderers: structlog.typing.Processor) -> None:
    """Write structlog's events to standard error, one line and one write per event."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    quiet_libraries()


def quiet_libraries() -> None:
    """Route log records of the HTTP library and asyncio through structlog, without their text."""
    handler = _LibraryLog()
    for name in LIBRARIES:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.WARNING)
        logger.propagate = False
