"""The protocol between data sources and the driver's leader process: JSON, one object per line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from onewriter_core.publish_rights import CAPABILITY_HEADER
from onewriter_pipeline import errors
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.errors import Damaged, PipelineError

LINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Limit of a request or an answer, which names at most 100 topics."""

SOCKET: Final = "socket"
"""The name of the leader process's socket in its folder."""

READY: Final = b"ready"
"""What the process writes to stdout when it listens."""

BEGIN: Final = "begin"
"""A batch begins: lead the known topics, and return their epochs."""
LEAD: Final = "lead"
"""The batch has rows for these topics: lead them too, and return how to publish to them."""
END: Final = "end"
"""The batch has ended."""
STATUS: Final = "status"
"""Which topics are led, and for which uses."""

EXCLUSIVE: Final = "exclusive"
EXCLUSIVE_WITH_FENCING: Final = "exclusive-with-fencing"
WAIT_FOR_EXCLUSIVE: Final = "wait-for-exclusive"
MODES: Final = (EXCLUSIVE, EXCLUSIVE_WITH_FENCING, WAIT_FOR_EXCLUSIVE)
"""How a driver becomes the leader of a topic: if it is free; by fencing its holder; when it becomes free."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The epoch under which a topic is written, and the capability for it; can be pickled."""

    epoch: int
    capability: str = field(default="", repr=False)

    def headers(self) -> dict[str, str]:
        """The headers of a request under this epoch."""
        return {CAPABILITY_HEADER: self.capability} if self.capability else {}


@dataclass(frozen=True, slots=True)
class LeaderRequest:
    """A request to the leader process.

    ``use`` identifies a query or a batch write. ``topics`` are full names, each with the epoch under which the
    batch began, or 0. ``app`` is empty if it is not known yet.
    """

    what: str
    use: str
    access: Access | None = None
    service_url: str = ""
    mode: str = EXCLUSIVE
    wait_seconds: float = 0.0
    idle_seconds: float = 0.0
    app: str = ""
    topics: Mapping[str, int] = field(default_factory=dict)
    is_over: bool = False
    """For END: no further batch of the use follows."""

    def line(self) -> bytes:
        """The request as a line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> LeaderRequest:
        """The request from a line. Raises ValueError or TypeError for invalid lines."""
        document = json.loads(line)
        access = document.pop("access")
        return cls(access=None if access is None else Access.of(access), **document)


def answered(grants: Mapping[str, Grant]) -> bytes:
    """An answer with grants by topic."""
    document = {topic: [grant.epoch, grant.capability] for topic, grant in grants.items()}
    return json.dumps({"grants": document}).encode() + b"\n"


def encoded(answer: Mapping[str, Any]) -> bytes:
    """An answer with other contents."""
    return json.dumps(answer).encode() + b"\n"


def failed(error: PipelineError) -> bytes:
    """An answer that the client raises as this error."""
    return json.dumps({"error": type(error).__name__, "text": str(error)}).encode() + b"\n"


def grants_of(line: bytes) -> dict[str, Grant]:
    """The grants in an answer. If the answer reports an error, raises this PipelineError."""
    document = answer_of(line)
    return {
        topic: Grant(int(epoch), str(proof)) for topic, (epoch, proof) in document["grants"].items()
    }


def answer_of(line: bytes) -> dict[str, Any]:
    """The contents of an answer. If the answer reports an error, raises this PipelineError."""
    try:
        document = json.loads(line)
    except ValueError:
        raise Damaged("the driver's leader process did not answer") from None
    if "error" in document:
        kind = getattr(errors, str(document["error"]), PipelineError)
        raise kind(str(document["text"]))
    return dict(document)
