"""Who published: how the blocks of an atomic publish name it, and what its audit record is called.

Broker, ``onewriter verify`` and the pipeline's audit compare both (docs/log-format.md).
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from onewriter_core.ids import Identity

PUBLISHER: Final = "publisher"
"""The kind of the audit record that names who publishes under an epoch and an app."""

HELD: Final = "held"
"""Field ``right`` of that record: the holder of the epoch publishes itself."""

CAPABILITY: Final = "capability"
"""Field ``right`` of that record: the publisher bears a capability that the holder passed on."""

EVERY_POD: Final = "*"
"""Field ``podUID`` of that record: it stands for all pods of its subject. No pod has this uid."""


class Publisher(NamedTuple):
    """Who published: a token's subject, and the pod that the token is bound to. Both may be empty."""

    subject: str = ""
    pod_uid: str = ""

    def __str__(self) -> str:
        return str(Identity(self.subject, self.pod_uid))


def publisher_of(identity: Identity) -> Publisher:
    """An identity as a publisher; empty where no token authenticated it."""
    return Publisher() if identity.is_anonymous else Publisher(identity.subject, identity.pod_uid)


def encode_publisher(publisher: Publisher) -> str:
    """A publisher as the field ``by`` of blocks has it; empty: it proved no identity."""
    told = {"subject": publisher.subject, "podUID": publisher.pod_uid}
    told = {name: value for name, value in told.items() if value}
    return json.dumps(told, separators=(",", ":")) if told else ""


def decode_publisher(text: str) -> Publisher | None:
    """What the field ``by`` of a block says; None for a text that no broker writes."""
    if not text:
        return Publisher()
    try:
        told = json.loads(text)
        publisher = Publisher(told.get("subject", ""), told.get("podUID", ""))
    except (ValueError, AttributeError, RecursionError):
        return None
    if not all(isinstance(each, str) for each in publisher):
        return None
    return publisher if encode_publisher(publisher) == text else None
