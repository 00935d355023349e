"""Authorization in this broker: asks ``onewriter_core.authorization`` with the present settings, declarations
and claims.

Every refusal is counted by the missing right and logged with details that the client does not get. A flood of
refusals writes a bounded number of lines.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterable
from typing import Final

import structlog

from onewriter_broker.auth.refusals import TopicRefusals
from onewriter_broker.settings import Settings
from onewriter_broker.ticks import Ticks
from onewriter_core.api.manifests import DesiredState
from onewriter_core.authorization import (
    Action,
    Denied,
    EpochResource,
    Granted,
    NamespaceResource,
    Policy,
    Principal,
    RequestedProducer,
    Resource,
    Role,
    RoleSubjects,
    TopicResource,
    UndeclaredTopics,
    may,
    subjects_of,
)
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import Identity, InvalidTopicName, TopicName

LINES_PER_PERIOD: Final = 20
"""Refusals that are logged in one period; further ones are counted."""

PERIOD_SECONDS: Final = 10.0

NAMES_PER_TICK: Final = 200
"""Topics of a listing that are checked in one tick of the event loop: one or two milliseconds."""

RESOURCE_LENGTH_MAX: Final = 256
"""Characters of a resource's name in a log line."""

DECLARATIONS_UNKNOWN: Final = (
    "this broker has not received the desired state of its topics yet; retry later"
)
"""The refusal until the declarations arrive. Before that, every topic would count as undeclared, and the broker would
allow what a declaration forbids."""

log = structlog.get_logger(__name__)


class Authorization:
    """The decisions of one broker. ``desired`` returns the present declarations.

    ``has_declarations``: the broker has received its declarations. Until then only administrators have rights to
    topics.
    """

    def __init__(
        self,
        settings: Settings,
        undeclared: Container[str],
        desired: Callable[[], DesiredState],
        clock: Callable[[], float] = time.monotonic,
        has_declarations: Callable[[], bool] = lambda: True,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.refusals: Counter[str] = Counter()
        """Refused requests by the right that was missing."""
        self.at_topics = TopicRefusals(wall_ms)
        """Refusals at declared topics, for their owners."""
        self._roles = RoleSubjects(
            subjects_of(settings.admin_subjects),
            subjects_of(settings.observer_subjects),
            subjects_of(settings.pipeline_subjects),
            authentication_required=settings.authentication_required,
        )
        self._policy = Policy(
            settings.consumers_default,
            UndeclaredTopics(settings.require_declared, undeclared),
            with_bare_account_names=not settings.token_review,
        )
        self._desired = desired
        self._clock = clock
        self._has_declarations = has_declarations
        self._period_end = 0.0
        self._lines = 0
        self._unwritten = 0

    # ------------------------------------------------------------ values

    def principal(self, identity: Identity) -> Principal:
        """An identity with the roles from the settings."""
        return self._roles.principal(identity)

    def topic(self, name: TopicName) -> TopicResource:
        """A topic with the present declarations on which decisions about it depend."""
        desired = self._desired()
        declared = desired.topic(name)
        claims = () if declared is None else desired.claims_for(declared)
        return TopicResource(name, declared, claims, desired.pods_of, self._policy)

    def namespace(self, name: str) -> NamespaceResource:
        """A namespace ``tenant/namespace``, or a whole tenant."""
        return NamespaceResource(name, self._policy)

    # ------------------------------------------------------------ decisions

    def may(
        self,
        identity: Identity,
        action: Action,
        resource: Resource | TopicName,
        requested: RequestedProducer | None = None,
    ) -> Granted | Denied:
        """The decision, without counting or logging it: to filter what a listing shows."""
        if isinstance(resource, TopicName):
            resource = self.topic(resource)
        principal = self.principal(identity)
        if (
            isinstance(resource, TopicResource)
            and not self._has_declarations()
            and not principal.is_administrator
        ):
            return Denied(action, DECLARATIONS_UNKNOWN, ServerError.SERVICE_NOT_READY)
        return may(principal, action, resource, requested)

    def require(
        self,
        identity: Identity,
        action: Action,
        resource: Resource | TopicName,
        requested: RequestedProducer | None = None,
    ) -> Granted:
        """The decision for a request. Raises Refused if the right is missing, and counts and logs that."""
        decision = self.may(identity, action, resource, requested)
        if isinstance(decision, Denied):
            self._refused(identity, resource, decision)
            raise decision.error()
        return decision

    def allows(self, identity: Identity, action: Action, resource: Resource | TopicName) -> bool:
        """Whether the right is granted."""
        return isinstance(self.may(identity, action, resource), Granted)

    def sees(self, identity: Identity, name: TopicName | str) -> bool:
        """Whether a listing shows the topic to the caller."""
        try:
            topic = TopicName.parse(name) if isinstance(name, str) else name
        except InvalidTopicName:
            return self.sees_all(identity)
        return self.allows(identity, Action.OBSERVE, topic)

    def sees_all(self, identity: Identity) -> bool:
        """Whether every listing shows the caller everything."""
        return self.principal(identity).has(*Role)

    def may_see_refusals(self, identity: Identity, name: TopicName) -> bool:
        """Whether the caller may see the refusals at a topic: its owner, or an administrator."""
        return self.allows(identity, Action.OWN, name) or self.allows(
            identity, Action.ADMINISTER_TOPIC, name
        )

    async def seen(self, identity: Identity, names: Iterable[str]) -> list[str]:
        """The topics of ``names`` that a listing shows to the caller.

        Raises Refused until the declarations are known, because the list would be wrong.
        """
        if self.sees_all(identity):
            return list(names)
        if not self._has_declarations():
            raise Refused(ServerError.SERVICE_NOT_READY, DECLARATIONS_UNKNOWN)
        found, ticks = [], Ticks(NAMES_PER_TICK)
        for name in list(names):
            await ticks.step()
            if self.sees(identity, name):
                found.append(name)
        return found

    def _refused(self, identity: Identity, resource: Resource | TopicName, denied: Denied) -> None:
        if not denied.is_a_missing_right:
            return
        self.refusals[denied.right.value] += 1
        if isinstance(resource, TopicResource | EpochResource):
            resource = resource.name
        if isinstance(resource, TopicName) and self._desired().topic(resource.base) is not None:
            self.at_topics.note(resource, identity, denied.right)
        now = self._clock()
        if now >= self._period_end:
            if self._unwritten:
                log.warning("access.refused_more", count=self._unwritten)
            self._period_end, self._lines, self._unwritten = now + PERIOD_SECONDS, 0, 0
        if self._lines >= LINES_PER_PERIOD:
            self._unwritten += 1
            return
        self._lines += 1
        log.warning(
            "access.refused",
            right=denied.right.value,
            subject=identity.subject or "anonymous",
            pod_uid=identity.pod_uid or None,
            resource=str(resource)[:RESOURCE_LENGTH_MAX],
            reason=denied.reason[: RESOURCE_LENGTH_MAX * 2],
            detail=denied.detail[: RESOURCE_LENGTH_MAX * 4] or None,
        )
