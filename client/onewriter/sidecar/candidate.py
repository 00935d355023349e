"""The sidecar's candidacy: sessions, what is published at a takeover, publishing, leaving.

A **session** is ``<epoch>-<nonce>``: one term of this process, and no other. Whoever publishes says
under which session; so a message that was meant for an earlier term never rides on a later one, even
if the topic was won back in between.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from onewriter._client import Client
from onewriter._errors import OnewriterError
from onewriter._leadership import Leadership, Phase, Standing, Term
from onewriter._outbox import MessageId
from onewriter._tenure import ProducerOptions
from onewriter.sidecar.errors import Failure, conflict, of_sending
from onewriter.sidecar.metrics import Metrics
from onewriter.sidecar.settings import Settings

ANNOUNCEMENT_KEY = "onewriter.leader"
"""Key of the message that a new leader publishes first: compaction keeps the latest."""

KIND_PROPERTY = "onewriter.kind"
EPOCH_PROPERTY = "onewriter.epoch"
KIND_LEADER = "leader"

ANNOUNCE_SECONDS = 10.0
"""A new leader that cannot publish who it is in that time gives the topic back."""

VERIFY_SECONDS = 1.0
"""How long a question waits for the broker's word that we still lead."""

_SESSION = re.compile(r"(\d{1,16})-[0-9a-f]{16}")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Message:
    """What an application wants to publish."""

    content: bytes
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    event_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class ResumeInfo:
    """What the application wants its successors to know, as it gave it."""

    content: bytes
    content_type: str

    def as_fields(self) -> dict[str, Any]:
        """JSON as it is, text as a string, anything else in base64."""
        try:
            text = self.content.decode()
        except UnicodeDecodeError:
            return {"resumeInfoBase64": base64.b64encode(self.content).decode()}
        if self.content_type == "application/json":
            return {"resumeInfo": json.loads(text)}
        return {"resumeInfo": text}


