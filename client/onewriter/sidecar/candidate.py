"""The sidecar's candidacy: sessions, the announcement at a takeover, publishing, release.

A **session** is ``<epoch>-<nonce>``: one term of this process. Each publish request names its session, so a message
for an earlier term is never published under a later one, even if this process leads again meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from onewriter._client import Client
from onewriter._errors import OnewriterError
from onewriter._lead.announcement import LeaderInfo, host_name, iso_time
from onewriter._lead.candidacy import Candidacy, Phase, Standing
from onewriter._lead.leadership import ANNOUNCE_SECONDS, Leadership
from onewriter._message import MessageId
from onewriter._produce.tenure import ProducerOptions
from onewriter.sidecar.errors import Failure, conflict, of_sending
from onewriter.sidecar.limits import DEFAULT_LIMITS, SidecarLimits
from onewriter.sidecar.metrics import Metrics
from onewriter.sidecar.settings import Settings
from onewriter_core.property_names import IDENTITY_PROPERTY

_SESSION = re.compile(r"(\d{1,16})-[0-9a-f]{16}")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SidecarMessage:
    """A message from an application."""

    content: bytes
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    event_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class ResumeInfo:
    """The resume info: the application's data for its successors, as it was received."""

    content: bytes
    content_type: str

    def as_metadata(self) -> Any:
        """Return JSON as a value, text as a string, any other content as bytes."""
        try:
            text = self.content.decode()
        except UnicodeDecodeError:
            return self.content
        return json.loads(text) if self.content_type == "application/json" else text


class Candidate:
    """Requires an open client. The caller enters and leaves ``candidacy``."""

    def __init__(
        self,
        settings: Settings,
        client: Client,
        metrics: Metrics,
        limits: SidecarLimits = DEFAULT_LIMITS,
    ) -> None:
        self.settings = settings
        self.limits = limits
        self.metrics = metrics
        self.resume_info: ResumeInfo | None = None
        self.listeners: dict[Callable[[Standing], None], None] = {}
        """Callbacks for each new standing; they must not block or raise."""
        self.candidacy = Candidacy(
            client,
            settings.topic,
            ProducerOptions(
                name=settings.name,
                queue_priority=settings.priority,
                properties={IDENTITY_PROPERTY: settings.identity},
                pending_messages_max=settings.pending_messages_max,
                pending_bytes_max=settings.pending_bytes_max,
            ),
            on_elected=self._elected,
            on_change=self._changed,
        )

    @property
    def standing(self) -> Standing:
        """The current standing."""
        return self.candidacy.standing

    @property
    def is_ready(self) -> bool:
        """Whether /readyz succeeds: the sidecar leads or, if the settings allow that, is queued."""
        standing = self.standing
        if standing.phase is Phase.LEADING:
            return standing.is_connected
        return (
            self.settings.ready_when == "standing-by"
            and standing.phase is Phase.QUEUEING
            and standing.is_connected
        )

    def view(self, standing: Standing) -> dict[str, Any]:
        """Return a standing as GET /leadership shows it."""
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
        """Let a broker confirm the current standing; return whether it did."""
        term = self.candidacy.term
        if term is None:
            return False
        try:
            async with asyncio.timeout(self.limits.verify_seconds):
                await term.producer.verify()
        except (TimeoutError, OnewriterError):
            return False
        return not term.is_over

    # ------------------------------------------------------------ publishing

    def term_of(self, session: str | None) -> Leadership:
        """Return the term of a session if it is the current one. Raises Failure."""
        if not session:
            raise Failure(
                428,
                "no-session",
                "the request names no session; GET /leadership returns the current one",
            )
        found = _SESSION.fullmatch(session)
        if found is None:
            raise Failure(400, "bad-session", f"invalid session {session[:100]!r}")
        term = self.candidacy.term
        if term is not None and term.session == session:
            return term
        self.metrics.conflicts.inc()
        if term is None:
            reason = "this sidecar does not lead"
        else:
            reason = f"the session {session} is over; the current term has epoch {term.epoch}"
        raise conflict(int(found[1]), self.standing, reason)

    async def publish(
        self, session: str | None, message: SidecarMessage, guarded: str | None = None
    ) -> MessageId:
        """Append one message under a session. Raises Failure, which states what is certain.

        With ``guarded`` the message goes to that topic, under the guard of the led topic.
        """
        with self.metrics.publishing() as outcome:
            term = self.term_of(session)
            try:
                writer = term.producer if guarded is None else term.guarded(guarded)
                message_id = await writer.send(
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
        """Store it for the next takeover, and publish it now if a session is given. Raises Failure."""
        if session is None:
            self.resume_info = info
            return None
        term = self.term_of(session)
        self.resume_info = info
        return await self.publish(session, self._announcement(term))

    # ------------------------------------------------------------ release

    async def release(self, *, rejoin: bool) -> None:
        """Hand the topic over to the first waiter; see Candidacy.release."""
        await self.candidacy.release(rejoin=rejoin, timeout_seconds=self.settings.stop_seconds)

    # ------------------------------------------------------------ inside

    async def _elected(self, term: Leadership) -> None:
        """Publish the announcement as the leader's first message (PIP-440)."""
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

    def _announcement(self, term: Leadership) -> SidecarMessage:
        settings = self.settings
        info = LeaderInfo(
            topic=settings.topic,
            epoch=term.epoch,
            identity=settings.identity,
            host=host_name(),
            priority=settings.priority,
            producer_name=term.producer.name,
            at=iso_time(datetime.now(UTC).timestamp()),
            metadata=None if self.resume_info is None else self.resume_info.as_metadata(),
        )
        announcement = info.announcement()
        return SidecarMessage(
            announcement.content, key=announcement.key, properties=announcement.properties
        )

    def _changed(self, standing: Standing) -> None:
        self.metrics.candidate_changed(standing)
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
