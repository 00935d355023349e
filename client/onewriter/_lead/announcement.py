"""The announcement of a leader: a message in the topic that states who leads it. No I/O.

PIP-440 asks a new leader to publish its identity. The message has a key of its own, so compaction keeps the
latest one. Consumers recognize it by the property ``onewriter.kind`` = ``leader`` and may skip it. The sidecar
publishes the same message.
"""

from __future__ import annotations

import base64
import binascii
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from onewriter._errors import ConfigurationError
from onewriter_core.property_names import EPOCH_PROPERTY, KIND_PROPERTY, LEADER_KEY

KIND_LEADER = "leader"
CONTENT_VERSION = 1


class Announcement(NamedTuple):
    """The content, key and properties of a leader's announcement."""

    content: bytes
    key: str
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderInfo:
    """A leader's announcement. ``priority`` is its queue priority.

    ``metadata`` is for its successors: any JSON value, or bytes; None if the leader gave none.
    """

    topic: str
    epoch: int
    identity: str
    host: str = ""
    priority: int = 0
    producer_name: str = ""
    at: str = ""
    """Begin of the term by the leader's clock: ISO 8601 in UTC."""
    metadata: Any = None

    def announcement(self) -> Announcement:
        """Return the message to publish. Raises ConfigurationError for metadata that is neither JSON nor bytes."""
        content: dict[str, Any] = {
            "kind": KIND_LEADER,
            "version": CONTENT_VERSION,
            "topic": self.topic,
            "epoch": self.epoch,
            "identity": self.identity,
            "host": self.host,
            "priority": self.priority,
            "producerName": self.producer_name,
            "at": self.at,
        }
        if isinstance(self.metadata, bytes):
            content["resumeInfoBase64"] = base64.b64encode(self.metadata).decode()
        elif self.metadata is not None:
            content["resumeInfo"] = self.metadata
        try:
            encoded = json.dumps(content).encode()
        except (TypeError, ValueError) as error:
            kind = type(self.metadata).__name__
            text = f"a leader's metadata must be a JSON value or bytes, not this {kind}: {error}"
            raise ConfigurationError(text) from error
        return Announcement(
            encoded,
            LEADER_KEY,
            {KIND_PROPERTY: KIND_LEADER, EPOCH_PROPERTY: str(self.epoch)},
        )


def is_announcement(properties: Mapping[str, str]) -> bool:
    """Whether a message with these properties is a leader's announcement, not one of the application's."""
    return properties.get(KIND_PROPERTY) == KIND_LEADER


def leader_in(properties: Mapping[str, str], content: bytes) -> LeaderInfo | None:
    """Return the announcement in a message; None if the message is not a valid announcement."""
    if not is_announcement(properties):
        return None
    try:
        document = json.loads(content)
        metadata = document.get("resumeInfo")
        if "resumeInfoBase64" in document:
            metadata = base64.b64decode(document["resumeInfoBase64"], validate=True)
        return LeaderInfo(
            topic=str(document["topic"]),
            epoch=int(document["epoch"]),
            identity=str(document["identity"]),
            host=str(document.get("host", "")),
            priority=int(document.get("priority", 0)),
            producer_name=str(document.get("producerName", "")),
            at=str(document.get("at", "")),
            metadata=metadata,
        )
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        return None


def iso_time(seconds: float) -> str:
    """Format seconds since 1970 as ISO 8601 in UTC, with milliseconds."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def host_name() -> str:
    """Return this machine's host name; in a pod, the pod's name."""
    return socket.gethostname()
