"""Compares a wanted object with the one in the cluster.

Only the wanted fields count: the API server adds defaults, and others may own other fields. Selectors are an
exception: a label that another field manager adds to one selects other pods.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

SELECTORS: Final = frozenset({"selector", "podSelector"})
"""Fields that must not have more than what is wanted."""


def differs(wanted: Any, found: Any) -> bool:
    """Whether ``found`` lacks or contradicts anything of ``wanted``; lists must match item by item."""
    return bool(difference(wanted, found))


def difference(wanted: Any, found: Any, path: str = "", *, is_exact: bool = False) -> str:
    """The path of the first difference; empty when there is none. ``is_exact``: more than wanted differs too."""
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping):
            return "" if not wanted and found is None else path or "."
        for name, value in wanted.items():
            inner = difference(
                value,
                found.get(name),
                f"{path}.{name}" if path else str(name),
                is_exact=is_exact or name in SELECTORS,
            )
            if inner:
                return inner
        return f"{path}.{more[0]}" if is_exact and (more := _more(wanted, found)) else ""
    if isinstance(wanted, list | tuple):
        if not wanted and found is None:
            return ""
        if not isinstance(found, list) or len(wanted) != len(found):
            return path or "."
        for number, (one, other) in enumerate(zip(wanted, found, strict=True)):
            inner = difference(one, other, f"{path}[{number}]", is_exact=is_exact)
            if inner:
                return inner
        return ""
    return "" if wanted == found else path or "."


def correction(wanted: Any, found: Any, *, is_exact: bool = False) -> Any:
    """The JSON merge patch that turns ``found`` into ``wanted``: null removes what a selector has too much."""
    if not isinstance(wanted, Mapping) or not isinstance(found, Mapping):
        return wanted
    patch: dict[str, Any] = {
        name: correction(value, found.get(name), is_exact=is_exact or name in SELECTORS)
        for name, value in wanted.items()
    }
    return patch | dict.fromkeys(_more(wanted, found) if is_exact else ())


def _more(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """What ``found`` has in addition."""
    return [str(name) for name, value in found.items() if name not in wanted and value is not None]


def digest(wanted: Mapping[str, Any]) -> str:
    """A short hash of a wanted object."""
    text = json.dumps(wanted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
