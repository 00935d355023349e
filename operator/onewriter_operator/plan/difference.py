"""Compares a wanted object with the one in the cluster.

Only the wanted fields count: the API server adds defaults, and others may own other fields. In selectors and in
the fields of ``SEALED`` every addition counts too, because it changes where connections lead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

Json = dict[str, Any]

SEALED: Final[Mapping[str, tuple[str, ...]]] = {
    "Service": ("selector", "externalIPs", "externalName"),
    "NetworkPolicy": ("podSelector", "policyTypes", "ingress", "egress"),
}
"""Fields of ``spec``, by kind, in which no addition of others stays. The operator writes these fields
with every value that the API server shows."""

SELECTORS: Final = frozenset({"selector", "podSelector"})
"""Fields that must not have more than what is wanted."""


def exact(wanted: Json, found: Json | None) -> Json:
    """The wanted object, with null for each addition of others in a sealed field."""
    sealed = SEALED.get(wanted["kind"], ())
    there = None if found is None else found.get("spec")
    if not sealed or not isinstance(there, Mapping):
        return wanted
    spec = wanted.get("spec", {})
    closed = {name: _closed(spec.get(name), there[name]) for name in sealed if name in there}
    return wanted | {"spec": spec | closed}


def _closed(wanted: Any, found: Any) -> Any:
    """A wanted value with null for each key that only the found one has."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        keys = {**dict.fromkeys(found), **wanted}
        return {key: _closed(wanted.get(key), found.get(key)) for key in keys}
    if isinstance(wanted, list | tuple) and isinstance(found, list) and len(wanted) == len(found):
        return [_closed(one, other) for one, other in zip(wanted, found, strict=True)]
    return wanted


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


def content(document: Json, wanted: Json) -> str:
    """A digest of an object without its status and without labels and annotations of others."""
    about, own = document["metadata"], wanted["metadata"]
    known = {
        name: {key: (about.get(name) or {}).get(key) for key in own.get(name) or {}}
        for name in ("labels", "annotations")
    }
    rest = {name: each for name, each in document.items() if name not in {"metadata", "status"}}
    return digest(rest | {"metadata": known | {"owners": about.get("ownerReferences")}})
