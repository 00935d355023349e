"""The authorization decision: ``may``.

The error codes differ on purpose. NOT_ALLOWED_ERROR: the topic forbids the action to all identities.
AUTHORIZATION_ERROR: it forbids the action to this identity; another identity, or a claim, would be allowed.
TOPIC_NOT_FOUND: the topic does not exist and must not be created, as in Pulsar.

An identity without any right to a topic gets the same answer for an existing topic and, if topics belong to
namespaces, for a missing one. ``Denied.detail`` has what the declaration says. It is for the log, not for the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from onewriter_core.api.claim import Permission, ProducerClaim
from onewriter_core.api.common import MODE_WORDS
from onewriter_core.authorization.claims import matches, may_match_later
from onewriter_core.authorization.principals import Principal, Role
from onewriter_core.authorization.resources import (
    ConsumersDefault,
    EpochResource,
    Installation,
    NamespaceResource,
    OwnedResource,
    Proof,
    Resource,
    TopicResource,
)
from onewriter_core.errors import Refused, ServerError
from onewriter_core.publish_rights import CAPABILITY_HEADER, REGISTRATION_HEADER
from onewriter_core.topic.model import AccessMode


class Action(StrEnum):
    """An action that needs a right. The value is the name of the right in errors, logs and metrics."""

    PRODUCE = "produce"
    """Write to a topic in some access mode, and hold it if the mode is exclusive."""
    PUBLISH_UNDER_EPOCH = "publish_under_epoch"
    """Stage and publish blocks over HTTP on behalf of the topic's holder."""
    STAGE = "stage"
    """Prepare a publish under an epoch: record the number of partitions that its rows are routed to."""
    CONSUME = "consume"
    """Read messages, blocks and segments of a topic, and its end."""
    CHANGE_SUBSCRIPTION = "change_subscription"
    """Seek, skip, acknowledge over HTTP, unsubscribe, create a subscription over HTTP."""
    OWN = "own"
    """Own a topic, a partition or a resource by name."""
    RESET_OWNERSHIP = "reset_ownership"
    """Own with generation 0, which deposes any present owner."""
    READ_SCHEMA = "read_schema"
    """Read the schemas of a topic. Its producers and consumers need them."""
    GUARD = "guard"
    """Guard other writes by the topic's epoch, or ask whether an epoch is current."""
    CREATE_SCHEMA = "create_schema"
    """Add a version to a topic's schemas."""
    CREATE_TOPIC = "create_topic"
    """Create a topic that is declared, or that may be used undeclared."""
    LOOK_UP = "look_up"
    """Ask for the broker and the number of partitions of a topic."""
    OBSERVE = "observe"
    """List a topic and read its status and history; of the installation: metrics, all topics."""
    TRIM = "trim"
    """Remove entries that are stored elsewhere."""
    ADMINISTER_TOPIC = "administer_topic"
    ADMINISTER_NAMESPACE = "administer_namespace"
    ADMINISTER_INSTALLATION = "administer_installation"


@dataclass(frozen=True, slots=True)
class RequestedProducer:
    """The access mode that a producer asks for. ``priority``: None if it asks for none."""

    mode: AccessMode
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """The action is allowed. The fields are used only for PRODUCE with a RequestedProducer.

    ``claim_name`` is the claim that admits the producer, empty if none was needed. ``priority`` is the effective one,
    which is decided at registration: a claim that is edited later affects the next registration.
    ``may_take_over``: the producer may depose the holder.
    """

    priority: int = 0
    claim_name: str = ""
    may_take_over: bool = False


@dataclass(frozen=True, slots=True)
class Denied:
    """The action is not allowed. ``right`` is the missing right, ``reason`` a sentence for the client.

    ``detail`` is for the log: the client does not get it, because it has no right to the resource.
    """

    right: Action
    reason: str
    code: ServerError = ServerError.AUTHORIZATION_ERROR
    detail: str = ""

    @property
    def is_a_missing_right(self) -> bool:
        """Whether another identity could be allowed. If not, the topic forbids the action, or a retry may help."""
        return self.code is ServerError.AUTHORIZATION_ERROR

    def error(self) -> Refused:
        """The error that answers the request."""
        return Refused(self.code, self.reason)


