"""Logs: one JSON line per event on the error stream, including the warnings of libraries."""

from __future__ import annotations

import logging

import structlog

from onewriter_http.logs import configure_structlog


class _Forward(logging.Handler):
    """Passes on the messages of libraries that use the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info if record.exc_info and record.exc_info[0] else None
        structlog.get_logger(record.name).log(
            record.levelno, "library", said=record.getMessage(), exc_info=error
        )


def configure_logging(*, level: int = logging.INFO) -> None:
    """Set up logging for this process."""
    logging.basicConfig(level=logging.WARNING, handlers=[_Forward()], force=True)
    configure_structlog(level, structlog.processors.JSONRenderer())
