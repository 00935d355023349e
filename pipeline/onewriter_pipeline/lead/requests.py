"""What a data source asks its driver's leader process, and what that answers: JSON, one object a line."""

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
"""A request or an answer: it names 100 topics at most."""

SOCKET: Final = "socket"
"""Where the leader process listens, in its folder,"""

READY: Final = b"ready"
"""and what it writes once it does."""

BEGIN: Final = "begin"
"""A batch begins: lead the topics that are known, and say under which epochs."""
LEAD: Final = "lead"
"""Rows of the batch are for these topics: lead them too, and say how to publish there."""
END: Final = "end"
"""The batch has ended."""
STATUS: Final = "status"
"""Which topics are led, for whom."""

EXCLUSIVE: Final = "exclusive"
EXCLUSIVE_WITH_FENCING: Final = "exclusive-with-fencing"
WAIT_FOR_EXCLUSIVE: Final = "wait-for-exclusive"
MODES: Final = (EXCLUSIVE, EXCLUSIVE_WITH_FENCING, WAIT_FOR_EXCLUSIVE)
"""How a driver becomes a topic's leader: if it is free; from its holder; when it is free."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Under which epoch a topic is written, and what proves the right to it; picklable."""

    epoch: int
    capability: str = field(default="", repr=False)

    def headers(self) -> dict[str, str]:
        """What a request under this epoch carries."""
        return {CAPABILITY_HEADER: self.capability} if self.capability else {}


@dataclass(frozen=True, slots=True)
class LeaderRequest:
    """A request to the leader process.

    ``use`` names a query or a batch write. ``topics`` are full names, each with the epoch under which
    the batch began, or 0. ``app`` is empty where it is not known yet.
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
    """Of an end: no further batch of the use follows."""

    def line(self) -> bytes:
        """As it is sent."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> LeaderRequest:
        """As it was received. Raises ValueError, TypeError for what is no request."""
        said = json.loads(line)
        access = said.pop("access")
        return cls(access=None if access is None else Access(**access), **said)


def answered(grants: Mapping[str, Grant]) -> bytes:
    """The answer that names grants by their topics."""
    said = {topic: [grant.epoch, grant.capability] for topic, grant in grants.items()}
    return json.dumps({"grants": said}).encode() + b"\n"


def told(answer: Mapping[str, Any]) -> bytes:
    """An answer with other contents."""
    return json.dumps(answer).encode() + b"\n"


def failed(error: PipelineError) -> bytes:
    """The answer that is raised as this error again."""
    return json.dumps({"error": type(error).__name__, "text": str(error)}).encode() + b"\n"


def grants_of(line: bytes) -> dict[str, Grant]:
    """What an answer grants. Raises the PipelineError that it names."""
    said = answer_of(line)
    return {
        topic: Grant(int(epoch), str(proof)) for topic, (epoch, proof) in said["grants"].items()
    }


def answer_of(line: bytes) -> dict[str, Any]:
    """An answer's contents. Raises the PipelineError that it names."""
    try:
        said = json.loads(line)
    except ValueError:
        raise Damaged("the driver's leader process gave no answer") from None
    if "error" in said:
        kind = getattr(errors, str(said["error"]), PipelineError)
        raise kind(str(said["text"]))
    return dict(said)
