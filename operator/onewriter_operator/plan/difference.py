"""Compares a wanted object with the one in the cluster.

Only the wanted fields count: the API server adds defaults, and others may own other fields.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def differs(wanted: Any, found: Any) -> bool:
    """Whether ``found`` lacks or contradicts anything of ``wanted``; lists must match item by item."""
    return bool(difference(wanted, found))


def difference(wanted: Any, found: Any, path: str = "") -> str:
    """The path of the first difference; empty when there is none."""
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping):
            return "" if not wanted and found is None else path or "."
        for name, value in wanted.items():
            inner = difference(value, found.get(name), f"{path}.{name}" if path else str(name))
            if inner:
                return inner
        return ""
    if isinstance(wanted, list | tuple):
        if not wanted and found is None:
            return ""
        if not isinstance(found, list) or len(wanted) != len(found):
            return path or "."
        for number, (one, other) in enumerate(zip(wanted, found, strict=True)):
            inner = difference(one, other, f"{path}[{number}]")
            if inner:
                return inner
        return ""
    return "" if wanted == found else path or "."


def digest(wanted: Mapping[str, Any]) -> str:
    """A short hash of a wanted object."""
    text = json.dumps(wanted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
