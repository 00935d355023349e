"""What may leave a cluster in a report: everything but secrets. Pure.

Secrets are never read in the first place. What is taken out here are passwords and tokens that
somebody put where none belongs, and what says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

REDACTED: Final = "(redacted)"

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

_SECRET_NAME: Final = re.compile(r"password|passwd|secret|token|credential|api.?key", re.IGNORECASE)
_NAMES_A_FILE: Final = re.compile(r"(_FILE|_AUDIENCE|_REVIEW|Name|File|Subject)$")
"""Ends of names whose values are where a secret is, or how it is judged, not the secret."""

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
    """A log, without what looks like a secret."""
    for pattern, instead in _TEXTS:
        text = pattern.sub(instead, text)
    return text


def in_document(value: Any, name: str = "") -> Any:
    """An object as a report has it; ``name`` is the field that it is the value of."""
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
    # An environment variable has its name in one field and its value in another.
    name = str(around.get("name", "")) if key == "value" else key
    is_secret = _SECRET_NAME.search(name) and not _NAMES_A_FILE.search(name)
    if is_secret and isinstance(value, str) and value:
        return REDACTED
    return in_document(value, key)
