"""Removes secrets from the parts of a report. Pure.

The report never reads Secret objects. This module removes passwords and tokens in other places, and
fields without information.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

REDACTED: Final = "(redacted)"

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

_SECRET_NAME: Final = re.compile(r"password|passwd|secret|token|credential|api.?key", re.IGNORECASE)
_NAMES_A_FILE: Final = re.compile(r"(_FILE|_AUDIENCE|_REVIEW|Name|File|Subject)$")
"""Suffixes of names whose values locate or describe a secret, but do not contain it."""

_TEXTS: Final = (
    # user:password@ in an address
    (re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@\"']*):[^\s/@\"']+@"), rf"\1:{REDACTED}@"),
    # a JWT
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), REDACTED),
    # a header
    (
        re.compile(r"(?i)\b(authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic)\s+)\S+"),
        rf"\1{REDACTED}",
    ),
    # a private key
    (
        re.compile(
            r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?-----END \1PRIVATE KEY-----", re.DOTALL
        ),
        REDACTED,
    ),
)


def in_text(text: str) -> str:
    """A log without text that looks like a secret."""
    for pattern, instead in _TEXTS:
        text = pattern.sub(instead, text)
    return text


def in_document(value: Any, name: str = "") -> Any:
    """A value as the report contains it; ``name`` is its field."""
    if isinstance(value, Mapping):
        if value.get("kind") == "Secret":
            return {
                "kind": "Secret",
                "metadata": {"name": (value.get("metadata") or {}).get("name")},
            }
        return {key: _field(key, each, value) for key, each in value.items() if not _is_noise(key)}
    if isinstance(value, list):
        return [in_document(each, name) for each in value]
    if isinstance(value, str):
        return in_text(value)
    return value


def _is_noise(key: str) -> bool:
    return key in {"managedFields", _LAST_APPLIED}


def _field(key: str, value: Any, around: Mapping[str, Any]) -> Any:
    # The fields ``name`` and ``value`` of an environment variable belong together.
    name = str(around.get("name", "")) if key == "value" else key
    is_secret = _SECRET_NAME.search(name) and not _NAMES_A_FILE.search(name)
    if is_secret and isinstance(value, str) and value:
        return REDACTED
    return in_document(value, key)
