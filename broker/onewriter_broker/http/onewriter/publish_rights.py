"""The right under which a request stages, publishes or drops: verifies the proof in the request, and asks
``may``.

Under an epoch, the proof is the holder's registration, or a capability that the holder passed on
(``onewriter_core.publish_rights``). An epoch's number is public and proves nothing.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from onewriter_broker.http.site import IDENTITY, Site
from onewriter_broker.topic.publish.requests import PublishRight
from onewriter_broker.topic.publish.staging import Changer
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_core.authorization import Action, EpochResource, Proof
from onewriter_core.errors import Unavailable
from onewriter_core.ids import Identity, TopicName
from onewriter_core.publish_rights import (
    CAPABILITY_HEADER,
    REGISTRATION_HEADER,
    is_capability_of,
    is_registration,
    parse_capability,
)
from onewriter_core.topic.lookups import tenure_of
from onewriter_core.topic.model import Tenure

_MILLISECONDS: Final = 1000


def shows_proof(request: web.Request) -> bool:
    """Whether a request contains a registration or a capability, valid or not."""
    return REGISTRATION_HEADER in request.headers or CAPABILITY_HEADER in request.headers


def under_epoch(
    site: Site,
    request: web.Request,
    name: TopicName,
    app: str,
    topic: LoadedTopic | None,
    epoch: int | None = None,
    action: Action = Action.PUBLISH_UNDER_EPOCH,
) -> PublishRight:
    """The right to publish (or to stage) as ``app`` under an epoch, from the proof in the request.

    ``epoch``: None means the epoch that leads the topic. ``topic``: None if it does not exist, or if the
    request contains no proof. Raises Refused if the right is missing, Unavailable.
    """
    tenure = None if topic is None else _tenure(topic, name)
    named = epoch if epoch is not None or tenure is None else tenure.epoch
    holder = tenure.identity if tenure is not None and tenure.epoch == named else None
    proof = Proof.NONE
    if shows_proof(request):
        proof = _proof(site, request, name, app, named, holder)
        if proof is Proof.REGISTRATION and holder is None:
            holder = request[IDENTITY]  # a former holder may ask for the result of its publish
    resource = EpochResource(name, app, named, holder, proof)
    site.clients.authorization.require(request[IDENTITY], action, resource)
    if named is None or holder is None:  # it cannot be verified
        raise Unavailable(f"no producer holds {name}")
    passed_on = proof is Proof.CAPABILITY
    return PublishRight(named, holder, is_passed_on=passed_on, owner=owner_of(site, holder))


def owner_of(site: Site, holder: Identity) -> str | None:
    """The subject that apps of this holder are bound to; None if they are not bound.

    If every client is an administrator, clients without a token cannot be distinguished.
    """
    if holder.is_anonymous and site.clients.authorization.principal(holder).is_administrator:
        return None
    return holder.subject


def may_ask_of_ended(
    site: Site, request: web.Request, name: TopicName, topic: LoadedTopic, epoch: int
) -> bool:
    """Whether a caller whose right cannot be verified may ask about an epoch that does not lead.

    The broker forgets the holders of former epochs, so it cannot verify a capability of an epoch that has
    ended.
    """
    tenure = _tenure(topic, name)
    if REGISTRATION_HEADER in request.headers or (tenure is not None and tenure.epoch == epoch):
        return False
    return site.clients.authorization.allows(request[IDENTITY], Action.CONSUME, name)


def changer_of(
    site: Site, request: web.Request, name: TopicName, right: PublishRight | None
) -> Changer:
    """The caller as the changer (replacing or dropping) of parts."""
    identity = request[IDENTITY]
    shown = request.headers.get(REGISTRATION_HEADER)

    def was_holder(epoch: int) -> bool:
        return shown is not None and _is_holder(site, shown, name, epoch, identity)

    return Changer(
        identity,
        None if right is None else right.epoch,
        site.clients.authorization.principal(identity).is_administrator,
        was_holder,
    )


def _tenure(topic: LoadedTopic, name: TopicName) -> Tenure | None:
    partition = topic.runner.topic.partition(topic.partition_of(name))
    return None if partition is None else tenure_of(partition)


def _proof(
    site: Site,
    request: web.Request,
    name: TopicName,
    app: str,
    epoch: int | None,
    holder: Identity | None,
) -> Proof:
    """The right that the proof in the request gives. Raises Unavailable."""
    if epoch is None:
        return Proof.INVALID
    registration = request.headers.get(REGISTRATION_HEADER)
    if registration is not None:
        is_held = _is_holder(site, registration, name, epoch, holder or request[IDENTITY])
        return Proof.REGISTRATION if is_held else Proof.INVALID
    if holder is None:
        return Proof.INVALID
    capability = parse_capability(request.headers.get(CAPABILITY_HEADER, ""))
    if capability is None or capability.app != app:
        return Proof.INVALID
    if not is_capability_of(capability, _registration(site, name, epoch, holder)):
        return Proof.INVALID
    if capability.expires * _MILLISECONDS <= site.clients.wall_ms():
        return Proof.EXPIRED
    return Proof.CAPABILITY


def _is_holder(
    site: Site, registration: str, name: TopicName, epoch: int, holder: Identity
) -> bool:
    return is_registration(registration, _registration(site, name, epoch, holder))


def _registration(site: Site, name: TopicName, epoch: int, holder: Identity) -> str:
    found = site.clients.registrations.of(name, epoch, holder)
    if found is None:
        raise Unavailable("this broker has not read the installation's key yet; retry later")
    return found