_YES: Final = Granted()


def may(
    principal: Principal,
    action: Action,
    resource: Resource,
    requested: RequestedProducer | None = None,
) -> Granted | Denied:
    """Decide whether ``principal`` may do ``action`` to ``resource``.

    ``requested`` is for PRODUCE: with it the decision is about this access mode, without it about any mode that the topic
    allows.
    """
    match resource:
        case TopicResource():
            return _topic(principal, action, resource, requested)
        case EpochResource():
            return _under_epoch(principal, action, resource)
        case OwnedResource():
            return _owned(principal, action, resource)
        case NamespaceResource():
            return _namespace(principal, action, resource)
        case Installation():
            return _above_topics(principal, action, resource)


def _namespace(
    principal: Principal, action: Action, resource: NamespaceResource
) -> Granted | Denied:
    is_open = resource.policy.consumers_default is ConsumersDefault.EVERYONE
    if action is Action.OBSERVE and (is_open or principal.namespace == resource.namespace):
        return _YES
    return _above_topics(principal, action, resource)


def _above_topics(
    principal: Principal, action: Action, resource: NamespaceResource | Installation
) -> Granted | Denied:
    if principal.is_administrator:
        return _YES
    if action is Action.OBSERVE and principal.has(Role.OBSERVER):
        return _YES
    return _lacks(principal, action, resource, "the setting admin_subjects does not name it")


def _owned(principal: Principal, action: Action, resource: OwnedResource) -> Granted | Denied:
    """A resource belongs to the subject that owned it first, until it is released or dropped."""
    if principal.is_administrator:
        return _YES
    if action in {Action.OWN, Action.GUARD, Action.OBSERVE} and resource.first_subject in {
        None,
        "",
        principal.identity.subject,
    }:
        return _YES
    if action is Action.OBSERVE and principal.has(Role.OBSERVER):
        return _YES
    return _lacks(
        principal,
        action,
        resource,
        "another subject owned it first, and keeps it until it is released or an administrator"
        " drops its record",
        detail=f"its record belongs to {resource.first_subject}",
    )


def _topic(
    principal: Principal, action: Action, topic: TopicResource, requested: RequestedProducer | None
) -> Granted | Denied:
    if topic.name.domain != "persistent":
        text = "only persistent topics are served here"
        return Denied(action, text, ServerError.NOT_ALLOWED_ERROR)
    match action:
        case Action.PRODUCE | Action.CREATE_SCHEMA:
            return _produce(principal, action, topic, requested)
        case Action.PUBLISH_UNDER_EPOCH | Action.STAGE:
            return _lacks(principal, action, topic, _NO_PROOF[Proof.NONE])
        case Action.CONSUME | Action.CHANGE_SUBSCRIPTION:
            return _YES if _may_read(principal, topic) else _not_a_reader(principal, action, topic)
        case Action.OWN:
            return _own(principal, topic)
        case Action.RESET_OWNERSHIP:
            return _reset(principal, topic)
        case Action.CREATE_TOPIC:
            return _exists(principal, action, topic) or _YES
        case Action.LOOK_UP:
            return _look_up(principal, topic)
        case Action.GUARD | Action.READ_SCHEMA:
            if _may_read(principal, topic) or _may_write_somehow(principal, topic):
                return _YES
            return _not_a_reader(principal, action, topic)
        case Action.OBSERVE:
            if principal.has(Role.OBSERVER) or _may_read(principal, topic):
                return _YES
            return _not_a_reader(principal, action, topic)
        case Action.TRIM:
            if principal.has(Role.ADMINISTRATOR, Role.PIPELINE):
                return _YES
            text = "the settings admin_subjects and pipeline_subjects do not name it"
            return _lacks(principal, action, topic, text)
        case Action.ADMINISTER_TOPIC | Action.ADMINISTER_NAMESPACE | Action.ADMINISTER_INSTALLATION:
            if principal.is_administrator:
                return _YES
            text = "the setting admin_subjects does not name it"
            return _lacks(principal, action, topic, text)


