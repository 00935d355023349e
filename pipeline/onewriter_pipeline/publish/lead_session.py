"""The session in which a driver leads the topics of a query or a batch write: requests before and after each batch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access, understood
from onewriter_pipeline.brokers.names import log_name
from onewriter_pipeline.errors import Conflict, PipelineError
from onewriter_pipeline.lead.leader import Leader
from onewriter_pipeline.lead.requests import (
    BEGIN,
    END,
    EXCLUSIVE,
    LEAD,
    WAIT_FOR_EXCLUSIVE,
    Grant,
    LeaderRequest,
)
from onewriter_pipeline.publish import transfer
from onewriter_pipeline.publish.router import check_topics
from onewriter_pipeline.publish.staging import Publication
from onewriter_pipeline.publish.transfer import PublishTarget, StagedLog

WAIT_SECONDS: Final = 600.0
"""How long ``wait-for-exclusive`` waits for a topic."""

TOPIC_IDLE_SECONDS: Final = 300.0
"""How long a query's topics are led without a batch, by default."""

log = logging.getLogger("onewriter")


@dataclass(frozen=True, slots=True)
class LeadSession:
    """How to lead the topics of one query or one batch write; can be pickled.

    ``use`` identifies it among those of the driver. ``service_url`` empty: the brokers' HTTP address determines it.
    """

    use: str
    leader: Leader
    mode: str = EXCLUSIVE
    service_url: str = ""
    idle_seconds: float = TOPIC_IDLE_SECONDS

    def begin(self, target: PublishTarget, app: str) -> PublishTarget:
        """Begin a batch. Returns the target with the epochs of the topics that are known so far.

        ``app`` is empty if it is not known yet. Raises PipelineError: Conflict if another producer holds the topic,
        or has taken it from this driver since the last batch.
        """
        topics = {str(log_name(target.topic)): 0} if target.topic else {}
        return replace(target, grants=self._granted(BEGIN, target, app, topics))

    def publish(
        self,
        target: PublishTarget,
        app: str,
        version: int,
        staged: Iterable[StagedLog],
        begun_under: Mapping[str, int],
    ) -> dict[str, Publication]:
        """Publish a batch with ``transfer.publish``, under the epochs with which it began.

        From now on the driver also leads the topics that the rows name. Raises the errors of ``begin`` and
        ``transfer.publish``.
        """
        staged = list(staged)
        topics = dict(begun_under)
        if not target.topic:
            topics |= {str(log_name(each.log).base): 0 for each in staged}
            check_topics(topics)
        granted = replace(target, grants=self._granted(LEAD, target, app, topics))
        try:
            return transfer.publish(granted, app, version, staged)
        except Conflict as error:
            raise _with_holder(error, target.access, granted.grants) from error

    def end(self, *, is_over: bool) -> None:
        """End a batch; ``is_over``: no other batch follows. Never raises, because the leader process releases
        topics after a time.
        """
        try:
            self.leader.end(LeaderRequest(END, self.use, is_over=is_over))
        except PipelineError as error:
            log.warning(
                "the end of a batch could not be reported to the driver's leader process: %s", error
            )

    def _granted(
        self, what: str, target: PublishTarget, app: str, topics: Mapping[str, int]
    ) -> dict[str, Grant]:
        access = target.access
        patience = access.patience_seconds
        waits = max(patience, WAIT_SECONDS) if self.mode == WAIT_FOR_EXCLUSIVE else patience
        request = LeaderRequest(
            what,
            self.use,
            access=access,
            service_url=self._service_url(access, topics),
            mode=self.mode,
            wait_seconds=waits,
            idle_seconds=self.idle_seconds,
            app=target.app(app) if app else "",
            topics=topics,
        )
        try:
            return self.leader.grants(request)
        except Conflict as error:
            none = dict.fromkeys(topics, Grant(0))
            raise _with_holder(error, access, none) from error

    def _service_url(self, access: Access, topics: Mapping[str, int]) -> str:
        """The service URL of the brokers (Pulsar's protocol), from the look-up of a topic."""
        wanted = [topic for topic, epoch in topics.items() if not epoch]
        if self.service_url or not wanted:
            return self.service_url
        with Broker(access) as broker:
            return broker.service_url(wanted[0])


def _with_holder(error: Conflict, access: Access, grants: Mapping[str, Grant]) -> Conflict:
    """Add to an error which producers lead the topics now, as far as brokers know."""
    found: list[str] = []
    with Broker(replace(access, patience_seconds=0.0)) as broker:
        for topic, grant in grants.items():
            try:
                with understood():
                    answer = broker.topic(topic)
                    holder, epoch = answer["holder"], int(answer["epoch"])
                    if holder is not None and epoch != grant.epoch:
                        found.append(f"{topic} is led by {holder['producerName']}, epoch {epoch}")
            except PipelineError as unknown:
                log.debug("who leads %s is not known: %s", topic, unknown)
    named = Conflict(". ".join([str(error), *found]))
    for note in getattr(error, "__notes__", ()):
        named.add_note(note)
    return named
