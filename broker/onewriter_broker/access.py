"""Who may write to a topic, in which mode and with what priority: pure decisions.

Nothing here knows connections, queues or epochs; the topic machine decides *when* somebody writes.
What a claim itself allows is in ``onewriter_core.api.claim``; how an identity is proved is in
``tokens``.

The refusals are told apart deliberately. What the topic forbids to everybody is NotAllowedError: no
credential would help. What it forbids to this identity is AuthorizationError: another identity, or
a claim, would. A topic that does not exist and may not be made is TopicNotFound, as in Pulsar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from onewriter_broker.settings import Settings
from onewriter_core.api import ExclusiveTopic, ProducerClaim
from onewriter_core.api.claim import Permission
from onewriter_core.api.common import INT32_MAX, INT32_MIN, MODE_WORDS
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import Identity, TopicName
from onewriter_core.topic.model import AccessMode

PRIORITY_PROPERTY: Final = "onewriter.queue-priority"
"""The producer property that carries PIP-440's queue priority; every stock client can set it."""

PodsOf = Callable[[ProducerClaim], Container[str]]
"""The uids of the pods that a claim's podSelector selects, as far as they are known."""


def _no_pods(_claim: ProducerClaim) -> Container[str]:
    return ()


_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class UndeclaredTopics:
    """What happens to a topic that no ExclusiveTopic declares.

    With ``are_refused`` it does not exist. Otherwise it may be made in ``namespaces``
    (``tenant/namespace`` each), with the defaults and without claims.
    """

    are_refused: bool = False
    namespaces: Container[str] = frozenset({"public/default"})


@dataclass(frozen=True, slots=True)
class Admission:
    """A producer may write; ``claim_name`` is the claim that says so, empty when none was needed.

    ``priority`` is the one in effect (decided at registration; a claim edited later counts for the
    next one). ``may_take_over``: it may depose the holder.
    """

    priority: int
    claim_name: str
    may_take_over: bool


class AskedPriority(NamedTuple):
    """The priority that a producer asked for, None when it asked for none.

    ``note`` is for the audit: what it sent instead of a priority.
    """

    value: int | None
    note: str | None = None


def check_topic(
    name: TopicName, topic: ExclusiveTopic | None, undeclared: UndeclaredTopics
) -> None:
    """Refuse a topic that is not declared and may not be made: lookups and consumers ask this too.

    Raises Refused: TOPIC_NOT_FOUND, or NOT_ALLOWED_ERROR for a domain that is not served.
    """
    if name.domain != "persistent":
        raise Refused(ServerError.NOT_ALLOWED_ERROR, "only persistent topics are served here")
    if topic is not None:
        return
    if undeclared.are_refused:
        raise Refused(
            ServerError.TOPIC_NOT_FOUND,
            f"no ExclusiveTopic declares {name.base}, and this is required",
        )
    if name.namespace_name not in undeclared.namespaces:
        raise Refused(
            ServerError.TOPIC_NOT_FOUND, f"no namespace {name.namespace_name} exists here"
        )


def admit(
    name: TopicName,
    topic: ExclusiveTopic | None,
    claims: Iterable[ProducerClaim],
    identity: Identity,
    mode: AccessMode,
    asked_priority: int | None,
    undeclared: UndeclaredTopics = UndeclaredTopics(),
    pods_of: PodsOf = _no_pods,
) -> Admission:
    """Decide whether a producer may write to ``name``; raises Refused.

    ``topic`` is its declaration, None when there is none; ``claims`` are the claims for it, and
    ``pods_of`` says which pods each one's podSelector is known to select. A
    producer that matches claims is bound by them even where no claim is required; of several that
    admit it, the one with the highest priority counts, then the first by name. Without a required
    or matching claim Pulsar's behaviour holds: every mode that the topic allows, takeover included.

    A priority outside WaitForExclusive is 0, whatever was asked.
    """
    check_topic(name, topic, undeclared)
    if topic is None:
        return Admission(_queue_priority(mode, asked_priority or 0), "", may_take_over=True)
    if mode not in topic.spec.access.modes:
        allowed = ", ".join(MODE_WORDS[each] for each in topic.spec.access.modes)
        raise Refused(
            ServerError.NOT_ALLOWED_ERROR,
            f"{name.base} does not allow access mode {MODE_WORDS[mode]}; it allows {allowed}",
        )
    claims = tuple(claims)
    matching = sorted(
        (claim for claim in claims if matches(claim, identity, pods_of)),
        key=lambda claim: (-claim.spec.priority_in_effect(asked_priority), claim.metadata.name),
    )
    if not matching:
        if topic.spec.access.require_claim:
            _check_not_yet_known(claims, identity)
            raise Refused(
                ServerError.AUTHORIZATION_ERROR,
                f"{name.base} requires a ProducerClaim, and none matches {identity}",
            )
        return Admission(_queue_priority(mode, asked_priority or 0), "", may_take_over=True)
    objections = []
    for claim in matching:
        objection = claim.spec.refuses_mode(mode)
        if objection is None:
            return Admission(
                _queue_priority(mode, claim.spec.priority_in_effect(asked_priority)),
                claim.metadata.name,
                may_take_over=claim.spec.refuses_mode(AccessMode.EXCLUSIVE_WITH_FENCING) is None,
            )
        objections.append(f"{claim.metadata.name} {objection}")
    raise Refused(
        ServerError.AUTHORIZATION_ERROR,
        f"mode {MODE_WORDS[mode]} is not for {identity}: ProducerClaim {'; '.join(objections)}",
    )