# ------------------------------------------------------------ publishing under an epoch

_NO_PROOF: Final = {
    Proof.NONE: (
        f"the request shows neither the holder's registration ({REGISTRATION_HEADER}) nor a"
        f" capability that the holder passed on ({CAPABILITY_HEADER})"
    ),
    Proof.INVALID: (
        "the registration or capability that the request shows was not made for this topic, epoch,"
        " identity and app, or the epoch has ended"
    ),
    Proof.EXPIRED: "the capability that the request shows has expired; the holder can make another",
}


def _under_epoch(principal: Principal, action: Action, epoch: EpochResource) -> Granted | Denied:
    """Allow only the holder and the bearer of a capability that the holder made.

    A claim or a role is not sufficient: a standby has a claim, too, and the publish of an administrator would be
    recorded as the holder's.
    """
    if action not in {Action.PUBLISH_UNDER_EPOCH, Action.STAGE}:
        return _lacks(principal, action, epoch, "an epoch is only published under")
    holder = None if epoch.holder is None else epoch.holder.subject
    if action is Action.STAGE and principal.identity.subject == holder:
        return _YES  # a task of the holder's program, which may run in another pod
    match epoch.proof:
        case Proof.CAPABILITY:
            return _YES
        case Proof.REGISTRATION if principal.identity == epoch.holder:
            return _YES
        case Proof.REGISTRATION:
            why = "the registration that the request shows belongs to another identity"
            return _lacks(principal, action, epoch, why)
        case Proof.NONE | Proof.INVALID | Proof.EXPIRED:
            return _lacks(principal, action, epoch, _NO_PROOF[epoch.proof])


# ------------------------------------------------------------ reading


def _may_read(principal: Principal, topic: TopicResource) -> bool:
    """Decide READ: by role, by ``spec.access.consumers``, by the default, or by a claim."""
    if principal.has(Role.ADMINISTRATOR, Role.PIPELINE):
        return True
    identity = principal.identity
    if _matching(principal, topic):
        return True
    consumers = None if topic.declaration is None else topic.declaration.spec.access.consumers
    if consumers is None:
        return _is_open(topic) or principal.namespace == topic.namespace
    return (
        consumers.everyone
        or (bool(identity.subject) and identity.subject in consumers.subjects)
        or (principal.namespace is not None and principal.namespace in consumers.namespaces)
    )


def _is_open(topic: TopicResource) -> bool:
    """Whether all identities may read a topic without ``spec.access.consumers``."""
    return topic.policy.consumers_default is ConsumersDefault.EVERYONE


def _not_a_reader(principal: Principal, action: Action, topic: TopicResource) -> Denied:
    return _lacks(
        principal,
        action,
        topic,
        "spec.access.consumers of its ExclusiveTopic does not name it",
        detail=_who_reads(topic),
    )


def _who_reads(topic: TopicResource) -> str:
    consumers = None if topic.declaration is None else topic.declaration.spec.access.consumers
    if consumers is None:
        kind = "declares no consumers" if topic.declaration is not None else "is not declared"
        return f"it {kind}, so the ServiceAccounts of namespace {topic.namespace} may read it"
    named = [
        *(f"subject {subject}" for subject in consumers.subjects),
        *(f"namespace {namespace}" for namespace in consumers.namespaces),
    ]
    return f"its spec.access.consumers allow {', '.join(named) or 'nobody'}"


# ------------------------------------------------------------ writing


