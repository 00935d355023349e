"""Structured logs: one line per event, readable at a terminal, and JSON otherwise.

A line is one write, so that lines of processes that share a log do not mix.
"""

from __future__ import annotations

import logging
import sys

import structlog

from onewriter_core.ids import escaped
from onewriter_http.logs import configure_structlog


def escape_values(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escape control characters in values, because names may contain what a terminal interprets."""
    return {
        key: "\n".join(map(escaped, value.split("\n")))
        if key == "exception"
        else escaped(value)
        if isinstance(value, str)
        else value
        for key, value in event.items()
    }


def configure_logging(*, level: int = logging.INFO) -> None:
    """Set up structlog for this process; lines are written to standard error."""
    renderers: list[structlog.typing.Processor] = (
        [escape_values, structlog.dev.ConsoleRenderer()]
        if sys.stderr.isatty()
        else [structlog.processors.JSONRenderer()]
    )
    configure_structlog(level, *renderers)