def check_owner(
    name: TopicName,
    topic: ExclusiveTopic | None,
    claims: Iterable[ProducerClaim],
    identity: Identity,
    undeclared: UndeclaredTopics = UndeclaredTopics(),
    pods_of: PodsOf = _no_pods,
) -> None:
    """Decide whether somebody may own a topic or partition; raises Refused.

    Where a claim is required to write to it, one is required to own it, of whatever mode: an owner
    closes readers, and its generation guards what it writes.
    """
    check_topic(name, topic, undeclared)
    if topic is None or not topic.spec.access.require_claim:
        return
    claims = tuple(claims)
    if not any(matches(claim, identity, pods_of) for claim in claims):
        _check_not_yet_known(claims, identity)
        raise Refused(
            ServerError.AUTHORIZATION_ERROR,
            f"{name.base} requires a ProducerClaim, and none matches {identity}",
        )


def is_administrator(identity: Identity, settings: Settings) -> bool:
    """Whether somebody may change things over HTTP: setting ``admin_subjects``."""
    names = {name.strip() for name in settings.admin_subjects.split(",") if name.strip()}
    if not names and not settings.authentication_required:
        return True
    return identity.subject in names


def may_reset(
    claims: Iterable[ProducerClaim],
    identity: Identity,
    settings: Settings,
    pods_of: PodsOf = _no_pods,
) -> bool:
    """Whether somebody may own by generation 0, whoever owns now, under these claims of a topic."""
    return is_administrator(identity, settings) or any(
        Permission.RESET_OWNERSHIP in claim.spec.allow and matches(claim, identity, pods_of)
        for claim in claims
    )


def matches(claim: ProducerClaim, identity: Identity, pods_of: PodsOf = _no_pods) -> bool:
    """Whether the claim is for that identity; nobody's claim is for somebody anonymous.

    A ServiceAccount is recognised by its full subject and, for static tokens, by its bare name. A
    podSelector selects the pods that it is known to select, by their uids.
    """
    subject = claim.spec.subject
    if identity.is_anonymous:
        return False
    if subject.token_subject is not None:
        return identity.subject == subject.token_subject
    if subject.pod_selector is not None and identity.pod_uid not in pods_of(claim):
        return False
    return _is_account(claim, identity)


def _is_account(claim: ProducerClaim, identity: Identity) -> bool:
    """Whether the identity is the claim's ServiceAccount, or one of its namespace if it names none."""
    account = f"system:serviceaccount:{claim.metadata.namespace}:"
    name = claim.spec.subject.service_account_name
    if name is None:
        return identity.subject.startswith(account)
    return identity.subject in {name, account + name}


def _check_not_yet_known(claims: Iterable[ProducerClaim], identity: Identity) -> None:
    """Send a pod that a podSelector may select away to come again: its uid may not be here yet.

    Whoever resolves selectors hears of a pod before its containers start, but may be away itself.
    """
    for claim in claims:
        is_open = claim.spec.subject.pod_selector is not None and identity.pod_uid
        if is_open and _is_account(claim, identity):
            raise Refused(
                ServerError.SERVICE_NOT_READY,
                f"{identity} is not among the pods that ProducerClaim {claim.metadata.name} is"
                " known to select, or not yet",
            )


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


def _queue_priority(mode: AccessMode, priority: int) -> int:
    return priority if mode is AccessMode.WAIT_FOR_EXCLUSIVE else 0