def _exists(principal: Principal, action: Action, topic: TopicResource) -> Denied | None:
    """Why an undeclared topic must not be used; None: it may be used."""
    if topic.declaration is not None:
        return None
    if not _may_read(principal, topic):
        if action is Action.CREATE_TOPIC:
            return _not_a_reader(principal, action, topic)
        return _no_claim(principal, action, topic, "it is not declared")
    undeclared = topic.policy.undeclared
    if undeclared.are_refused:
        text = f"no ExclusiveTopic declares {topic.name.base}, and this is required"
        return Denied(action, text, ServerError.TOPIC_NOT_FOUND)
    if topic.name.namespace_name not in undeclared.namespaces:
        text = f"no namespace {topic.name.namespace_name} exists here"
        return Denied(action, text, ServerError.TOPIC_NOT_FOUND)
    return None


def _produce(
    principal: Principal, action: Action, topic: TopicResource, requested: RequestedProducer | None
) -> Granted | Denied:
    """Decide PRODUCE. Matching claims restrict a producer even if the topic requires no claim.

    If several claims admit it, the one with the highest priority applies, then the first by name. If no claim is
    required and none matches, identities that ``_may_write_unclaimed`` admits may use every mode that the topic allows,
    takeover included, as in Pulsar. In modes other than WaitForExclusive the priority is always 0.
    """
    denied = _exists(principal, action, topic)
    if denied is not None:
        return denied
    if topic.declaration is None:
        return _unclaimed(requested)
    access = topic.declaration.spec.access
    priority = None if requested is None else requested.priority
    matching = sorted(
        _matching(principal, topic),
        key=lambda claim: (-claim.spec.priority_in_effect(priority), claim.metadata.name),
    )
    if not matching and access.require_claim:
        return _no_claim(principal, action, topic)
    if not matching and not _may_write_unclaimed(principal, topic):
        return _no_writer(principal, action, topic)
    if requested is None:
        return _produce_somehow(principal, action, topic, matching)
    if requested.mode not in access.modes:
        allowed = ", ".join(MODE_WORDS[each] for each in access.modes)
        text = (
            f"{topic.name.base} does not allow access mode {MODE_WORDS[requested.mode]};"
            f" it allows {allowed}"
        )
        return Denied(action, text, ServerError.NOT_ALLOWED_ERROR)
    if not matching:
        return _unclaimed(requested)
    objections = []
    for claim in matching:
        objection = claim.spec.refuses_mode(requested.mode)
        if objection is None:
            return Granted(
                _queue_priority(requested.mode, claim.spec.priority_in_effect(priority)),
                claim.metadata.name,
                may_take_over=claim.spec.refuses_mode(AccessMode.EXCLUSIVE_WITH_FENCING) is None,
            )
        objections.append(f"{claim.metadata.name} {objection}")
    text = f"mode {MODE_WORDS[requested.mode]} is not for it: ProducerClaim {'; '.join(objections)}"
    return _lacks(principal, action, topic, text)


def _produce_somehow(
    principal: Principal,
    action: Action,
    topic: TopicResource,
    matching: list[ProducerClaim],
) -> Granted | Denied:
    """Decide PRODUCE for any of the modes that the topic allows."""
    last: Granted | Denied = _unclaimed(None)
    if not matching or topic.declaration is None:
        return last
    for mode in topic.declaration.spec.access.modes:
        last = _produce(principal, action, topic, RequestedProducer(mode))
        if isinstance(last, Granted):
            return last
    return last


def _may_write_unclaimed(principal: Principal, topic: TopicResource) -> bool:
    """Whether the identity may write if no claim is required and none matches.

    If topics belong to namespaces, only the topic's own namespace and its declared consumers may. No role includes
    the right to write.
    """
    return (
        _is_open(topic)
        or principal.namespace == topic.namespace
        or _may_read(Principal(principal.identity), topic)
    )


