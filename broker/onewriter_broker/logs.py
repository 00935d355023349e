"""Structured logs: one line per event, readable at a terminal, JSON everywhere else.

A line is one write, so that lines of processes that share a log do not mix.
"""

from __future__ import annotations

import logging
import sys

import structlog

from onewriter_http.logs import quiet_libraries


def configure_logging(*, level: int = logging.INFO) -> None:
    """Set up structlog for this process; lines go to the error stream."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer()
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    quiet_libraries()
