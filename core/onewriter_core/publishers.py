"""The publisher of an atomic publish: its name in the blocks, and its audit record.

Broker, ``onewriter verify`` and the pipeline's audit compare both (docs/log-format.md).
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from onewriter_core.ids import Identity

PUBLISHER: Final = "publisher"
"""The kind of the audit record that names the publisher of an epoch and an app."""

HELD: Final = "held"
"""Field ``right`` of that record: the holder of the epoch publishes itself."""

CAPABILITY: Final = "capability"
"""Field ``right`` of that record: the publisher bears a capability that the holder passed on."""

EVERY_POD: Final = "*"
"""Field ``podUID`` of that record: all pods of its subject. No pod has this uid."""


class Publisher(NamedTuple):
    """The subject of a token, and the pod that the token is bound to. Both may be empty."""

    subject: str = ""
    pod_uid: str = ""

    def __str__(self) -> str:
        return str(Identity(self.subject, self.pod_uid))


def publisher_of(identity: Identity) -> Publisher:
    """An identity as a publisher; empty if no token authenticated it."""
    return Publisher() if identity.is_anonymous else Publisher(identity.subject, identity.pod_uid)


def publish_of(name: str) -> tuple[str, int]:
    """App and version of the ``publish`` of a block. Version -1: brokers do not write such a name."""
    app, _, version = name.rpartition("/")
    return app, int(version) if version.isascii() and version.isdecimal() else -1


def encode_publisher(publisher: Publisher) -> str:
    """A publisher as in the field ``by`` of blocks; empty: it is anonymous."""
    document = {"subject": publisher.subject, "podUID": publisher.pod_uid}
    document = {name: value for name, value in document.items() if value}
    return json.dumps(document, separators=(",", ":")) if document else ""


def decode_publisher(text: str) -> Publisher | None:
    """Parse the field ``by`` of a block; None for a text that no broker writes."""
    if not text:
        return Publisher()
    try:
        document = json.loads(text)
        publisher = Publisher(document.get("subject", ""), document.get("podUID", ""))
    except (ValueError, AttributeError, RecursionError):
        return None
    if not all(isinstance(each, str) for each in publisher):
        return None
    return publisher if encode_publisher(publisher) == text else None
