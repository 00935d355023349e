"""The decisions of ``onewriter_core.authorization``, as the broker's rooms ask for them today."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from onewriter_broker.settings import Settings
from onewriter_core.api import ExclusiveTopic, ProducerClaim
from onewriter_core.api.common import INT32_MAX, INT32_MIN
from onewriter_core.authorization import (
    Action,
    AskedProducer,
    Denied,
    Granted,
    PodsOf,
    Policy,
    Principal,
    RoleSubjects,
    TopicResource,
    UndeclaredTopics,
    may,
    subjects_of,
)
from onewriter_core.authorization.claims import no_pods
from onewriter_core.ids import Identity, TopicName
from onewriter_core.topic.model import AccessMode

PRIORITY_PROPERTY: Final = "onewriter.queue-priority"
"""The producer property that carries PIP-440's queue priority; every stock client can set it."""

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)

Admission = Granted

_OPEN: Final = UndeclaredTopics()


class AskedPriority(NamedTuple):
    """The priority that a producer asked for, None when it asked for none.

    ``note`` is for the audit: what it sent instead of a priority.
    """

    value: int | None
    note: str | None = None


def _granted(decision: Granted | Denied) -> Granted:
    if isinstance(decision, Denied):
        raise decision.error()
    return decision


def check_topic(
    name: TopicName, topic: ExclusiveTopic | None, undeclared: UndeclaredTopics
) -> None:
    """Refuse a topic that is not declared and may not be made: lookups and consumers ask this too.

    Raises Refused: TOPIC_NOT_FOUND, or NOT_ALLOWED_ERROR for a domain that is not served.
    """
    resource = TopicResource(name, topic, policy=Policy(undeclared=undeclared))
    _granted(may(Principal(Identity()), Action.CREATE_TOPIC, resource))


def admit(
    name: TopicName,
    topic: ExclusiveTopic | None,
    claims: Iterable[ProducerClaim],
    identity: Identity,
    mode: AccessMode,
    asked_priority: int | None,
    undeclared: UndeclaredTopics = _OPEN,
    pods_of: PodsOf = no_pods,
) -> Admission:
    """Decide whether a producer may write to ``name``; raises Refused."""
    resource = TopicResource(name, topic, tuple(claims), pods_of, Policy(undeclared=undeclared))
    asked = AskedProducer(mode, asked_priority)
    return _granted(may(Principal(identity), Action.PRODUCE, resource, asked))


def check_owner(
    name: TopicName,
    topic: ExclusiveTopic | None,
    claims: Iterable[ProducerClaim],
    identity: Identity,
    undeclared: UndeclaredTopics = _OPEN,
    pods_of: PodsOf = no_pods,
) -> None:
    """Decide whether somebody may own a topic or partition; raises Refused."""
    resource = TopicResource(name, topic, tuple(claims), pods_of, Policy(undeclared=undeclared))
    _granted(may(Principal(identity), Action.OWN, resource))


def roles_of(settings: Settings) -> RoleSubjects:
    """Who has which role by the settings."""
    return RoleSubjects(
        subjects_of(settings.admin_subjects),
        subjects_of(settings.observer_subjects),
        subjects_of(settings.pipeline_subjects),
        authentication_required=settings.authentication_required,
    )


def is_administrator(identity: Identity, settings: Settings) -> bool:
    """Whether somebody may change things over HTTP: setting ``admin_subjects``."""
    return roles_of(settings).principal(identity).is_administrator


def may_reset(
    claims: Iterable[ProducerClaim],
    identity: Identity,
    settings: Settings,
    pods_of: PodsOf = no_pods,
) -> bool:
    """Whether somebody may own by generation 0, whoever owns now, under these claims of a topic."""
    resource = TopicResource(TopicName.parse("any"), None, tuple(claims), pods_of)
    principal = roles_of(settings).principal(identity)
    return isinstance(may(principal, Action.RESET_OWNERSHIP, resource), Granted)


def parse_priority(properties: Mapping[str, str], wire_value: int | None) -> AskedPriority:
    """The priority that a PRODUCER command asks for; never raises.

    The wire field wins over the property ``onewriter.queue-priority``. What is not a signed 32-bit
    number counts as 0 and leaves a note.
    """
    if wire_value is not None:
        if INT32_MIN <= wire_value <= INT32_MAX:
            return AskedPriority(wire_value)
        return AskedPriority(0, f"queue priority {wire_value} is not a signed 32-bit number")
    text = properties.get(PRIORITY_PROPERTY)
    if text is None:
        return AskedPriority(None)
    if _WHOLE_NUMBER.fullmatch(text) and INT32_MIN <= int(text) <= INT32_MAX:
        return AskedPriority(int(text))
    return AskedPriority(0, f"{PRIORITY_PROPERTY} {text[:40]!a} is not a signed 32-bit number")
