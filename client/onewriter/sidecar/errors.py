"""What an HTTP client is told, and above all whether its message is in the log.

====  ========  =================================================================================
code  stored    means
====  ========  =================================================================================
409   false     not under this session, now or ever: get the present one from GET /leadership
400   false     the request makes no sense; 413: too large; 422: the broker refuses the message;
                428: without a session
429   false     too many requests at once
503   false     no broker took it in time; it was withdrawn. Asking again is safe
504   null      unknown: it may or may not be in the log
====  ========  =================================================================================
"""

from __future__ import annotations

from typing import Any

from onewriter._errors import OnewriterError, OutcomeUnknown, Refused
from onewriter._leadership import Standing


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
    if isinstance(error, Refused):
        return Failure(422, "refused", str(error))
    return Failure(503, "not-sent", str(error))
