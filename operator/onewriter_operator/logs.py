"""Logs: one JSON line per event on the error stream, including the warnings of libraries."""

from __future__ import annotations

import logging
import sys

import structlog

from onewriter_http.logs import quiet_libraries


class _Forward(logging.Handler):
    """Passes on the messages of libraries that use the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info if record.exc_info and record.exc_info[0] else None
        structlog.get_logger(record.name).log(
            record.levelno, "library", said=record.getMessage(), exc_info=error
        )


def configure_logging(*, level: int = logging.INFO) -> None:
    """Set up logging for this process."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, handlers=[_Forward()], force=True)
    quiet_libraries()
