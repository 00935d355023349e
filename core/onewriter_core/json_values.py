"""Reads values of parsed JSON whose types are not known, with a default for a missing or unreadable one."""

from __future__ import annotations

import math
from typing import Any

Json = dict[str, Any]


def mapping(value: object) -> Json:
    """A JSON object; empty for any other value."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Json]:
    """The JSON objects of a list; empty for any other value."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text(value: object) -> str:
    """A scalar as text; empty for null."""
    return "" if value is None else str(value)


def number(value: object, default: int = 0) -> int:
    """An integer; ``default`` for null and any value that is not one."""
    found = optional_number(value)
    return default if found is None else found


def optional_number(value: object) -> int | None:
    """An integer; None for null and any value that is not one."""
    try:
        return int(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def seconds(value: object, default: float) -> float:
    """Seconds, with their fraction; ``default`` for null and any value that is not a finite number."""
    found = optional_seconds(value)
    return default if found is None else found


def optional_seconds(value: object) -> float | None:
    """Seconds, with their fraction; None for null and any value that is not a finite number."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def present(**fields: object) -> Json:
    """The fields that have a value: neither empty nor zero nor None."""
    return {name: value for name, value in fields.items() if value}
