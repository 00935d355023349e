"""The resources of authorization: a topic, a namespace, a resource owned by name, the installation.

Each resource contains everything that a decision depends on, so the decision looks nothing up.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from onewriter_core.api.claim import ProducerClaim
from onewriter_core.api.topic import ExclusiveTopic
from onewriter_core.authorization.claims import PodsOf, no_pods
from onewriter_core.ids import Identity, TopicName

PUBLIC_TENANT: Final = "public"
"""The tenant of the Kubernetes namespace ``default`` (see ExclusiveTopic.topic_name)."""


class ConsumersDefault(StrEnum):
    """The readers of a topic without ``spec.access.consumers``."""

    EVERYONE = "everyone"
    NAMESPACE = "namespace"
    """The ServiceAccounts of the topic's Kubernetes namespace."""


@dataclass(frozen=True, slots=True)
class UndeclaredTopics:
    """The settings for topics that no ExclusiveTopic declares.

    ``are_refused``: such topics do not exist. Otherwise clients may create them in ``namespaces`` (each is
    ``tenant/namespace``), with the defaults and without claims.
    """

    are_refused: bool = False
    namespaces: Container[str] = frozenset({"public/default"})


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings for topics that do not override them."""

    consumers_default: ConsumersDefault = ConsumersDefault.EVERYONE
    undeclared: UndeclaredTopics = UndeclaredTopics()
    with_bare_account_names: bool = True
    """Whether a subject that is only the name of a claim's ServiceAccount matches the claim. Such a name has no
    namespace, so it matches only if the installation does not check tokens of ServiceAccounts."""


def _kubernetes_namespace(tenant: str) -> str:
    return "default" if tenant == PUBLIC_TENANT else tenant


@dataclass(frozen=True, slots=True)
class TopicResource:
    """A topic, or one partition of it.

    ``declaration`` is its ExclusiveTopic, None if there is none. ``claims`` are the claims for it. ``pods_of`` returns
    the pods that the podSelector of a claim is known to select.
    """

    name: TopicName
    declaration: ExclusiveTopic | None = None
    claims: tuple[ProducerClaim, ...] = ()
    pods_of: PodsOf = no_pods
    policy: Policy = Policy()

    @property
    def namespace(self) -> str:
        """The Kubernetes namespace that the topic belongs to. It follows from the tenant if the topic is undeclared."""
        if self.declaration is not None:
            return self.declaration.metadata.namespace
        return _kubernetes_namespace(self.name.tenant)

    def __str__(self) -> str:
        return str(self.name)


class Proof(StrEnum):
    """The verified proof of a request that it may publish under an epoch."""

    NONE = "none"
    """The request has neither a registration nor a capability."""
    REGISTRATION = "registration"
    """The registration of the epoch's holder."""
    CAPABILITY = "capability"
    """A capability that the holder passed on, for this app, which has not expired."""
    INVALID = "invalid"
    """The secret is not of this topic, epoch and app."""
    EXPIRED = "expired"
    """The capability has expired."""


@dataclass(frozen=True, slots=True)
class EpochResource:
    """An epoch of a topic, under which ``app`` publishes.

    ``holder`` is the identity that was granted the epoch, None if unknown.
    """

    name: TopicName
    app: str
    epoch: int | None
    holder: Identity | None
    proof: Proof

    def __str__(self) -> str:
        epoch = "an epoch" if self.epoch is None else f"epoch {self.epoch}"
        return f"{epoch} of {self.name}"


@dataclass(frozen=True, slots=True)
class NamespaceResource:
    """A namespace of topics, ``tenant/namespace``, or a whole tenant."""

    name: str
    policy: Policy = Policy()

    @property
    def namespace(self) -> str:
        """The Kubernetes namespace of this namespace or tenant."""
        return _kubernetes_namespace(self.name.partition("/")[0])

    def __str__(self) -> str:
        return f"namespace {self.name}"


@dataclass(frozen=True, slots=True)
class OwnedResource:
    """A resource that is owned by name and is not a topic.

    ``first_subject`` owned it first and has not released it; None: no subject has.
    """

    name: str
    group: str = ""
    first_subject: str | None = None

    def __str__(self) -> str:
        return f"resource {self.name}" + (f" of group {self.group}" if self.group else "")


@dataclass(frozen=True, slots=True)
class Installation:
    """All brokers and their data."""

    def __str__(self) -> str:
        return "the installation"


INSTALLATION: Final = Installation()

Resource = TopicResource | EpochResource | NamespaceResource | OwnedResource | Installation