class Candidate:
    """Made inside an open client; ``leadership`` is entered and left by whoever made it."""

    def __init__(self, settings: Settings, client: Client, metrics: Metrics) -> None:
        self.settings = settings
        self.metrics = metrics
        self.resume_info: ResumeInfo | None = None
        self.listeners: dict[Callable[[Standing], None], None] = {}
        """Called with each new standing; they must not block or raise."""
        self.leadership = Leadership(
            client,
            settings.topic,
            ProducerOptions(
                name=settings.name,
                priority=settings.priority,
                properties={"onewriter.identity": settings.identity},
                pending_messages_max=settings.pending_messages_max,
                pending_bytes_max=settings.pending_bytes_max,
            ),
            on_elected=self._elected,
            on_change=self._changed,
        )

    @property
    def standing(self) -> Standing:
        """Where we stand."""
        return self.leadership.standing

    @property
    def is_ready(self) -> bool:
        """What /readyz says: leading, or at least in line where that is enough."""
        standing = self.standing
        if standing.phase is Phase.LEADING:
            return standing.is_connected
        return (
            self.settings.ready_when == "standing-by"
            and standing.phase is Phase.QUEUEING
            and standing.is_connected
        )

    def view(self, standing: Standing) -> dict[str, Any]:
        """A standing as GET /leadership shows it."""
        leads = standing.phase is Phase.LEADING
        term = standing.term if leads else None
        loss = None
        if standing.last_term is not None:
            loss = {"epoch": standing.last_term.epoch, "reason": str(standing.loss)}
        return {
            "version": standing.version,
            "topic": self.settings.topic,
            "phase": standing.phase.value,
            "leading": leads,
            "connected": standing.is_connected,
            "epoch": term.epoch if term is not None else None,
            "session": term.session if term is not None else None,
            "latestEpoch": standing.latest_epoch,
            "identity": self.settings.identity,
            "producerName": self.settings.name,
            "priority": self.settings.priority,
            "since": iso_time(standing.since),
            "trouble": standing.trouble,
            "lastLoss": loss,
        }

    async def verify(self) -> bool:
        """Whether a broker has just confirmed that we are in the place that we think we are."""
        term = self.leadership.term
        if term is None:
            return False
        try:
            async with asyncio.timeout(VERIFY_SECONDS):
                await term.producer.verify()
        except (TimeoutError, OnewriterError):
            return False
        return not term.is_over

    # ------------------------------------------------------------ publishing

    def term_of(self, session: str | None) -> Term:
        """The term that a session names, if it is the one we lead now. Raises Failure."""
        if not session:
            raise Failure(428, "no-session", "say under which session: GET /leadership gives it")
        found = _SESSION.fullmatch(session)
        if found is None:
            raise Failure(400, "bad-session", f"{session[:100]!r} is no session")
        term = self.leadership.term
        if term is not None and term.session == session:
            return term
        self.metrics.conflicts.inc()
        if term is None:
            reason = "this sidecar does not lead"
        else:
            reason = f"the session is not that of the present term, which has epoch {term.epoch}"
        raise conflict(int(found[1]), self.standing, reason)

    async def publish(self, session: str | None, message: Message) -> MessageId:
        """Append one message under a session. Raises Failure, which says what is certain."""
        with self.metrics.publishing() as outcome:
            term = self.term_of(session)
            try:
                message_id = await term.producer.send(
                    message.content,
                    key=message.key,
                    properties=message.properties,
                    event_time_ms=message.event_time_ms,
                    timeout_seconds=self.settings.publish_timeout_seconds,
                )
            except OnewriterError as error:
                raise of_sending(error, term.epoch, self.standing) from error
            outcome.stored()
        return message_id

    async def put_resume_info(self, info: ResumeInfo, session: str | None) -> MessageId | None:
        """Keep it for the next takeover; with a session publish it now, too. Raises Failure."""
        if session is None:
            self.resume_info = info
            return None
        term = self.term_of(session)
        self.resume_info = info
        return await self.publish(session, self._announcement(term))

    # ------------------------------------------------------------ leaving

    async def release(self, *, rejoin: bool) -> None:
        """Hand over to the next in line; see Leadership.release."""
        await self.leadership.release(rejoin=rejoin, timeout_seconds=self.settings.stop_seconds)

    # ------------------------------------------------------------ inside

    async def _elected(self, term: Term) -> None:
        """PIP-440: a new leader's first message says who it is."""
        producer = term.producer
        self.metrics.watch_pending(
            lambda: producer.pending_messages, lambda: producer.pending_bytes
        )
        if self.resume_info is None and not self.settings.announce:
            return
        message = self._announcement(term)
        await term.producer.send(
            message.content,
            key=message.key,
            properties=message.properties,
            timeout_seconds=ANNOUNCE_SECONDS,
        )

    def _announcement(self, term: Term) -> Message:
        settings = self.settings
        content = {
            "kind": KIND_LEADER,
            "version": 1,
            "topic": settings.topic,
            "epoch": term.epoch,
            "identity": settings.identity,
            "priority": settings.priority,
            "producerName": term.producer.name,
            "at": iso_time(datetime.now(UTC).timestamp()),
            **(self.resume_info.as_fields() if self.resume_info is not None else {}),
        }
        return Message(
            json.dumps(content).encode(),
            key=ANNOUNCEMENT_KEY,
            properties={KIND_PROPERTY: KIND_LEADER, EPOCH_PROPERTY: str(term.epoch)},
        )

    def _changed(self, standing: Standing) -> None:
        self.metrics.stands(standing)
        log.info(
            "leadership.changed",
            topic=self.settings.topic,
            phase=standing.phase.value,
            epoch=standing.term.epoch if standing.term is not None else None,
            latest_epoch=standing.latest_epoch,
            connected=standing.is_connected,
            trouble=standing.trouble,
        )
        for listener in list(self.listeners):
            listener(standing)


def iso_time(seconds: float) -> str:
    """ISO 8601 in UTC, milliseconds."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