def _no_writer(principal: Principal, action: Action, topic: TopicResource) -> Denied:
    why = "no ProducerClaim is for it, and it is not among those who may write without one"
    return _lacks(principal, action, topic, why, detail=_who_reads(topic))


def _unclaimed(requested: RequestedProducer | None) -> Granted:
    priority = 0 if requested is None else _queue_priority(requested.mode, requested.priority or 0)
    return Granted(priority, "", may_take_over=True)


def _queue_priority(mode: AccessMode, priority: int) -> int:
    return priority if mode is AccessMode.WAIT_FOR_EXCLUSIVE else 0


def _matching(principal: Principal, topic: TopicResource) -> list[ProducerClaim]:
    bare, identity = topic.policy.with_bare_account_names, principal.identity
    return [
        claim
        for claim in topic.claims
        if matches(claim, identity, topic.pods_of, with_bare_names=bare)
    ]


def _no_claim(
    principal: Principal, action: Action, topic: TopicResource, detail: str = ""
) -> Denied:
    for claim in topic.claims:
        bare = topic.policy.with_bare_account_names
        if may_match_later(claim, principal.identity, with_bare_names=bare):
            text = (
                f"{principal} is not among the pods that ProducerClaim {claim.metadata.name} is"
                " known to select, or not yet"
            )
            return Denied(action, text, ServerError.SERVICE_NOT_READY)
    return _lacks(
        principal, action, topic, "it requires a ProducerClaim, and none matches", detail=detail
    )


def _may_write_somehow(principal: Principal, topic: TopicResource) -> bool:
    return isinstance(_produce(principal, Action.PRODUCE, topic, None), Granted)


# ------------------------------------------------------------ owning and looking up


def _own(principal: Principal, topic: TopicResource) -> Granted | Denied:
    """Decide OWN. An owner closes readers and guards writes, so it needs the rights to both.

    If a claim is required to write, a claim of any mode is required to own.
    """
    denied = _exists(principal, Action.OWN, topic)
    if denied is not None:
        return denied
    declaration = topic.declaration
    if declaration is None:
        return _YES
    if declaration.spec.access.require_claim and not _matching(principal, topic):
        return _no_claim(principal, Action.OWN, topic)
    if not _matching(principal, topic) and not _may_write_unclaimed(principal, topic):
        return _no_writer(principal, Action.OWN, topic)
    if not _may_read(principal, topic):
        return _not_a_reader(principal, Action.OWN, topic)
    return _YES


def _reset(principal: Principal, topic: TopicResource) -> Granted | Denied:
    is_allowed = principal.is_administrator or any(
        Permission.RESET_OWNERSHIP in claim.spec.allow for claim in _matching(principal, topic)
    )
    if is_allowed:
        return _exists(principal, Action.RESET_OWNERSHIP, topic) or _YES
    return _lacks(
        principal,
        Action.RESET_OWNERSHIP,
        topic,
        "no matching ProducerClaim allows resetOwnership, and the client is not an administrator",
    )


def _look_up(principal: Principal, topic: TopicResource) -> Granted | Denied:
    """Decide LOOK_UP. Clients look a topic up before they produce or consume, so either right is sufficient.

    A pod that a podSelector may select later may look the topic up, too. Its request to produce gets a retryable error.
    """
    if principal.has(Role.OBSERVER) or _may_read(principal, topic):
        return _exists(principal, Action.LOOK_UP, topic) or _YES
    produce = _produce(principal, Action.LOOK_UP, topic, None)
    if isinstance(produce, Granted) or produce.code is ServerError.SERVICE_NOT_READY:
        return _YES
    return _lacks(
        principal,
        Action.LOOK_UP,
        topic,
        "it may neither produce to it nor consume it",
        detail=_who_reads(topic),
    )


def _lacks(
    principal: Principal, right: Action, resource: Resource, why: str, *, detail: str = ""
) -> Denied:
    text = f"{principal} lacks the right {right} on {resource}: {why}"
    return Denied(right, text, detail=detail)
