"""What an HTTP client is told, and above all whether its message is in the log.

====  ========  =================================================================================
code  stored    means
====  ========  =================================================================================
409   false     not under this session, now or ever: get the present one from GET /leadership
400   false     the request makes no sense; 413: too large; 422: the broker refuses the message;
                428: without a session; 404, 406, 412: of /map, no such key, no JSON, not so
429   false     too many requests at once
503   false     no broker took it in time; it was withdrawn. Asking again is safe
502   false     the map's log cannot be read to its end: asking again does not help
504   null      unknown: it may or may not be in the log
====  ========  =================================================================================
"""

from __future__ import annotations

from typing import Any

from onewriter._errors import (
    ConfigurationError,
    Fenced,
    OnewriterError,
    OutcomeUnknown,
    Refused,
)
from onewriter._lead.candidacy import Standing
from onewriter.state import StateError, StateGap, WrongType


class Failure(Exception):
    """A request that did not do what it asked for; ``stored`` None means unknown."""

    def __init__(
        self, status: int, error: str, reason: str, *, stored: bool | None = False, **facts: Any
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.error = error
        self.stored = stored
        self.facts = facts

    @property
    def body(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "error": self.error,
            "reason": str(self),
            "stored": self.stored,
            "status": self.status,
            **self.facts,
        }


def conflict(session_epoch: int, standing: Standing, reason: str) -> Failure:
    """This session may not publish: both epochs, where they are known."""
    return Failure(
        409,
        "not-your-turn",
        reason,
        sessionEpoch=session_epoch,
        epoch=standing.latest_epoch,
        phase=standing.phase.value,
    )


def of_sending(error: OnewriterError, session_epoch: int, standing: Standing) -> Failure:
    """What became of a message that was handed to the SDK; ``standing`` as it is now."""
    if isinstance(error, OutcomeUnknown):
        return Failure(504, "unknown", str(error), stored=None, sessionEpoch=session_epoch)
    if standing.term is None or standing.term.epoch != session_epoch:
        return conflict(session_epoch, standing, f"the session is over: {error}")
    if isinstance(error, Fenced):  # the store said so before anybody else did
        failure = conflict(session_epoch, standing, str(error))
        failure.facts["epoch"] = error.current_epoch or standing.latest_epoch
        return failure
    if isinstance(error, Refused | ConfigurationError):
        return Failure(422, "refused", str(error))
    return Failure(503, "not-sent", str(error))


def of_sharing(error: OnewriterError) -> Failure:
    """What became of a request to a shared map."""
    if isinstance(error, OutcomeUnknown):
        return Failure(504, "unknown", str(error), stored=None)
    if isinstance(error, StateError):
        name = "state-gap" if isinstance(error, StateGap) else "unreadable-entry"
        return Failure(502, name, str(error), position=str(error.position))
    if isinstance(error, WrongType):
        return Failure(400, "wrong-type", str(error))
    if isinstance(error, Refused | ConfigurationError):
        return Failure(422, "refused", str(error))
    return Failure(503, "not-now", str(error))
