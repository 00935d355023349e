"""Error answers of the sidecar, which state whether the message is in the log.

====  ========  =================================================================================
code  stored    meaning
====  ========  =================================================================================
409   false     the session is over: get the current one from GET /leadership
400   false     invalid request; 413: too large; 422: the broker rejects the message;
                428: no session; for /map 404: no such key, 406: not JSON, 412: condition failed
401   false     a release over TCP without the release key
429   false     too many simultaneous requests
503   false     no broker accepted the message in time; it was withdrawn. A retry is safe
502   false     the map's log cannot be read to its end: a retry does not help
504   null      unknown: the message may or may not be in the log
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
    """A failed request; ``stored`` None means that the result is unknown."""

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
        """Return the JSON body of the answer."""
        return {
            "error": self.error,
            "reason": str(self),
            "stored": self.stored,
            "status": self.status,
            **self.facts,
        }


def conflict(session_epoch: int, standing: Standing, reason: str) -> Failure:
    """Return the failure for a session that is over, with both epochs if they are known."""
    return Failure(
        409,
        "not-your-turn",
        reason,
        sessionEpoch=session_epoch,
        epoch=standing.latest_epoch,
        phase=standing.phase.value,
    )


def of_sending(error: OnewriterError, session_epoch: int, standing: Standing) -> Failure:
    """Return the failure for an error of a send; ``standing`` is the current one."""
    if isinstance(error, OutcomeUnknown):
        return Failure(504, "unknown", str(error), stored=None, sessionEpoch=session_epoch)
    if standing.term is None or standing.term.epoch != session_epoch:
        return conflict(session_epoch, standing, f"the session is over: {error}")
    if isinstance(error, Fenced):  # the store reported the loss before the broker did
        failure = conflict(session_epoch, standing, str(error))
        failure.facts["epoch"] = error.current_epoch or standing.latest_epoch
        return failure
    if isinstance(error, Refused | ConfigurationError):
        return Failure(422, "refused", str(error))
    return Failure(503, "not-sent", str(error))


def of_sharing(error: OnewriterError) -> Failure:
    """Return the failure for an error of a shared map."""
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
